//! Links liburing when RocksDB comes prebuilt (`ROCKSDB_LIB_DIR`): only RocksDB's own build, which this shortcut
//! skips, declares that it is needed.
#![allow(clippy::print_stdout)] // a build script talks to cargo by its output

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=ROCKSDB_LIB_DIR");
    if std::env::var_os("ROCKSDB_LIB_DIR").is_some() {
        println!("cargo:rustc-link-lib=dylib=uring");
    }
}
