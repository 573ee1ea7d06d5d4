//! The state that every input begins in.

use std::sync::OnceLock;
use tests::bed::{Access, Bed, MS, Mr, Path, Peer, Qp, Saved, Wr};

/// A bed with a victim and two bystanders.
pub struct Stage {
    /// The bed.
    pub bed: Bed,
    /// Function 1's QP, connected to function 2.
    pub victim: Qp,
    /// Function 1's other QP, connected to a foreign peer.
    pub foreign: Peer,
    /// Function 1's region.
    pub mr: Mr,
    /// Function 2's region that the victim may use.
    pub remote: Mr,
    bystanders: [Qp; 2],
    regions: [Mr; 2],
}

#[derive(Clone)]
struct Kept {
    saved: Saved,
    victim: Qp,
    foreign: Peer,
    mr: Mr,
    remote: Mr,
    bystanders: [Qp; 2],
    regions: [Mr; 2],
}

fn build() -> Kept {
    let mut bed = Bed::cx5();
    let path = Path { mtu: 256, timeout: 6, retry_count: 3, min_rnr_nak: 1, rnr_retry: 3, ..Path::default() };
    let (victim, peer) = bed.pair(path);
    let foreign = bed.foreign(1, path);
    let (c, d) = (bed.qp(2), bed.qp(3));
    bed.connect_with(c, d, path);
    let mr = bed.mr(1, 8192, Access { remote_invalidate: true, ..Access::ALL });
    let remote = bed.mr(2, 8192, Access::ALL);
    let regions = [bed.mr(2, 2048, Access::ALL), bed.mr(3, 2048, Access::ALL)];
    for _ in 0..8 {
        bed.post_recv(victim, &[mr.part(4096, 1024)]);
        bed.post_recv(foreign.qp, &[mr.part(4096, 1024)]);
        bed.post_recv(peer, &[remote.part(4096, 1024)]);
    }
    bed.take_frames();
    let saved = bed.save();
    Kept { saved, victim, foreign, mr, remote, bystanders: [c, d], regions }
}

impl Stage {
    /// The state before an input.
    pub fn new() -> Self {
        static KEPT: OnceLock<Kept> = OnceLock::new();
        let kept = KEPT.get_or_init(build).clone();
        let Kept { saved, victim, foreign, mr, remote, bystanders, regions } = kept;
        Self { bed: Bed::restore(&saved), victim, foreign, mr, remote, bystanders, regions }
    }

    /// Lets the consequences happen, then sees to it that the bystanders were not touched and still work.
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
