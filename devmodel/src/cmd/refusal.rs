//! The reason why a command was refused: the status defined by the interface, and a syndrome that identifies
//! the failed check.

use crate::region::Shortage;
use hwspec::cmd::Status;

macro_rules! syndromes { ($( $(#[$m:meta])* $name:ident = $code:literal, $status:ident, $text:literal; )*) => {
    /// The check that refused a command. Syndromes are specific to a device; the high half marks these as
    /// ours.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[repr(u32)]
    pub enum Syndrome { $( #[doc = $text] $name = 0x1b56_0000 | $code, )* }

    impl Syndrome {
        /// All syndromes.
        pub const ALL: &'static [Self] = &[ $( Self::$name ),* ];
        /// The status of a command refused by this check.
        pub const fn status(self) -> Status {
            match self { $( Self::$name => Status::$status, )* }
        }
        /// The expected condition, as text.
        pub const fn text(self) -> &'static str {
            match self { $( Self::$name => $text, )* }
        }
        /// The code in the command's output.
        pub const fn code(self) -> u32 {
            self as u32
        }
        /// The syndrome with this code.
        pub fn from_code(code: u32) -> Option<Self> {
            Self::ALL.iter().copied().find(|s| s.code() == code)
        }
    }
} }

syndromes! {
    UnknownOpcode = 0x01, BadOp, "an opcode this device knows";
    NotOnThisLink = 0x02, BadOp, "a command of the port's link layer";
    OpMod = 0x03, BadParam, "an op_mod this command knows";
    InputLength = 0x04, BadInputLen, "an input as long as the command and its lists";
    OutputLength = 0x05, BadOutputLen, "room for the whole answer";
    HcaState = 0x06, BadSysState, "the command in a state of the bring-up that allows it";
    PagesMissing = 0x07, Lim, "all pages asked for to be given";
    FunctionId = 0x08, BadParam, "a function or vport that the caller manages";
    Uid = 0x09, BadResource, "the uid of a user context of this function";
    Privileged = 0x0a, BadResource, "uid 0: the command belongs to the function's own driver";
    PageAddress = 0x0b, BadParam, "page addresses aligned to 4096 bytes";
    Issi = 0x0c, BadParam, "an interface step sequence this device supports";
    CapValue = 0x0e, BadParam, "capabilities within the maximum, of those that can be set";
    Register = 0x0f, BadParam, "a register this device has, and a method it supports";
    Reserved = 0x11, BadParam, "zero in every bit that no field owns";
    Teardown = 0x10, BadParam, "a teardown profile this device supports";

    NoSuchEq = 0x20, BadResource, "an event queue of the caller";
    NoSuchCq = 0x21, BadResource, "a completion queue of the caller";
    NoSuchQp = 0x22, BadResource, "a queue pair of the caller";
    NoSuchSrq = 0x23, BadResource, "a shared receive queue of the caller, of this kind";
    NoSuchMkey = 0x24, BadResource, "a memory key of the caller";
    NoSuchPd = 0x25, BadResource, "a protection domain of the caller";
    NoSuchUar = 0x26, BadResource, "a UAR page of the caller";
    NoSuchTd = 0x27, BadResource, "a transport domain of the caller";
    NoSuchXrcd = 0x28, BadResource, "an XRC domain of the caller";
    NoSuchCounter = 0x29, BadResource, "a counter set of the caller";
    NoSuchUctx = 0x2a, BadResource, "a user context";
    UctxRights = 0x2f, BadParam, "rights that the capabilities offer";
    RawTx = 0xd7, BadResource, "a user context with the right to send raw packets";
    NoSuchSq = 0xc0, BadResource, "a send queue of the caller";
    NoSuchRq = 0xc1, BadResource, "a receive queue of the caller";
    NoSuchTis = 0xc2, BadResource, "a TIS of the caller";
    NoSuchTir = 0xc3, BadResource, "a TIR of the caller";
    NoSuchRqt = 0xc4, BadResource, "a receive queue table of the caller";
    NoSuchFlowTable = 0xc5, BadResource, "a flow table of the caller";
    NoSuchFlowGroup = 0xc6, BadResource, "a flow group of this table";
    NoSuchFlowEntry = 0xc7, BadResource, "a flow index with an entry";
    NoSuchFlowCounter = 0xc8, BadResource, "a flow counter of the caller";
    QueueFlags = 0xc9, BadParam, "options this device supports";
    QueueState = 0xca, BadResState, "the queue in the state named, and a transition there is";
    HashFunction = 0xcb, BadParam, "a hash function and fields this device supports";
    RqtSize = 0xcc, BadParam, "at least one queue, and no more than the table may have";
    FlowTableType = 0xcd, BadParam, "a table of the type NIC receive";
    FlowLevel = 0xce, BadParam, "tables of rising levels within the advertised limit";
    FlowRange = 0xcf, BadIndex, "flow indices of the table, of no other group";
    FlowMatch = 0xd0, BadParam, "outer header fields to match";
    FlowAction = 0xd1, BadParam, "an action this device supports";
    FlowDestination = 0xd2, BadParam, "as many destinations and counters as the action calls for, of a kind this device has";
    FlowControl = 0xd6, BadParam, "no flow control";
    CounterGroup = 0xd5, BadParam, "a group of counters this device has";
    VportAddress = 0xd4, BadParam, "a unicast address that is not zero";
    VportList = 0xd3, BadParam, "a list of a kind this device has, within the advertised size";
    Scheduling = 0xd9, BadParam, "an element of the e-switch's hierarchy that this device supports";
    NoSuchElement = 0xd8, BadResource, "a scheduling element of the caller";
    CongProtocol = 0xda, BadParam, "congestion control of RoCE: of its reaction or notification points";
    CongPriority = 0xdb, BadParam, "a priority from 0 to 7, and no tags";
    CongParameter = 0xdc, BadParam, "parameters that this protocol has, each within its range";
    InUse = 0x2b, BadResState, "an object nothing refers to";
    TableFull = 0x2c, Lim, "a free entry: the advertised limit is reached";
    NoTranslation = 0x2d, NoResources, "free translation entries";
    PagesDenied = 0x30, NoResources, "pages that the driver could give";
    NoMemory = 0x2e, Lim, "room in the memory that the device's tables lie in (for a simulated adapter, shared memory)";

    QueueSize = 0x40, BadParam, "a queue size within the advertised limit";
    PageSize = 0x41, BadParam, "a page size of at least 4096 bytes";
    PageList = 0x42, BadParam, "a page list that holds the whole queue or region";
    DoorbellRecord = 0x43, BadParam, "a doorbell record aligned to 8 bytes";
    Vector = 0x44, BadIndex, "an interrupt vector the function has";
    Umem = 0x45, BadParam, "a page list: only CQs and QPs take user memory objects";
    Memic = 0x4e, BadParam, "a range of the caller's device memory, or of that which can be had";
    NoMemic = 0x4f, NoResources, "free device memory within the range asked for";
    NoSuchUmem = 0x48, BadResource, "a user memory object of this user context";
    EventMask = 0x49, BadParam, "events that the capabilities offer";
    EventMapped = 0x4a, BadParam, "events that no other event queue has";
    EventOfPages = 0x4b, BadParam, "requests for pages on a queue of their own, but for commands";
    EventOwner = 0x4c, BadParam, "events of other kinds than completions at uid 0";
    EqNumber = 0x4d, BadResState, "the user context of an event queue whose number another has too";
    CqFlags = 0x46, BadParam, "CQ options this device supports";
    ModifyField = 0x47, BadParam, "a field that can be modified";

    AccessMode = 0x60, BadParam, "access mode PA or MTT";
    MkeyLength = 0x61, BadParam, "a region within the advertised size and the address space";
    MkeyAccess = 0x62, BadParam, "access rights this key may have";

    ServiceType = 0x80, BadParam, "a service type this device supports";
    Stride = 0x81, BadParam, "receive WQEs of a size within the advertised limits";
    RqType = 0x82, BadParam, "a kind of receive queue this device supports";
    QpState = 0x83, BadQpState, "the transition in a state that allows it";
    OptParam = 0x84, BadParam, "optional parameters this transition takes";
    PathMtu = 0x85, BadParam, "a path MTU of 256 to 4096 bytes";
    MessageSize = 0x86, BadParam, "a message size within the advertised limit";
    PkeyIndex = 0x87, BadIndex, "an index of the P_Key table (on Ethernet 0)";
    Port = 0x88, BadParam, "port 1";
    SourceAddress = 0x89, BadIndex, "a valid entry of the RoCE address or GID table";
    ReadDepth = 0x8a, BadParam, "READs and atomics under way within the advertised limit";
    Signature = 0x8b, BadParam, "no WQE signature";
    GroupGid = 0x8c, BadParam, "the GID of a multicast group";
    NotInGroup = 0x8d, BadResource, "a QP that was attached to this group";

    RoceAddress = 0xa0, BadParam, "a RoCE v2 address, IPv4 or IPv6";
    AddressIndex = 0xa1, BadIndex, "an index of the RoCE address table";
    Mtu = 0xa2, BadParam, "an MTU the port supports";
    VportState = 0xa3, BadParam, "administrative state down, up or follow";
    TableIndex = 0xb0, BadIndex, "an index of the GID or P_Key table";
    ManagementKey = 0xb1, BadPkt, "a management packet with the port's management key";
}

/// A command was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refused(pub Syndrome);

impl From<Shortage> for Refused {
    fn from(short: Shortage) -> Self {
        Self(match short {
            Shortage::Full => Syndrome::TableFull,
            Shortage::NoMemory => Syndrome::NoMemory,
        })
    }
}

/// The result of a command handler.
pub(super) type Done<T = ()> = Result<T, Refused>;

impl Syndrome {
    /// Refuses unless `ok`.
    pub(super) fn unless(self, ok: bool) -> Done {
        if ok { Ok(()) } else { Err(Refused(self)) }
    }
    /// Refuses.
    pub(super) fn refuse<T>(self) -> Done<T> {
        Err(Refused(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_syndrome_has_a_code_of_its_own_and_a_bad_status() {
        for (i, s) in Syndrome::ALL.iter().enumerate() {
            assert_eq!(Syndrome::from_code(s.code()), Some(*s));
            assert_ne!(s.status(), Status::Ok);
            assert!(!Syndrome::ALL[..i].iter().any(|t| t.code() == s.code()));
        }
    }
}
