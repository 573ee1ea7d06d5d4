//! Finds services by datagrams to a group: a server answers questions for its name, a client asks who is there.
//!
//!     discovery answer "node=/dev/shm/adapter fid=1" printer
//!     discovery ask "node=/dev/shm/adapter fid=2" printer

use ironverbs::{Address, Datagrams, Device, Error, Pool, block_on, join};
use std::{env, error, net::IpAddr};

/// The group of all who answer.
const GROUP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(239, 27, 86, 1));
const SIZE: usize = 256 + Datagrams::HEADER;
/// Questions may get lost.
const TRIES: usize = 10;

fn main() -> Result<(), Box<dyn error::Error>> {
    let words: Vec<String> = env::args().skip(1).collect();
    match &*words.iter().map(|word| &**word).collect::<Vec<_>>() {
        ["answer", device, name] => Ok(block_on(answer(&Device::open(device)?, name))?),
        ["ask", device, name] => Ok(ask(&Device::open(device)?, name)?),
        _ => Err("expected answer DEVICE NAME or ask DEVICE NAME".into()),
    }
}

async fn answer(device: &Device, name: &str) -> Result<(), Error> {
    let socket = Datagrams::open(device, 16)?;
    let pool = Pool::new(device, 16, SIZE)?;
    socket.join(GROUP)?;
    println!("answering for {name}");
    loop {
        let question = socket.recv(pool.empty()?).await?;
        if let Some(asker) = question.source().filter(|_| *question == *name.as_bytes()) {
            let here = format!("{name} at {}", device.address());
            socket.send_to(pool.take(here.as_bytes())?, &asker.address()).await?;
        }
    }
}

fn ask(device: &Device, name: &str) -> Result<(), Error> {
    let socket = Datagrams::open(device, 16)?;
    let pool = Pool::new(device, 16, SIZE)?;
    let to = Address::group(GROUP);
    let repeats = async {
        for _ in 0..TRIES {
            socket.send_to(pool.take(name.as_bytes())?, &to).await?;
        }
        Ok::<_, Error>(())
    };
    let answer = socket.recv(pool.empty()?);
    let (asked, answer) = block_on(join(repeats, answer));
    asked?;
    println!("{}", String::from_utf8_lossy(&answer?));
    Ok(())
}
