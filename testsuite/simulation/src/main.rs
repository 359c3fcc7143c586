//! `slipnet-simulation`, which `slipnet sim`, `slipnet explain`, `slipnet model` and `slipnet campaign` run. It is a
//! separate program, so that devnets and the demo build without it.

use std::process::ExitCode;

/// The node's allocator, so that storage is measured with the allocator that it ships with.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    slipnet_simulation::cli::main()
}
