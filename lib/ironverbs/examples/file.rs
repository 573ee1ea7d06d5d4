//! Sends a file, and shows the progress.
//!
//!     file receive "node=/dev/shm/adapter fid=1" 7471 copy
//!     file send "node=/dev/shm/adapter fid=2" 127.0.0.2:7471 original

use ironverbs::{Buf, Device, Error, Listener, Pool, Request, block_on};
use std::{
    collections::VecDeque,
    env, error,
    fs::File,
    io::{Read, Write},
    net::SocketAddr,
};

type Outcome = Result<(), Box<dyn error::Error>>;

const CHUNK: usize = 64 << 10;
/// Chunks under way at a time.
const WINDOW: usize = 16;

fn main() -> Outcome {
    let words: Vec<String> = env::args().skip(1).collect();
    match &*words.iter().map(|word| &**word).collect::<Vec<_>>() {
        ["receive", device, port, path] => block_on(receive(&Device::open(device)?, port.parse()?, path)),
        ["send", device, address, path] => block_on(send(&Device::open(device)?, address.parse()?, path)),
        _ => Err("expected receive DEVICE PORT FILE or send DEVICE ADDRESS FILE".into()),
    }
}

/// Prints each per cent once.
struct Progress {
    done: u64,
    all: u64,
}

impl Progress {
    fn add(&mut self, bytes: usize) {
        let percent = |done: u64| done * 100 / self.all.max(1);
        let before = percent(self.done);
        self.done += bytes as u64;
        if percent(self.done) != before {
            eprint!("\r{:3} % of {} bytes", percent(self.done), self.all);
        }
    }
}

async fn send(device: &Device, address: SocketAddr, path: &str) -> Outcome {
    let mut file = File::open(path)?;
    let mut progress = Progress { done: 0, all: file.metadata()?.len() };
    let pool = Pool::new(device, WINDOW, CHUNK)?;
    let connection = device.qp().connect(address, &progress.all.to_be_bytes()).await?;
    let mut under_way = VecDeque::new();
    loop {
        let mut buffer = match under_way.len() < WINDOW {
            true => pool.empty()?,
            false => sent(&mut under_way, &mut progress).await?,
        };
        buffer.resize(CHUNK)?;
        let len = file.read(&mut buffer)?;
        if len == 0 {
            break;
        }
        buffer.resize(len)?;
        under_way.push_back(connection.send(buffer));
    }
    while !under_way.is_empty() {
        sent(&mut under_way, &mut progress).await?;
    }
    connection.disconnect().await;
    Ok(())
}

/// Waits for the oldest chunk, and returns its buffer.
async fn sent(under_way: &mut VecDeque<Request<Buf>>, progress: &mut Progress) -> Result<Buf, Error> {
    let buffer = under_way.pop_front().ok_or(Error::Closed)?.await?;
    progress.add(buffer.len());
    Ok(buffer)
}

async fn receive(device: &Device, port: u16, path: &str) -> Outcome {
    let listener = Listener::on(device, port)?;
    println!("listening at {}", listener.address());
    let incoming = listener.accept().await?;
    let len = incoming.data().first_chunk().ok_or(Error::Closed)?;
    let mut progress = Progress { done: 0, all: u64::from_be_bytes(*len) };
    let connection = incoming.accept().await?;
    let pool = Pool::new(device, WINDOW, CHUNK)?;
    let mut posted = VecDeque::new();
    while posted.len() < WINDOW {
        posted.push_back(connection.recv(pool.empty()?));
    }
    let mut file = File::create(path)?;
    while progress.done < progress.all {
        let chunk = posted.pop_front().ok_or(Error::Closed)?.await?;
        file.write_all(&chunk)?;
        progress.add(chunk.len());
        posted.push_back(connection.recv(chunk.into_buf()));
    }
    connection.disconnected().await;
    println!("received {} bytes", progress.done);
    Ok(())
}
