//! Files and links below a directory, as a list that can be written, and replaced by another while programs read it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

use super::sys::exchange;

/// An entry below a root; parent directories are implied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A file with these bytes.
    File(Vec<u8>),
    /// A symbolic link to this target.
    Link(String),
}

/// Entries below one root, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree(Vec<(String, Entry)>);

/// Prefix of temporary names, where entries are created before they are renamed into place, and moved before they are removed. Programs
/// that list a directory skip names that begin with a dot (libibverbs, libpci).
const ASIDE: &str = ".ironverbs";

impl Tree {
    /// Adds a file with one line.
    pub fn line(&mut self, path: impl Into<String>, text: impl std::fmt::Display) {
        self.bytes(path, format!("{text}\n").into_bytes());
    }

    /// Adds a file with the contents `bytes`.
    pub fn bytes(&mut self, path: impl Into<String>, bytes: Vec<u8>) {
        self.0.push((path.into(), Entry::File(bytes)));
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, path: impl Into<String>, target: impl Into<String>) {
        self.0.push((path.into(), Entry::Link(target.into())));
    }

    /// The entry at `path`.
    pub fn get(&self, path: &str) -> Option<&Entry> {
        self.0.iter().find(|(p, _)| p == path).map(|(_, e)| e)
    }

    /// Creates all entries below `root`. Fails if one exists.
    pub fn write(&self, root: &Path) -> io::Result<()> {
        make(root, self.0.iter())
    }

    /// Removes from `root`, which contains this tree, the entries that are not in `next`: one by one, but atomically for top-level
    /// directories that are removed entirely. Entries that are already gone are ignored.
    ///
    /// # Errors
    /// An entry could not be removed; other entries may remain as well.
    pub fn take_all_but(&self, next: &Self, root: &Path) -> io::Result<()> {
        let (stays, tops) = (next.by_path(), next.tops());
        for (path, _) in &self.0 {
            if tops.contains(top(path)) && !stays.contains_key(path.as_str()) {
                let path = root.join(path);
                unless_gone(fs::remove_file(&path))?;
                // Directories are implied by their entries.
                let mut parents = path.ancestors().skip(1).take_while(|dir| *dir != root);
                while parents.next().is_some_and(|dir| fs::remove_dir(dir).is_ok()) {}
            }
        }
        for name in self.tops().difference(&tops) {
            put_away(root, name)?;
        }
        Ok(())
    }

    /// Completes this tree below `root`, which contains `before` or the rest of it after [`Tree::take_all_but`]. A new top-level directory
    /// appears as a whole, then new entries of others, then files with changed contents, which are overwritten in place. Meanwhile no link
    /// is dangling, and no reader sees a partial file.
    ///
    /// # Errors
    /// An entry could not be created; earlier ones stay.
    pub fn add_to(&self, before: &Self, root: &Path) -> io::Result<()> {
        let (had, tops) = (before.by_path(), before.tops());
        let new: BTreeSet<&str> = self.tops().difference(&tops).copied().collect();
        if !new.is_empty() {
            let aside = root.join(ASIDE);
            unless_gone(fs::remove_dir_all(&aside))?;
            make(&aside, self.0.iter().filter(|(path, _)| new.contains(top(path))))?;
            for name in &new {
                put_away(root, name)?;
                fs::rename(aside.join(name), root.join(name))?;
            }
            fs::remove_dir(&aside)?;
        }
        let others = || self.0.iter().filter(|(path, _)| !new.contains(top(path)));
        let is_altered = |path: &str, entry: &Entry| match (had.get(path), entry) {
            (Some(Entry::File(old)), Entry::File(bytes)) => Some(old != bytes),
            _ => None,
        };
        for (path, entry) in others() {
            if had.get(path.as_str()) == Some(&entry) || is_altered(path, entry).is_some() {
                continue;
            }
            let path = root.join(path);
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            match entry {
                Entry::File(bytes) => fs::write(&path, bytes)?,
                Entry::Link(target) => lay(Path::new(target), &path)?,
            }
        }
        for (path, entry) in others().filter(|(path, entry)| is_altered(path, entry) == Some(true)) {
            if let Entry::File(bytes) = entry {
                overwrite(&root.join(path), bytes)?;
            }
        }
        Ok(())
    }

    /// Recreates every link below `root` in this order, so that directories list them as if all were new.
    ///
    /// # Errors
    /// A link could not be created; those before it are in place.
    pub fn lay_links(&self, root: &Path) -> io::Result<()> {
        for (path, entry) in &self.0 {
            if let Entry::Link(target) = entry {
                lay(Path::new(target), &root.join(path))?;
            }
        }
        Ok(())
    }

    fn by_path(&self) -> HashMap<&str, &Entry> {
        self.0.iter().map(|(path, entry)| (path.as_str(), entry)).collect()
    }

    /// The top-level names.
    fn tops(&self) -> BTreeSet<&str> {
        self.0.iter().map(|(path, _)| top(path)).collect()
    }
}

fn top(path: &str) -> &str {
    path.split('/').next().unwrap_or_default()
}

fn unless_gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn make<'a>(root: &Path, entries: impl Iterator<Item = &'a (String, Entry)>) -> io::Result<()> {
    let mut made = HashSet::new();
    for (path, entry) in entries {
        let (parent, _) = path.rsplit_once('/').unwrap_or_default();
        if made.insert(parent) {
            fs::create_dir_all(root.join(parent))?;
        }
        let path = root.join(path);
        match entry {
            Entry::File(bytes) => fs::write(&path, bytes)?,
            Entry::Link(target) => symlink(target, &path)?,
        }
    }
    Ok(())
}

/// Removes directory `name` of `root`, if it exists, atomically.
fn put_away(root: &Path, name: &str) -> io::Result<()> {
    let away = root.join(format!("{ASIDE}-{name}"));
    unless_gone(fs::rename(root.join(name), &away))?;
    unless_gone(fs::remove_dir_all(&away))
}

/// Creates a link to `target` at `at`, atomically replacing an existing one.
pub fn lay(target: &Path, at: &Path) -> io::Result<()> {
    let name = at.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let aside = at.with_file_name(format!("{ASIDE}-{name}"));
    unless_gone(fs::remove_file(&aside))?;
    symlink(target, &aside)?;
    fs::rename(&aside, at)
}

/// Overwrites a file in place, so that processes that have it open read the new contents. Readers get either the old or the new contents,
/// padded with empty lines, unless a read coincides with the kernel's copying of these bytes.
pub fn overwrite(at: &Path, bytes: &[u8]) -> io::Result<()> {
    let file = File::options().write(true).open(at)?;
    let before = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
    // The kernel updates a file's contents and its length one after the other. If the length changed too, readers would see truncated
    // contents or leftover old bytes.
    let mut padded = bytes.to_vec();
    padded.resize(bytes.len().max(before), b'\n');
    if let Some(behind) = bytes.len().checked_sub(before) {
        file.write_all_at(&vec![b'\n'; behind], before as u64)?;
    }
    file.write_all_at(&padded, 0)?;
    if before > bytes.len() { file.set_len(bytes.len() as u64) } else { Ok(()) }
}

/// Replaces a file's contents atomically: writes them to `twin`, on the same mount, and exchanges the two. A process that opens the file
/// afterwards reads the new contents; one that already has it open now has the twin, and reads the old ones.
pub fn swap(at: &Path, twin: &Path, bytes: &[u8]) -> io::Result<()> {
    match overwrite(twin, bytes) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            twin.parent().map_or(Ok(()), fs::create_dir_all)?;
            fs::write(twin, bytes)?;
        }
        other => other?,
    }
    exchange(at, twin)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use testkit::Scratch;

    /// Directories `0` to `last`, each with a file that contains its number, and the first with links to all others.
    fn numbered(last: usize) -> Tree {
        let mut tree = Tree::default();
        for i in 0..=last {
            tree.line(format!("{i}/port/1/number"), i);
            if i > 0 {
                tree.link(format!("0/to{i}"), format!("../{i}/port"));
            }
        }
        tree.line("0/last", last);
        tree
    }

    /// All paths below `root` and their contents.
    fn found(root: &Path) -> BTreeSet<(PathBuf, String)> {
        let mut all = BTreeSet::new();
        let mut dirs = vec![root.to_path_buf()];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(&dir).unwrap() {
                let path = entry.unwrap().path();
                let meta = fs::symlink_metadata(&path).unwrap();
                let text = match () {
                    () if meta.is_symlink() => fs::read_link(&path).unwrap().display().to_string(),
                    () if meta.is_file() => fs::read_to_string(&path).unwrap(),
                    () => {
                        dirs.push(path.clone());
                        String::new()
                    }
                };
                all.insert((path.strip_prefix(root).unwrap().to_path_buf(), text));
            }
        }
        all
    }

    fn turn(root: &Path, old: &Tree, new: &Tree) {
        old.take_all_but(new, root).unwrap();
        new.add_to(old, root).unwrap();
    }

    #[test]
    fn a_tree_that_was_turned_into_another_is_as_if_it_had_been_made() {
        let (turned, made) = (Scratch::made(), Scratch::made());
        let mut other = numbered(5);
        other.link("1/port/1/extra/link", "../number");
        other.line("2/port/1/extra/file", "x");
        let (empty, trees) = (Tree::default(), [numbered(2), numbered(9), other, numbered(1), numbered(3)]);
        let mut before = &empty;
        for tree in &trees {
            turn(&turned.0, before, tree);
            before = tree;
            let _ = fs::remove_dir_all(&made.0);
            fs::create_dir(&made.0).unwrap();
            tree.write(&made.0).unwrap();
            assert_eq!(found(&turned.0), found(&made.0));
        }
        // Entries that were removed by others, or are left over, do no harm.
        fs::remove_dir_all(turned.0.join("3")).unwrap();
        fs::create_dir(turned.0.join("4")).unwrap();
        turn(&turned.0, before, &numbered(2));
        turn(&turned.0, &numbered(2), &numbered(4));
        let _ = fs::remove_dir_all(&made.0);
        fs::create_dir(&made.0).unwrap();
        numbered(4).write(&made.0).unwrap();
        assert_eq!(found(&turned.0), found(&made.0));
    }

    #[test]
    fn a_file_that_is_held_open_reads_the_new_bytes_and_others_are_not_touched() {
        let scratch = Scratch::made();
        let at = |path: &str| scratch.0.join(path);
        numbered(10).write(&scratch.0).unwrap();
        let held = File::open(at("0/last")).unwrap();
        let other = fs::metadata(at("1/port/1/number")).unwrap();
        turn(&scratch.0, &numbered(10), &numbered(2));
        let mut text = [0; 8];
        assert_eq!(held.read_at(&mut text, 0).unwrap(), 2);
        assert_eq!(&text[..2], b"2\n");
        let now = fs::metadata(at("1/port/1/number")).unwrap();
        assert_eq!((now.ino(), now.modified().unwrap()), (other.ino(), other.modified().unwrap()));
    }

    /// Opens the file anew for each read, as most programs do.
    #[test]
    fn readers_of_a_file_that_is_swapped_find_one_whole_value_each_time() {
        let scratch = Scratch::made();
        let (at, twin) = (scratch.0.join("counter"), scratch.0.join(".twins/counter"));
        fs::write(&at, "0\n").unwrap();
        let over = AtomicBool::new(false);
        let values = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let (mut last, mut values) = (String::new(), 0);
                while !over.load(Relaxed) {
                    // With a single call: a reader that continues after a change reads other contents.
                    let mut bytes = [0; 32];
                    let len = File::open(&at).unwrap().read_at(&mut bytes, 0).unwrap();
                    let text = std::str::from_utf8(&bytes[..len]).unwrap().to_owned();
                    let digits = text.trim_end_matches('\n');
                    // All digits of a value are the same, so a mix of two values is detected.
                    let first = digits.bytes().next();
                    let whole = text != digits && digits.bytes().all(|digit| Some(digit) == first);
                    assert!(first.is_some() && whole, "{text:?}");
                    values += u32::from(text != last);
                    last = text;
                }
                values
            });
            for round in 0..30 {
                let (length, digit) = ([1, 7, 20, 3][round % 4], round % 9 + 1);
                swap(&at, &twin, format!("{}\n", digit.to_string().repeat(length)).as_bytes()).unwrap();
                // The supervisor's check interval: a program that opened the file before the last change has read it by the next.
                std::thread::sleep(std::time::Duration::from_millis(80));
            }
            over.store(true, Relaxed);
            reader.join().unwrap()
        });
        assert!(values > 10, "{values} values were seen");
    }

    /// A file that is held open is overwritten in place, and may be read while its length changes.
    #[test]
    fn a_longer_or_shorter_value_is_not_cut_off_for_those_who_hold_the_file_open() {
        let scratch = Scratch::made();
        let at = scratch.0.join("counter");
        fs::write(&at, "1111\n").unwrap();
        let over = AtomicBool::new(false);
        let held = File::open(&at).unwrap();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let (mut whole, mut others) = (0u32, 0u32);
                while !over.load(Relaxed) {
                    let mut text = [0; 32];
                    let len = held.read_at(&mut text, 0).unwrap();
                    match std::str::from_utf8(&text[..len]).unwrap().trim_end_matches('\n') {
                        "1111" | "11111111" if text[len - 1] == b'\n' => whole += 1,
                        _ => others += 1,
                    }
                }
                (whole, others)
            });
            for round in 0..20_000 {
                overwrite(&at, if round % 2 == 0 { b"11111111\n" } else { b"1111\n" }).unwrap();
            }
            over.store(true, Relaxed);
            let (whole, others) = reader.join().unwrap();
            // A read may coincide with the copying of the contents, which takes nanoseconds; a wrong length between two calls would be seen
            // a hundred times as often.
            assert!(whole > 100 && others <= whole / 200, "{others} of {whole} reads");
        });
    }

    /// A reader that checks continuously: no link is dangling, and a directory that exists is complete.
    #[test]
    fn readers_meanwhile_see_whole_directories_and_links_that_lead_somewhere() {
        let scratch = Scratch::made();
        let root = &scratch.0;
        numbered(1).write(root).unwrap();
        let over = AtomicBool::new(false);
        // Identifies the file at a path: between two steps of the reader it may be replaced.
        let at = |path: &Path| {
            let meta = fs::symlink_metadata(path).ok()?;
            Some((meta.ino(), meta.ctime(), meta.ctime_nsec()))
        };
        let looks = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut looks = 0;
                while !over.load(Relaxed) {
                    looks += 1;
                    // The directories are checked before the next is removed, or not at all.
                    for entry in fs::read_dir(root.join("0")).unwrap().flatten() {
                        let before = at(&entry.path());
                        let Ok(target) = fs::read_link(entry.path()) else { continue };
                        let whole = root.join("0").join(target).join("1/number").exists();
                        let same = || before.is_some() && at(&entry.path()) == before;
                        assert!(whole || !same(), "{}", entry.path().display());
                    }
                    for entry in fs::read_dir(root).unwrap().flatten() {
                        let hidden = entry.file_name().to_string_lossy().starts_with('.');
                        let before = at(&entry.path());
                        let whole = || entry.path().join("port/1/number").exists();
                        let same = || before.is_some() && at(&entry.path()) == before;
                        assert!(hidden || whole() || !same(), "{}", entry.path().display());
                    }
                }
                looks
            });
            for _ in 0..20 {
                turn(root, &numbered(1), &numbered(40));
                turn(root, &numbered(40), &numbered(1));
            }
            over.store(true, Relaxed);
            reader.join().unwrap()
        });
        assert!(looks > 0);
    }

    /// libibverbs keeps the order of the directory.
    #[test]
    fn links_laid_anew_are_listed_as_if_all_had_been_made_in_that_order() {
        let order = |root: &Path| -> Vec<_> {
            fs::read_dir(root.join("class")).unwrap().map(|entry| entry.unwrap().file_name()).collect()
        };
        let tree = |numbers: &mut dyn Iterator<Item = usize>| {
            let mut tree = Tree::default();
            numbers.for_each(|i| tree.link(format!("class/{i}"), format!("../{i}")));
            tree
        };
        // In memory, like the directories where the order matters.
        let scratch = Scratch::made();
        let (turned, made) = (scratch.0.join("turned"), scratch.0.join("made"));
        fs::create_dir_all(&turned).unwrap();
        for rising in [true, false] {
            let list = |last: usize| match rising {
                true => tree(&mut (0..last)),
                false => tree(&mut (0..last).rev()),
            };
            let _ = fs::remove_dir_all(&turned);
            let _ = fs::remove_dir_all(&made);
            list(3).write(&turned).unwrap();
            list(12).lay_links(&turned).unwrap();
            list(12).write(&made).unwrap();
            // Kernels that list the oldest entry first append new ones, which is the right order only for rising numbers.
            let oldest_first = order(&made).first().is_some_and(|name| (name == "0") == rising);
            if rising || !oldest_first {
                assert_eq!(order(&turned), order(&made));
            }
        }
    }
}
