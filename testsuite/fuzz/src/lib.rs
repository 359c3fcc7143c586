//! What outsiders send, as bytes: each target takes any, and panics where a promise is broken.
//!
//! ```text
//!  seeds, testsuite/fuzz/corpus/TARGET ─┬─▶ test `kept`: they, and thousands made of them by a fixed generator ─┐
//!                             └─▶ ./x fuzz TARGET: libFuzzer, guided by what our crates execute ──────┴─▶ Target::run
//! ```
//!
//! * [`TARGETS`] is the only list of them: the test, the fuzzer and the folders of kept inputs follow it.
//! * [`mutate`] makes inputs for the test: a bounded number, the same ones each time.
//!
//! Invariant: a target depends on its input alone, but for `json_rpc`, whose node remembers what wallets sent.

mod claim;
mod kept;
mod mutate;
mod targets;

pub use kept::{find, kept};
pub use mutate::mutate;
pub use targets::TARGETS;

/// Takes bytes that a stranger may send.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// As `./x fuzz` and the folder of kept inputs call it.
    pub name: &'static str,
    /// It panics where a promise is broken.
    pub run: fn(&[u8]),
    /// Inputs that most others are made of.
    pub seeds: fn() -> Vec<Vec<u8>>,
}
