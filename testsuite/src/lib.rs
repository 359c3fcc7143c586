//! Everything that drives whole nodes from outside: devnets of real processes, load, the demo, and the end-to-end tests.
//! The binary `slipnet` is a thin command line over this library.
//!
//! It uses nodes as anybody would, through the program `slipstream`, its node.yaml, JSON-RPC and `/v1/status`. The inside of a node
//! is tested in the crates themselves, and by simulations with campaigns, and benchmarks, which reach into them. Both are crates
//! and programs of their own on top of this library, `slipnet-simulation` and `slipnet-bench`, which `slipnet` becomes.
//!
//! ```text
//!  lab (devnets that outlive a command), relay (links between nodes), target (Compose, Kubernetes)
//!                                      │
//!  accounts (keys from a seed) ──▶ devnet (genesis, node.yaml, processes) ──▶ manifest
//!        │                             ▲                                        │
//!        ▼                             │ JSON-RPC, /v1/status (rpc)             ▼
//!     signer ──▶ load (plan, generators, audit, summary) ◀────────────── slipnet load
//!                       ▲
//!     contracts ────────┘        demo = devnet + load + one fresh fullnode per sync mode
//!                                scenario = devnet + phases of load + faults + criteria, from a file of YAML
//!
//!  nodes' /v1/status ──▶ report (Collector, RunReport) ──▶ JSON, Markdown, HTML ──▶ compare
//! ```
//!
//! Invariants:
//! * No node outlives the program that started it, even if that is killed. `slipnet up -d` has a keeper for that program.
//! * What a killed program leaves on disks says whose it is, and the next one removes it ([`leftovers`]).
//! * Equal seeds give equal keys, genesis and transactions.
//! * A latency counts from the time at which the schedule wanted a transaction to leave.
//!
//! ```
//! use slipnet::accounts::{Account, DEFAULT_SEED};
//!
//! // The first account of every default devnet.
//! assert_eq!(Account::derive(DEFAULT_SEED, 0).address, Account::derive_many(DEFAULT_SEED, 2)[0].address);
//! ```

pub mod accounts;
pub mod cli;
pub mod compare;
pub mod contracts;
pub mod cpu;
pub mod demo;
pub mod devnet;
pub mod file_lock;
pub mod lab;
pub mod leftovers;
pub mod load;
pub mod manifest;
pub mod memory;
pub mod output;
pub mod progress;
pub mod relay;
pub mod report;
pub mod rpc;
pub mod scenario;
pub mod signals;
pub mod signer;
pub mod target;
pub mod time;
