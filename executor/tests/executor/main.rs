//! Tests of execution from outside: admission, building and running batches, and mainnet blocks.
#![allow(clippy::unwrap_used)] // a panic is how a test fails

mod access_list;
mod admission;
mod assemble;
mod call;
mod data;
mod ethereum;
mod execute;
mod geth;
mod hinted;
mod hot;
mod mainnet;
mod overlay;
mod overrides;
mod parallel;
mod precompiles;
mod predeploys;
mod predict;
mod session;
mod simulate;
mod store;
mod support;
mod trace;
mod unpaid;
mod validators;
mod values;
mod warm;
mod ways;
