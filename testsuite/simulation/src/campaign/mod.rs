//! Campaigns: long searches for faults. `slipnet campaign storage` searches for wrong answers of the store,
//! `slipnet campaign siege` for an attack that kills a node, and `slipnet campaign gas` for gas that halts a chain.
//! `cargo test` runs short ones. `liar` is a lying validator, which scenarios of `slipnet run` start.

pub mod gas;
pub mod liar;
pub mod siege;
pub mod storage;
