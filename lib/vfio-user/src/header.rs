//! The header of every message.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a [`Header`].
pub const HEADER_SIZE: usize = 16;
const _: () = assert!(size_of::<Header>() == HEADER_SIZE);

/// Command of a request. Any number is representable; a receiver answers unknown ones with ENOTSUP.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Command(pub u16);

macro_rules! commands { ($($name:ident = $number:literal,)*) => {
    #[allow(missing_docs)]
    impl Command {
        $( pub const $name: Self = Self($number); )*

        /// Its name in the specification, without the prefix.
        pub fn name(self) -> Option<&'static str> {
            match self {
                $( Self::$name => Some(stringify!($name)), )*
                _ => None,
            }
        }
    }
} }

commands! {
    VERSION = 1,
    DMA_MAP = 2,
    DMA_UNMAP = 3,
    DEVICE_GET_INFO = 4,
    DEVICE_GET_REGION_INFO = 5,
    DEVICE_GET_REGION_IO_FDS = 6,
    DEVICE_GET_IRQ_INFO = 7,
    DEVICE_SET_IRQS = 8,
    REGION_READ = 9,
    REGION_WRITE = 10,
    DMA_READ = 11,
    DMA_WRITE = 12,
    DEVICE_RESET = 13,
    REGION_WRITE_MULTI = 15,
    DEVICE_FEATURE = 16,
}

impl std::fmt::Debug for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "command {}", self.0),
        }
    }
}

/// Type of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A request.
    Request,
    /// A reply.
    Reply,
}

const TYPE: u32 = 0xf;
const REPLY: u32 = 1;
const NO_REPLY: u32 = 1 << 4;
const ERROR: u32 = 1 << 5;

/// The first 16 bytes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Header {
    /// Chosen by the sender of the request, and returned in the reply.
    pub id: u16,
    /// The number of the [`Command`].
    pub command: u16,
    /// Length of the message in bytes, including this header.
    pub size: u32,
    /// Bits 3:0 type (0 request, 1 reply), bit 4 no reply wanted, bit 5 request refused.
    pub flags: u32,
    /// The errno of a refusal.
    pub error: u32,
}

impl Header {
    /// A request with `payload` bytes after the header.
    pub fn request(id: u16, command: Command, payload: usize) -> Self {
        Self { id, command: command.0, size: (HEADER_SIZE + payload) as u32, flags: 0, error: 0 }
    }

    /// The reply to the request with this header, with `payload` bytes.
    pub fn reply(&self, payload: usize) -> Self {
        Self { size: (HEADER_SIZE + payload) as u32, flags: REPLY, error: 0, ..*self }
    }

    /// The refusal of the request with this header, which never has a payload.
    pub fn refusal(&self, errno: i32) -> Self {
        Self { size: HEADER_SIZE as u32, flags: REPLY | ERROR, error: errno.unsigned_abs(), ..*self }
    }

    /// Request or reply, `None` if neither.
    pub fn kind(&self) -> Option<Kind> {
        match self.flags & TYPE {
            0 => Some(Kind::Request),
            REPLY => Some(Kind::Reply),
            _ => None,
        }
    }

    /// The command.
    pub fn command(&self) -> Command {
        Command(self.command)
    }

    /// True if the sender wants no reply.
    pub fn no_reply(&self) -> bool {
        self.flags & NO_REPLY != 0
    }

    /// This request, with no reply wanted.
    pub fn without_reply(self) -> Self {
        Self { flags: self.flags | NO_REPLY, ..self }
    }

    /// The errno of a refusal, EIO if it has none.
    pub fn refused(&self) -> Option<i32> {
        let errno = i32::try_from(self.error).ok().filter(|e| *e != 0).unwrap_or(libc::EIO);
        (self.flags & ERROR != 0).then_some(errno)
    }
}
