//! Campaigns: long searches for faults. `slipnet campaign storage` looks for a lie of the store, `slipnet campaign siege` for an
//! attack that kills a node, and `slipnet campaign gas` for the gas that halts a chain. `cargo test` runs short ones. Beside them is
//! the part that scenarios of `slipnet run` start: a liar in a validator's place.

pub mod gas;
pub mod liar;
pub mod siege;
pub mod storage;
