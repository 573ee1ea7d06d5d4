//! Directed routes: to the switch, through it, and back (IBTA 14.2.2).

use super::common::*;
use devmodel::identity;
use hwspec::wire::{
    lrh::PERMISSIVE_LID,
    mad::smp::{NodeInfo, PortInfo, SwitchInfo, attribute},
};

/// Builds a directed-route SMP along `path`, of which the sender has taken `hop_pointer` hops.
pub fn request(path: &[u8], hop_pointer: u8, method: Method, attribute: u16, modifier: u32) -> Smp {
    let mut h = header(MgmtClass::SubnDirected, 1, method, attribute, modifier);
    h.set().hop_pointer(hop_pointer).hop_count(path.len() as u8);
    let mut initial = [0; 64];
    initial[1..=path.len()].copy_from_slice(path);
    Smp::with(|s| s.header(h).dr_slid(PERMISSIVE_LID).dr_dlid(PERMISSIVE_LID).initial_path(initial))
}

/// Sends a directed-route SMP from function 1 along `path` and returns the answer.
fn ask(bed: &mut Bed, path: &[u8], attribute: u16, modifier: u32) -> Option<Smp> {
    // The sender has taken the first hop, out of its only port (C14-9).
    send_smp(bed, 1, PERMISSIVE_LID, &request(path, 1, Method::Get, attribute, modifier))
}

#[test]
fn one_hop_away_is_a_switch() {
    let mut bed = Bed::infiniband();
    let answer = ask(&mut bed, &[1], attribute::NODE_INFO, 0).expect("an answer");
    assert_eq!(answer.header().status(), status::DIRECTION);
    assert_eq!((answer.header().hop_pointer(), answer.return_path()[1]), (1, 2), "arrived by port 2");
    let info = NodeInfo::read(&answer.data());
    assert_eq!((info.node_type(), info.num_ports(), info.local_port_num()), (2, 4, 2));
    assert_eq!(info.node_guid(), identity::switch_guid(0));
    let answer = ask(&mut bed, &[1], attribute::SWITCH_INFO, 0).expect("an answer");
    assert_eq!(SwitchInfo::read(&answer.data()).linear_fdb_top(), identity::switch_lid(0));
    for (port, state) in [(0, 4), (2, 4), (4, 4)] {
        let answer = ask(&mut bed, &[1], attribute::PORT_INFO, port).expect("an answer");
        assert_eq!(PortInfo::read(&answer.data()).port_state(), state, "port {port}");
    }
    let answer = ask(&mut bed, &[1], attribute::PORT_INFO, 5).expect("an answer");
    assert_eq!(answer.header().status(), status::DIRECTION | status::BAD_FIELD);
}

/// 14.2.2.2: the functions are behind the switch's ports; a function without a QP0 of its own answers by itself.
#[test]
fn two_hops_away_are_the_functions() {
    let mut bed = Bed::infiniband();
    for fid in [0u8, 1, 3] {
        let answer = ask(&mut bed, &[1, fid + 1], attribute::NODE_INFO, 0);
        if fid == 1 {
            // The program of this function has a QP0, so it gets the request; here it sends no answer.
            assert_eq!(answer.map(|a| a.header().status()), Some(0));
            continue;
        }
        let answer = answer.expect("an answer");
        assert_eq!(NodeInfo::read(&answer.data()).node_guid(), identity::guid(0, fid));
        assert_eq!(answer.header().status(), status::DIRECTION);
        assert_eq!((answer.header().hop_pointer(), &answer.return_path()[1..3]), (1, &[2, 1][..]));
    }
    assert!(ask(&mut bed, &[1, 9], attribute::NODE_INFO, 0).is_none(), "no such port");
    assert!(ask(&mut bed, &[1, 3, 1], attribute::NODE_INFO, 0).is_none(), "a function is no switch");
}

/// Returns the answer that a packet from function 1 along `path` would get, without any effect on the state.
fn look(bed: &Bed, path: &[u8], method: Method, attribute: u16, modifier: u32) -> Option<Smp> {
    let request = request(path, 0, method, attribute, modifier);
    let (region, config) = (bed.adapter.region(), bed.adapter.config());
    region.management(config, 1, PERMISSIVE_LID, request.as_bytes()).map(|answer| Smp::read(&answer))
}

#[test]
fn an_observer_gets_the_agents_answers_and_changes_nothing() {
    let mut bed = Bed::infiniband();
    for path in [&[1][..], &[1, 1], &[1, 4]] {
        for (attribute, modifier) in [
            (attribute::NODE_INFO, 0),
            (attribute::NODE_DESCRIPTION, 0),
            (attribute::PORT_INFO, 1),
            (attribute::PORT_INFO, 99),
            (attribute::PKEY_TABLE, 0),
            (attribute::SWITCH_INFO, 0),
        ] {
            let answered = ask(&mut bed, path, attribute, modifier).expect("an answer");
            let seen = look(&bed, path, Method::Get, attribute, modifier).expect("an answer");
            assert_eq!(seen.data(), answered.data(), "{path:?} {attribute:#x}");
            assert_eq!(seen.header().status(), answered.header().status(), "{path:?} {attribute:#x}");
            assert_eq!(seen.return_path(), answered.return_path(), "{path:?} {attribute:#x}");
        }
    }
    let own = look(&bed, &[], Method::Get, attribute::NODE_INFO, 0).expect("the port's own");
    assert_eq!(NodeInfo::read(&own.data()).node_guid(), identity::guid(0, 1));
    for path in [&[1, 9][..], &[1, 3, 1], &[2]] {
        assert!(look(&bed, path, Method::Get, attribute::NODE_INFO, 0).is_none(), "{path:?} leads nowhere");
    }
    let refused = look(&bed, &[], Method::Set, attribute::PORT_INFO, 1).expect("an answer");
    assert_eq!(refused.header().status(), status::DIRECTION | status::BAD_METHOD);
    // A key that protects a port from being read also applies to this query.
    let own = look(&bed, &[], Method::Get, attribute::PORT_INFO, 1).expect("an answer");
    let mut info = PortInfo::read(&own.data());
    info.set().m_key(0x5ec2e7).m_key_protect_bits(2).port_state(0).port_physical_state(0);
    set(&mut bed, 1, attribute::PORT_INFO, info.as_bytes());
    assert!(look(&bed, &[], Method::Get, attribute::PORT_INFO, 1).is_none());
}
