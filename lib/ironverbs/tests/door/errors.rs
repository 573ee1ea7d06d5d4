//! Each fault of input, peer or device is an error of its own kind.

use super::{Ends, connected};
use ironverbs::{Datagrams, Device, Error, Pool, Region, block_on, sim::Sim, verbs::AccessFlags};

#[test]
fn a_wrong_key_a_missing_right_and_a_place_out_of_bounds_are_refused() {
    for case in 0..3 {
        let ends = Ends::new();
        let Ends { a, b, ours, .. } = &ends;
        let readable = Region::new(b.device(), 64, AccessFlags::REMOTE_READ).unwrap();
        let mut bytes = readable.remote().to_bytes();
        match case {
            0 => bytes[19] ^= 1,
            1 => {}
            _ => bytes[15] = 0xff, // a length that the region does not have
        }
        let remote = ironverbs::Remote::from_bytes(&bytes).unwrap();
        block_on(async {
            let refused = match case {
                2 => a.read(ours.empty().unwrap(), remote).await,
                _ => a.write(ours.take(b"x").unwrap(), remote).await,
            };
            assert!(matches!(refused, Err(Error::RemoteAccess)), "{case}: {refused:?}");
            let later = a.write(ours.take(b"x").unwrap(), remote).await;
            assert!(matches!(later, Err(Error::Closed)), "{later:?}");
        });
        assert_eq!(ours.free(), 64);
    }
}

#[test]
fn a_message_longer_than_its_buffer_fails_on_both_sides() {
    let Ends { a, b, ours, .. } = Ends::new();
    let small = Pool::new(b.device(), 1, 8).unwrap();
    block_on(async {
        let receive = b.recv(small.empty().unwrap());
        let sent = a.send(ours.take(&[0; 100]).unwrap()).await;
        assert!(matches!(sent, Err(Error::RemoteRequest)), "{sent:?}");
        let received = receive.await;
        assert!(matches!(received, Err(Error::BufferTooShort)), "{received:?}");
    });
    assert_eq!((ours.free(), small.free()), (64, 1));
}

#[test]
fn what_does_not_fit_is_refused_before_it_is_sent() {
    let ends = Ends::new();
    let region = ends.region(64);
    let Ends { a, ours, .. } = &ends;
    let remote = region.remote();
    block_on(async {
        assert!(matches!(ours.take(&[0; 4097]), Err(Error::TooLong { len: 4097, room: 4096 })));
        assert!(matches!(remote.slice(1..66), Err(Error::TooLong { .. })));
        assert!(matches!(ironverbs::Remote::from_bytes(&[0; 19]), Err(Error::TooLong { .. })));
        let long = a.write(ours.take(&[0; 65]).unwrap(), remote).await;
        assert!(matches!(long, Err(Error::TooLong { len: 65, room: 64 })), "{long:?}");
        let word = a.fetch_and_add(remote.slice(60..).unwrap(), 1).await;
        assert!(matches!(word, Err(Error::TooLong { .. })), "{word:?}");
        a.write(ours.take(b"still connected").unwrap(), remote).await.unwrap();
    });
}

#[test]
fn a_peer_that_is_gone_is_noticed_and_so_is_one_that_does_not_receive() {
    let Ends { a, b, ours, .. } = Ends::new();
    drop(b);
    let gone = block_on(a.send(ours.take(b"anybody?").unwrap()));
    assert!(matches!(gone, Err(Error::PeerGone)), "{gone:?}");

    let sim = Sim::new();
    let (a, b) = (sim.device(0).unwrap(), sim.device(1).unwrap());
    let (a, _b) = connected(a.qp().receive_retries(2).build().unwrap(), b.qp().build().unwrap());
    let ours = Pool::new(a.device(), 1, 8).unwrap();
    let unread = block_on(a.send(ours.take(b"hello?").unwrap()));
    assert!(matches!(unread, Err(Error::NotReady)), "{unread:?}");
}

#[test]
fn a_closed_queue_pair_ends_all_waiting() {
    let Ends { a, b, ours, theirs } = Ends::new();
    let receive = b.recv(theirs.empty().unwrap());
    b.close();
    let closed = block_on(receive);
    assert!(matches!(closed, Err(Error::Closed)), "{closed:?}");
    assert!(matches!(block_on(b.send(theirs.take(b"x").unwrap())), Err(Error::Closed)));
    assert!(matches!(block_on(a.send(ours.take(b"x").unwrap())), Err(Error::PeerGone)));
    let unconnected = a.device().qp().build().unwrap();
    assert!(matches!(block_on(unconnected.send(ours.take(b"x").unwrap())), Err(Error::Closed)));
    assert_eq!((ours.free(), theirs.free()), (64, 64));
}

#[test]
fn a_device_that_is_pulled_out_fails_all_waiting() {
    let sim = Sim::new();
    let Ends { a, b, ours, theirs } = Ends::of(sim.pair().unwrap());
    let receive = b.recv(theirs.empty().unwrap());
    sim.unplug(1);
    let received = block_on(receive);
    assert!(matches!(received, Err(Error::DeviceGone)), "{received:?}");
    let sent = block_on(b.send(theirs.take(b"x").unwrap()));
    assert!(matches!(sent, Err(Error::DeviceGone)), "{sent:?}");
    assert!(matches!(Pool::new(b.device(), 1, 8), Err(Error::DeviceGone)));
    let peer = block_on(a.send(ours.take(b"x").unwrap()));
    assert!(matches!(peer, Err(Error::PeerGone)), "{peer:?}");
}

#[test]
fn buffers_of_another_device_are_refused() {
    let Ends { a, theirs, .. } = Ends::new();
    let foreign = block_on(a.send(theirs.take(b"x").unwrap()));
    assert!(matches!(foreign, Err(Error::LocalAccess)), "{foreign:?}");
}

#[test]
fn a_failed_datagram_does_not_end_its_socket() {
    let sim = Sim::new();
    let (a, b) = (sim.device(0).unwrap(), sim.device(1).unwrap());
    let (one, other) = (Datagrams::open(&a, 4).unwrap(), Datagrams::open(&b, 4).unwrap());
    let (ours, theirs) = (Pool::new(&a, 4, 64).unwrap(), Pool::new(&b, 4, 64).unwrap());
    let to = other.address().unwrap();
    block_on(async {
        let foreign = one.send_to(theirs.take(b"x").unwrap(), &to).await;
        assert!(matches!(foreign, Err(Error::LocalAccess)), "{foreign:?}");
        let receive = other.recv(theirs.empty().unwrap());
        one.send_to(ours.take(b"y").unwrap(), &to).await.unwrap();
        assert_eq!(&*receive.await.unwrap(), b"y");
        assert!(matches!(one.join(a.address()), Err(Error::Device(_))), "not a group");
    });
}

#[test]
fn what_names_no_device_is_told_from_one_that_is_not_there() {
    let open = |words| Device::open(words).expect_err(words);
    assert!(matches!(open("iron1"), Error::NotADevice(_)));
    assert!(matches!(open("node=relative fid=1"), Error::NotADevice(_)));
    assert!(matches!(open("node=/nowhere fid=1"), Error::Open(_)));
    assert!(matches!(open("vfio=ffff:ff:1f.7"), Error::Open(_)));
    assert!(matches!(open("vfio-user=/nowhere address=10.0.0.2"), Error::Open(_)));
    assert!(matches!(Sim::new().device(8), Err(Error::NotADevice(_))));
    assert!(matches!(Sim::new().faults("lose=1%").device(0), Err(Error::Plan(_))));
}

#[test]
fn every_error_is_one_line() {
    for error in [
        Error::DeviceGone,
        Error::PoolEmpty,
        Error::TooLong { len: 2, room: 1 },
        Error::Rejected { data: vec![] },
    ] {
        let text = error.to_string();
        assert!(!text.is_empty() && !text.contains('\n') && !text.contains("os error"), "{text}");
    }
}
