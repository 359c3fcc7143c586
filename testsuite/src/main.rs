//! `slipnet`: devnets, load and the demo of Slipstream, for users and for scripts.

use std::process::ExitCode;

/// The same allocator as the node's, so that storage is measured under it.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    slipnet::cli::main()
}
