//! Captures: frames written to a file that packet dissectors read.

use crate::LinkLayer;
use pcap_file::{
    DataLink, PcapError,
    pcap::{PcapHeader, PcapPacket, PcapWriter},
};
use std::{
    io::{self, Write},
    time::Duration,
};

/// Bytes of a frame that are kept at most; none of ours is longer.
const SNAPLEN: u32 = 65_535;

/// A capture that is being written: pcap with nanoseconds, whole frames.
pub struct Capture<W: Write>(PcapWriter<W>);

impl<W: Write> Capture<W> {
    /// Starts a capture of frames of `link_layer`.
    pub fn new(to: W, link_layer: LinkLayer) -> io::Result<Self> {
        let header = PcapHeader {
            snaplen: SNAPLEN,
            datalink: match link_layer {
                LinkLayer::Ethernet => DataLink::ETHERNET,
                LinkLayer::Infiniband => DataLink::INFINIBAND,
            },
            ts_resolution: pcap_file::TsResolution::NanoSecond,
            ..PcapHeader::default()
        };
        PcapWriter::with_header(to, header).map(Self).map_err(io_error)
    }

    /// Adds a frame that was on the wire at `at` (since 1970).
    pub fn write(&mut self, at: Duration, frame: &[u8]) -> io::Result<()> {
        let len = frame.len() as u32;
        self.0.write_packet(&PcapPacket::new(at, len, frame)).map(drop).map_err(io_error)
    }

    /// The writer.
    pub fn into_inner(self) -> W {
        self.0.into_writer()
    }
}

fn io_error(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcap_file::pcap::PcapReader;

    #[test]
    fn a_capture_reads_back_to_the_nanosecond() {
        let at = Duration::new(1_700_000_000, 123_456_789);
        let mut capture = Capture::new(Vec::new(), LinkLayer::Infiniband).unwrap();
        capture.write(at, &[1, 2, 3]).unwrap();
        capture.write(at + Duration::from_nanos(1), &[4; 4200]).unwrap();
        let bytes = capture.into_inner();
        let mut reader = PcapReader::new(&bytes[..]).unwrap();
        assert_eq!(reader.header().datalink, DataLink::INFINIBAND);
        let first = reader.next_packet().unwrap().unwrap();
        assert_eq!((first.timestamp, &*first.data), (at, &[1, 2, 3][..]));
        let second = reader.next_packet().unwrap().unwrap();
        assert_eq!((second.timestamp.subsec_nanos(), second.data.len()), (123_456_790, 4200));
    }
}
