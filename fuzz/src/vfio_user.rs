//! vfio-user: well-formed messages with arbitrary contents, and arbitrary bytes.
//!
//! The server of function 1 receives them through its socket. Bus addresses lead only into the memory that the input maps; the memory and
//! registers of function 2 must stay unchanged.

use crate::bytes::Bytes;
use devmodel::{
    Config,
    region::Geometry,
    serve::{Function, Standalone, session},
};
use std::{
    fs::File,
    io::Write,
    net::Shutdown,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{fs::FileExt, net::UnixStream},
    },
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};
use vfio_user_proto::{
    Command, Connection, DmaMap, Header, IrqSet, REGION_BAR0, REGION_CONFIG, RegionAccess, Version,
    zerocopy::IntoBytes,
};

/// Maximum number of messages per input.
const MESSAGES: usize = 32;
/// Bytes of memory that a client maps.
const MEMORY: u64 = 64 << 10;
/// Fill byte of a bystander's memory.
const CANARY: u8 = 0xa5;

/// Sends messages built from `data`.
pub fn vfio_user(data: &[u8]) {
    let standalone = Standalone::new(Geometry::SMALL, Config::default());
    let (function, bystander) = (standalone.function(1), standalone.function(2));
    let (memory, theirs) = (scratch(0), scratch(CANARY));
    let shown = OwnedFd::from(theirs.try_clone().expect("a descriptor"));
    bystander.guest().memory.map(0, MEMORY, 3, Some((shown, 0))).expect("a window");
    let (client, server) = UnixStream::pair().expect("a pair of sockets");
    let answers = client.try_clone().expect("a descriptor");
    let drain = std::thread::spawn(move || std::io::copy(&mut &answers, &mut std::io::sink()));
    let raw = client.try_clone().expect("a descriptor");
    let served = std::thread::scope(|scope| {
        let session = scope
            .spawn(|| Connection::new(server).and_then(|connection| session::serve(connection, &function)));
        // The server closes the socket of a client that breaks the protocol.
        let _ = speak(Connection::new(client).expect("an end"), raw, &memory, data);
        session.join()
    });
    assert!(served.is_ok(), "a session ends, it does not fail");
    let _ = drain.join();
    let mut there = vec![0; MEMORY as usize];
    bystander.guest().memory.read(0, &mut there).expect("the bystander's memory");
    assert!(there.iter().all(|b| *b == CANARY), "somebody else's memory was written");
    assert_eq!((bystander.config_read(0, 4), bystander.config_read(4, 2)), (0x1018_15b3, 0));
}

/// Creates a file of memory to map, filled with `fill`.
fn scratch(fill: u8) -> File {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("ironverbs-fuzz-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
    let path = std::path::Path::new("/dev/shm").join(name);
    let mut file = File::options().read(true).write(true).create_new(true).open(&path).expect("a file");
    std::fs::remove_file(path).expect("the file");
    file.write_all(&vec![fill; MEMORY as usize]).expect("its bytes");
    file
}

fn speak(
    mut client: Connection,
    mut raw: UnixStream,
    memory: &File,
    data: &[u8],
) -> vfio_user_proto::Result<()> {
    let mut input = Bytes(data);
    let send = |client: &mut Connection, id, command, payload: &[u8], fds: &[BorrowedFd<'_>]| {
        client.sender.send(&Header::request(id, command, payload.len()), &[payload], fds)
    };
    send(&mut client, 0, Command::VERSION, &Version::ours().encode(), &[])?;
    let map = DmaMap { argsz: 32, flags: 3, offset: 0, address: 0x1000, size: MEMORY };
    send(&mut client, 1, Command::DMA_MAP, map.as_bytes(), &[memory.as_fd()])?;
    let on = RegionAccess { offset: 4, region: REGION_CONFIG, count: 2 };
    send(&mut client, 2, Command::REGION_WRITE, &[on.as_bytes(), &[6, 0]].concat(), &[])?;
    for id in 3..MESSAGES as u16 {
        if input.is_empty() {
            break;
        }
        let kind = input.u8();
        let payload = match kind % 6 {
            0 => {
                // An offset in BAR0 near an implemented register.
                let offset = match kind >> 6 {
                    0 => u64::from(input.u16()) & !3,
                    1 => u64::from(input.u8()) * 4,
                    2 => 0x800 + u64::from(input.u8()) * 0x1000,
                    _ => input.u64(),
                };
                let bytes = input.take(usize::from(kind >> 3 & 7) + 1).to_vec();
                let access = RegionAccess { offset, region: REGION_BAR0, count: bytes.len() as u32 };
                (Command::REGION_WRITE, [access.as_bytes(), &bytes].concat())
            }
            1 => {
                let bytes = input.take(4).to_vec();
                let offset = u64::from(input.u16()) % 4200;
                let access = RegionAccess { offset, region: REGION_CONFIG, count: bytes.len() as u32 };
                (Command::REGION_WRITE, [access.as_bytes(), &bytes].concat())
            }
            2 => {
                let access = RegionAccess {
                    offset: u64::from(input.u32()),
                    region: (kind >> 4).into(),
                    count: input.u16().into(),
                };
                (Command::REGION_READ, access.as_bytes().to_vec())
            }
            3 => {
                let set = IrqSet {
                    argsz: 20,
                    flags: 1 << (input.u8() % 4) | 8 << (input.u8() % 4),
                    index: u32::from(input.u8() % 6),
                    start: u32::from(input.u8()),
                    count: u32::from(input.u8()),
                };
                (Command::DEVICE_SET_IRQS, [set.as_bytes(), input.take(8)].concat())
            }
            4 => (Command(u16::from(input.u8() % 20)), input.take(usize::from(kind >> 2)).to_vec()),
            _ => {
                // Writes bytes that the device will read from the mapped memory.
                let at = u64::from(input.u16()) % (MEMORY - 256);
                let _ = memory.write_all_at(input.take(usize::from(kind)), at);
                continue;
            }
        };
        let fds = [memory.as_fd(), memory.as_fd()];
        send(&mut client, id, payload.0, &payload.1, &fds[..usize::from(kind >> 7)])?;
    }
    let _ = raw.write_all(input.take(64));
    let _ = raw.shutdown(Shutdown::Write);
    Ok(())
}
