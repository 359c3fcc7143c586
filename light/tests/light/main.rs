//! Tests of the light client with a chain made here, of which tests can alter every part, and with answers of real
//! nodes.

#![allow(clippy::unwrap_used)] // a panic is how a test fails

mod anchors;
mod chain;
mod epochs;
mod examples;
mod flips;
mod proofs;
mod vectors;
