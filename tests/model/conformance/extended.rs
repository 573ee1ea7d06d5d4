//! Extended reliable connection: one connection for many shared receive queues.

use super::common::*;
use hwspec::context::ServiceType;

/// An initiator on function 1, a target on function 2, and two XRC SRQs there with their own CQs.
struct Stage {
    bed: Bed,
    initiator: Qp,
    target: Qp,
    srqs: [Srq; 2],
    cqs: [Cq; 2],
    from: Mr,
    to: Mr,
}

fn stage() -> Stage {
    let mut bed = Bed::cx5();
    let ends = [1, 2].map(|fid| {
        let (xrcd, cq) = (bed.xrcd(fid), bed.cq(fid));
        let srq = Some(bed.xrc_srq(fid, 4, xrcd, cq));
        QpSpec { service: ServiceType::Xrc, srq, xrcd, no_sq: fid == 2, ..QpSpec::default() }
    });
    let (initiator, target) = bed.pair_of(ends, path());
    let cqs = [bed.cq(2), bed.cq(2)];
    let srqs = cqs.map(|cq| bed.xrc_srq(2, 4, ends[1].xrcd, cq));
    let (from, to) = (bed.mr(1, 2048, Access::ALL), bed.mr(2, 2048, Access::ALL));
    Stage { bed, initiator, target, srqs, cqs, from, to }
}

/// Row 50: a message uses a receive of the SRQ that it names, and completes on that SRQ's CQ with the SRQ's number.
#[test]
fn row_50_xrc_messages_go_to_the_srq_they_name() {
    let mut s = stage();
    let data = s.bed.pattern(s.from, 1);
    for (i, len) in [(0usize, 700u32), (1, 10), (1, 2048), (0, 0)] {
        s.bed.fill(s.to, &[0; 2048]);
        s.bed.post_srq(s.srqs[i], &[s.to.sge()]);
        let mut wr = Wr::send(s.from.part(0, len)).for_srq(s.srqs[i].srqn);
        if len == 0 {
            wr.sges.clear();
        }
        s.bed.done(s.initiator, &wr);
        let cqe = s.bed.poll_raw(s.cqs[i]).expect("a completion");
        assert_eq!((cqe.byte_cnt(), cqe.qpn().0, cqe.srqn_uidx()), (len, s.target.qpn, s.srqs[i].srqn));
        assert_eq!(s.bed.completions(s.cqs[1 - i]), []);
        assert_eq!(s.bed.bytes(s.to)[..len as usize], data[..len as usize]);
    }
    let frames = s.bed.take_frames();
    assert!(frames.iter().all(|f| f.opcode().raw() >> 5 == 5), "all of XRC");
    let requests: Vec<u32> = frames.iter().filter(|f| f.from == 1).map(Captured::psn).collect();
    let first = path().sq_psn;
    assert_eq!(requests, (first..first + 3 + 1 + 8 + 1).collect::<Vec<_>>(), "each packet once");
    assert!(frames.iter().filter(|f| f.from == 1).all(|f| f.headers().xrceth().is_some()));
}

/// Row 50: an empty XRC SRQ is "not ready"; READs, WRITEs and atomics use no receive.
#[test]
fn row_50_xrc_is_reliable() {
    let mut s = stage();
    let data = s.bed.pattern(s.from, 1);
    let srqn = s.srqs[0].srqn;
    s.bed.post(s.initiator, &Wr::send(s.from.part(0, 600)).for_srq(srqn));
    assert_eq!(s.bed.completions(s.initiator.send_cq), []);
    s.bed.post_srq(s.srqs[0], &[s.to.sge()]);
    s.bed.advance(100 * MS);
    assert!(s.bed.one(s.initiator.send_cq).is_ok());
    assert!(s.bed.one(s.cqs[0]).is_ok());
    s.bed.fill(s.to, &[0; 2048]);
    s.bed.wire().plan(Filter::from(1), 3, 1, Fault::Drop);
    s.bed.post(s.initiator, &Wr::write(s.from.sge(), s.to).for_srq(srqn));
    s.bed.advance(S);
    assert!(s.bed.one(s.initiator.send_cq).is_ok());
    assert_eq!(s.bed.bytes(s.to), data);
    s.bed.fill(s.from, &[0; 2048]);
    s.bed.done(s.initiator, &Wr::read(s.from.sge(), s.to).for_srq(srqn));
    assert_eq!(s.bed.bytes(s.from), data);
    s.bed.done(s.initiator, &Wr::fetch_add(s.from.part(0, 8), s.to, 1).for_srq(srqn));
}

/// Row 25: a request may use the keys of its SRQ's domain, regardless of the QP's domain and of later requests.
#[test]
fn row_25_xrc_keys_are_those_of_the_srq() {
    let mut s = stage();
    let other = s.bed.pd(2);
    let theirs = s.bed.mr_with(2, 600, Access::ALL, other, None);
    let of_other = {
        let xrcd = s.bed.query(s.target).xrcd();
        let cq = s.bed.cq(2);
        s.bed.xrc_srq_in(2, 4, xrcd, cq, other)
    };
    let data = s.bed.pattern(theirs, 5);
    let [first, _] = s.srqs;
    // Two back to back: each is answered with its own rights.
    let reads = [
        Wr::read(s.from.part(0, 600), theirs).for_srq(of_other.srqn),
        Wr::read(s.from.part(1024, 600), s.to).for_srq(first.srqn),
    ];
    s.bed.post_all(s.initiator, &reads);
    let all = s.bed.completions(s.initiator.send_cq);
    assert!(all.len() == 2 && all.iter().all(Wc::is_ok), "{all:?}");
    assert_eq!(s.bed.bytes(s.from)[..600], data);
    assert_eq!(
        s.bed.execute(s.initiator, &Wr::read(s.from.part(0, 8), theirs).for_srq(first.srqn)).error,
        Some(CqeSyndrome::RemoteAccessErr)
    );
}

/// Row 23: a request for an SRQ that is not in the target's domain is refused.
#[test]
fn row_23_xrc_request_for_no_srq_of_the_domain() {
    let mut s = stage();
    let other = s.bed.xrcd(2);
    let cq = s.bed.cq(2);
    let foreign = s.bed.xrc_srq(2, 4, other, cq);
    let wc = s.bed.execute(s.initiator, &Wr::send(s.from.part(0, 8)).for_srq(foreign.srqn));
    assert_eq!(wc.error, Some(CqeSyndrome::RemoteInvalReqErr));
    assert_eq!(s.bed.qp_state(s.target), QpState::Err);
}

/// Row 50: objects that a target was created with stay as long as it does; SRQs named by its requests do not matter.
#[test]
fn row_50_xrc_objects_end_in_order() {
    let mut s = stage();
    s.bed.post_srq(s.srqs[0], &[s.to.sge()]);
    s.bed.post(s.initiator, &Wr::send(s.from.part(0, 8)).for_srq(s.srqs[0].srqn));
    assert!(s.bed.one(s.cqs[0]).is_ok());
    s.bed.destroy_qp(s.target).expect("DESTROY_QP");
    s.bed.destroy_xrc_srq(s.srqs[0]).expect("DESTROY_XRC_SRQ");
    s.bed.destroy_cq(s.cqs[0]).expect("DESTROY_CQ");
    assert!(s.bed.destroy_cq(s.cqs[1]).is_err(), "its SRQ is still there");
}
