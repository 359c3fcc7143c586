//! `slipnet-bench`, which `slipnet bench` runs: a separate program, so that devnets and the demo build without the
//! rivals' trees.

use std::process::ExitCode;

/// The node's allocator, so that storage is measured with the allocator that it ships with.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    slipnet_bench::cli::main()
}
