//! Tests of the ledger vocabulary through its public surface.
#![allow(clippy::unwrap_used)] // a panic is how a test fails

mod certificates;
mod common;
mod hints;
mod properties;
mod schedule;
mod vectors;
