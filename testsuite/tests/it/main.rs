//! The testsuite's tests, in one program: they run six at a time, and link once.
//!
//! They start in the order of their names: tests that mostly wait are mixed with those that compute, and are not at the
//! end. Those of `accused` and `below` wait most, and start with the clients' tests, which take little of the room for
//! large devnets (`common::room`).
//!
//! Each devnet has its own ports and directory, and each registry of devnets is separate. None of these tests changes
//! the environment or the current directory of this process; a test that needs that uses a child process. Relays
//! between nodes raise the limit of open files to the maximum: no test is about that limit.
//!
//! Six tests share the machine, which may be slow: tests wait for conditions (`common`), and none measures speed.

#![allow(clippy::unwrap_used)] // a panic is how a test fails

mod accused;
mod backfill;
mod below;
mod clients;
mod collector;
mod common;
mod conformity;
mod devnet;
mod documented;
mod edge;
mod engine;
mod epochs;
mod examples;
mod exits;
mod kill;
mod lab;
mod liar;
mod light;
mod load;
mod mesh;
mod modes;
mod packaging;
mod repair;
mod slow_gas;
mod tidy;
mod unprotected;
mod without_history;
