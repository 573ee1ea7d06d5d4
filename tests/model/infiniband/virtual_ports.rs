//! Ports of VFs, managed by the PF's driver: the commands that Linux sends for `ip link set ib0 vf N` (mlx5_ib/ib_virt.c,
//! mlx5/core/vport.c).

use super::common::*;
use devmodel::identity;
use hwspec::{
    cmd::adapter::{QueryHcaCapIn, QueryHcaCapOut},
    context::{caps::HcaCap, vport::HcaVportContext},
    eqe::{EventType, PortChange},
    wire::mad::{
        sa::{PathRecord, SaAttribute, path},
        smp::*,
    },
};

/// `field_select`.
const PORT_GUID: u32 = 1 << 0;
const NODE_GUID: u32 = 1 << 1;
const STATE_POLICY: u32 = 1 << 2;
/// `vport_state_policy`: down, up, follow.
const POLICIES: [u8; 3] = [0, 1, 2];

/// `ip link set ib0 vf N node_guid`, then `port_guid`.
fn set_guids(bed: &mut Bed, vport: u16, [node, port]: [u64; 2]) {
    for (field, guid) in [(NODE_GUID, node), (PORT_GUID, port)] {
        let mut c = HcaVportContext::zeroed();
        c.set().field_select(field);
        match field {
            NODE_GUID => c.set().node_guid(guid),
            _ => c.set().port_guid(guid),
        };
        modify(bed, 0, Some(vport), c).unwrap();
    }
    bed.run();
}

#[test]
fn guids_of_a_vf_are_those_its_manager_gives_it_behind_its_reset_too() {
    let given = [0x0011_2233_4455_6677, 0x0011_2233_4455_6688u64];
    let mut bed = Bed::infiniband();
    let querier = General::new(&mut bed, 2);
    bed.function(1);
    set_guids(&mut bed, 1, given);
    let mut gid = identity::port_gid(0, 1);
    gid[8..].copy_from_slice(&given[1].to_be_bytes());
    for _ in 0..2 {
        for c in [context(&mut bed, 1, None).unwrap(), context(&mut bed, 0, Some(1)).unwrap()] {
            assert_eq!([c.node_guid(), c.port_guid()], given);
        }
        for (by, other) in [(1, false), (0, true)] {
            let mut input = QueryHcaVportGidIn::zeroed();
            input.set().other_vport(other).vport_number(other.into()).port_num(1);
            let out = bed.command_with(by, Opcode::QueryHcaVportGid, 0, &input, &[], 32).unwrap();
            assert_eq!(out[16..], gid);
        }
        let info = NodeInfo::read(&get(&mut bed, 1, attribute::NODE_INFO, 0));
        assert_eq!([info.node_guid(), info.port_guid()], given.map(u64::to_be_bytes));
        let record = PathRecord::with(|s| s.sgid(identity::port_gid(0, 2)).dgid(gid));
        let answer =
            querier.query(&mut bed, Method::Get, SaAttribute::PathRecord, path::SGID | path::DGID, &record);
        assert_eq!(answer.header().status(), 0, "the subnet knows it by its GID");
        assert_eq!(PathRecord::read(&answer.data()).dlid(), identity::lid(0, 1));
        bed.reset(1);
        bed.function(1);
    }
    // Zeros remove them.
    set_guids(&mut bed, 1, [0; 2]);
    let born = u64::from_be_bytes(identity::guid(0, 1));
    let c = context(&mut bed, 1, None).unwrap();
    assert_eq!([c.node_guid(), c.port_guid()], [born; 2]);
}

#[test]
fn the_pf_says_whether_the_link_of_a_vf_is_up() {
    let mut bed = Bed::infiniband().with_function(1);
    bed.events(1);
    let [down, up, follow] = POLICIES;
    for (policy, state, event) in [
        (down, 1, Some(PortChange::Down)),
        (follow, 4, Some(PortChange::Active)),
        (up, 4, None),
        (down, 1, Some(PortChange::Down)),
    ] {
        let c = HcaVportContext::with(|s| s.field_select(STATE_POLICY).vport_state_policy(policy));
        modify(&mut bed, 0, Some(1), c).unwrap();
        bed.run();
        let seen = context(&mut bed, 0, Some(1)).unwrap();
        assert_eq!((seen.vport_state_policy(), seen.vport_state()), (policy, state));
        assert_eq!(context(&mut bed, 1, None).unwrap().vport_state(), state);
        let all = bed.events(1);
        let told = all.iter().filter(|e| e.event_type() == EventType::PortChange);
        let told: Vec<u8> = told.map(|e| e.event_sub_type()).collect();
        assert_eq!(told, event.map(PortChange::raw).into_iter().collect::<Vec<_>>());
    }
    // Neither its reset nor its own driver brings it up.
    bed.reset(1);
    bed.function(1);
    let c = HcaVportContext::with(|s| s.field_select(STATE_POLICY).vport_state_policy(up));
    modify(&mut bed, 1, None, c).unwrap();
    assert_eq!(context(&mut bed, 1, None).unwrap().vport_state(), 1);
}

#[test]
fn the_pf_sees_the_partitions_of_a_vf() {
    let mut bed = Bed::infiniband().with_function(1);
    set(&mut bed, 1, attribute::PKEY_TABLE, &[0xff, 0xff, 0x80, 0x01]);
    let input = QueryHcaVportPkeyIn::with(|s| s.other_vport(true).vport_number(1).port_num(1).pkey_index(1));
    let out = bed.command_with(0, Opcode::QueryHcaVportPkey, 0, &input, &[], 20).unwrap();
    assert_eq!(out[16..], [0, 0, 0x80, 0x01]);
}

#[test]
fn nobody_but_the_pf_manages_ports() {
    let mut bed = Bed::infiniband().with_function(1);
    let manages = |bed: &mut Bed, fid| {
        let out: QueryHcaCapOut =
            bed.command(fid, Opcode::QueryHcaCap, &QueryHcaCapIn::zeroed()).expect("capabilities");
        HcaCap::read(&out.capability()).vport_group_manager()
    };
    assert!(manages(&mut bed, 0) && !manages(&mut bed, 1));
    let mut c = HcaVportContext::zeroed();
    c.set().field_select(PORT_GUID).port_guid(5);
    assert!(modify(&mut bed, 1, Some(2), c).is_err() && context(&mut bed, 1, Some(2)).is_err());
    assert!(modify(&mut bed, 0, Some(9), c).is_err(), "there is no such vport");
    c.set().field_select(1 << 3);
    assert!(modify(&mut bed, 0, Some(1), c).is_err(), "there is no such field");
    c.set().field_select(STATE_POLICY).vport_state_policy(3);
    assert!(modify(&mut bed, 0, Some(1), c).is_err(), "nor such a policy");
}
