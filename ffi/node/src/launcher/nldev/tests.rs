//! Answers, as bytes: what of them is no program's to show.

use super::message::{Attributes, request};
use super::*;
use crate::devices::devices;
use crate::runtime::{Node, NodeOptions, REGION_AT};
use devmodel::{Config, LinkLayer};

const ADMIN: Asker = Asker { port: 9, admin: true, ext_ack: false, cap_ack: false };

fn world(link_layer: LinkLayer) -> World {
    World::new(devices(2, &Config { link_layer, ..Config::default() }), None)
}

/// The messages of an answer: type, flags and bytes behind the header.
fn ask(
    world: &World,
    asker: &Asker,
    command: u16,
    flags: u16,
    fill: impl FnOnce(&mut Attributes),
) -> Vec<(u16, u16, Vec<u8>)> {
    let mut attributes = Attributes::default();
    fill(&mut attributes);
    let replies = answer(world, &request(command, flags, 3, &attributes), asker);
    let all = replies.datagrams.iter().flat_map(|datagram| requests(datagram));
    all.map(|m| {
        assert_eq!((m.header.seq, m.header.port), (3, asker.port));
        (m.header.kind, m.header.flags, m.bytes[16..].to_vec())
    })
    .collect()
}

/// The errno of a refusal, 0 of an acknowledgement or the end of a dump.
fn status(world: &World, asker: &Asker, command: u16, flags: u16, fill: impl FnOnce(&mut Attributes)) -> i32 {
    let (kind, _, payload) = ask(world, asker, command, flags, fill).pop().expect("an answer");
    assert!([NLMSG_ERROR, NLMSG_DONE].contains(&kind), "{kind}");
    -i32::from_ne_bytes(payload[..4].try_into().unwrap())
}

#[test]
fn a_dump_ends_with_done_and_takes_no_further_acknowledgement() {
    let world = world(LinkLayer::Ethernet);
    let all = ask(&world, &ADMIN, cmd::GET, NLM_F_DUMP | NLM_F_ACK, |_| {});
    let kinds: Vec<_> = all.iter().map(|(kind, flags, _)| (*kind, *flags)).collect();
    let device = (CLIENT_NLDEV << 10 | cmd::GET, NLM_F_MULTI);
    assert_eq!(kinds, [device, device, device, (NLMSG_DONE, NLM_F_MULTI)]);
}

#[test]
fn an_error_in_a_dump_is_told_by_its_end_and_of_no_dump_by_an_error() {
    let world = world(LinkLayer::Ethernet);
    let end = |command, device: u32| {
        let (kind, _, payload) =
            ask(&world, &ADMIN, command, NLM_F_DUMP, |a| _ = a.u32(attr::DEV_INDEX, device)).pop().unwrap();
        (kind, -i32::from_ne_bytes(payload[..4].try_into().unwrap()))
    };
    assert_eq!(end(cmd::RES_QP_GET, 99), (NLMSG_DONE, libc::EINVAL));
    assert_eq!(end(cmd::PORT_GET, 1), (NLMSG_DONE, 0));
    assert_eq!(end(cmd::SYS_GET, 1), (NLMSG_ERROR, libc::EINVAL));
}

#[test]
fn who_may_change_nothing_is_refused_before_anything_is_looked_at() {
    let (world, user) = (world(LinkLayer::Ethernet), Asker { admin: false, ..ADMIN });
    for command in [
        cmd::SET,
        cmd::NEWLINK,
        cmd::DELLINK,
        cmd::SYS_SET,
        cmd::STAT_SET,
        cmd::STAT_DEL,
        cmd::RES_QP_GET_RAW,
    ] {
        assert_eq!(status(&world, &user, command, 0, |_| {}), libc::EPERM, "{command}");
        assert_eq!(status(&world, &ADMIN, command, 0, |_| {}), libc::EINVAL, "{command}");
    }
    let one = |a: &mut Attributes| _ = a.u32(attr::DEV_INDEX, 1).u32(attr::PORT_INDEX, 1);
    assert_eq!(status(&world, &ADMIN, cmd::SET, 0, one), libc::EOPNOTSUPP);
    assert_eq!(status(&world, &ADMIN, cmd::STAT_SET, 0, one), libc::EOPNOTSUPP);
    assert_eq!(status(&world, &ADMIN, cmd::DELLINK, 0, one), libc::EINVAL);
}

#[test]
fn a_port_on_infiniband_has_its_lid_and_none_of_a_net_device() {
    let port = |link_layer| {
        let world = world(link_layer);
        let (_, _, body) = ask(&world, &ADMIN, cmd::PORT_GET, 0, |a| {
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
    let world = world(LinkLayer::Ethernet);
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
        let replies = answer(&world, &bytes, &ADMIN);
        assert!(replies.datagrams.iter().all(|d| requests(d).count() > 0));
    }
}

#[test]
fn a_world_turns_to_the_node_that_came_into_the_place_of_another() {
    let dir = std::env::temp_dir().join(format!("ironverbs-world-{}", std::process::id()));
    let dir = match crate::launcher::dir::in_memory(&std::env::temp_dir()) {
        true => dir,
        false => Path::new("/dev/shm").join(dir.file_name().unwrap()),
    };
    let make = || drop(Node::open_or_create(&dir, &NodeOptions::default()).unwrap());
    let mut world = world(LinkLayer::Ethernet);
    world.look_at(&dir);
    assert!(world.observer().is_none());
    make();
    world.look_at(&dir);
    assert!(world.observer().is_some_and(|o| o.is_of(&dir) && !o.has_programs()));
    Node::reset(&dir, true).unwrap();
    make();
    assert!(world.observer().is_some_and(|o| !o.is_of(&dir)));
    world.look_at(&dir);
    assert!(world.observer().is_some_and(|o| o.is_of(&dir)));
    std::fs::remove_dir_all(&dir).unwrap();
}

/// A refused node is looked at once: opening it at every question would be a visit each time. Here it becomes one that
/// would not be refused, in the same file, which is what tells whether it is looked at.
#[test]
fn a_node_that_refuses_is_not_asked_again_and_another_in_its_place_is() {
    let scratch = crate::runtime::tests::bed::Scratch::new();
    let dir = &scratch.0;
    drop(scratch.node());
    let (adapter, good) = (dir.join("adapter"), dir.join("good"));
    std::fs::rename(&adapter, &good).unwrap();
    std::fs::write(&adapter, "of another layout").unwrap();
    let mut world = world(LinkLayer::Ethernet);
    world.look_at(dir);
    assert!(world.observer().is_none());
    let len = std::fs::metadata(&good).unwrap().len();
    let file = std::fs::OpenOptions::new().write(true).open(&adapter).unwrap();
    file.set_len(len).unwrap();
    // Of the node's head and the region's, which say what they are.
    let mut head = vec![0; REGION_AT + 4096];
    std::io::Read::read_exact(&mut std::fs::File::open(&good).unwrap(), &mut head).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &head, 0).unwrap();
    world.look_at(dir);
    assert!(world.observer().is_none(), "the same file");
    std::fs::rename(&good, &adapter).unwrap();
    world.look_at(dir);
    assert!(world.observer().is_some_and(|o| o.is_of(dir)));
}
