//! Datagrams (IBTA 9.8.3): each packet is a message, accepted by the queue pair if the Q_Key matches.

use hwspec::wire::BthOpcode;

/// A Q_Key with this bit set in a work request selects the sender's own (IBTA 10.2.5).
const OWN_QKEY: u32 = 1 << 31;

/// The Q_Key of an outgoing datagram with `named` in its work request.
pub(crate) fn qkey_of(named: u32, own: u32) -> u32 {
    if named & OWN_QKEY != 0 { own } else { named }
}

/// A received datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Datagram {
    pub opcode: BthOpcode,
    /// Q_Key of its DETH, if it has one.
    pub qkey: Option<u32>,
    /// Bytes of payload, pad excluded.
    pub len: u32,
    /// True if payload and pad together are whole words, as they must be (IBTA 9.2.4).
    pub padded: bool,
}

/// The destination queue pair of a datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receiver {
    /// True if its state allows it to receive packets.
    pub ready: bool,
    /// True for QP0, which manages the subnet: it is in no partition and has no Q_Key (IBTA 9.6.1.1.1,
    /// 9.8.3).
    pub manages: bool,
    pub qkey: u32,
    /// Path MTU in bytes.
    pub mtu: u32,
}

/// The reason why a datagram is silently dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dropped {
    /// The receiver accepts no packets, or none of this transport.
    NotReady,
    /// The P_Key does not match.
    Partition,
    /// The Q_Key does not match.
    QKey,
    /// Longer than the MTU, or not padded to whole words.
    Malformed,
}

/// Succeeds if the receiver accepts the datagram (IBTA 9.6.1, 9.8.3.2.1).
pub(crate) fn check(
    datagram: &Datagram,
    receiver: &Receiver,
    is_in_partition: impl FnOnce() -> bool,
) -> Result<(), Dropped> {
    let known = matches!(datagram.opcode, BthOpcode::UdSendOnly | BthOpcode::UdSendOnlyImm);
    let qkey = datagram.qkey.filter(|_| receiver.ready && known).ok_or(Dropped::NotReady)?;
    if !receiver.manages {
        if !is_in_partition() {
            return Err(Dropped::Partition);
        }
        if qkey != receiver.qkey {
            return Err(Dropped::QKey);
        }
    }
    match datagram.padded && datagram.len <= receiver.mtu {
        true => Ok(()),
        false => Err(Dropped::Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_are_checked_in_the_order_of_the_specification() {
        let receiver = Receiver { ready: true, manages: false, qkey: 0x11, mtu: 256 };
        let good = Datagram { opcode: BthOpcode::UdSendOnly, qkey: Some(0x11), len: 256, padded: true };
        assert_eq!(check(&good, &receiver, || true), Ok(()));
        let bad = Datagram { qkey: Some(0x12), len: 257, ..good };
        assert_eq!(check(&bad, &Receiver { ready: false, ..receiver }, || false), Err(Dropped::NotReady));
        assert_eq!(check(&bad, &receiver, || false), Err(Dropped::Partition));
        assert_eq!(check(&bad, &receiver, || true), Err(Dropped::QKey));
        assert_eq!(check(&Datagram { len: 257, ..good }, &receiver, || true), Err(Dropped::Malformed));
        let other = Datagram { opcode: BthOpcode::RcSendOnly, ..good };
        assert_eq!(check(&other, &receiver, || true), Err(Dropped::NotReady));
        let manager = Receiver { manages: true, ..receiver };
        assert_eq!(check(&Datagram { len: 256, ..bad }, &manager, || false), Ok(()));
    }

    #[test]
    fn a_qkey_with_its_upper_bit_set_is_the_senders_own() {
        assert_eq!(qkey_of(0x7fff_ffff, 5), 0x7fff_ffff);
        assert_eq!(qkey_of(0x8001_0000, 5), 5);
    }
}
