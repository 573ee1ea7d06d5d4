//! The node's file with contents that no program of this version wrote, and with a different length.
//!
//! A program that opens the file must get an error or a working node: it must not panic, wait forever, or touch unmapped memory. The file
//! is that of a node in use, with objects and traffic, or of a fresh node; the input says which words are changed.

use crate::{bytes::Bytes, scratch::Scratch};
use driver::{QpAttr, QpAttrMask, QpState, RecvWr, SendOp};
use node::{Node, NodeOptions, Observer, open_device};
use std::{
    fs::File,
    os::unix::fs::FileExt,
    sync::{Mutex, OnceLock, PoisonError},
    time::{Duration, Instant},
};
use tests::end::{Card, End, Patience, own_gid};

/// Page size in bytes.
const PAGE: usize = 4096;
/// Time limit for a transfer, which may never complete on a damaged node.
const SOON: Duration = Duration::from_millis(20);
/// Upper bound for a visit, which may wait for a command until the driver times out.
const LONGEST: Duration = Duration::from_secs(5);

/// Contents of a node's file: its length and its nonzero pages.
struct Image {
    len: u64,
    pages: Vec<(u64, Vec<u8>)>,
}

impl Image {
    fn of(file: &File) -> Self {
        let len = file.metadata().expect("its length").len();
        let mut pages = Vec::new();
        // The file is sparse: holes show which pages were never written.
        for (start, end) in extents::of(file, len) {
            for at in (start..end).step_by(PAGE) {
                let mut page = vec![0; PAGE];
                file.read_exact_at(&mut page, at).expect("a page");
                if page.iter().any(|byte| *byte != 0) {
                    pages.push((at, page));
                }
            }
        }
        Self { len, pages }
    }

    /// Writes the image with the changes that the input asks for.
    fn write(&self, file: &File, input: &mut Bytes<'_>) {
        let how = input.u8();
        self.pages.iter().for_each(|(at, page)| file.write_all_at(page, *at).expect("a page"));
        // One input in many also changes the length.
        let cut = how >> 3 == 0b10101;
        let len = if cut { u64::from(input.u32()) << (input.u8() % 8) } else { self.len };
        file.set_len(len).expect("its length");
        while !input.is_empty() {
            let page = self.pages[usize::from(input.u16()) % self.pages.len()].0;
            let shape = input.u16();
            // Changes aligned words of 1, 2, 4 or 8 bytes.
            let size = 1 << (shape & 3);
            let at = page + u64::from(shape >> 2) % PAGE as u64 / size * size;
            let mut word = [0; 8];
            let bytes = input.take(size as usize);
            word[..bytes.len()].copy_from_slice(bytes);
            if at + size <= len {
                file.write_all_at(&word[..size as usize], at).expect("a word");
            }
        }
    }
}

/// Finds the parts of sparse files that hold data.
#[allow(unsafe_code)]
mod extents {
    use std::{fs::File, os::fd::AsRawFd};

    /// Returns start and end of every part of `file` (`len` bytes) that holds data.
    pub fn of(file: &File, len: u64) -> Vec<(u64, u64)> {
        // SAFETY: moves the offset of an open descriptor; no read or write uses that offset.
        let seek = |from: u64, what| unsafe { libc::lseek(file.as_raw_fd(), from as i64, what) };
        let (mut found, mut at) = (Vec::new(), 0);
        while at < len {
            let Ok(start) = u64::try_from(seek(at, libc::SEEK_DATA)) else { break };
            at = u64::try_from(seek(start, libc::SEEK_HOLE)).unwrap_or(len);
            found.push((start, at));
        }
        found
    }
}

/// The nodes to start from, and the directory in which inputs are tried, one at a time.
struct Stage {
    scratch: Scratch,
    images: [Image; 2],
}

impl Stage {
    fn get() -> &'static Mutex<Self> {
        static STAGE: OnceLock<Mutex<Stage>> = OnceLock::new();
        STAGE.get_or_init(|| {
            let scratch = Scratch::new("file");
            scratch.make(NodeOptions::default());
            let image = || Image::of(&File::open(scratch.dir().join("adapter")).expect("the node's file"));
            let fresh = image();
            let end = end(&scratch).expect("an end");
            transfer(&end).expect("a transfer");
            let used = image();
            drop(end);
            Mutex::new(Self { scratch, images: [fresh, used] })
        })
    }
}

type Any = Box<dyn std::error::Error>;

fn end(scratch: &Scratch) -> Result<End, Any> {
    let end = End::new(open_device(scratch.dir(), 1)?, 8 * PAGE)?;
    let card = Card { gid: own_gid(&end.device)?, qpn: end.qp.qpn(), addr: 0, rkey: 0 };
    end.connect(&card, Patience::default())?;
    Ok(end)
}

/// Writes to itself: payload, a receive, a completion and an event.
fn transfer(end: &End) -> Result<(), Any> {
    end.qp.post_recv([RecvWr { wr_id: 1, sge: &[] }])?;
    end.cq.arm(false);
    let op = SendOp::WriteImm { raddr: end.words.addr() + PAGE as u64, rkey: end.mr.rkey(), imm: 7 };
    end.try_post(2, op, &[end.sge(0, 600)])?;
    let _ = (end.next(SOON), end.next(SOON));
    end.drain();
    Ok(())
}

/// The steps of programs on a node: inspect it, open it, create objects, run traffic, cause errors, close.
fn visit(scratch: &Scratch) -> Result<(), Any> {
    let looked = Observer::open(scratch.dir()).map(|observer| observer.status());
    let node = Node::open(scratch.dir())?;
    let end = end(scratch)?;
    transfer(&end)?;
    end.qp.modify(&QpAttr { qp_state: QpState::Err, ..QpAttr::default() }, QpAttrMask::STATE)?;
    drop(end);
    node.status()?;
    looked?;
    Ok(())
}

/// Visits a node with a file made of `data`.
pub fn node_file(data: &[u8]) {
    let stage = Stage::get().lock().unwrap_or_else(PoisonError::into_inner);
    let mut input = Bytes(data);
    let path = stage.scratch.dir().join("adapter");
    // A new file for every input: the previous visitor has already closed the old one.
    let _ = std::fs::remove_file(&path);
    let file = File::options().read(true).write(true).create_new(true).open(&path).expect("a file");
    let image = &stage.images[usize::from(data.first().copied().unwrap_or(0) & 1)];
    image.write(&file, &mut input);
    drop(file);
    let begin = Instant::now();
    if let Err(error) = visit(&stage.scratch) {
        let said = error.to_string();
        assert!(!said.is_empty() && !said.contains('\n'), "one line is expected, found {said:?}");
    }
    assert!(begin.elapsed() < LONGEST, "a visit of {:?}", begin.elapsed());
}
