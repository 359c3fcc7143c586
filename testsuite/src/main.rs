//! `slipnet`: devnets, load and the demo of Slipstream, for people and for scripts.

use std::process::ExitCode;

/// The node's allocator, so that its storage is measured with the same one.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    slipnet::cli::main()
}
