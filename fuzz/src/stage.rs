//! The initial state for every input.

use hwspec::context::{AccessMode, ServiceType};
use std::sync::OnceLock;
use tests::bed::{Access, Av, Bed, MS, Mr, Path, Peer, Qp, QpSpec, Saved, Srq, Wr};

/// A test bed with a victim and two bystanders.
pub struct Stage {
    /// The test bed.
    pub bed: Bed,
    /// Function 1's QP, connected to function 2.
    pub victim: Qp,
    /// Function 1's other QP, connected to a foreign peer.
    pub foreign: Peer,
    /// Function 1's region.
    pub mr: Mr,
    /// Function 2's region, which the victim may use.
    pub remote: Mr,
    /// Function 1's QPs of other services.
    pub others: Others,
    bystanders: [Qp; 2],
    regions: [Mr; 2],
}

/// QPs and objects of the services other than RC.
#[derive(Clone, Copy)]
pub struct Others {
    /// UD QP, member of a group.
    pub datagram: Qp,
    /// QP1.
    pub general: Qp,
    /// QP that executes UMRs on any key.
    pub umr: Qp,
    /// UC QP with a foreign peer.
    pub unreliable: Qp,
    /// XRC target QP, in the same domain as `srq`.
    pub target: Qp,
    /// SRQ of the XRC domain of `target`.
    pub srq: Srq,
    /// Free keys for UMR: over pages, and over other keys.
    pub keys: [u32; 2],
}

impl Others {
    /// Q_Key of the datagram QP.
    pub const QKEY: u32 = 0x1234;
    /// Q_Key of QP1.
    pub const GENERAL_QKEY: u32 = 0x8001_0000;

    fn build(bed: &mut Bed, path: Path, mr: Mr) -> Self {
        let spec = |service| QpSpec { service, ..QpSpec::default() };
        let datagram = bed.datagram(1, ServiceType::Ud, Self::QKEY);
        bed.attach(datagram, Av::group_gid(1)).expect("ATTACH_TO_MCG");
        let general = bed.datagram(1, ServiceType::Qp1, Self::GENERAL_QKEY);
        let umr = bed.umr_qp(1);
        let unreliable = bed.foreign_with(1, spec(ServiceType::Uc), path).qp;
        let (xrcd, cq) = (bed.xrcd(1), bed.cq(1));
        let srq = bed.xrc_srq(1, 5, xrcd, cq);
        let target = QpSpec { srq: Some(srq), xrcd, no_sq: true, ..spec(ServiceType::Xrc) };
        let target = bed.foreign_with(1, target, path).qp;
        let pd = bed.state(1).pd;
        let keys = [AccessMode::Mtt, AccessMode::Klm].map(|mode| bed.free_key(1, mode, 8, pd));
        for _ in 0..8 {
            for qp in [datagram, general, unreliable] {
                bed.post_recv(qp, &[mr.part(6000, 1024)]);
            }
            bed.post_srq(srq, &[mr.part(6000, 1024)]);
        }
        Self { datagram, general, umr, unreliable, target, srq, keys }
    }
}

#[derive(Clone)]
struct Kept {
    saved: Saved,
    victim: Qp,
    foreign: Peer,
    mr: Mr,
    remote: Mr,
    others: Others,
    bystanders: [Qp; 2],
    regions: [Mr; 2],
}

fn build() -> Kept {
    let mut bed = Bed::cx5();
    let path = Path { mtu: 256, timeout: 6, retry_count: 3, min_rnr_nak: 1, rnr_retry: 3, ..Path::default() };
    let (victim, peer) = bed.pair(path);
    let foreign = bed.foreign(1, path);
    let (c, d) = (bed.qp(2), bed.qp(3));
    bed.connect(c, d, path);
    let mr = bed.mr(1, 8192, Access { remote_invalidate: true, ..Access::ALL });
    let remote = bed.mr(2, 8192, Access::ALL);
    let regions = [bed.mr(2, 2048, Access::ALL), bed.mr(3, 2048, Access::ALL)];
    for _ in 0..8 {
        bed.post_recv(victim, &[mr.part(4096, 1024)]);
        bed.post_recv(foreign.qp, &[mr.part(4096, 1024)]);
        bed.post_recv(peer, &[remote.part(4096, 1024)]);
    }
    let others = Others::build(&mut bed, path, mr);
    bed.take_frames();
    let saved = bed.save();
    Kept { saved, victim, foreign, mr, remote, others, bystanders: [c, d], regions }
}

impl Stage {
    /// Builds the state before an input.
    pub fn new() -> Self {
        static KEPT: OnceLock<Kept> = OnceLock::new();
        let kept = KEPT.get_or_init(build).clone();
        let Kept { saved, victim, foreign, mr, remote, others, bystanders, regions } = kept;
        Self { bed: Bed::restore(&saved), victim, foreign, mr, remote, others, bystanders, regions }
    }

    /// Runs the model until the consequences have happened, then checks that the bystanders are unchanged and still work.
    pub fn judge(mut self) {
        self.bed.wire().forgetful = true;
        self.bed.advance(20 * MS);
        let [c, d] = self.bystanders;
        let [from, to] = self.regions;
        assert!(
            self.bed.bytes(from).iter().chain(&self.bed.bytes(to)).all(|b| *b == 0),
            "memory of others was written"
        );
        assert!(
            !self.bed.has_completion(c.send_cq) && !self.bed.has_completion(d.send_cq),
            "completions nobody asked for"
        );
        let data = self.bed.pattern(from, 0x5a);
        self.bed.post_recv(d, &[to.part(0, 1024)]);
        self.bed.post_all(c, &[Wr::write(from.sge(), to), Wr::send(from.part(1024, 1024))]);
        self.bed.advance(20 * MS);
        let sends = self.bed.completions(c.send_cq);
        assert!(sends.len() == 2 && sends.iter().all(|wc| wc.is_ok()), "others can't send: {sends:?}");
        assert!(self.bed.one(d.recv_cq).is_ok());
        assert_eq!(self.bed.bytes(to), [&data[1024..], &data[1024..]].concat());
    }
}
