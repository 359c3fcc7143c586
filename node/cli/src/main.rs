//! The `slipstream` binary.

use std::process::ExitCode;

/// RocksDB and revm allocate from many threads; jemalloc keeps that from fragmenting a node that runs for months.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    slipstream_cli::main()
}
