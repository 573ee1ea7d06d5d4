//! Memory accessible to a vfio-user server: files, with descriptors that can be passed to it.
//!
//! The driver's own structures are allocated from one sparse file. Memory of the program that is a shared file mapping
//! is passed on as such. Pages of other memory (the heap) migrate to our file (crate [`migration`]).

use crate::transport::iova::IovaSpace;
use migration::{Area, BackingFile, Pages, WriteProtection, areas};
use std::{
    fs::File,
    io,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::Path,
};

/// Size of the file, which is sparse and costs only the pages in use.
const ROOM: u64 = 256 << 30;
/// Number of calls of [`Store::find`] per search for places with pages that the program has unmapped.
const SWEEP: u32 = 64;

/// A range of memory as seen by the server.
pub struct Stretch {
    /// Length in bytes.
    pub len: usize,
    /// The file, `None` for ours.
    pub file: Option<OwnedFd>,
    /// Offset in the file.
    pub offset: u64,
}

/// The file that holds the memory accessible to the server.
pub struct Store {
    file: File,
    id: (u64, u64),
    /// Allocator of places in the file. Offset 0 is never used.
    places: IovaSpace,
    /// Places with migrated pages: offset and length.
    migrated: Vec<(u64, u64)>,
    searches: u32,
}

fn refused(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, what.into())
}

impl Store {
    /// Creates an empty store.
    pub fn new() -> io::Result<Self> {
        // SAFETY: a new descriptor without another owner.
        let file = unsafe {
            let fd = libc::memfd_create(c"ironverbs-dma".as_ptr(), libc::MFD_CLOEXEC);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            File::from_raw_fd(fd)
        };
        file.set_len(ROOM)?;
        let meta = file.metadata()?;
        let places = IovaSpace::new(super::PAGE, [(0, ROOM - 1)]);
        Ok(Self { file, id: (meta.dev(), meta.ino()), places, migrated: Vec::new(), searches: 0 })
    }

    /// Its file.
    pub fn file(&self) -> &File {
        &self.file
    }

    fn place(&mut self, len: usize, like: usize) -> io::Result<u64> {
        let full =
            || io::Error::new(io::ErrorKind::OutOfMemory, "no room is left in the file for the device");
        self.places.alloc(len as u64, like as u64).ok_or_else(full)
    }

    /// Allocates `len` bytes of fresh memory (whole pages). Returns its mapping, and its place in the file.
    pub fn alloc(&mut self, len: usize) -> io::Result<(Pages, u64)> {
        let place = self.place(len, 0)?;
        match Pages::shared_memory(&self.file, place, len) {
            Ok(mapped) => Ok((mapped, place)),
            Err(error) => {
                self.places.free(place, len as u64);
                Err(error)
            }
        }
    }

    /// Frees `len` bytes at `place` and releases their memory.
    pub fn free(&mut self, place: u64, len: usize) {
        self.punch(place, len as u64);
        self.places.free(place, len as u64);
    }

    fn punch(&self, place: u64, len: u64) {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: an unused range of our own file.
        unsafe { libc::fallocate(self.file.as_raw_fd(), mode, place as libc::off_t, len as libc::off_t) };
    }

    /// Finds the files behind `len` bytes at `base`. Pages that are in no file migrate to ours.
    /// # Safety
    /// The memory is the caller's, and nothing else writes to it during the call.
    pub unsafe fn find(
        &mut self,
        base: *mut u8,
        len: usize,
        used: &[(u64, u64)],
    ) -> io::Result<Vec<Stretch>> {
        let (start, end) = (base as usize, base as usize + len);
        let parts = areas::within(start, end)?
            .ok_or_else(|| refused(format!("not all of the {len} bytes at {base:p} are mapped")))?;
        self.searches += 1;
        if self.searches % SWEEP == 0 {
            self.sweep(&areas::all()?, used);
        }
        let mut found: Vec<Stretch> = Vec::new();
        for part in &parts {
            // SAFETY: the caller's guarantee.
            let next = unsafe { self.stretch(part)? };
            match found.last_mut() {
                Some(last)
                    if last.file.is_none()
                        && next.file.is_none()
                        && last.offset + last.len as u64 == next.offset =>
                {
                    last.len += next.len;
                }
                _ => found.push(next),
            }
        }
        Ok(found)
    }

    unsafe fn stretch(&mut self, part: &Area) -> io::Result<Stretch> {
        let len = part.end - part.start;
        if part.shared {
            return match part.file == self.id {
                true => Ok(Stretch { len, file: None, offset: part.offset }),
                false => Ok(Stretch { len, file: Some(descriptor(part)?), offset: part.offset }),
            };
        }
        if migration::holds_thread_state(part) {
            return Err(refused(
                "the memory is a stack, which a device behind vfio-user cannot reach: use the heap",
            ));
        }
        if part.protection & libc::PROT_READ == 0 {
            return Err(io::Error::from_raw_os_error(libc::EFAULT));
        }
        let place = self.place(len, part.start)?;
        let backing = BackingFile { file: &self.file, id: self.id, view: None };
        // SAFETY: the caller's guarantee.
        match unsafe { migration::migrate(part, &backing, place, WriteProtection::IfAvailable) } {
            Ok(()) => {
                self.migrated.push((place, len as u64));
                Ok(Stretch { len, file: None, offset: place })
            }
            Err(error) => {
                self.free(place, len);
                Err(error)
            }
        }
    }

    /// Frees places of migrated pages that are no longer mapped, neither in the process nor (`used`: place and length)
    /// in the device's windows.
    fn sweep(&mut self, areas: &[Area], used: &[(u64, u64)]) {
        let mapped = areas.iter().filter(|area| area.shared && area.file == self.id);
        let mapped: Vec<_> = mapped.map(|a| (a.offset, (a.end - a.start) as u64)).collect();
        let touches = |list: &[(u64, u64)], place: u64, len: u64| {
            list.iter().any(|(at, size)| *at < place + len && place < at + size)
        };
        let idle =
            |(place, len): &(u64, u64)| !touches(&mapped, *place, *len) && !touches(used, *place, *len);
        let (gone, kept) = std::mem::take(&mut self.migrated).into_iter().partition(idle);
        self.migrated = kept;
        let gone: Vec<(u64, u64)> = gone;
        for (place, len) in gone {
            migration::forget(self.id, place, len);
            self.free(place, len as usize);
        }
    }
}

/// A descriptor of the file behind a shared mapping: one that this process has open, or can open through the mapping.
fn descriptor(part: &Area) -> io::Result<OwnedFd> {
    let is_it = |path: &Path| std::fs::metadata(path).is_ok_and(|m| (m.dev(), m.ino()) == part.file);
    let open = |path: &Path| {
        let write = part.protection & libc::PROT_WRITE != 0;
        std::fs::OpenOptions::new().read(true).write(write).open(path).map(OwnedFd::from)
    };
    for entry in std::fs::read_dir("/proc/self/fd")?.flatten() {
        if is_it(&entry.path()) {
            return open(&entry.path());
        }
    }
    for entry in std::fs::read_dir("/proc/self/map_files").into_iter().flatten().flatten() {
        if is_it(&entry.path()) {
            if let Ok(fd) = open(&entry.path()) {
                return Ok(fd);
            }
        }
    }
    Err(refused(
        "the memory is a shared mapping of a file that is closed: a device behind vfio-user cannot reach it",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    const PAGE: usize = 4096;

    fn page(len: usize) -> &'static mut [u8] {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: fresh memory, only unmapped by the test itself.
        unsafe {
            let at = libc::mmap(std::ptr::null_mut(), len, rights, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            std::slice::from_raw_parts_mut(at.cast(), len)
        }
    }

    #[test]
    fn memory_keeps_its_bytes_and_the_file_has_them() {
        let mut store = Store::new().unwrap();
        let memory = page(0x4000);
        memory[0x1234] = 7;
        // SAFETY: ours alone.
        let found = unsafe { store.find(memory.as_mut_ptr(), 0x4000, &[]).unwrap() };
        assert_eq!((found.len(), found[0].len, memory[0x1234]), (1, 0x4000, 7));
        let mut bytes = [0; 1];
        store.file().read_exact_at(&mut bytes, found[0].offset + 0x1234).unwrap();
        assert_eq!(bytes, [7]);
        store.file().write_all_at(&[9], found[0].offset + 0x3fff).unwrap();
        // SAFETY: simulates a write of the device.
        assert_eq!(unsafe { memory.as_ptr().add(0x3fff).read_volatile() }, 9);
        // The migrated pages are found in place, as a whole or in part.
        // SAFETY: ours alone.
        let again = unsafe { store.find(memory.as_mut_ptr().add(0x1000), 0x1000, &[]).unwrap() };
        assert_eq!((again[0].offset, again[0].len), (found[0].offset + 0x1000, 0x1000));
    }

    #[test]
    fn memory_that_is_a_file_already_stays_there() {
        let mut store = Store::new().unwrap();
        let other = Store::new().unwrap();
        let mapped = Pages::file(other.file(), 0x2000, 0x1000).unwrap();
        // SAFETY: ours alone.
        let found = unsafe { store.find(mapped.ptr().as_ptr(), 0x1000, &[]).unwrap() };
        assert_eq!(found[0].offset, 0x2000);
        let meta = File::from(found.into_iter().next().unwrap().file.unwrap()).metadata().unwrap();
        assert_eq!(meta.ino(), other.file().metadata().unwrap().ino());
    }

    #[test]
    fn stacks_and_holes_are_refused() {
        let mut store = Store::new().unwrap();
        let mut local = [0u8; 2 * PAGE];
        let base = local.as_mut_ptr().wrapping_add(local.as_ptr().align_offset(PAGE));
        // SAFETY: refused before any effect.
        let error = unsafe { store.find(base, PAGE, &[]).err().unwrap() };
        assert!(error.to_string().contains("stack"), "{error}");
        // SAFETY: page 1 is never mapped, and is refused before any effect.
        let error = unsafe { store.find(PAGE as *mut u8, PAGE, &[]).err().unwrap() };
        assert!(error.to_string().contains("mapped"), "{error}");
    }

    #[test]
    fn places_come_back_when_the_program_has_freed_its_memory() {
        let mut store = Store::new().unwrap();
        let blocks = |store: &Store| store.file().metadata().unwrap().blocks();
        for _ in 0..4 * SWEEP {
            let memory = page(0x10_0000);
            memory.fill(1);
            // SAFETY: ours alone, and not used afterwards.
            unsafe {
                store.find(memory.as_mut_ptr(), memory.len(), &[]).unwrap();
                libc::munmap(memory.as_mut_ptr().cast(), memory.len());
            }
        }
        let most = u64::from(SWEEP + 2) * 0x10_0000 / 512;
        assert!(blocks(&store) <= most, "{} blocks are kept, at most {most} were expected", blocks(&store));
    }

    #[test]
    fn a_place_the_device_still_has_is_kept() {
        let mut store = Store::new().unwrap();
        let memory = page(PAGE);
        memory.fill(5);
        // SAFETY: ours alone, and not used afterwards.
        let place = unsafe {
            let found = store.find(memory.as_mut_ptr(), PAGE, &[]).unwrap();
            libc::munmap(memory.as_mut_ptr().cast(), PAGE);
            found[0].offset
        };
        let byte = |store: &Store| {
            let mut byte = [0];
            store.file().read_exact_at(&mut byte, place).unwrap();
            byte[0]
        };
        store.sweep(&[], &[(place, PAGE as u64)]);
        assert_eq!(byte(&store), 5);
        store.sweep(&[], &[]);
        assert_eq!(byte(&store), 0);
    }
}
