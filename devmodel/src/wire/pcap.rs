//! Captures: frames written to a file that packet dissectors can read.

use crate::LinkLayer;
use pcap_file::{
    DataLink, PcapError,
    pcap::{PcapHeader, PcapPacket, PcapWriter},
};
use std::{
    borrow::Cow,
    io::{self, Write},
    time::Duration,
};

/// Maximum bytes kept of a frame; our frames are never longer.
const SNAPLEN: u32 = 65_535;

/// A capture file being written: pcap with nanosecond timestamps and whole frames. InfiniBand frames are written as records of
/// the extensible record format (ERF), the only form of them that Wireshark supports.
pub struct Capture<W: Write> {
    writer: PcapWriter<W>,
    link_layer: LinkLayer,
}

/// ERF record type InfiniBand.
const ERF_INFINIBAND: u8 = 21;
/// ERF flag: varying record length.
const ERF_VARIABLE: u8 = 1 << 2;
/// Bytes of an ERF header.
const ERF_HEADER: usize = 16;

/// The ERF record of a frame: time in units of 2^-32 s (little-endian), type, flags, record length, loss counter, frame length.
fn erf(at: Duration, frame: &[u8]) -> Vec<u8> {
    let fraction = (u64::from(at.subsec_nanos()) << 32) / 1_000_000_000;
    let time = at.as_secs() << 32 | fraction;
    let length = |bytes: usize| u16::try_from(bytes).unwrap_or(u16::MAX).to_be_bytes();
    let mut record = Vec::with_capacity(ERF_HEADER + frame.len());
    record.extend_from_slice(&time.to_le_bytes());
    record.extend_from_slice(&[ERF_INFINIBAND, ERF_VARIABLE]);
    record.extend_from_slice(&length(ERF_HEADER + frame.len()));
    record.extend_from_slice(&[0; 2]);
    record.extend_from_slice(&length(frame.len()));
    record.extend_from_slice(frame);
    record
}

impl<W: Write> Capture<W> {
    /// Starts a capture of frames of `link_layer`.
    pub fn new(to: W, link_layer: LinkLayer) -> io::Result<Self> {
        let header = PcapHeader {
            snaplen: SNAPLEN,
            datalink: match link_layer {
                LinkLayer::Ethernet => DataLink::ETHERNET,
                LinkLayer::Infiniband => DataLink::ERF,
            },
            ts_resolution: pcap_file::TsResolution::NanoSecond,
            ..PcapHeader::default()
        };
        let writer = PcapWriter::with_header(to, header).map_err(io_error)?;
        Ok(Self { writer, link_layer })
    }

    /// Adds a frame that was on the wire at `at` (since 1970).
    pub fn write(&mut self, at: Duration, frame: &[u8]) -> io::Result<()> {
        let record = match self.link_layer {
            LinkLayer::Ethernet => Cow::Borrowed(frame),
            LinkLayer::Infiniband => Cow::Owned(erf(at, frame)),
        };
        let len = record.len() as u32;
        self.writer.write_packet(&PcapPacket::new(at, len, &record)).map(drop).map_err(io_error)
    }

    /// Returns the underlying writer.
    pub fn into_inner(self) -> W {
        self.writer.into_writer()
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
        let mut capture = Capture::new(Vec::new(), LinkLayer::Ethernet).unwrap();
        capture.write(at, &[1, 2, 3]).unwrap();
        capture.write(at + Duration::from_nanos(1), &[4; 4200]).unwrap();
        let bytes = capture.into_inner();
        let mut reader = PcapReader::new(&bytes[..]).unwrap();
        assert_eq!(reader.header().datalink, DataLink::ETHERNET);
        let first = reader.next_packet().unwrap().unwrap();
        assert_eq!((first.timestamp, &*first.data), (at, &[1, 2, 3][..]));
        let second = reader.next_packet().unwrap().unwrap();
        assert_eq!((second.timestamp.subsec_nanos(), second.data.len()), (123_456_790, 4200));
    }

    #[test]
    fn infiniband_frames_are_erf_records() {
        let at = Duration::new(3, 500_000_000);
        let mut capture = Capture::new(Vec::new(), LinkLayer::Infiniband).unwrap();
        capture.write(at, &[7; 26]).unwrap();
        let bytes = capture.into_inner();
        let mut reader = PcapReader::new(&bytes[..]).unwrap();
        assert_eq!(reader.header().datalink, DataLink::ERF);
        let record = reader.next_packet().unwrap().unwrap().data.into_owned();
        assert_eq!(record[..8], [0, 0, 0, 0x80, 3, 0, 0, 0], "3.5 s");
        assert_eq!(record[8..16], [21, 4, 0, 42, 0, 0, 0, 26]);
        assert_eq!(record[16..], [7; 26]);
    }
}
