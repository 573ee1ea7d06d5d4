//! A peer that is not a function of the adapter: it sends packets written by a test, and its answers are checked byte by byte.

use super::{Bed, Captured, Path, Qp, QpSpec};
use devmodel::identity;
use hwspec::{
    handle::{Psn, Qpn, Srqn},
    layout::Set,
    wire::{
        Aeth, AtomicAckEth, AtomicEth, Bth, BthOpcode, Deth, Envelope, IpPair, Packet, Reth, Syndrome, build,
        ip::gid_of_v4, write_frame,
    },
};

/// MAC of foreign peers.
const MAC: [u8; 6] = [0x02, 0xaa, 0xbb, 0xcc, 0xdd, 0x01];
/// IPv4 address of foreign peers.
const ADDRESS: [u8; 4] = [10, 1, 2, 3];
/// QP number of foreign peers.
const QPN: u32 = 0xabcdef;

/// A foreign peer, connected to a QP of the adapter.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// The QP that it is connected to.
    pub qp: Qp,
    /// The path of that QP, as seen from the adapter.
    pub path: Path,
}

/// A packet sent by a peer.
#[derive(Clone, Debug)]
pub struct Pkt {
    packet: Packet,
    payload: Vec<u8>,
}

impl Pkt {
    /// A packet with MigReq set and the default P_Key, without AckReq and payload.
    pub fn new(opcode: BthOpcode, psn: u32) -> Self {
        let mut packet = Packet::default();
        packet.bth.set().opcode(opcode).psn(Psn::new(psn)).mig_req(true).pkey(0xffff);
        Self { packet, payload: Vec::new() }
    }
    /// Adds a payload.
    #[must_use]
    pub fn payload(mut self, bytes: &[u8]) -> Self {
        self.payload = bytes.to_vec();
        self
    }
    /// Sets AckReq.
    #[must_use]
    pub fn ack_req(mut self) -> Self {
        self.packet.bth.set().ack_req(true);
        self
    }
    /// Adds a RETH.
    #[must_use]
    pub fn reth(mut self, va: u64, rkey: u32, len: u32) -> Self {
        self.packet.reth = Reth::with(|s| s.va(va).rkey(rkey).dma_len(len));
        self
    }
    /// Adds an AtomicETH.
    #[must_use]
    pub fn atomic(mut self, va: u64, rkey: u32, swap_add: u64, compare: u64) -> Self {
        let atomic = AtomicEth::with(|s| s.va(va).rkey(rkey).swap_add(swap_add).compare(compare));
        self.packet.atomic = atomic;
        self
    }
    /// Adds an AETH.
    #[must_use]
    pub fn aeth(mut self, syndrome: Syndrome, msn: u32) -> Self {
        self.packet.aeth = Aeth::with(|s| s.syndrome(syndrome).msn(Psn::new(msn)));
        self
    }
    /// Adds an AtomicAckETH.
    #[must_use]
    pub fn atomic_ack(mut self, original: u64) -> Self {
        self.packet.atomic_ack = AtomicAckEth::with(|s| s.original(original));
        self
    }
    /// Adds a DETH.
    #[must_use]
    pub fn deth(mut self, qkey: u32, src_qp: u32) -> Self {
        self.packet.deth = Deth::with(|s| s.qkey(qkey).src_qp(Qpn(src_qp)));
        self
    }
    /// Adds an XRCETH.
    #[must_use]
    pub fn xrceth(mut self, srqn: u32) -> Self {
        self.packet.xrceth.set().srqn(Srqn(srqn));
        self
    }
    /// Adds immediate data.
    #[must_use]
    pub fn imm(mut self, imm: u32) -> Self {
        self.packet.imm = imm;
        self
    }
    /// Adds a key to invalidate.
    #[must_use]
    pub fn ieth(mut self, rkey: u32) -> Self {
        self.packet.ieth = rkey;
        self
    }
    /// Changes other fields of the BTH.
    #[must_use]
    pub fn bth(
        mut self,
        change: impl for<'s, 'x> FnOnce(&'s mut Set<'x, Bth>) -> &'s mut Set<'x, Bth>,
    ) -> Self {
        change(&mut self.packet.bth.set());
        self
    }
}

impl Peer {
    /// Returns the frame of `pkt` as it reaches the adapter.
    pub fn frame(&self, pkt: &Pkt) -> Vec<u8> {
        self.frame_in(pkt, &self.envelope())
    }

    /// Returns the headers that the peer's packets begin with.
    pub fn envelope(&self) -> Envelope {
        let addresses = IpPair::V4 { src: ADDRESS, dst: [127, 0, 0, self.qp.fid + 1] };
        Envelope::new(MAC, identity::mac(0, self.qp.fid), addresses)
    }

    /// Like [`frame`](Self::frame), with different headers before the BTH.
    pub fn frame_in(&self, pkt: &Pkt, envelope: &Envelope) -> Vec<u8> {
        let mut packet = pkt.packet;
        if packet.bth.dest_qp().0 == 0 {
            packet.bth.set().dest_qp(Qpn(self.qp.qpn));
        }
        let mut frame = vec![0; build::frame_len(envelope, packet.bth.opcode(), pkt.payload.len())];
        write_frame(&mut frame, envelope, &packet, &pkt.payload).expect("a packet that IP can carry");
        frame
    }
}

impl Bed {
    /// Creates an RC QP on function `fid`, in RTS, with a foreign peer.
    pub fn foreign(&mut self, fid: u8, path: Path) -> Peer {
        let qp = self.qp(fid);
        self.foreign_of(qp, path)
    }

    /// Like [`foreign`](Self::foreign), with creation parameters `spec`.
    pub fn foreign_with(&mut self, fid: u8, spec: QpSpec, path: Path) -> Peer {
        let qp = self.qp_with(fid, spec).unwrap_or_else(|e| panic!("CREATE_QP: {e:?}"));
        self.foreign_of(qp, path)
    }

    /// Connects `qp` to a foreign peer.
    pub fn foreign_of(&mut self, qp: Qp, path: Path) -> Peer {
        let path = Path { remote_qpn: QPN, dmac: MAC, dgid: gid_of_v4(ADDRESS), ..path };
        self.ready(qp, &path);
        Peer { qp, path }
    }

    /// Delivers the peer's packet. Returns the frames that the adapter sends back at once.
    pub fn from_peer(&mut self, peer: Peer, pkt: &Pkt) -> Vec<Captured> {
        self.inject(&peer.frame(pkt));
        self.answers()
    }

    /// Returns the frames that left the adapter since the last call.
    pub fn answers(&mut self) -> Vec<Captured> {
        let at = self.now();
        let left = std::mem::take(&mut self.wire().left);
        left.into_iter()
            .map(|bytes| Captured { at, from: bytes.get(11).copied().unwrap_or(0), bytes })
            .collect()
    }
}
