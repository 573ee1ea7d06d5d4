//! Has the loader initialise this library before all others: some measure the processor's counter while they are initialised.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
}
