//! The simulation's tests, in one program: some compute, and some wait for processes and disks meanwhile.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // a panic is how a test fails, a summary says what it tried

mod lying_peers;
mod siege;
mod sim;
mod sim_validators;
mod storage;
