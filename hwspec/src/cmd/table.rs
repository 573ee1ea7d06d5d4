//! The table of commands, built from the declarations in the files of this directory.

use super::{FILES, Opcode};
use crate::layout::{Field, Layout};
use core::fmt::Debug;

/// Declares commands: opcode and name, then input and output in the rows of [`hw_layout!`](crate::hw_layout), without
/// those of the common headers ([`CmdIn`](super::CmdIn), [`CmdOut`](super::CmdOut)).
///
/// ```text
/// 0x400 CreateCq
///     in CreateCqIn: 0x110, uid {
///         0x010         cq_context: CqContext,
///         0x058 [31: 0] cq_umem_id: u32,
///     } then pas: [Page]
///     out CreateCqOut: 0x10 { 0x008 [23: 0] cqn: u32 }
///
/// 0x401 DestroyCq in DestroyCqIn: 0x10, uid { 0x008 [23: 0] cqn: u32 } out CmdOut
/// ```
///
/// - `uid` is given if Linux's headers name the field, and for commands that DEVX sends (`devx.c`), which sets it in
///   every command through the common header (`general_obj_in_cmd_hdr`).
/// - `; other_vport vport_number` is given for commands about any vport: its number, and true unless it is the sender's own.
/// - `then` describes the data after the fixed part: a list to the end, `name: [Entry]`, or a variant of [`Tail`].
/// - A half without rows is declared elsewhere: the header alone, or the layout of another command.
///
/// The macro generates the types, the constants of [`Opcode`], and the file's part of the table.
macro_rules! commands {
    ($( $(#[$m:meta])* $code:literal $name:ident
        in $In:ident $(: $in_size:literal $(, $uid:ident)? $(; $other:ident $vport:ident)? { $($in_row:tt)* })? $(then $in_tail:ident $(: [$in_entry:ty])?)?
        out $Out:ident $(: $out_size:literal { $($out_row:tt)* })? $(then $out_tail:ident $(: [$out_entry:ty])?)?
    )*) => {
        $( $(
            $crate::hw_layout! {
                #[doc = concat!("Input of [`", stringify!($name), "`](crate::cmd::Opcode::", stringify!($name), ").")]
                pub struct $In: $in_size {
                    0x000 [31:16] opcode: $crate::cmd::Opcode,
                    $( /// User context the object belongs to; 0 is the function's own driver.
                    0x000 [15: 0] $uid: u16, )?
                    0x004 [15: 0] op_mod: u16,
                    $( 0x008 [31:31] $other: bool,
                    0x008 [15: 0] $vport: u16, )?
                    $($in_row)*
                }
            }
        )? $(
            $crate::hw_layout! {
                #[doc = concat!("Output of [`", stringify!($name), "`](crate::cmd::Opcode::", stringify!($name), ").")]
                pub struct $Out: $out_size {
                    0x000 [31:24] status: $crate::cmd::Status,
                    0x004 [31: 0] syndrome: u32,
                    $($out_row)*
                }
            }
        )? )*

        #[allow(missing_docs, non_upper_case_globals)]
        impl $crate::cmd::Opcode {
            $( $(#[$m])* pub const $name: Self = Self::from_raw($code); )*
        }

        pub(super) const COMMANDS: &[$crate::cmd::table::Command] = &[ $( {
            use $crate::cmd::table::{Command, Half, Tail};
            Command {
                name: stringify!($name),
                opcode: $crate::cmd::Opcode::$name,
                input: Half::of::<$In>(tail!($($in_tail $($in_entry)?)?)),
                output: Half::of::<$Out>(tail!($($out_tail $($out_entry)?)?)),
            }
        } ),* ];

        pub(super) fn visit(visitor: &mut impl $crate::cmd::Visitor) {
            $( visitor.command::<$In, $Out>($crate::cmd::Opcode::$name); )*
        }
    };
}

/// The [`Tail`] after `then`.
macro_rules! tail {
    () => {
        Tail::None
    };
    ($variant:ident) => {
        Tail::$variant
    };
    ($list:ident $entry:ty) => {
        Tail::list::<$entry>(stringify!($list))
    };
}

/// A command, as declared with `commands!`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Command {
    pub name: &'static str,
    pub opcode: Opcode,
    pub input: Half,
    pub output: Half,
}

/// Input or output: size and rows of the fixed part, and the data after it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Half {
    pub size: usize,
    pub fields: &'static [Field],
    pub tail: Tail,
}

/// The data after the fixed part of an input or output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tail {
    /// Nothing.
    None,
    /// Entries of one kind, to the end: name, size in bytes, rows.
    List(&'static str, usize, &'static [Field]),
    /// Translation entries of a memory key, of the kind given by its access mode.
    Translations,
    /// Destinations, then counters of a flow table entry; their numbers are in its context.
    Destinations,
    /// The register named in the input.
    Register,
    /// The capability page selected by `op_mod` of the input.
    Capability,
}

impl Half {
    pub const fn of<T: Layout>(tail: Tail) -> Self {
        Self { size: T::SIZE, fields: T::FIELDS, tail }
    }
}

impl Tail {
    pub const fn list<T: Layout>(name: &'static str) -> Self {
        Self::List(name, T::SIZE, T::FIELDS)
    }
}

/// Receives the layouts of every command as types, so that a test can read and write all of them.
pub trait Visitor {
    /// A command, its input and its output.
    fn command<In: Layout + Debug, Out: Layout + Debug>(&mut self, opcode: Opcode);
}

const COUNT: usize = {
    let (mut count, mut file) = (0, 0);
    while file < FILES.len() {
        count += FILES[file].len();
        file += 1;
    }
    count
};

/// Every command, by ascending opcode. Two commands with the same opcode fail the build, with the name of one.
const COMMANDS: &[Command] = &{
    let mut all = [FILES[0][0]; COUNT];
    let (mut len, mut file) = (0, 0);
    while file < FILES.len() {
        let mut i = 0;
        while i < FILES[file].len() {
            let command = FILES[file][i];
            let mut at = len;
            while at > 0 && all[at - 1].opcode.raw() >= command.opcode.raw() {
                assert!(all[at - 1].opcode.raw() != command.opcode.raw(), "{}", command.name);
                all[at] = all[at - 1];
                at -= 1;
            }
            all[at] = command;
            len += 1;
            i += 1;
        }
        file += 1;
    }
    all
};

/// The names of all opcodes, for [`Opcode::NAMED`].
pub(super) const NAMES: &[(&str, u16)] = &{
    let mut names = [("", 0); COUNT];
    let mut i = 0;
    while i < COUNT {
        names[i] = (COMMANDS[i].name, COMMANDS[i].opcode.raw());
        i += 1;
    }
    names
};

/// The command of `opcode`, if there is one.
pub(crate) fn find(opcode: Opcode) -> Option<&'static Command> {
    let at = COMMANDS.binary_search_by_key(&opcode.raw(), |command| command.opcode.raw()).ok()?;
    COMMANDS.get(at)
}
