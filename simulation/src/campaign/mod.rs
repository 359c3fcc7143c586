//! Campaigns: long searches for what must not be: `slipnet campaign storage` for a lie of the store, `slipnet campaign siege` for
//! an attack that a node does not survive. `cargo test` runs short ones. Beside them is what scenarios of `slipnet run` start: a liar in a
//! validator's place.

pub mod liar;
pub mod siege;
pub mod storage;
