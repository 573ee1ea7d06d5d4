//! Finds the provider's shared object, and the names by which libibverbs is given it.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::LaunchError;

/// File name of the provider as cargo builds it.
const PROVIDER: &str = "libironverbs_provider.so";
/// File name of what libibverbs loads, which then loads the provider.
const LOADER: &str = "libironverbs_loader.so";
/// File name of what is loaded before programs in virtual time.
const CLOCKS: &str = "libironverbs_time.so";
/// The link to the provider, by which the loader finds it.
const PROVIDER_LINK: &str = "libironverbs.so";

/// Private provider interface versions that rdma-core releases append as `-rdmavN.so`. The provider itself finds out
/// which layout a libibverbs has.
const RDMAV: [u32; 5] = [34, 57, 59, 64, 65];

/// The shared objects by which programs reach the devices, absolute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provider {
    /// What libibverbs loads (`ffi/loader`).
    pub loader: PathBuf,
    /// The provider itself (`ffi/provider`).
    pub provider: PathBuf,
}

/// Finds the shared objects for the command at `exe`: beside it, as in a build directory, or in `../lib/ironverbs`, as
/// installed.
///
/// # Errors
/// One of them is in neither place.
pub fn find(exe: &Path) -> Result<Provider, LaunchError> {
    Ok(Provider { loader: object(exe, LOADER)?, provider: object(exe, PROVIDER)? })
}

/// Finds what stands in for the clocks of programs in virtual time (`ffi/time`), in the same places.
///
/// # Errors
/// It is in neither.
pub fn clocks(exe: &Path) -> Result<PathBuf, LaunchError> {
    object(exe, CLOCKS)
}

fn object(exe: &Path, name: &str) -> Result<PathBuf, LaunchError> {
    let exe = fs::canonicalize(exe).unwrap_or_else(|_| exe.to_path_buf());
    let home = exe.parent().unwrap_or(Path::new("/"));
    let installed = home.parent().unwrap_or(Path::new("/")).join("lib/ironverbs");
    let places = [home.to_path_buf(), home.join("deps"), installed];
    places.iter().map(|place| place.join(name)).find(|path| path.is_file()).ok_or_else(|| {
        LaunchError::Provider(format!(
            "{name} is neither in {} nor in {}: 'make build' in the sources makes it, and the package has it",
            places[0].display(),
            places[2].display()
        ))
    })
}

/// Makes `<node>/lib/libironverbs-rdmav{34,..}.so` lead to the loader and `libironverbs.so` beside them to the provider, and
/// returns the path without suffix, which is what `RDMAV_DRIVERS` and `.driver` files name. Others may be loading through
/// the links meanwhile: each is replaced as a whole, the provider's first.
///
/// # Errors
/// A link cannot be made.
pub fn link(node: &Path, provider: &Provider) -> Result<PathBuf, LaunchError> {
    let lib = node.join("lib");
    let failed = |e: io::Error| LaunchError::Provider(format!("cannot link it in {}: {e}", lib.display()));
    fs::create_dir_all(&lib).map_err(failed)?;
    let loaders = RDMAV.map(|version| (format!("libironverbs-rdmav{version}.so"), &provider.loader));
    for (name, target) in [(PROVIDER_LINK.to_owned(), &provider.provider)].into_iter().chain(loaders) {
        let link = lib.join(&name);
        if fs::read_link(&link).is_ok_and(|old| old == *target) {
            continue;
        }
        let fresh = lib.join(format!(".{name}.{}", std::process::id()));
        let _ = fs::remove_file(&fresh);
        symlink(target, &fresh).and_then(|()| fs::rename(&fresh, &link)).map_err(failed)?;
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
        let built = |at: &str| Provider {
            loader: format!("/{at}/loader").into(),
            provider: format!("/{at}/provider").into(),
        };
        link(&node, &built("old")).unwrap();
        let stem = link(&node, &built("new")).unwrap();
        for version in RDMAV {
            let name = PathBuf::from(format!("{}-rdmav{version}.so", stem.display()));
            assert_eq!(fs::read_link(name).unwrap(), Path::new("/new/loader"));
        }
        assert_eq!(fs::read_link(node.join("lib/libironverbs.so")).unwrap(), Path::new("/new/provider"));
        assert_eq!(fs::read_dir(node.join("lib")).unwrap().count(), RDMAV.len() + 1);
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
