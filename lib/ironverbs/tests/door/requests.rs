use super::{ALL, Ends, cancelled, connected, once};
use ironverbs::{Datagrams, Error, Pool, Region, SharedReceives, block_on, sim::Sim, verbs::AccessFlags};
use std::{pin::pin, sync::Arc};

#[test]
fn messages_arrive_in_order_and_buffers_come_back() {
    let Ends { a, b, ours, theirs } = Ends::new();
    block_on(async {
        let receives: Vec<_> = (0..4).map(|_| b.recv(theirs.empty().unwrap())).collect();
        let sends: Vec<_> = (0..4u8).map(|i| a.send_with(ours.take(&[i; 9]).unwrap(), i.into())).collect();
        for (i, send) in sends.into_iter().enumerate() {
            assert_eq!(*send.await?, [i as u8; 9]);
        }
        for (i, receive) in receives.into_iter().enumerate() {
            let message = receive.await?;
            assert_eq!((&*message, message.immediate()), (&[i as u8; 9][..], Some(i as u32)));
            assert_eq!(message.qpn(), b.qpn());
        }
        Ok::<_, Error>(())
    })
    .unwrap();
    assert_eq!((ours.free(), theirs.free()), (64, 64));
}

#[test]
fn peers_memory_is_written_read_and_counted_in() {
    let ends = Ends::new();
    let region = ends.region(4096);
    let Ends { a, b, ours, theirs } = &ends;
    block_on(async {
        let remote = region.remote();
        a.write(ours.take(b"one-sided")?, remote.slice(16..)?).await?;
        let mut found = [0; 9];
        region.read(16, &mut found)?;
        assert_eq!(&found, b"one-sided");
        let read = a.read(ours.empty()?, remote.slice(20..25)?).await?;
        assert_eq!(&*read, b"sided");

        let announced = b.recv(theirs.empty()?);
        a.write_with(ours.take(b"more")?, remote.slice(1000..)?, 42).await?;
        let message = announced.await?;
        assert_eq!((message.immediate(), message.written(), message.len()), (Some(42), Some(4), 0));

        region.store(0, 40)?;
        assert_eq!(a.fetch_and_add(remote, 2).await?, 40);
        assert_eq!(a.compare_and_swap(remote, 42, 7).await?, 42);
        assert_eq!(a.compare_and_swap(remote, 42, 9).await?, 7);
        assert_eq!(region.load(0)?, 7);
        Ok::<_, Error>(())
    })
    .unwrap();
    assert_eq!(ours.free(), 64);
}

#[test]
fn a_region_is_written_at_any_byte_and_keeps_its_neighbours() {
    let region = Ends::new().region(64);
    region.write(0, &[0xaa; 64]).unwrap();
    for (offset, len) in [(0, 8), (3, 2), (5, 9), (62, 2), (8, 0), (64, 0), (7, 17)] {
        region.write(0, &[0xaa; 64]).unwrap();
        region.write(offset, &vec![1; len]).unwrap();
        let mut all = [0; 64];
        region.read(0, &mut all).unwrap();
        let expected: Vec<u8> =
            (0..64).map(|at| if (offset..offset + len).contains(&at) { 1 } else { 0xaa }).collect();
        assert_eq!(all[..], expected[..], "{len} bytes at {offset}");
        let mut part = vec![0; len];
        region.read(offset, &mut part).unwrap();
        assert_eq!(part, vec![1; len]);
    }
    for wrong in [
        region.write(60, &[0; 5]),
        region.store(4, 0),
        region.store(64, 0),
        region.read(usize::MAX, &mut [0]),
    ] {
        assert!(matches!(wrong, Err(Error::TooLong { .. })));
    }
}

#[test]
fn a_full_queue_makes_requests_wait_and_serves_them_in_order() {
    let sim = Sim::new();
    let (a, b) = (sim.device(0).unwrap(), sim.device(1).unwrap());
    let (a, b) = (a.qp().sends(2).build().unwrap(), b.qp().receives(2).build().unwrap());
    let Ends { a, b, ours, theirs } = Ends::of(connected(a, b));
    block_on(async {
        let sends: Vec<_> = (0..40u8).map(|i| a.send(ours.take(&[i]).unwrap())).collect();
        let receives: Vec<_> = (0..40).map(|_| b.recv(theirs.empty().unwrap())).collect();
        // Awaited in another order than posted.
        let (last, first) = ironverbs::join(
            async {
                let mut last = None;
                for send in sends {
                    last = Some(send.await?);
                }
                Ok::<_, Error>(last)
            },
            async {
                let mut all = Vec::new();
                for receive in receives {
                    all.push(receive.await?[0]);
                }
                Ok::<_, Error>(all)
            },
        )
        .await;
        assert_eq!(*last?.unwrap(), [39]);
        assert_eq!(first?, (0..40).collect::<Vec<u8>>());
        Ok::<_, Error>(())
    })
    .unwrap();
    assert_eq!((ours.free(), theirs.free()), (64, 64));
}

#[test]
fn a_dropped_receive_loses_no_message_and_posts_no_second_buffer() {
    let Ends { a, b, ours, theirs } = Ends::new();
    block_on(async {
        for _ in 0..200 {
            cancelled(b.recv(theirs.empty()?)).await;
        }
        assert_eq!(theirs.free(), 63, "one buffer is posted for the next receive");
        a.send(ours.take(b"kept")?).await?;
        assert_eq!(&*b.recv(theirs.empty()?).await?, b"kept");
        // One that has its message but is dropped leaves it to the next.
        let receive = b.recv(theirs.empty()?);
        a.send(ours.take(b"again")?).await?;
        drop(receive);
        assert_eq!(&*b.recv(theirs.empty()?).await?, b"again");
        Ok::<_, Error>(())
    })
    .unwrap();
    drop(b);
    assert_eq!(theirs.free(), 64);
}

#[test]
fn a_dropped_send_is_sent_and_its_buffer_comes_back_afterwards() {
    let Ends { a, b, ours, theirs } = Ends::new();
    block_on(async {
        drop(a.send(ours.take(b"dropped")?));
        assert_eq!(ours.free(), 63, "the queue has it");
        assert_eq!(&*b.recv(theirs.empty()?).await?, b"dropped");
        drop(a.fetch_and_add(Region::new(b.device(), 8, ALL)?.remote(), 1));
        Ok::<_, Error>(())
    })
    .unwrap();
    drop(a);
    assert_eq!(ours.free(), 64);
}

#[test]
fn a_waiting_request_that_is_dropped_lets_the_next_pass() {
    let sim = Sim::new();
    let (a, b) = (sim.device(0).unwrap(), sim.device(1).unwrap());
    let (a, b) = (a.qp().sends(1).build().unwrap(), b.qp().build().unwrap());
    let Ends { a, b, ours, theirs } = Ends::of(connected(a, b));
    block_on(async {
        let first = a.send(ours.take(b"1")?);
        let mut second = Box::pin(a.send(ours.take(b"2")?));
        let mut third = Box::pin(a.send(ours.take(b"3")?));
        assert!(once(second.as_mut()).await.is_none() && once(third.as_mut()).await.is_none());
        let receive = b.recv(theirs.empty()?);
        drop(second);
        assert_eq!(&*first.await?, b"1");
        assert_eq!(&*receive.await?, b"1");
        let receive = b.recv(theirs.empty()?);
        assert_eq!(&*third.await?, b"3");
        assert_eq!(&*receive.await?, b"3");
        Ok::<_, Error>(())
    })
    .unwrap();
    assert_eq!(ours.free(), 64);
}

#[test]
fn queue_pairs_share_receives() {
    let sim = Sim::new();
    let (client, server) = (sim.device(0).unwrap(), sim.device(1).unwrap());
    let shared = SharedReceives::new(&server, 8).unwrap();
    let (ours, theirs) = (Pool::new(&client, 8, 64).unwrap(), Pool::new(&server, 8, 64).unwrap());
    let pair = || connected(client.qp().build().unwrap(), server.qp().shared(&shared).build().unwrap());
    let pairs = [pair(), pair(), pair()];
    block_on(async {
        for (a, b) in &pairs {
            let receive = shared.recv(theirs.empty()?);
            a.send(ours.take(&b.qpn().to_be_bytes())?).await?;
            let message = receive.await?;
            assert_eq!((message.qpn(), &*message), (b.qpn(), &b.qpn().to_be_bytes()[..]));
        }
        // The queue pair receives from there, too.
        let receive = pairs[1].1.recv(theirs.empty()?);
        pairs[0].0.send(ours.take(b"shared")?).await?;
        assert_eq!(receive.await?.qpn(), pairs[0].1.qpn());
        cancelled(shared.recv(theirs.empty()?)).await;
        Ok::<_, Error>(())
    })
    .unwrap();
    drop((pairs, shared));
    assert_eq!((ours.free(), theirs.free()), (8, 8));
}

#[test]
fn datagrams_name_their_sender() {
    let sim = Sim::new();
    let (a, b) = (sim.device(0).unwrap(), sim.device(1).unwrap());
    let (one, other) = (Datagrams::open(&a, 8).unwrap(), Datagrams::open(&b, 8).unwrap());
    let size = 64 + Datagrams::HEADER;
    let (ours, theirs) = (Pool::new(&a, 8, size).unwrap(), Pool::new(&b, 8, size).unwrap());
    block_on(async {
        let receive = other.recv(theirs.empty()?);
        one.send_to(ours.take(b"who is there?")?, &other.address()?).await?;
        let question = receive.await?;
        assert_eq!(&*question, b"who is there?");
        let answer = one.recv(ours.empty()?);
        let source = question.source().expect("a sender");
        other.send_to(theirs.take(b"me")?, &source.address()).await?;
        let answer = answer.await?;
        assert_eq!((&*answer, answer.source().unwrap().gid), (&b"me"[..], other.address()?.gid));
        Ok::<_, Error>(())
    })
    .unwrap();
}

#[test]
fn a_window_ends_when_it_is_dropped() {
    let ends = Ends::new();
    let Ends { a, b, ours, theirs } = &ends;
    let region = Arc::new(Region::new(b.device(), 4096, AccessFlags::MW_BIND).unwrap());
    block_on(async {
        let window = b.open_window(&region, 64..128, AccessFlags::REMOTE_WRITE).await?;
        a.write(ours.take(b"inside")?, window.remote()).await?;
        let mut found = [0; 6];
        region.read(64, &mut found)?;
        assert_eq!(&found, b"inside");
        let remote = window.remote();
        drop(window);
        assert!(matches!(a.write(ours.take(b"late")?, remote).await, Err(Error::RemoteAccess)));
        assert_eq!(theirs.free(), 64);
        Ok::<_, Error>(())
    })
    .unwrap();
}

#[test]
fn without_a_buffer_one_waits_in_line() {
    let Ends { a, .. } = Ends::new();
    let pool = Pool::new(a.device(), 1, 8).unwrap();
    block_on(async {
        let held = pool.take(b"held").unwrap();
        assert!(matches!(pool.empty(), Err(Error::PoolEmpty)));
        let (mut first, mut second) = (pin!(pool.acquire()), pin!(pool.acquire()));
        assert!(once(first.as_mut()).await.is_none() && once(second.as_mut()).await.is_none());
        drop(held);
        assert!(once(second.as_mut()).await.is_none(), "the first goes first");
        drop(first.await);
        drop(second.await);
    });
    assert_eq!(pool.free(), 1);
}
