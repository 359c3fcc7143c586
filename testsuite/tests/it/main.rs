//! The testsuite's tests, in one program: they run six at a time, and link once.
//!
//! They begin in the order of their names: tests that wait for a long time stand between those that compute, and not at the end. Those of
//! `accused` and `below` wait most, and begin with the clients' tests, which take little of the room for large devnets (`common::room`).
//!
//! Each devnet has ports and a directory of its own, and each registry of devnets too. None of these tests changes the environment or the
//! current directory of this process. What needs that runs in a child process. Relays between nodes raise the number of open files to the
//! most that is allowed: no test is about that number.
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
mod unprotected;
mod without_history;
