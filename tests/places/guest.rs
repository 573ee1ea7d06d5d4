//! A guest under QEMU with a VF of the model under its stock driver. `make test-guest` runs all scenarios.

use ironverbs_tests::program::built;
use std::{path::Path, process::Command};

#[test]
fn the_stock_driver_of_a_guest_brings_a_vf_up() {
    let images = Command::new("sh")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/guest-image.sh"))
        .arg("path")
        .output()
        .expect("sh");
    let folders = String::from_utf8_lossy(&images.stdout).into_owned();
    if !images.status.success() || folders.lines().any(|folder| !Path::new(folder).exists()) {
        return println!("skipped: no images of a guest here (scripts/guest-image.sh build)");
    }
    let out = Command::new(built().join("guest")).args(["test", "boot"]).output().expect("guest");
    let said = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
    assert!(out.status.success(), "{said}");
    print!("{said}");
}
