//! The header of every message.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a [`Header`].
pub const HEADER_SIZE: usize = 16;
const _: () = assert!(size_of::<Header>() == HEADER_SIZE);

/// Command of a request. Any number is representable; a receiver answers unknown ones with ENOTSUP.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Command(pub u16);

#[allow(missing_docs)]
impl Command {
    pub const VERSION: Self = Self(1);
    pub const DMA_MAP: Self = Self(2);
    pub const DMA_UNMAP: Self = Self(3);
    pub const DEVICE_GET_INFO: Self = Self(4);
    pub const DEVICE_GET_REGION_INFO: Self = Self(5);
    pub const DEVICE_GET_REGION_IO_FDS: Self = Self(6);
    pub const DEVICE_GET_IRQ_INFO: Self = Self(7);
    pub const DEVICE_SET_IRQS: Self = Self(8);
    pub const REGION_READ: Self = Self(9);
    pub const REGION_WRITE: Self = Self(10);
    pub const DMA_READ: Self = Self(11);
    pub const DMA_WRITE: Self = Self(12);
    pub const DEVICE_RESET: Self = Self(13);
    pub const REGION_WRITE_MULTI: Self = Self(15);
    pub const DEVICE_FEATURE: Self = Self(16);

    /// Its name in the specification, without the prefix.
    pub fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::VERSION => "VERSION",
            Self::DMA_MAP => "DMA_MAP",
            Self::DMA_UNMAP => "DMA_UNMAP",
            Self::DEVICE_GET_INFO => "DEVICE_GET_INFO",
            Self::DEVICE_GET_REGION_INFO => "DEVICE_GET_REGION_INFO",
            Self::DEVICE_GET_REGION_IO_FDS => "DEVICE_GET_REGION_IO_FDS",
            Self::DEVICE_GET_IRQ_INFO => "DEVICE_GET_IRQ_INFO",
            Self::DEVICE_SET_IRQS => "DEVICE_SET_IRQS",
            Self::REGION_READ => "REGION_READ",
            Self::REGION_WRITE => "REGION_WRITE",
            Self::DMA_READ => "DMA_READ",
            Self::DMA_WRITE => "DMA_WRITE",
            Self::DEVICE_RESET => "DEVICE_RESET",
            Self::REGION_WRITE_MULTI => "REGION_WRITE_MULTI",
            Self::DEVICE_FEATURE => "DEVICE_FEATURE",
            _ => return None,
        })
    }
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
