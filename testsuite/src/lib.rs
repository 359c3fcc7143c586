//! The library that drives whole nodes from outside: devnets of real processes, load, the demo, and the end-to-end
//! tests. The binary `slipnet` is a thin command line over it.
//!
//! It uses nodes as any user would: through the program `slipstream`, its node.yaml, JSON-RPC and `/v1/status`. The
//! insides of a node are tested in the crates themselves, and by simulations, campaigns and benchmarks. The last three
//! are separate crates and programs on top of this library, `slipnet-simulation` and `slipnet-bench`; `slipnet`
//! replaces itself with them.
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
//! * No node outlives the program that started it, even if that is killed. For `slipnet up -d` that program is a keeper
//!   process.
//! * Whatever a killed program leaves on disk names its owner, and the next program removes it ([`leftovers`]).
//! * Equal seeds give equal keys, genesis and transactions.
//! * A latency counts from the time at which the schedule planned to send the transaction.
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
mod file_names;
pub mod lab;
pub mod leftovers;
pub mod load;
pub mod manifest;
pub mod memory;
pub mod output;
pub mod plan;
mod private_file;
pub mod progress;
pub mod quantiles;
pub mod relay;
pub mod report;
pub mod rpc;
pub mod scenario;
pub mod signals;
pub mod signer;
pub mod target;
pub mod time;
