//! `slipnet-bench`, which `slipnet bench` runs: a program of its own, so that devnets and the demo are built without other people's trees.

use std::process::ExitCode;

/// The node's allocator, so that its storage is measured with the same one.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    slipnet_bench::cli::main()
}
