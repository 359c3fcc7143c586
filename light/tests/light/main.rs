//! Tests of the light client: by a chain that is made here, whose every part a test may bend, and by answers of real nodes.

#![allow(clippy::unwrap_used)] // a panic is how a test fails

mod anchors;
mod chain;
mod epochs;
mod flips;
mod proofs;
mod vectors;
