//! Captures of the frames on a node's wire.

use super::{
    Node, NodeError,
    outlets::{Held, WireThread},
    timed,
};
use devmodel::{region::Outlet, wire::Capture};
use std::{
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::*},
    },
    time::{Duration, SystemTime},
};

/// Captures all frames on a node's wire, in a thread of this process, until [`finish`](Self::finish). A node has one capture at a time.
/// While it runs, every frame is assembled in full, which slows down the programs.
pub struct CaptureThread(WireThread<io::Result<u64>>);

/// Frame counts of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Captured {
    /// Frames written.
    pub frames: u64,
    /// Frames lost because the capture ring was full.
    pub lost: u32,
}

impl CaptureThread {
    /// Starts to write frames to the writer that `open` returns. `open` is called once no other capture can be running.
    pub fn start<W: Write + Send + 'static>(
        node: &Arc<Node>,
        open: impl FnOnce() -> io::Result<W>,
    ) -> Result<Self, NodeError> {
        let failed = || NodeError::system("start a capture");
        if timed::is_conducted(node.dir()) {
            let why = "the adapter is in virtual time, where its conductor carries the frames: expected \
                       `run --clock timed --timeline FILE` there, which writes all of them";
            return Err(failed()(io::Error::other(why)));
        }
        let held = Held::new(node, Outlet::Capture)?;
        let to = open().map_err(NodeError::system("open the file of a capture"))?;
        let file = Capture::new(to, node.adapter().config().link_layer).map_err(failed())?;
        let thread = WireThread::start(held, "ironverbs-capture", |held, stop| write(held, file, stop));
        thread.map(Self).map_err(failed())
    }

    /// True if the thread has ended because its writer failed.
    pub fn has_ended(&self) -> bool {
        self.0.has_ended()
    }

    /// Writes the remaining frames and ends the capture.
    pub fn finish(self) -> io::Result<Captured> {
        let (result, lost) = self.0.finish();
        let frames = result.ok_or_else(|| io::Error::other("the capture's thread ended early"))??;
        Ok(Captured { frames, lost })
    }
}

fn write<W: Write>(held: &Held, mut file: Capture<W>, stop: &AtomicBool) -> io::Result<u64> {
    let core = held.core();
    let (ring, bell) = (core.outlet_ring(Outlet::Capture), &core.outlet(Outlet::Capture).bell);
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let start = since_1970.saturating_sub(Duration::from_nanos(core.now() / 1000));
    let (mut frame, mut frames) = (Vec::new(), 0);
    loop {
        let seen = bell.rung();
        let stopping = stop.load(Acquire);
        while let Some(left) = ring.pop(&mut frame) {
            file.write(start + Duration::from_nanos(left.now / 1000), &frame)?;
            frames += 1;
        }
        if stopping {
            break;
        }
        core.sleep_on_outlet(Outlet::Capture, seen, None);
    }
    file.into_inner().flush()?;
    Ok(frames)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::bed::OnNode;
    use testkit::Scratch;

    #[test]
    fn a_capture_ends_with_its_frames_written() {
        let scratch = Scratch::new();
        let node = scratch.node();
        let file = scratch.0.join("capture");
        let capture = CaptureThread::start(&node, || std::fs::File::create(&file)).unwrap();
        let second: Result<_, NodeError> = CaptureThread::start(&node, || -> io::Result<Vec<u8>> {
            panic!("one at a time: the first one's file is left alone")
        });
        assert!(second.is_err());
        let core = node.core();
        let now = core.now();
        let frames = [vec![2; 60], vec![4; 1000]];
        core.drive(now, |runner, host| {
            runner.receive_all(&core.adapter, host, now, frames.iter().map(Vec::as_slice));
        });
        let captured = capture.finish().unwrap();
        assert_eq!((captured.frames, captured.lost), (2, 0));
        let bytes = std::fs::read(&file).unwrap();
        assert_eq!(bytes.len(), 24 + 16 + 60 + 16 + 1000);
        CaptureThread::start(&node, || Ok(Vec::new())).unwrap().finish().unwrap();
    }
}
