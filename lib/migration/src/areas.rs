//! The memory areas of this process (proc(5), `/proc/pid/maps`). Kernels from 6.11 on are queried for single addresses;
//! with older ones, the whole list is read.

use std::{fs::File, io, os::fd::AsRawFd};

/// `struct procmap_query` and its ioctl number (`linux/fs.h`).
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    rights: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    major: u32,
    minor: u32,
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}
const PROCMAP_QUERY: u32 = 0xc068_6611;
const RIGHTS: [(u64, i32); 3] = [(1, libc::PROT_READ), (2, libc::PROT_WRITE), (4, libc::PROT_EXEC)];
const SHARED: u64 = 8;

/// One mapping of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// First address.
    pub start: usize,
    /// Address after the last.
    pub end: usize,
    /// Protection, as for `mmap`.
    pub protection: i32,
    /// True if writes go to the file and are visible to other users of it.
    pub shared: bool,
    /// Offset of its start in the file.
    pub offset: u64,
    /// Device number of the file system and inode of the file, 0 if there is none.
    pub file: (u64, u64),
    /// True for a stack, or for one of the kernel's own areas.
    pub special: bool,
}

impl Area {
    /// True for ordinary memory of the program: not backed by a file, and not shared.
    pub fn is_private(&self) -> bool {
        !self.shared && !self.special && self.file == (0, 0)
    }

    /// Length in bytes.
    pub fn size(&self) -> usize {
        self.end - self.start
    }

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
            special: is_special(name.as_bytes()),
        })
    }
}

/// All mappings of this process, in address order.
pub fn all() -> io::Result<Vec<Area>> {
    // File names need not be UTF-8.
    Ok(parse(&String::from_utf8_lossy(&std::fs::read("/proc/self/maps")?)))
}

fn parse(text: &str) -> Vec<Area> {
    text.lines().filter_map(Area::parse).collect()
}

/// The areas that make up `start..end`, clipped to it. `None` if part of it is not mapped.
pub fn within(start: usize, end: usize) -> io::Result<Option<Vec<Area>>> {
    let maps = File::open("/proc/self/maps")?;
    let mut at = start;
    let mut areas = Vec::new();
    while at < end {
        match query(&maps, at) {
            Ok(Some(area)) => {
                at = area.end;
                areas.push(area);
            }
            Ok(None) => return Ok(None),
            // The kernel does not support the call.
            Err(_) => return Ok(cover(&all()?, start, end)),
        }
    }
    Ok(cover(&areas, start, end))
}

/// The area that contains address `at`.
fn query(maps: &File, at: usize) -> io::Result<Option<Area>> {
    let mut name = [0u8; libc::PATH_MAX as usize];
    let mut request = Query {
        size: size_of::<Query>() as u64,
        address: at as u64,
        name: name.as_mut_ptr() as u64,
        name_size: name.len() as u32,
        ..Query::default()
    };
    // SAFETY: the structure states its own length and that of the name buffer; both live across the call.
    if unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY as _, &raw mut request) } != 0 {
        let error = io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::ENOENT) { Ok(None) } else { Err(error) };
    }
    let name = &name[..(request.name_size as usize).min(name.len())];
    Ok(Some(Area {
        start: request.start as usize,
        end: request.end as usize,
        protection: RIGHTS.iter().filter(|(bit, _)| request.rights & bit != 0).fold(0, |sum, (_, p)| sum | p),
        shared: request.rights & SHARED != 0,
        offset: request.offset,
        file: (libc::makedev(request.major, request.minor), request.inode),
        special: is_special(name),
    }))
}

fn is_special(name: &[u8]) -> bool {
    name.starts_with(b"[stack") || name.starts_with(b"[v")
}

/// Clips `areas` to `start..end`. `None` if there is a gap.
fn cover(areas: &[Area], start: usize, end: usize) -> Option<Vec<Area>> {
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

    #[test]
    fn a_query_by_address_returns_what_the_list_has() {
        let (mut local, constant) = (0u8, "constant");
        let code = a_query_by_address_returns_what_the_list_has as fn() as usize;
        let heap = Box::new(1u8);
        for at in [&raw mut local as usize, constant.as_ptr() as usize, code, &raw const *heap as usize] {
            let at = at & !0xfff;
            let listed = cover(&all().unwrap(), at, at + 0x1000).unwrap();
            assert_eq!(within(at, at + 0x1000).unwrap().unwrap(), listed);
        }
        assert_eq!(within(0x1000, 0x2000).unwrap(), None);
    }
}
