//! The kernel's public mlx5 headers, as reference for layouts, codes and commands.
//!
//! They come with Debian's `linux-headers-*-common`; all installed versions are checked.

mod c;
mod ifc;
mod lexer;

pub use c::{Header, Struct};
pub use ifc::{Ifc, Shape};

use std::path::{Path, PathBuf};

/// The `include/linux/mlx5` directories of the installed kernel headers. Empty only if `IRONVERBS_NO_HEADERS` is 1.
/// `IRONVERBS_HEADERS` adds another `include/linux/mlx5` directory.
pub fn dirs() -> Vec<PathBuf> {
    let mut dirs: Vec<PathBuf> =
        std::env::var_os("IRONVERBS_HEADERS").map(PathBuf::from).into_iter().collect();
    if let Ok(entries) = std::fs::read_dir("/usr/src") {
        let installed = entries
            .flatten()
            .map(|e| e.path())
            .filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("linux-headers-")));
        dirs.extend(installed.map(|p| p.join("include/linux/mlx5")));
    }
    dirs.retain(|d| d.join("mlx5_ifc.h").is_file());
    dirs.sort();
    if dirs.is_empty() && std::env::var("IRONVERBS_NO_HEADERS").as_deref() != Ok("1") {
        panic!(
            "no mlx5_ifc.h under /usr/src/linux-headers-*: install Debian's linux-headers-amd64 (its \
             linux-headers-*-common has the file), or set IRONVERBS_NO_HEADERS=1 to go without this judge"
        );
    }
    dirs
}

/// The text of `name` in `dir`.
pub fn read(dir: &Path, name: &str) -> String {
    let path = dir.join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// True for the headers of Linux 6.1, which are compared in both directions; newer ones add fields that we do not need,
/// and remove names.
pub fn is_reference(dir: &Path) -> bool {
    dir.to_string_lossy().contains("linux-headers-6.1.")
}
