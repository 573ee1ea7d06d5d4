//! The function's network settings: addresses, MTU, speed.

use super::{device, open, options};
use crate::{
    AddressHandle, Cq, Device, OpenOptions, Pd, Qp, QpAttr, QpInit, QpState, Service,
    transport::fake::{Chip, Lie},
};
use hwspec::cmd::{Opcode, Status, qp::ModifyQpIn, uctx::CreateUctxIn, vport::SetRoceAddressIn};

const OWN: u64 = 0x021b_5600_0003;

#[test]
fn the_switch_is_told_our_address_and_the_groups_by_which_neighbours_ask() {
    let (chip, _device) = device();
    let lists = chip.state().vport.lists.clone();
    assert_eq!(lists[0], [OWN]);
    let groups = [0xffff_ffff_ffff, 0x3333_0000_0001, 0x0100_5e00_0001, 0x3333_ff00_0003];
    assert_eq!(lists[1], groups);
}

#[test]
fn an_address_that_is_set_later_and_a_group_that_is_joined_are_added_once() {
    let (chip, device) = device();
    let before = chip.state().vport.lists[1].len();
    let gid = "2001:db8::12:3456".parse::<std::net::Ipv6Addr>().unwrap().octets();
    device.set_gid(3, Some(&gid)).unwrap();
    device.set_gid(4, Some(&gid)).unwrap();
    device.set_gid(4, None).unwrap();
    assert_eq!(chip.state().vport.lists[1][before..], [0x3333_ff12_3456]);
    let pd = Pd::alloc(&device).unwrap();
    let cq = Cq::create(&device, 10, 1).unwrap();
    let qp = Qp::create(&pd, &QpInit { max_recv_wr: 1, ..QpInit::new(Service::Ud, &cq, &cq) }).unwrap();
    let group = "::ffff:239.1.2.3".parse::<std::net::Ipv6Addr>().unwrap().octets();
    qp.attach_mcast(&group, 0).unwrap();
    qp.detach_mcast(&group, 0).unwrap();
    qp.attach_mcast(&group, 0).unwrap();
    assert_eq!(chip.state().vport.lists[1][before + 1..], [0x0100_5e01_0203]);
    qp.detach_mcast(&group, 0).unwrap();
}

#[test]
fn more_groups_than_the_device_takes_are_left_out() {
    let (chip, device) = device();
    for last in 0..20 {
        let mut gid = [0xfd; 16];
        gid[15] = last;
        device.set_gid(2, Some(&gid)).unwrap();
    }
    assert_eq!(chip.state().vport.lists[1].len(), 8);
}

#[test]
fn a_switch_that_refuses_the_lists_is_no_reason_to_stay_down() {
    let chip = Chip::new();
    chip.state().lie = Some(Lie::Refuse(Opcode::AccessReg, Status::BadParam, 1));
    let device = open(&chip.opener(1));
    let port = device.port().unwrap();
    assert_eq!((port.active_speed, port.active_width), (32, 2));
    let chip = Chip::new();
    chip.state().general.set().roce(false);
    chip.state().lie = Some(Lie::Refuse(Opcode::ModifyNicVportContext, Status::BadParam, 1));
    open(&chip.opener(1));
}

#[test]
fn a_function_without_an_address_takes_one_which_all_its_openers_have() {
    let chip = Chip::new();
    (chip.state().vport.mac, chip.state().vport.guid) = (0, 0);
    let first = Device::open(chip.opener(1), OpenOptions { link_local: true, ..options() }).unwrap();
    let mac = first.port().unwrap().mac;
    assert_eq!(mac[0] & 3, 2, "locally administered, and not a group's: {mac:x?}");
    assert_eq!(open(&chip.opener(2)).port().unwrap().mac, mac);
    let number = mac.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
    assert_eq!(chip.state().vport.lists[0], [number]);
    let [a, b, c, d, e, f] = mac;
    assert_eq!(first.attr().node_guid, [a, b, c, 0xff, 0xfe, d, e, f]);
    assert_eq!(first.gid(0).unwrap()[8..], [a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
    // The options name the MAC, for a function that was assigned none.
    for (given, taken) in [(0, [2, 1, 2, 3, 4, 5]), (OWN, crate::transport::fake::MAC)] {
        let told = Chip::new();
        told.state().vport.mac = given;
        let named = OpenOptions { own_mac: Some([2, 1, 2, 3, 4, 5]), ..options() };
        assert_eq!(Device::open(told.opener(1), named).unwrap().port().unwrap().mac, taken);
    }
    // Another function gets a different one.
    let other = Chip::new();
    other.state().vport.mac = 0;
    assert_ne!(open(&other.opener(1)).port().unwrap().mac, mac);
}

#[test]
fn the_address_of_a_function_that_has_a_name_stays() {
    if std::fs::read_to_string("/etc/machine-id").map_or(true, |id| id.trim().is_empty()) {
        return;
    }
    let mac = |name: &str| {
        let chip = Chip::new();
        chip.state().vport.mac = 0;
        chip.state().name = Some(name.into());
        open(&chip.opener(1)).port().unwrap().mac
    };
    assert_eq!(mac("0000:c1:00.2"), mac("0000:c1:00.2"));
    assert_ne!(mac("0000:c1:00.2"), mac("0000:c1:00.3"));
}

#[test]
fn the_owner_of_the_switch_enters_its_address_into_the_table_of_the_port() {
    let chip = Chip::new();
    chip.state().general.set().eswitch_manager(true).log_max_l2_table(5);
    open(&chip.opener(1));
    assert_eq!(chip.state().vport.l2_table, [(0, OWN)]);
    let other = Chip::new();
    open(&other.opener(1));
    assert!(other.state().vport.l2_table.is_empty());
}

#[test]
fn mtu_counts_layer_2_and_is_raised_to_the_ports() {
    let active = |vport: u16, port: u16, asked: Option<u16>| {
        let chip = Chip::new();
        (chip.state().vport.mtu, chip.state().vport.port_mtu) = (vport, port);
        let device = Device::open(chip.opener(1), OpenOptions { mtu: asked, ..options() }).unwrap();
        let now = chip.state().vport.mtu;
        (device.port().unwrap().active_mtu, now)
    };
    // 4096 bytes of payload need 96 bytes of headers, and 22 of layer 2.
    assert_eq!(active(4214, 4214, None), (4096, 4214));
    assert_eq!(active(4213, 4213, None), (2048, 4213));
    assert_eq!(active(1522, 9000, None), (4096, 9000));
    assert_eq!(active(0, 1522, None).0, 1024);
    assert_eq!(active(0, 0, None).0, 1024);
    assert_eq!(active(9000, 9000, Some(1500)), (1024, 1522));
}

#[test]
fn the_port_says_its_speed() {
    let (chip, device) = device();
    assert_eq!((device.port().unwrap().active_speed, device.port().unwrap().active_width), (32, 2));
    chip.state().vport.protocols = 1 << 27;
    assert_eq!((device.port().unwrap().active_speed, device.port().unwrap().active_width), (32, 1));
}

#[test]
fn a_program_that_leaves_the_hop_limit_at_its_least_gets_through_routers() {
    let (chip, device) = device();
    let pd = Pd::alloc(&device).unwrap();
    let cq = Cq::create(&device, 10, 1).unwrap();
    let hops = |given: u8| {
        let qp = Qp::create(&pd, &QpInit { max_send_wr: 1, ..QpInit::new(Service::Rc, &cq, &cq) }).unwrap();
        let ah = AddressHandle {
            dgid: options().gids[1],
            is_global: true,
            port_num: 1,
            hop_limit: given,
            ..AddressHandle::default()
        };
        let attr = QpAttr { port_num: 1, path_mtu: 1024, ah, ..QpAttr::default() };
        qp.advance_to(QpState::Rtr, &attr).unwrap();
        chip.last::<ModifyQpIn>(Opcode::Init2rtrQp).qpc().primary_address_path().hop_limit()
    };
    assert_eq!([0, 1, 2, 64, 255].map(hops), [64, 64, 2, 64, 255]);
}

#[test]
fn a_user_context_may_send_raw_packets_where_the_device_offers_it() {
    for (offered, asked) in [(0, 0), (2, 2), (3, 3), (0xff, 3)] {
        let chip = Chip::new();
        chip.state().general.set().uctx_cap(offered);
        open(&chip.opener(1));
        assert_eq!(chip.last::<CreateUctxIn>(Opcode::CreateUctx).uctx().cap(), asked);
    }
}

#[test]
fn addresses_in_a_vlan_say_so() {
    let chip = Chip::new();
    let _device = Device::open(chip.opener(1), OpenOptions { vlan: Some(42), ..options() }).unwrap();
    let address = chip.last::<SetRoceAddressIn>(Opcode::SetRoceAddress).roce_address();
    assert_eq!((address.vlan_valid(), address.vlan_id()), (true, 42));
}
