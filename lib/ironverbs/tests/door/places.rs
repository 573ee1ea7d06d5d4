//! The same program on a node and over vfio-user, in real time: futures sleep, and are woken by the device.

use super::{Ends, connected};
use devmodel::{Config, region::Geometry, serve};
use ironverbs::{Datagrams, Device, Error, Listener, Pool, Result, block_on, join};
use node::{Node, NodeOptions};
use std::{
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};
use testkit::{Other, Scratch, role, say, until_killed};

const PORT: u16 = 7471;
/// Longer than `block_on` polls.
const LATER: Duration = Duration::from_millis(60);

/// A node with two VFs.
pub fn node(scratch: &Scratch) -> Arc<Node> {
    let options = NodeOptions { vfs: Some(2), ..NodeOptions::default() };
    Node::open_or_create(&scratch.0, &options).expect("a node")
}

pub fn iron(scratch: &Scratch, fid: u8) -> Device {
    Device::open(&format!("node={} fid={fid}", scratch.0.display())).expect("a device")
}

/// Functions behind sockets.
struct Served {
    plugs: Vec<serve::Plug>,
    over: Arc<AtomicBool>,
    scratch: Scratch,
}

impl Served {
    fn new() -> Self {
        let scratch = Scratch::made();
        let standalone = serve::Standalone::new(Geometry::SMALL, Config::default());
        let over = Arc::new(AtomicBool::new(false));
        let (ticks, stop) = (standalone.clone(), over.clone());
        thread::spawn(move || {
            while !stop.load(Relaxed) {
                ticks.run();
                thread::sleep(Duration::from_millis(1));
            }
        });
        let plug = |fid: u8| serve::Plug::new(&socket(&scratch.0, fid), Arc::new(standalone.function(fid)));
        let plugs = [1, 2].map(|fid| plug(fid).expect("a socket")).into();
        Self { plugs, over, scratch }
    }

    fn device(&self, fid: u8) -> Device {
        let socket = socket(&self.scratch.0, fid);
        Device::open(&format!("vfio-user={} address=10.0.0.{fid}", socket.display())).expect("a device")
    }
}

fn socket(dir: &Path, fid: u8) -> std::path::PathBuf {
    dir.join(format!("vf{fid}"))
}

impl Drop for Served {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
    }
}

/// A client and a server that meet, talk while the other sleeps, and part.
fn talk(server: &Device, client: &Device) {
    let listener = Listener::on(server, PORT).unwrap();
    let address = listener.address();
    thread::scope(|scope| {
        scope.spawn(|| {
            let pool = Pool::new(server, 4, 256).unwrap();
            block_on(async {
                let connection = listener.accept().await?.accept().await?;
                for _ in 0..3 {
                    let message = connection.recv(pool.empty()?).await?;
                    thread::sleep(LATER);
                    connection.send(message.into_buf()).await?;
                }
                connection.disconnected().await;
                Ok::<_, Error>(())
            })
            .unwrap();
        });
        let pool = Pool::new(client, 4, 256).unwrap();
        block_on(async {
            let connection = client.qp().connect(address, b"").await?;
            for i in 0..3 {
                connection.send(pool.take(&[i; 200])?).await?;
                let begin = Instant::now();
                let echo = connection.recv(pool.empty()?).await?;
                assert_eq!(*echo, [i; 200]);
                assert!(begin.elapsed() < 20 * LATER, "it was woken");
                thread::sleep(LATER);
            }
            connection.disconnect().await;
            Ok::<_, Error>(())
        })
        .unwrap();
    });
}

#[test]
fn two_programs_talk_on_a_node() {
    let scratch = Scratch::new();
    let _node = node(&scratch);
    talk(&iron(&scratch, 1), &iron(&scratch, 2));
}

#[test]
fn two_programs_talk_over_vfio_user() {
    let served = Served::new();
    talk(&served.device(1), &served.device(2));
}

fn pair(a: &Device, b: &Device) -> Ends {
    Ends::of(connected(a.qp().build().unwrap(), b.qp().build().unwrap()))
}

#[test]
fn a_server_that_ends_takes_the_device_with_it() {
    let mut served = Served::new();
    let Ends { a, ours, .. } = pair(&served.device(1), &served.device(2));
    thread::scope(|scope| {
        let receive = a.recv(ours.empty().unwrap());
        let waits = scope.spawn(|| block_on(receive));
        thread::sleep(LATER);
        served.plugs.clear();
        let received = waits.join().unwrap();
        assert!(matches!(received, Err(Error::DeviceGone)), "{received:?}");
    });
    let sent = block_on(a.send(ours.take(b"x").unwrap()));
    assert!(matches!(sent, Err(Error::DeviceGone)), "{sent:?}");
}

/// Echoes, until it is killed.
#[test]
fn plays_a_server() {
    let Some((_, dir)) = role() else { return };
    let device = Device::open(&format!("node={} fid=1", dir.display())).unwrap();
    let listener = Listener::on(&device, PORT).unwrap();
    let pool = Pool::new(&device, 8, 64).unwrap();
    say(listener.address());
    let echoed: Result<()> = block_on(async {
        let connection = listener.accept().await?.accept().await?;
        loop {
            let message = connection.recv(pool.empty()?).await?;
            connection.send(message.into_buf()).await?;
        }
    });
    say(echoed.is_err());
    until_killed();
}

#[test]
fn another_process_is_found_by_its_address_and_missed_when_it_is_killed() {
    let scratch = Scratch::new();
    let _node = node(&scratch);
    let mut server = Other::start(&mut Other::command("places::plays_a_server", "server", &scratch.0));
    let address: SocketAddr = server.hear().parse().unwrap();
    let device = iron(&scratch, 2);
    let pool = Pool::new(&device, 8, 64).unwrap();
    block_on(async {
        let connection = device.qp().patience(8, 7).connect(address, b"").await.unwrap();
        connection.send(pool.take(b"there?").unwrap()).await.unwrap();
        assert_eq!(&*connection.recv(pool.empty().unwrap()).await.unwrap(), b"there?");
        server.kill();
        let gone = connection.send(pool.take(b"still?").unwrap()).await;
        assert!(matches!(gone, Err(Error::PeerGone | Error::Closed)), "{gone:?}");
        let refused = device.qp().connect(address, b"").await;
        assert!(matches!(refused, Err(Error::NoListener(_) | Error::NoAnswer(_))), "{refused:?}");
    });
}

#[test]
fn datagrams_pass_between_devices_of_a_node() {
    let scratch = Scratch::new();
    let _node = node(&scratch);
    let (a, b) = (iron(&scratch, 1), iron(&scratch, 2));
    let (one, other) = (Datagrams::open(&a, 4).unwrap(), Datagrams::open(&b, 4).unwrap());
    let (ours, theirs) = (Pool::new(&a, 4, 128).unwrap(), Pool::new(&b, 4, 128).unwrap());
    block_on(async {
        let to = other.address()?;
        let receive = other.recv(theirs.empty()?); // posted before the datagram can come
        let (sent, received) = join(one.send_to(ours.take(b"datagram")?, &to), receive).await;
        sent?;
        assert_eq!(&*received?, b"datagram");
        Ok::<_, Error>(())
    })
    .unwrap();
}

#[test]
fn a_future_of_another_executor_is_woken() {
    let scratch = Scratch::new();
    let _node = node(&scratch);
    let Ends { a, b, ours, theirs } = pair(&iron(&scratch, 1), &iron(&scratch, 2));
    let receive = b.recv(theirs.empty().unwrap());
    let waits = thread::spawn(|| plain_block_on(receive));
    thread::sleep(LATER);
    plain_block_on(a.send(ours.take(b"wake up").unwrap())).unwrap();
    assert_eq!(&*waits.join().unwrap().unwrap(), b"wake up");
}

/// An executor that knows nothing of this crate.
fn plain_block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(thread::current())).into();
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
            std::task::Poll::Ready(output) => return output,
            std::task::Poll::Pending => thread::park(),
        }
    }
}

#[test]
fn tokio_wakes_futures_without_a_thread_of_ours() {
    testkit::alone!();
    let scratch = Scratch::new();
    let _node = node(&scratch);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (server, client) = (iron(&scratch, 1), iron(&scratch, 2));
        let listener = Listener::on(&server, PORT).unwrap();
        let address = listener.address();
        let pool = Pool::new(&server, 4, 64).unwrap();
        let echo = tokio::spawn(async move {
            let connection = listener.accept().await?.accept().await?;
            for _ in 0..100 {
                let message = connection.recv(pool.empty()?).await?;
                connection.send(message.into_buf()).await?;
            }
            connection.disconnected().await;
            Ok::<_, Error>(())
        });
        let pool = Pool::new(&client, 4, 64).unwrap();
        let connection = client.qp().connect(address, b"").await.unwrap();
        for i in 0..100 {
            connection.send(pool.take(&[i]).unwrap()).await.unwrap();
            assert_eq!(*connection.recv(pool.empty().unwrap()).await.unwrap(), [i]);
        }
        let idle = tokio::time::timeout(LATER, connection.recv(pool.empty().unwrap())).await;
        assert!(idle.is_err(), "nothing was sent");
        connection.disconnect().await;
        echo.await.unwrap().unwrap();
    });
    let threads = std::fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    assert!(!threads.into_iter().any(|name| name.starts_with("ironverbs-event")));
}
