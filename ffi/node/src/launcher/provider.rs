//! Where the provider's shared object is and under which names libibverbs is given it.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::LaunchError;

/// File name of the provider as cargo builds it.
pub const PROVIDER: &str = "libironverbs_provider.so";

/// Private provider interface versions that rdma-core releases append as `-rdmavN.so`. Which layout really is there the
/// provider finds out by itself.
const RDMAV: [u32; 5] = [34, 57, 59, 64, 65];

/// Finds the provider for the command at `exe`: beside it, as in a build directory, or in `../lib/ironverbs`, as
/// installed.
pub fn find(exe: &Path) -> Result<PathBuf, LaunchError> {
    let exe = fs::canonicalize(exe).unwrap_or_else(|_| exe.to_path_buf());
    let home = exe.parent().unwrap_or(Path::new("/"));
    let installed = home.parent().unwrap_or(Path::new("/")).join("lib/ironverbs");
    let places = [home.to_path_buf(), home.join("deps"), installed];
    places.iter().map(|p| p.join(PROVIDER)).find(|p| p.is_file()).ok_or_else(|| {
        LaunchError::Provider(format!(
            "{PROVIDER} is neither in {} nor in {}: build it with `cargo build --release`",
            places[0].display(),
            places[2].display()
        ))
    })
}

/// Makes `<node>/lib/libironverbs-rdmav{34,..}.so` lead to `provider` and returns the path without suffix, which is
/// what `RDMAV_DRIVERS` and `.driver` files name. Others may be loading through the links meanwhile: each is replaced
/// as a whole.
pub fn link(node: &Path, provider: &Path) -> Result<PathBuf, LaunchError> {
    let lib = node.join("lib");
    let failed = |e: io::Error| LaunchError::Provider(format!("cannot link it in {}: {e}", lib.display()));
    fs::create_dir_all(&lib).map_err(failed)?;
    for version in RDMAV {
        let name = lib.join(format!("libironverbs-rdmav{version}.so"));
        if fs::read_link(&name).is_ok_and(|old| old == provider) {
            continue;
        }
        let fresh = lib.join(format!(".{version}.{}", std::process::id()));
        let _ = fs::remove_file(&fresh);
        symlink(provider, &fresh).and_then(|()| fs::rename(&fresh, &name)).map_err(failed)?;
    }
    Ok(lib.join("libironverbs"))
}

/// The value of `RDMAV_DRIVERS`: ours first, since the first driver that matches a device takes it and the stock mlx5
/// driver matches our ids, then what the user had.
pub fn drivers(ours: &Path, theirs: Option<OsString>) -> OsString {
    let mut list = ours.as_os_str().to_os_string();
    match theirs {
        Some(theirs) if theirs.as_encoded_bytes().starts_with(list.as_encoded_bytes()) => theirs,
        Some(theirs) if !theirs.is_empty() => {
            list.push(":");
            list.push(theirs);
            list
        }
        _ => list,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_follow_the_provider_when_it_moves() {
        let node = std::env::temp_dir().join(format!("ironverbs-lib-{}", std::process::id()));
        let _ = fs::remove_dir_all(&node);
        fs::create_dir_all(&node).unwrap();
        link(&node, Path::new("/old.so")).unwrap();
        let stem = link(&node, Path::new("/new.so")).unwrap();
        for version in RDMAV {
            let name = PathBuf::from(format!("{}-rdmav{version}.so", stem.display()));
            assert_eq!(fs::read_link(name).unwrap(), Path::new("/new.so"));
        }
        assert_eq!(fs::read_dir(node.join("lib")).unwrap().count(), RDMAV.len());
        fs::remove_dir_all(&node).unwrap();
    }

    #[test]
    fn drivers_of_the_user_stay_behind_ours() {
        let ours = Path::new("/n/lib/libironverbs");
        assert_eq!(drivers(ours, None), "/n/lib/libironverbs");
        assert_eq!(drivers(ours, Some("rxe".into())), "/n/lib/libironverbs:rxe");
        assert_eq!(drivers(ours, Some("/n/lib/libironverbs:rxe".into())), "/n/lib/libironverbs:rxe");
    }
}
