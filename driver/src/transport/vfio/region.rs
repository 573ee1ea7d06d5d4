//! BARs: mapped where the kernel allows it, otherwise read and written through the device's file.

use super::sys::{self, RegionInfo};
use crate::transport::{Bar, Mapping, Registers, fork::Alone};
use std::{fs::File, io, sync::Arc};

/// Maps a BAR.
pub fn open(device: &Arc<Alone<File>>, info: &RegionInfo) -> io::Result<Bar> {
    if info.size == 0 {
        return Err(io::Error::from_raw_os_error(libc::ENXIO));
    }
    let mut areas = Vec::new();
    for (at, len) in &info.mappable {
        let len = usize::try_from(*len).map_err(|_| io::Error::from_raw_os_error(libc::ENOMEM))?;
        areas.push((*at, Arc::new(Mapping::of_file(device, info.offset + at, len)?)));
    }
    if let [(0, mapping)] = &areas[..] {
        if mapping.len() as u64 == info.size {
            return Ok(Bar::Mapped(mapping.clone()));
        }
    }
    Ok(Bar::Trapped(Arc::new(Window { device: device.clone(), offset: info.offset, size: info.size, areas })))
}

/// A BAR that cannot be mapped as a whole.
struct Window {
    device: Arc<Alone<File>>,
    offset: u64,
    size: u64,
    areas: Vec<(u64, Arc<Mapping>)>,
}

impl Window {
    fn mapped(&self, offset: u32, size: u64) -> Option<(Bar, u32)> {
        let offset = u64::from(offset);
        let inside = |at: u64, area: &Mapping| offset >= at && offset + size <= at + area.len() as u64;
        let (at, area) = self.areas.iter().find(|(at, area)| inside(*at, area))?;
        Some((Bar::Mapped(area.clone()), (offset - at) as u32))
    }

    fn read<const N: usize>(&self, offset: u32) -> [u8; N] {
        let mut bytes = [0xff; N];
        let within = u64::from(offset) + N as u64 <= self.size;
        if within && sys::read_at(&self.device, &mut bytes, self.offset + u64::from(offset)).is_err() {
            // As for a read that no device answers.
            bytes.fill(0xff);
        }
        bytes
    }

    fn write(&self, offset: u32, bytes: &[u8]) {
        let within = u64::from(offset) + bytes.len() as u64 <= self.size;
        if !within || sys::write_at(&self.device, bytes, self.offset + u64::from(offset)).is_err() {
            tracing::debug!(offset, "a register could not be written");
        }
    }
}

impl Registers for Window {
    fn read32(&self, offset: u32) -> u32 {
        match self.mapped(offset, 4) {
            Some((bar, at)) => bar.read32(at),
            None => u32::from_be_bytes(self.read(offset)),
        }
    }

    fn write32(&self, offset: u32, value: u32) {
        match self.mapped(offset, 4) {
            Some((bar, at)) => bar.write32(at, value),
            None => self.write(offset, &value.to_be_bytes()),
        }
    }

    fn write64(&self, offset: u32, value: u64) {
        match self.mapped(offset, 8) {
            Some((bar, at)) => bar.doorbell(at, value),
            None => self.write(offset, &value.to_be_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, SeekFrom, Write};

    fn file(len: u64) -> (Arc<Alone<File>>, File) {
        let file = testkit::memfd(len);
        (Arc::new(Alone::new(file.try_clone().unwrap())), file)
    }

    fn bytes(file: &mut File, at: u64) -> [u8; 8] {
        let mut bytes = [0; 8];
        file.seek(SeekFrom::Start(at)).unwrap();
        file.read_exact(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn registers_are_big_endian_however_they_are_reached() {
        let (device, mut file) = file(0x5000);
        let areas = [vec![(0, 0x4000)], vec![(0x1000, 0x1000)], vec![]];
        for (n, mappable) in areas.into_iter().enumerate() {
            let info = RegionInfo { offset: 0x1000, size: 0x4000, mappable };
            let bar = open(&device, &info).unwrap();
            assert_eq!(matches!(bar, Bar::Mapped(_)), n == 0, "only what is wholly mapped is a plain store");
            for offset in [0x0800u32, 0x1800] {
                bar.doorbell(offset, 0x0102_0304_0506_0708 + n as u64);
                let mut expected = [1, 2, 3, 4, 5, 6, 7, 8];
                expected[7] += n as u8;
                assert_eq!(bytes(&mut file, 0x1000 + u64::from(offset)), expected);
                bar.write32(offset, 0xa0b0_c0d0);
                assert_eq!(bar.read32(offset), 0xa0b0_c0d0);
                assert_eq!(bytes(&mut file, 0x1000 + u64::from(offset))[..4], [0xa0, 0xb0, 0xc0, 0xd0]);
            }
        }
        file.flush().unwrap();
    }

    #[test]
    fn what_lies_outside_reads_as_ones_and_an_absent_bar_is_refused() {
        let (device, _file) = file(0x2000);
        let info = RegionInfo { offset: 0, size: 0x1000, mappable: vec![] };
        let bar = open(&device, &info).unwrap();
        bar.write32(0x1000, 1);
        assert_eq!(bar.read32(0x1000), u32::MAX);
        assert!(open(&device, &RegionInfo::default()).is_err());
    }
}
