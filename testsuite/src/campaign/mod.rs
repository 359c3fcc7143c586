//! Campaigns: long searches for a lie, with random faults from one seed: `slipnet campaign NAME [--runs N] [--seed S]`.
//! `cargo test` runs short ones.

pub mod storage;
