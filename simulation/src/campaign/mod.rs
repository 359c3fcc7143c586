//! Campaigns: long searches for what must not be: `slipnet campaign storage` for a lie of the store, `slipnet campaign siege` for
//! an attack that a node does not survive. `cargo test` runs short ones.

pub mod siege;
pub mod storage;
