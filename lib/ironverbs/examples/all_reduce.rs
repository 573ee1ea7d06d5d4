//! An all-reduce: ranks in a ring add up their vectors, part by part, so that each sends twice its vector whatever their number.
//!
//!     all_reduce "node=/dev/shm/adapter fid=1" "node=/dev/shm/adapter fid=2" ...
//!
//! Each device is a rank; one thread runs all of them. Without devices, four ranks meet on a simulated machine.

use futures_util::future::join_all;
use ironverbs::{Buf, Device, Error, Listener, Pool, Qp, block_on, join, sim::Sim};
use std::{env, ops::Range};

const PORT: u16 = 7471;
const VALUES: usize = 1 << 16;
const BYTES: usize = size_of::<f32>();

fn main() -> Result<(), Error> {
    let words: Vec<String> = env::args().skip(1).collect();
    let sim = Sim::new();
    let devices: Vec<Device> = match words.is_empty() {
        true => (0..4).map(|rank| sim.device(rank)).collect::<Result<_, _>>()?,
        false => words.iter().map(|words| Device::open(words)).collect::<Result<_, _>>()?,
    };
    let listeners: Vec<Listener> =
        devices.iter().map(|device| Listener::on(device, PORT)).collect::<Result<_, _>>()?;
    let ranks = devices.len();
    let run = |rank: usize| run(rank, &devices[rank], &listeners);
    for (rank, sums) in block_on(join_all((0..ranks).map(run))).into_iter().enumerate() {
        let expected = |i: usize| (0..ranks).map(|rank| (rank * VALUES + i) as f32).sum::<f32>();
        let right = sums?.iter().enumerate().all(|(i, sum)| *sum == expected(i));
        println!("rank {rank} of {ranks}: {}", if right { "the sums are right" } else { "wrong sums" });
    }
    Ok(())
}

/// One rank: connects to its right neighbour, is connected to by its left one, and returns the sums.
async fn run(rank: usize, device: &Device, listeners: &[Listener]) -> Result<Vec<f32>, Error> {
    let ranks = listeners.len();
    let mut values: Vec<f32> = (0..VALUES).map(|i| (rank * VALUES + i) as f32).collect();
    let (left, right) = join(
        async { listeners[rank].accept().await?.accept().await },
        device.qp().connect(listeners[(rank + 1) % ranks].address(), b""),
    )
    .await;
    let (left, right) = (left?, right?);
    all_reduce(rank, ranks, &mut values, &left, &right).await?;
    join(right.disconnect(), left.disconnected()).await;
    Ok(values)
}

/// The values of part `number`; parts are counted round the ring.
fn part(number: usize, ranks: usize) -> Range<usize> {
    let (number, size) = (number % ranks, VALUES.div_ceil(ranks));
    (number * size).min(VALUES)..((number + 1) * size).min(VALUES)
}

async fn all_reduce(
    rank: usize,
    ranks: usize,
    values: &mut [f32],
    left: &Qp,
    right: &Qp,
) -> Result<(), Error> {
    let pool = Pool::new(left.device(), 4, part(0, ranks).len() * BYTES)?;
    for step in 0..2 * (ranks - 1) {
        // In the first round the parts are added up on their way, in the second the sums go round.
        let (gives, takes) = (rank + 2 * ranks - step, rank + 2 * ranks - step - 1);
        let incoming = left.recv(pool.empty()?);
        let mut outgoing = pool.empty()?;
        put(&mut outgoing, &values[part(gives, ranks)])?;
        let (sent, came) = join(right.send(outgoing), incoming).await;
        sent?;
        let into = &mut values[part(takes, ranks)];
        for (value, bytes) in into.iter_mut().zip(came?.chunks_exact(BYTES)) {
            let other = bytes.try_into().map(f32::from_le_bytes).unwrap_or_default();
            *value = if step < ranks - 1 { *value + other } else { other };
        }
    }
    Ok(())
}

fn put(buffer: &mut Buf, values: &[f32]) -> Result<(), Error> {
    buffer.resize(values.len() * BYTES)?;
    buffer
        .chunks_exact_mut(BYTES)
        .zip(values)
        .for_each(|(to, value)| to.copy_from_slice(&value.to_le_bytes()));
    Ok(())
}
