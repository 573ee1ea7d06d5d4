//! Finds the provider's shared object, and lays out the names by which libibverbs loads it.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::LaunchError;

/// File name of the provider as cargo builds it.
const PROVIDER: &str = "libironverbs_provider.so";
/// File name of the object that libibverbs loads, which then loads the provider.
const LOADER: &str = "libironverbs_loader.so";
/// File name of the object that is preloaded into programs in virtual time.
const CLOCKS: &str = "libironverbs_time.so";
/// The link by which the loader finds the provider.
const PROVIDER_LINK: &str = "libironverbs.so";

/// Private provider interface versions that rdma-core releases append as `-rdmavN.so`. The provider itself detects the layout of a
/// libibverbs.
const RDMAV: [u32; 5] = [34, 57, 59, 64, 65];

/// The shared objects through which programs access the devices, as absolute paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provider {
    /// The shared object that libibverbs loads (`ffi/loader`).
    pub loader: PathBuf,
    /// The provider itself (`ffi/provider`).
    pub provider: PathBuf,
}

/// Finds the shared objects for the command at `exe`: next to it, as in a build directory, or in `../lib/ironverbs`, as installed.
///
/// # Errors
/// One of them is in neither place.
pub fn find(exe: &Path) -> Result<Provider, LaunchError> {
    Ok(Provider { loader: object(exe, LOADER)?, provider: object(exe, PROVIDER)? })
}

/// Finds the library that replaces the clocks of programs in virtual time (`ffi/time`), in the same places.
///
/// # Errors
/// It is in neither place.
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

/// The provider's path without its suffix, for `RDMAV_DRIVERS` and `.driver` files. It exists only in the view, in a read-only directory: a
/// file next to a node could be overwritten by the node's users.
pub const STEM: &str = "/sys/devices/ironverbs/lib/libironverbs";

/// Creates links in the new directory `lib`: `libironverbs-rdmav{34,..}.so` to the loader, and `libironverbs.so` to the provider.
///
/// # Errors
/// A link cannot be created.
pub fn lay(lib: &Path, provider: &Provider) -> io::Result<()> {
    fs::create_dir_all(lib)?;
    let loaders = RDMAV.map(|version| (format!("libironverbs-rdmav{version}.so"), &provider.loader));
    let provider = (PROVIDER_LINK.to_owned(), &provider.provider);
    loaders.into_iter().chain([provider]).try_for_each(|(name, target)| symlink(target, lib.join(name)))
}

/// The value of `RDMAV_DRIVERS`: this provider, followed by the user's value. The first driver that matches a device takes it, and the
/// stock mlx5 driver matches the simulated devices' IDs.
pub fn drivers(theirs: Option<OsString>) -> OsString {
    let mut list = OsString::from(STEM);
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
    fn drivers_of_the_user_stay_behind_ours() {
        let both = format!("{STEM}:rxe");
        assert_eq!(drivers(None), STEM);
        assert_eq!(drivers(Some("rxe".into())), *both);
        assert_eq!(drivers(Some(both.clone().into())), *both);
    }
}
