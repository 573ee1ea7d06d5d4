//! Nodes: creation, sharing, refusal, reset.

use super::bed::{OnNode, Other, Scratch, say, start, started, until_killed};
use crate::{
    FunctionAddress, NodeError, NodeOptions, NodeTransport, file, gid::gid_of_ip, locks::LockFile,
    node::Node, open_device, open_device_of, ports::Ports,
};
use devmodel::LinkLayer;
use driver::transport::{Scope, Transport};
use std::{os::unix::fs::MetadataExt, path::Path, sync::Arc};

pub fn opens(dir: &Path) {
    let node = Node::open_or_create(dir, &NodeOptions::default()).unwrap();
    say(format!("{} {}", node.party(), node.vfs()));
    until_killed()
}

#[test]
fn programs_that_start_at_once_make_one_node() {
    let scratch = Scratch::new();
    let mut others: Vec<Other> = (0..6).map(|_| start(&scratch, "open")).collect();
    let mut parties: Vec<String> = others.iter_mut().map(Other::hear).collect();
    parties.sort();
    parties.dedup();
    assert_eq!(parties.len(), 6, "{parties:?}");
    assert!(parties.iter().all(|p| p.ends_with(" 8")), "8 VFs by default: {parties:?}");
}

#[test]
fn a_node_is_shared_within_a_process_and_outlives_it() {
    let (scratch, node) = Scratch::with_node();
    assert!(Arc::ptr_eq(&node, &Node::open(&scratch.0).unwrap()));
    let generation = |n: &Node| n.core().me;
    let first = generation(&node);
    drop(node);
    let again = Node::open(&scratch.0).unwrap();
    assert_eq!((again.vfs(), again.party()), (3, first.slot));
    assert_ne!(generation(&again), first);
    assert_eq!(again.status().unwrap().reaped, 0, "who leaves in order is not dead");
}

#[test]
fn a_new_node_costs_little_and_is_its_owners_alone() {
    let (scratch, node) = Scratch::with_node();
    let status = node.status().unwrap();
    assert!(status.memory < 8 << 20, "{} bytes", status.memory);
    assert_eq!((status.vfs, status.functions.len(), status.parties.len()), (3, 4, 0));
    for entry in std::fs::read_dir(&scratch.0).unwrap() {
        assert_eq!(entry.unwrap().metadata().unwrap().mode() & 0o777, 0o600);
    }
    assert_eq!(std::fs::metadata(&scratch.0).unwrap().mode() & 0o777, 0o700);
}

#[test]
fn a_directory_on_a_disk_is_refused() {
    let dir = std::env::current_dir().unwrap();
    if crate::dir::in_memory(&dir) {
        return;
    }
    let dir = dir.join(format!("ironverbs-test-{}", std::process::id()));
    let said = Node::open_or_create(&dir, &NodeOptions::default()).err().map(|e| e.to_string());
    let _ = std::fs::remove_dir(&dir);
    assert!(said.as_ref().is_some_and(|s| s.contains("expected a file system in memory")), "{said:?}");
}

#[test]
fn a_node_that_is_not_there_is_not_made_by_opening_it() {
    let scratch = Scratch::new();
    assert!(matches!(Node::open(&scratch.0), Err(NodeError::Missing(_))));
    assert!(!scratch.0.exists());
    std::fs::create_dir(&scratch.0).unwrap();
    assert!(matches!(open_device(&scratch.0, 0), Err(NodeError::Missing(_))));
    assert_eq!(std::fs::read_dir(&scratch.0).unwrap().count(), 0);
}

#[test]
fn a_node_of_another_version_is_refused_and_can_be_reset() {
    let scratch = Scratch::new();
    drop(scratch.node());
    let path = scratch.0.join("adapter");
    {
        use std::os::unix::fs::FileExt;
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&1u64.to_ne_bytes(), 0).unwrap();
    }
    let said = Node::open(&scratch.0).err().map(|e| e.to_string()).unwrap();
    assert!(
        said.contains("another version") && said.contains("adapter delete") && !said.contains('\n'),
        "{said}"
    );
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
    assert!(matches!(Node::open(&scratch.0), Err(NodeError::Version { .. })));
    assert!(Node::reset(&scratch.0, false).unwrap());
    assert!(!Node::reset(&scratch.0, false).unwrap());
    assert_eq!(scratch.node().vfs(), 3);
}

#[test]
fn a_node_in_use_is_not_reset_unless_forced() {
    let scratch = Scratch::new();
    let other = started(&scratch, "open");
    let said = Node::reset(&scratch.0, false).unwrap_err().to_string();
    assert!(said.contains(&other.child.id().to_string()), "{said}");
    assert!(Node::reset(&scratch.0, true).unwrap());
    let node = scratch.node();
    assert_eq!(node.vfs(), 3);
    assert!(matches!(Node::reset(&scratch.0, false), Err(NodeError::Busy { .. })));
}

#[test]
fn a_reset_leaves_nothing_of_a_node_on_which_nobody_lives() {
    let scratch = Scratch::new();
    let files = || {
        let mut names: Vec<_> =
            std::fs::read_dir(&scratch.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let node = scratch.node();
    Ports::open(&scratch.0).unwrap();
    assert_eq!(files(), ["adapter", "parties", "ports"]);
    assert!(Node::reset(&scratch.0, true).unwrap());
    assert_eq!(files(), ["parties", "ports"], "who lives on without the node is told from others by them");
    drop(node);
    assert!(!Node::reset(&scratch.0, false).unwrap());
    assert!(files().is_empty(), "{:?}", files());
    assert!(!Node::reset(&scratch.0, false).unwrap());
    assert!(files().is_empty(), "{:?}", files());
}

#[test]
fn a_program_that_waited_for_the_lock_of_a_node_that_is_reset_takes_that_of_the_next() {
    let scratch = Scratch::new();
    drop(scratch.node());
    let (file, lock) = LockFile::open_locked(&scratch.0).unwrap();
    std::thread::scope(|scope| {
        let late = scope.spawn(|| LockFile::open_locked(&scratch.0).map(|(file, _lock)| file));
        // Time for it to open the file. One that comes later finds none there, which is right too.
        std::thread::sleep(std::time::Duration::from_millis(100));
        file.remove(&scratch.0, &lock);
        drop(lock);
        let late = late.join().unwrap().unwrap();
        assert!(!std::ptr::eq(file, late));
        assert!(std::fs::metadata(scratch.0.join("parties")).is_ok());
    });
}

#[test]
fn a_program_on_a_node_that_was_reset_lives_on_the_new_one_after_it_left_the_old() {
    let scratch = Scratch::new();
    let old = scratch.node();
    assert!(Node::reset(&scratch.0, true).unwrap());
    let new = scratch.node();
    assert_ne!(new.party(), old.party(), "a place that is held is not taken again");
    drop(old);
    let other = started(&scratch, "open");
    let parties: Vec<u32> = new.status().unwrap().parties.iter().map(|p| p.pid).collect();
    assert_eq!(parties, [other.child.id()], "we have nothing open");
    assert_eq!(new.status().unwrap().reaped, 0, "nobody took us for dead");
}

#[test]
fn the_number_of_vfs_is_what_was_asked_for_or_an_error() {
    let scratch = Scratch::new();
    let with = |vfs| Node::open_or_create(&scratch.0, &NodeOptions { vfs, ..NodeOptions::default() });
    let node = with(Some(2)).unwrap();
    assert_eq!(with(None).unwrap().vfs(), 2);
    assert_eq!(with(Some(5)).unwrap().vfs(), 5);
    let said = with(Some(3)).err().map(|e| e.to_string()).unwrap();
    assert_eq!(said, "the adapter has 5 virtual functions, asked for 3: delete the adapter to have fewer");
    let open = NodeTransport::open(&node, 5).unwrap();
    assert!(matches!(with(Some(6)), Err(NodeError::Vfs { have: 5, asked: 6, .. })));
    assert!(matches!(NodeTransport::open(&node, 6), Err(NodeError::NoDevice { fid: 6, vfs: 5 })));
    drop(open);
    assert_eq!(with(Some(127)).unwrap().vfs(), 127);
}

#[test]
fn a_child_of_a_fork_leaves_the_node_alone() {
    let (_scratch, node) = Scratch::with_node();
    let ours = NodeTransport::open(&node, 1).unwrap();
    #[allow(unsafe_code)]
    // SAFETY: the child only makes calls that do not allocate, and exits at once.
    let status = unsafe {
        let child = libc::fork();
        if child == 0 {
            let refused = ours.dma_alloc(4096, Scope::Opener).is_err() && !node.core().is_ours();
            libc::_exit(if refused { 7 } else { 8 });
        }
        let mut status = 0;
        libc::waitpid(child, &mut status, 0);
        status
    };
    assert_eq!(libc::WEXITSTATUS(status), 7);
    assert!(node.core().is_ours());
    assert_eq!(node.status().unwrap().parties.len(), 1);
}

#[test]
fn functions_of_one_process_share_blocks_by_their_address() {
    let (_scratch, node) = Scratch::with_node();
    let (one, two) = (NodeTransport::open(&node, 1).unwrap(), NodeTransport::open(&node, 2).unwrap());
    let block = one.dma_alloc(10_000, Scope::Function).unwrap();
    assert_eq!(one.dma_attach(block.iova, 10_000).unwrap().ptr, block.ptr);
    assert!(one.dma_attach(block.iova, 20_000).is_err(), "more than there is");
    assert!(one.dma_attach(block.iova + 4096, 100).is_err(), "no beginning of a block");
    assert!(two.dma_attach(block.iova, 10_000).is_err(), "another function's");
    assert!(one.dma_attach(0x1000, 100).is_err());
    one.dma_free(block);
    assert_eq!(node.status().unwrap().driver_memory, 0);
}

#[test]
fn the_parts_of_the_file_do_not_overlap() {
    assert_eq!(file::HEAD_LEN % 4096, 0);
    assert_eq!(file::file_len(), file::arena_at() + file::ARENA_LEN);
    assert_eq!(file::arena_at() % 4096, 0);
}

#[test]
fn a_node_keeps_the_identity_it_was_made_with() {
    let scratch = Scratch::new();
    let with = |link_layer, node_id| {
        let options = NodeOptions { vfs: Some(1), link_layer, node_id, ..NodeOptions::default() };
        Node::open_or_create(&scratch.0, &options)
    };
    let refused = with(Some(LinkLayer::Infiniband), Some(126)).err().map(|e| e.to_string());
    assert!(refused.is_some_and(|said| said.starts_with("--id 126: expected 125 at most")));
    let node = with(Some(LinkLayer::Infiniband), Some(125)).unwrap();
    assert_eq!(node.devices()[1].mac, [0x02, 0x1b, 0x56, 0, 125, 1]);
    drop(node);
    let status = with(None, None).unwrap().status().unwrap();
    assert_eq!((status.link_layer, status.node_id), (LinkLayer::Infiniband, 125));
    for (layer, id, said) in [
        (Some(LinkLayer::Ethernet), None, "link layer infiniband, asked for ethernet"),
        (None, Some(7), "id 125, asked for 7"),
    ] {
        let error = with(layer, id).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn a_node_keeps_what_its_devices_are_called_and_where_they_are() {
    let scratch = Scratch::new();
    let with = |name: Option<&str>, bus: Option<&str>, numa| {
        let (name, bus) = (name.map(|name| name.parse().unwrap()), bus.map(|bus| bus.parse().unwrap()));
        let options = NodeOptions { vfs: Some(2), name, bus, numa, ..NodeOptions::default() };
        Node::open_or_create(&scratch.0, &options)
    };
    drop(with(Some("mlx5_4"), Some("0000:3b:00.0"), Some(1)).unwrap());
    let node = with(None, None, None).unwrap();
    let seen = crate::Observer::open(&scratch.0).unwrap().devices().unwrap();
    assert_eq!(node.devices(), seen);
    let last = &seen[2];
    assert_eq!((&*last.name, &*last.bdf, last.numa), ("mlx5_6", "0000:3b:00.2", Some(1)));
    for (name, bus, numa, said) in [
        (Some("mlx5_0"), None, None, "name mlx5_4, asked for mlx5_0"),
        (None, Some("0000:5e:00.0"), None, "PCI address 0000:3b:00.0, asked for 0000:5e:00.0"),
        (None, None, Some(0), "NUMA node 1, asked for 0"),
    ] {
        let error = with(name, bus, numa).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn an_address_becomes_the_second_gid_and_goes_again() {
    let (_scratch, node) = Scratch::with_node();
    let ten: FunctionAddress = "10.0.0.5/24".parse().unwrap();
    node.set_address(1, Some(ten)).unwrap();
    assert_eq!(open_device_of(&node, 1).unwrap().gid(1).unwrap(), gid_of_ip("10.0.0.5".parse().unwrap()));
    assert_eq!(node.devices()[1].gids[1], gid_of_ip("10.0.0.5".parse().unwrap()));
    assert_eq!(node.status().unwrap().functions[1].address, Some(ten));
    let taken = node.set_address(2, Some(ten)).unwrap_err();
    assert!(matches!(taken, NodeError::AddressTaken { fid: 1, .. }), "{taken}");
    let open = NodeTransport::open(&node, 1).unwrap();
    assert!(matches!(node.set_address(1, None), Err(NodeError::InUse { fid: 1, .. })));
    drop(open);
    node.set_address(1, None).unwrap();
    assert_eq!(node.devices()[1].gids[1], gid_of_ip("127.0.0.2".parse().unwrap()));
    assert!(matches!(node.set_address(9, None), Err(NodeError::NoDevice { fid: 9, .. })));
}
