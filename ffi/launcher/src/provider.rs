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
    /// The shared object that libibverbs loads (`ffi/loader`).
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

/// The provider's path without its suffix, which is what `RDMAV_DRIVERS` and `.driver` files name. It is a path of the view alone, of a
/// directory that nobody can write to: what lies beside a node could be written by whoever may use the node.
pub const STEM: &str = "/sys/devices/ironverbs/lib/libironverbs";

/// Makes `libironverbs-rdmav{34,..}.so` in the new directory `lib` lead to the loader, and `libironverbs.so` beside them to the provider.
///
/// # Errors
/// A link cannot be made.
pub fn lay(lib: &Path, provider: &Provider) -> io::Result<()> {
    fs::create_dir_all(lib)?;
    let loaders = RDMAV.map(|version| (format!("libironverbs-rdmav{version}.so"), &provider.loader));
    let provider = (PROVIDER_LINK.to_owned(), &provider.provider);
    loaders.into_iter().chain([provider]).try_for_each(|(name, target)| symlink(target, lib.join(name)))
}

/// The value of `RDMAV_DRIVERS`: ours first, since the first driver that matches a device takes it and the stock mlx5
/// driver matches our ids, then what the user had.
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
