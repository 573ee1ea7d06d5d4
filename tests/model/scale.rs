//! Many objects in one function: the cost per object, which must not grow with their number.

use devmodel::{Config, region::Geometry};
use ironverbs_tests::{bed::*, cost::Cpu};

/// A PF and two VFs with room for ten thousand objects of every kind.
const LARGE: Geometry = Geometry {
    functions: 3,
    log_qp: 14,
    log_cq: 8,
    log_mkey: 15,
    log_mtt: 17,
    log_srq: 6,
    log_pd: 6,
    log_parties: 3,
    log_uplink: 16,
    log_capture: 16,
};

/// Nanoseconds per object: created, used, destroyed; and bytes of the region per object.
struct Cost {
    create: f64,
    used: f64,
    destroy: f64,
    bytes: f64,
}

fn cost(n: usize) -> Cost {
    let mut bed = Bed::with_geometry(Config::default(), LARGE);
    bed.wire().forgetful = true;
    let path = Path { mtu: 1024, ..Path::default() };
    let cqs = [1, 2].map(|fid| {
        bed.function(fid);
        bed.cq_of(fid, 8)
    });
    let spec = |i: usize| QpSpec { log_sq: 1, log_rq: 1, send_cq: Some(cqs[i]), ..QpSpec::default() };
    let before = bed.adapter.region().snapshot().bytes();
    let per = |start: Cpu| start.nanos() / n as f64;

    let start = Cpu::start();
    // Half of the QPs on each side, with one region each.
    let pairs: Vec<[(Qp, Mr); 2]> = (0..n / 2)
        .map(|_| {
            let ends = [0, 1].map(|i| {
                let qp = bed.qp_with(i as u8 + 1, spec(i)).expect("CREATE_QP");
                (qp, bed.mr(i as u8 + 1, 64, Access::ALL))
            });
            bed.connect(ends[0].0, ends[1].0, path);
            ends
        })
        .collect();
    let create = per(start);
    let bytes = (bed.adapter.region().snapshot().bytes() - before) as f64 / n as f64;

    let start = Cpu::start();
    for (i, [(a, from), (_, to)]) in pairs.iter().enumerate() {
        bed.fill(*from, &(i as u64).to_le_bytes());
        bed.post(*a, &Wr::write(from.part(0, 8), *to));
        assert!(bed.one(cqs[0]).is_ok(), "pair {i}");
        assert_eq!(bed.bytes(*to)[..8], (i as u64).to_le_bytes());
    }
    let used = per(start);

    let start = Cpu::start();
    for (qp, mr) in pairs.into_iter().flatten() {
        bed.destroy_qp(qp).expect("DESTROY_QP");
        bed.destroy_mr(mr).expect("DESTROY_MKEY");
    }
    Cost { create, used, destroy: per(start), bytes }
}

#[test]
fn ten_thousand_qps_and_regions_cost_as_much_each_as_a_thousand() {
    println!("objects   create ns   use ns   destroy ns   region bytes   (each QP with its region)");
    let costs = [1_000, 10_000].map(|n| {
        let c = cost(n);
        println!("{n:7}   {:9.0}   {:6.0}   {:10.0}   {:12.0}", c.create, c.used, c.destroy, c.bytes);
        c
    });
    let [few, many] = &costs;
    for (what, few, many) in [
        ("create", few.create, many.create),
        ("use", few.used, many.used),
        ("destroy", few.destroy, many.destroy),
        ("bytes", few.bytes, many.bytes),
    ] {
        assert!(many < 4.0 * few, "{what}: {few:.0} each of a thousand, {many:.0} each of ten thousand");
    }
}
