//! Fuzz targets for bytes from untrusted senders: each accepts any input, and panics where a guarantee is broken.
//!
//! ```text
//!  seeds, testsuite/fuzz/corpus/TARGET ─┬─▶ test `kept`: these, and thousands of mutations by a fixed generator ──┐
//!                                       └─▶ ./x fuzz TARGET: libFuzzer, guided by our crates' coverage ───────────┴─▶ Target::run
//! ```
//!
//! * [`TARGETS`] is the only list of targets: the test, the fuzzer and the folders of kept inputs follow it.
//! * [`mutate`] makes inputs for the test: a bounded number, the same ones each time.
//!
//! Invariant: a target depends on its input alone, except `json_rpc`, whose node remembers transactions and filters.

mod claim;
mod kept;
mod mutate;
mod targets;

pub use kept::{find, kept};
pub use mutate::mutate;
pub use targets::TARGETS;

/// A function that handles bytes from an untrusted sender.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name for `./x fuzz`, and of the folder of kept inputs.
    pub name: &'static str,
    /// Runs one input; panics where a guarantee is broken.
    pub run: fn(&[u8]),
    /// Returns the inputs that mutations start from.
    pub seeds: fn() -> Vec<Vec<u8>>,
}
