//! Links the library under the name that programs know it by, and with the version that some of its names have.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=versions.map");
    let directory = std::env::var("CARGO_MANIFEST_DIR").expect("cargo says where this is");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,librados.so.2");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={directory}/versions.map");
}
