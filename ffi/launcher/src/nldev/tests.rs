//! Answers byte by byte, where no program prints them.

use super::message::{Attributes, request};
use super::*;
use devmodel::{Config, LinkLayer};
use node::devices::{DeviceInfo, devices};
use node::{Node, NodeOptions};
use std::{path::Path, sync::Arc};
use testkit::Scratch;

const ADMIN: Asker = Asker { port: 9, admin: true, ext_ack: false, cap_ack: false };

fn inventory(link_layer: LinkLayer) -> Inventory {
    Inventory::new(
        devices(Path::new("/n"), 2, &Config { link_layer, ..Config::default() }),
        Follows::Nodes,
        None,
    )
}

/// An inventory of a PF and two VFs of the adapter in `dir`, if there is one.
fn inventory_of(dir: &Path) -> Inventory {
    Inventory::new(devices(dir, 2, &Config::default()), Follows::Nodes, None)
}

/// The messages of an answer: type, flags and bytes behind the header.
fn ask(
    inventory: &Inventory,
    asker: &Asker,
    command: u16,
    flags: u16,
    fill: impl FnOnce(&mut Attributes),
) -> Vec<(u16, u16, Vec<u8>)> {
    let mut attributes = Attributes::default();
    fill(&mut attributes);
    let replies = answer(inventory, &request(command, flags, 3, &attributes), asker);
    let all = replies.datagrams.iter().flat_map(|datagram| requests(datagram));
    all.map(|m| {
        assert_eq!((m.header.seq, m.header.port), (3, asker.port));
        (m.header.kind, m.header.flags, m.bytes[16..].to_vec())
    })
    .collect()
}

/// The errno of a refusal, 0 of an acknowledgement or the end of a dump.
fn status(
    inventory: &Inventory,
    asker: &Asker,
    command: u16,
    flags: u16,
    fill: impl FnOnce(&mut Attributes),
) -> i32 {
    let (kind, _, payload) = ask(inventory, asker, command, flags, fill).pop().expect("an answer");
    assert!([NLMSG_ERROR, NLMSG_DONE].contains(&kind), "{kind}");
    -i32::from_ne_bytes(payload[..4].try_into().unwrap())
}

fn node(dir: &Path, vfs: u8) -> Arc<Node> {
    Node::open_or_create(dir, &NodeOptions { vfs: Some(vfs), ..NodeOptions::default() }).unwrap()
}

#[test]
fn a_dump_ends_with_done_and_takes_no_further_acknowledgement() {
    let inventory = inventory(LinkLayer::Ethernet);
    let all = ask(&inventory, &ADMIN, cmd::GET, NLM_F_DUMP | NLM_F_ACK, |_| {});
    let kinds: Vec<_> = all.iter().map(|(kind, flags, _)| (*kind, *flags)).collect();
    let device = (CLIENT_NLDEV << 10 | cmd::GET, NLM_F_MULTI);
    assert_eq!(kinds, [device, device, device, (NLMSG_DONE, NLM_F_MULTI)]);
}

#[test]
fn a_dump_reports_its_error_at_its_end_and_other_requests_by_an_error_message() {
    let inventory = inventory(LinkLayer::Ethernet);
    let end = |command, device: u32| {
        let (kind, _, payload) =
            ask(&inventory, &ADMIN, command, NLM_F_DUMP, |a| _ = a.u32(attr::DEV_INDEX, device))
                .pop()
                .unwrap();
        (kind, -i32::from_ne_bytes(payload[..4].try_into().unwrap()))
    };
    assert_eq!(end(cmd::RES_QP_GET, 99), (NLMSG_DONE, libc::EINVAL));
    assert_eq!(end(cmd::PORT_GET, 1), (NLMSG_DONE, 0));
    assert_eq!(end(cmd::SYS_GET, 1), (NLMSG_ERROR, libc::EINVAL));
}

#[test]
fn a_user_without_rights_is_refused_before_the_request_is_read() {
    let (inventory, user) = (inventory(LinkLayer::Ethernet), Asker { admin: false, ..ADMIN });
    for command in [
        cmd::SET,
        cmd::NEWLINK,
        cmd::DELLINK,
        cmd::SYS_SET,
        cmd::STAT_SET,
        cmd::STAT_DEL,
        cmd::RES_QP_GET_RAW,
    ] {
        assert_eq!(status(&inventory, &user, command, 0, |_| {}), libc::EPERM, "{command}");
        assert_eq!(status(&inventory, &ADMIN, command, 0, |_| {}), libc::EINVAL, "{command}");
    }
    let one = |a: &mut Attributes| _ = a.u32(attr::DEV_INDEX, 1).u32(attr::PORT_INDEX, 1);
    assert_eq!(status(&inventory, &ADMIN, cmd::SET, 0, one), libc::EOPNOTSUPP);
    assert_eq!(status(&inventory, &ADMIN, cmd::STAT_SET, 0, one), libc::EOPNOTSUPP);
    assert_eq!(status(&inventory, &ADMIN, cmd::DELLINK, 0, one), libc::EINVAL);
}

#[test]
fn a_port_on_infiniband_has_its_lid_and_none_of_a_net_device() {
    let port = |link_layer| {
        let inventory = inventory(link_layer);
        let (_, _, body) = ask(&inventory, &ADMIN, cmd::PORT_GET, 0, |a| {
            a.u32(attr::DEV_INDEX, 1).u32(attr::PORT_INDEX, 1);
        })
        .remove(0);
        // As a request, for its attributes.
        let bytes = [&[0; 16][..], &body].concat();
        let parsed = Request {
            header: requests(&request(0, 0, 0, &Attributes::default())).next().unwrap().header,
            bytes: &bytes,
        };
        (parsed.u32(attr::LID).unwrap(), parsed.text(attr::NDEV_NAME).unwrap().map(str::to_owned))
    };
    assert_eq!(port(LinkLayer::Infiniband), (Some(2), None));
    assert_eq!(port(LinkLayer::Ethernet), (None, Some("lo".into())));
}

#[test]
fn any_bytes_are_answered_or_passed_over() {
    let inventory = inventory(LinkLayer::Ethernet);
    // A small generator: every run the same.
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as u8
    };
    for round in 0..20_000 {
        let mut a = Attributes::default();
        for _ in 0..next() % 5 {
            let payload: Vec<u8> = (0..next() % 12).map(|_| next()).collect();
            a.bytes(u16::from(next() % 100), &payload);
        }
        let mut bytes = request(u16::from(next() % 30), u16::from(next()) << 2, 3, &a);
        if round % 3 == 0 {
            let at = usize::from(next()) % bytes.len();
            bytes[at] = next();
        }
        let replies = answer(&inventory, &bytes, &ADMIN);
        assert!(replies.datagrams.iter().all(|d| requests(d).count() > 0));
    }
}

#[test]
fn an_inventory_turns_to_the_node_that_came_into_the_place_of_another() {
    let dir = &Scratch::new().0;
    let make = || drop(Node::open_or_create(dir, &NodeOptions::default()).unwrap());
    let mut inventory = inventory_of(dir);
    inventory.look();
    assert!(inventory.observers().next().is_none());
    make();
    inventory.look();
    assert!(inventory.observers().next().is_some_and(|o| o.is_of(dir) && !o.has_programs()));
    Node::reset(dir, true).unwrap();
    make();
    assert!(inventory.observers().next().is_some_and(|o| !o.is_of(dir)));
    inventory.look();
    assert!(inventory.observers().next().is_some_and(|o| o.is_of(dir)));
}

/// A refused node is not opened again at every request. In this test the refused file becomes valid in place, so that another try to open
/// it would succeed.
#[test]
fn a_node_that_refuses_is_not_asked_again_and_another_in_its_place_is() {
    let scratch = Scratch::new();
    let dir = &scratch.0;
    drop(node(&scratch.0, 3));
    let (adapter, good) = (dir.join("adapter"), dir.join("good"));
    std::fs::rename(&adapter, &good).unwrap();
    std::fs::write(&adapter, "of another layout").unwrap();
    let mut inventory = inventory_of(dir);
    inventory.look();
    assert!(inventory.observers().next().is_none());
    let len = std::fs::metadata(&good).unwrap().len();
    let file = std::fs::OpenOptions::new().write(true).open(&adapter).unwrap();
    file.set_len(len).unwrap();
    // With the headers of the node and of the region, which identify their formats.
    let mut head = vec![0; 1 << 20];
    std::io::Read::read_exact(&mut std::fs::File::open(&good).unwrap(), &mut head).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &head, 0).unwrap();
    inventory.look();
    assert!(inventory.observers().next().is_none(), "the same file");
    std::fs::rename(&good, &adapter).unwrap();
    inventory.look();
    assert!(inventory.observers().next().is_some_and(|o| o.is_of(dir)));
}

#[test]
fn an_inventory_hears_once_of_every_change_of_its_nodes_devices() {
    let scratch = Scratch::new();
    let with = |vfs| node(&scratch.0, vfs);
    let node = with(2);
    let mut shown = devices(&scratch.0, 2, &Config::default());
    // The host has its own devices, so ours have other numbers than on the node.
    shown.iter_mut().for_each(|d| d.uverbs += 4);
    let mut inventory = Inventory::new(shown, Follows::Nodes, None);
    inventory.look();
    assert_eq!(inventory.changed(), None);
    with(5);
    let now = inventory.changed().expect("five VFs");
    assert_eq!(
        now.iter().map(|d| (d.fid, d.uverbs)).collect::<Vec<_>>(),
        [0, 1, 2, 3, 4, 5].map(|i| (i, i as u32 + 4))
    );
    // A change that could not be shown is reported once only.
    assert_eq!(inventory.changed(), None);
    inventory.replace(now);
    assert_eq!((inventory.devices().len(), inventory.changed()), (6, None));
    node.set_address(5, Some("10.0.0.5/24".parse().unwrap())).unwrap();
    let now = inventory.changed().expect("an address");
    assert_eq!(now[5].ip.to_string(), "10.0.0.5");
    inventory.replace(now);
    // Another node in its place.
    Node::reset(&scratch.0, true).unwrap();
    inventory.look();
    assert_eq!(inventory.changed(), None, "no node, nothing to show in place of what is shown");
    let infiniband = Some(LinkLayer::Infiniband);
    let options = NodeOptions { vfs: Some(1), link_layer: infiniband, ..NodeOptions::default() };
    drop(Node::open_or_create(&scratch.0, &options).unwrap());
    inventory.look();
    let now = inventory.changed().expect("another node");
    assert!(now.len() == 2 && now.iter().all(|d| d.has_umad()), "{now:?}");
}

#[test]
fn an_inventory_of_functions_that_are_no_nodes_stays_as_it_is() {
    let scratch = Scratch::new();
    drop(node(&scratch.0, 3));
    let mut elsewhere = DeviceInfo::new(&scratch.0, 0, &Config::default());
    elsewhere.place = node::place::Place::VfioUser("/nowhere".into(), Default::default());
    let mut inventory = Inventory::new(vec![elsewhere], Follows::Nodes, None);
    inventory.look();
    assert_eq!(inventory.changed(), None);
}

#[test]
fn a_node_that_was_cut_short_changes_no_view() {
    let scratch = Scratch::new();
    let node = node(&scratch.0, 3);
    let mut inventory = Inventory::new(node.devices(), Follows::Nodes, None);
    inventory.look();
    assert_eq!(inventory.changed(), None);
    let file = std::fs::OpenOptions::new().write(true).open(scratch.0.join("adapter")).unwrap();
    file.set_len(0).unwrap();
    // Its pages read as zeros from now on: no VFs.
    assert_eq!(inventory.changed(), None);
    assert_eq!(inventory.devices().len(), 4);
}

/// Each keeps its numbers while the other's change.
#[test]
fn an_inventory_of_two_nodes_follows_both() {
    let (first, second) = (Scratch::new(), Scratch::new());
    let nodes = [node(&first.0, 2), node(&second.0, 2)];
    let mut shown: Vec<DeviceInfo> = nodes.iter().flat_map(|node| node.devices()).collect();
    shown[3..].iter_mut().for_each(|d| d.uverbs += 128);
    let mut inventory = Inventory::new(shown, Follows::Nodes, None);
    inventory.look();
    assert_eq!(inventory.changed(), None);
    drop(node(&first.0, 3));
    let now = inventory.changed().expect("another VF of the first");
    let indices = |inventory: &Inventory| inventory.indexed().map(|(index, _)| index).collect::<Vec<_>>();
    assert_eq!(indices(&inventory), [0, 1, 2, 128, 129, 130]);
    inventory.replace(now);
    assert_eq!(indices(&inventory), [0, 1, 2, 3, 128, 129, 130]);
    nodes[1].set_address(1, Some("10.0.0.5/24".parse().unwrap())).unwrap();
    let now = inventory.changed().expect("an address of the second");
    assert_eq!((now.len(), now[5].ip.to_string()), (7, "10.0.0.5".into()));
    let (observer, fid) = inventory.on_node(&now[5]).unwrap();
    assert!(observer.is_of(&second.0) && fid == 1);
}

/// The view of a container that was given only some devices.
#[test]
fn an_inventory_of_some_devices_follows_these_alone() {
    let scratch = Scratch::new();
    let node_of = |vfs| node(&scratch.0, vfs);
    let node = node_of(3);
    let given: Vec<DeviceInfo> = node.devices().into_iter().filter(|d| d.fid > 1).collect();
    let mut inventory = Inventory::new(given.clone(), Follows::Devices, None);
    inventory.look();
    drop(node_of(5));
    assert_eq!(inventory.changed(), None);
    assert_eq!(inventory.indexed().map(|(index, _)| index).collect::<Vec<_>>(), [2, 3]);
    node.set_address(3, Some("10.0.0.5/24".parse().unwrap())).unwrap();
    let now = inventory.changed().expect("an address");
    assert_eq!((now[0].clone(), now[1].ip.to_string()), (given[0].clone(), "10.0.0.5".into()));
    inventory.replace(now);
    // A node with fewer devices takes its place: the missing devices stay as they were.
    Node::reset(&scratch.0, true).unwrap();
    drop(node_of(2));
    inventory.look();
    assert_eq!(inventory.changed(), None);
}
