//! Connections by address.

use ironverbs::{Connection, Device, Error, Listener, Pool, Result, block_on, connect, join, sim::Sim};
use std::net::SocketAddr;

const PORT: u16 = 7471;

fn two() -> (Device, Device) {
    let sim = Sim::new();
    (sim.device(0).unwrap(), sim.device(1).unwrap())
}

async fn met(listener: &Listener, client: &Device) -> Result<(Connection, Connection)> {
    let passive = async { listener.accept().await?.accept().await };
    let (passive, active) = join(passive, client.qp().connect(listener.address(), b"hello")).await;
    Ok((passive?, active?))
}

#[test]
fn both_sides_get_private_data_and_each_others_address() {
    let (server, client) = two();
    let listener = Listener::on(&server, PORT).unwrap();
    let (passive, active) = block_on(join(
        async {
            let incoming = listener.accept().await?;
            assert_eq!((incoming.peer(), &incoming.data()[..6]), (client.address(), &b"hello\0"[..]));
            incoming.accept_with(server.qp().receives(1), b"welcome").await
        },
        client.qp().sends(1).connect(listener.address(), b"hello"),
    ));
    let (passive, active): (Connection, Connection) = (passive.unwrap(), active.unwrap());
    assert!(active.data().starts_with(b"welcome\0") && passive.data().starts_with(b"hello\0"));
    assert_eq!((active.peer(), passive.peer().ip()), (listener.address(), client.address()));
}

#[test]
fn a_rejected_request_says_why_and_a_dropped_one_is_rejected() {
    let (server, client) = two();
    let listener = Listener::on(&server, PORT).unwrap();
    let visit = || client.qp().connect(listener.address(), b"");
    let (rejected, answer) = block_on(join(async { listener.accept().await?.reject(b"full") }, visit()));
    rejected.unwrap();
    assert!(matches!(answer, Err(Error::Rejected { data }) if data.starts_with(b"full\0")));
    let (dropped, answer) = block_on(join(async { listener.accept().await.map(drop) }, visit()));
    dropped.unwrap();
    assert!(answer.is_err(), "{answer:?}");
    // The listener goes on.
    block_on(met(&listener, &client)).unwrap();
}

#[test]
fn a_port_without_a_listener_refuses_and_has_one_listener_at_a_time() {
    let (server, client) = two();
    let listener = Listener::on(&server, PORT).unwrap();
    assert!(matches!(Listener::on(&server, PORT), Err(Error::AddressInUse(_))));
    let other = SocketAddr::new(server.address(), PORT + 1);
    let refused = block_on(client.qp().connect(other, b""));
    assert!(matches!(refused, Err(Error::NoListener(at)) if at == other), "{refused:?}");
    drop(listener);
    let again = Listener::on(&server, PORT).unwrap();
    block_on(met(&again, &client)).unwrap();
}

#[test]
fn an_address_of_nobody_is_unreachable() {
    let (_, client) = two();
    let nobody: SocketAddr = "127.0.0.200:1".parse().unwrap();
    let lost = block_on(client.qp().connect(nobody, b""));
    assert!(matches!(lost, Err(Error::Unreachable(at)) if at == nobody), "{lost:?}");
    assert!(matches!(Listener::bind(nobody), Err(Error::Unreachable(_))));
    let long = block_on(client.qp().connect(nobody, &[0; 57]));
    assert!(matches!(long, Err(Error::TooLong { len: 57, room: 56 })));
}

#[test]
fn a_peer_that_hangs_up_ends_all_waiting() {
    let (server, client) = two();
    let listener = Listener::on(&server, PORT).unwrap();
    let pool = Pool::new(&server, 4, 64).unwrap();
    for deliberately in [true, false] {
        let (passive, active) = block_on(met(&listener, &client)).unwrap();
        let receive = passive.recv(pool.empty().unwrap());
        let (received, ()) = block_on(join(receive, async {
            match deliberately {
                true => active.disconnect().await,
                false => drop(active),
            }
        }));
        assert!(matches!(received, Err(Error::Closed)), "{received:?}");
        block_on(passive.disconnected());
    }
    assert_eq!(pool.free(), 4);
}

#[test]
fn connections_are_made_through_a_bad_wire() {
    for seed in 1..6 {
        let sim = Sim::new().faults("drop=20%,duplicate=5%").seed(seed);
        let (server, client) = (sim.device(0).unwrap(), sim.device(1).unwrap());
        let listener = Listener::on(&server, PORT).unwrap();
        let (ours, theirs) = (Pool::new(&client, 4, 64).unwrap(), Pool::new(&server, 4, 64).unwrap());
        block_on(async {
            let (passive, active) = met(&listener, &client).await?;
            let receive = passive.recv(theirs.empty()?);
            active.send(ours.take(b"through")?).await?;
            assert_eq!(&*receive.await?, b"through");
            join(active.disconnect(), passive.disconnected()).await;
            Ok::<_, Error>(())
        })
        .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

#[test]
fn the_nearest_open_device_connects() {
    // Tests of one process have these addresses in common, except for this one.
    let server = Sim::new().device(7).unwrap();
    let listener = Listener::bind(SocketAddr::new(server.address(), PORT)).unwrap();
    let (passive, active) =
        block_on(join(async { listener.accept().await?.accept().await }, connect(listener.address())));
    let (passive, active) = (passive.unwrap(), active.unwrap());
    assert_eq!(active.device().address(), passive.device().address());
}
