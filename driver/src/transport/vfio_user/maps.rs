//! What of this process's memory is what (proc(5), `/proc/pid/maps`).

/// One mapping of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// First address.
    pub start: usize,
    /// Behind the last.
    pub end: usize,
    /// Protection, as `mmap` takes it.
    pub protection: i32,
    /// Writes go to the file, and others see them.
    pub shared: bool,
    /// Where in the file.
    pub offset: u64,
    /// Device number of the file system and inode of the file; 0 if there is none.
    pub file: (u64, u64),
    /// A thread's stack, or something of the kernel's.
    pub special: bool,
}

impl Area {
    fn parse(line: &str) -> Option<Self> {
        let mut parts = line.split_ascii_whitespace();
        let (start, end) = parts.next()?.split_once('-')?;
        let rights = parts.next()?.as_bytes();
        let offset = u64::from_str_radix(parts.next()?, 16).ok()?;
        let (major, minor) = parts.next()?.split_once(':')?;
        let inode = parts.next()?.parse().ok()?;
        let name = parts.next().unwrap_or("");
        let right = |at: usize, letter: u8, bit: i32| if rights.get(at) == Some(&letter) { bit } else { 0 };
        let number = |text| u32::from_str_radix(text, 16).ok();
        let device = libc::makedev(number(major)?, number(minor)?);
        Some(Self {
            start: usize::from_str_radix(start, 16).ok()?,
            end: usize::from_str_radix(end, 16).ok()?,
            protection: right(0, b'r', libc::PROT_READ)
                | right(1, b'w', libc::PROT_WRITE)
                | right(2, b'x', libc::PROT_EXEC),
            shared: rights.get(3) == Some(&b's'),
            offset,
            file: (device, inode),
            special: name.starts_with("[stack") || name.starts_with("[v"),
        })
    }
}

/// All mappings in the text of `/proc/self/maps`, in order of address.
pub fn parse(text: &str) -> Vec<Area> {
    text.lines().filter_map(Area::parse).collect()
}

/// The parts of `areas` that make up `start..end`; `None` if there is a hole.
pub fn cover(areas: &[Area], start: usize, end: usize) -> Option<Vec<Area>> {
    let mut parts = Vec::new();
    let mut at = start;
    for area in areas.iter().filter(|area| area.end > start && area.start < end) {
        if area.start > at {
            return None;
        }
        let until = area.end.min(end);
        let offset = area.offset + (at - area.start) as u64;
        parts.push(Area { start: at, end: until, offset, ..*area });
        at = until;
    }
    (at >= end).then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
00400000-00452000 r-xp 00001000 08:02 173521      /usr/bin/dbus-daemon
7f0000000000-7f0000004000 rw-p 00000000 00:00 0
7f0000004000-7f0000006000 rw-s 00002000 00:01 2048                       /memfd:some thing (deleted)
7f0000008000-7f0000009000 ---p 00000000 00:00 0
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
nonsense
";

    #[test]
    fn lines_become_areas() {
        let areas = parse(TEXT);
        assert_eq!(areas.len(), 6);
        assert_eq!((areas[0].file, areas[0].shared), ((libc::makedev(8, 2), 173_521), false));
        assert_eq!(areas[1].protection, libc::PROT_READ | libc::PROT_WRITE);
        assert!(areas[2].shared && areas[2].offset == 0x2000 && !areas[2].special);
        assert!(areas[4].special && areas[5].special);
    }

    #[test]
    fn a_range_is_covered_by_parts_or_not_at_all() {
        let areas = parse(TEXT);
        let parts = cover(&areas, 0x7f00_0000_3000, 0x7f00_0000_6000).unwrap();
        assert_eq!((parts.len(), parts[1].offset, parts[1].start), (2, 0x2000, 0x7f00_0000_4000));
        let parts = cover(&areas, 0x7f00_0000_5000, 0x7f00_0000_6000).unwrap();
        assert_eq!((parts.len(), parts[0].offset), (1, 0x3000));
        assert!(cover(&areas, 0x7f00_0000_5000, 0x7f00_0000_7000).is_none());
        assert!(cover(&areas, 0x7f00_0000_7000, 0x7f00_0000_9000).is_none());
    }
}
