//! A key-value store: clients read the server's memory by themselves, and send it what to store.
//!
//!     kv serve "node=/dev/shm/adapter fid=1" 7471
//!     kv put "node=/dev/shm/adapter fid=2" 127.0.0.2:7471 colour green
//!     kv get "node=/dev/shm/adapter fid=2" 127.0.0.2:7471 colour
//!
//! An entry is a word of version, a key and a value, each padded with zeros. The version is odd while the server writes the entry.

use ironverbs::{Connection, Device, Error, Listener, Pool, Region, Remote, block_on, verbs::AccessFlags};
use std::{
    env, error,
    hash::{DefaultHasher, Hash, Hasher},
    net::SocketAddr,
};

const ENTRIES: usize = 1024;
const WORD: usize = 8;
const KEY: usize = 24;
const VALUE: usize = 96;
const ENTRY: usize = WORD + KEY + VALUE;

fn main() -> Result<(), Box<dyn error::Error>> {
    let words: Vec<String> = env::args().skip(1).collect();
    match &*words.iter().map(|word| &**word).collect::<Vec<_>>() {
        ["serve", device, port] => block_on(serve(&Device::open(device)?, port.parse()?))?,
        ["put", device, address, key, value] => {
            block_on(put(&Device::open(device)?, address.parse()?, key, value))?;
        }
        ["get", device, address, key] => {
            match block_on(get(&Device::open(device)?, address.parse()?, key))? {
                Some(value) => println!("{value}"),
                None => return Err(format!("there is no {key}").into()),
            }
        }
        _ => {
            return Err(
                "expected serve DEVICE PORT, put DEVICE ADDRESS KEY VALUE or get DEVICE ADDRESS KEY".into()
            );
        }
    }
    Ok(())
}

/// The place of a key: one entry for each hash, the last one stored.
fn place(key: &str) -> usize {
    let mut hash = DefaultHasher::new();
    key.hash(&mut hash);
    hash.finish() as usize % ENTRIES * ENTRY
}

fn padded<const N: usize>(text: &str) -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    let room = bytes.get_mut(..text.len()).ok_or(Error::TooLong { len: text.len(), room: N })?;
    room.copy_from_slice(text.as_bytes());
    Ok(bytes)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned()
}

async fn serve(device: &Device, port: u16) -> Result<(), Error> {
    let table = Region::new(device, ENTRIES * ENTRY, AccessFlags::REMOTE_READ)?;
    let listener = Listener::on(device, port)?;
    let pool = Pool::new(device, 16, KEY + VALUE)?;
    println!("listening at {}", listener.address());
    loop {
        // The description of the table is the answer to each client.
        let incoming = listener.accept().await?;
        let client = incoming.accept_with(device.qp(), &table.remote().to_bytes()).await?;
        while let Ok(message) = client.recv(pool.empty()?).await {
            store(&table, &message)?;
            client.send(message.into_buf()).await?;
        }
    }
}

fn store(table: &Region, entry: &[u8]) -> Result<(), Error> {
    let at = place(&text(&entry[..KEY]));
    let version = table.load(at)?;
    table.store(at, version + 1)?;
    table.write(at + WORD, entry)?;
    table.store(at, version + 2)
}

async fn connect(device: &Device, address: SocketAddr) -> Result<(Connection, Remote), Error> {
    let connection = device.qp().connect(address, b"").await?;
    let table = Remote::from_bytes(connection.data())?;
    Ok((connection, table))
}

async fn put(device: &Device, address: SocketAddr, key: &str, value: &str) -> Result<(), Error> {
    let (connection, _) = connect(device, address).await?;
    let pool = Pool::new(device, 2, KEY + VALUE)?;
    let entry = [&padded::<KEY>(key)?[..], &padded::<VALUE>(value)?[..]].concat();
    let stored = connection.recv(pool.empty()?);
    connection.send(pool.take(&entry)?).await?;
    stored.await?;
    connection.disconnect().await;
    Ok(())
}

async fn get(device: &Device, address: SocketAddr, key: &str) -> Result<Option<String>, Error> {
    let (connection, table) = connect(device, address).await?;
    let pool = Pool::new(device, 1, ENTRY)?;
    let at = place(key);
    let mut entry = pool.empty()?;
    loop {
        entry = connection.read(entry, table.slice(at..at + ENTRY)?).await?;
        let version = entry[..WORD].to_vec();
        let found = (text(&entry[WORD..WORD + KEY]) == key).then(|| text(&entry[WORD + KEY..]));
        // Read once more: if the version is even and the same, nobody has written meanwhile.
        entry = connection.read(entry, table.slice(at..at + ENTRY)?).await?;
        if version == entry[..WORD] && version[0] % 2 == 0 {
            return Ok(found);
        }
    }
}
