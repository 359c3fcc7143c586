//! The real follower, server, executor and store over the in-memory network: every mode, and peers that lie.
#![allow(clippy::unwrap_used)] // a panic is how a test fails

mod answers;
mod audit;
mod chain;
mod choice;
mod epochs;
mod floors;
mod following;
mod forks;
mod liars;
mod mixed;
mod modes;
mod order;
mod range_delta;
mod repair;
mod retarget;
mod serving;
mod shared;
mod unprotected;
mod values;
mod vouched;
mod waypoints;
