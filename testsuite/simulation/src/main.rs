//! `slipnet-simulation`, which `slipnet sim`, `slipnet explain`, `slipnet model` and `slipnet campaign` run. It is a program of its
//! own, so that devnets and the demo are built without it.

use std::process::ExitCode;

/// The node's allocator, so that its storage is measured with the same one.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    slipnet_simulation::cli::main()
}
