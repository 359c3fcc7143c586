//! Links liburing when RocksDB comes prebuilt (`ROCKSDB_LIB_DIR`): only its own build, not that shortcut, says that it is
//! needed.
#![allow(clippy::print_stdout)] // how a build script speaks to cargo

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=ROCKSDB_LIB_DIR");
    if std::env::var_os("ROCKSDB_LIB_DIR").is_some() {
        println!("cargo:rustc-link-lib=dylib=uring");
    }
}
