//! Scenarios: the tests of a chain before a release, in YAML.
//!
//! ```text
//!  FILE.yaml ─▶ parse ─▶ rules ─▶ Scenario ─▶ plan ─▶ engine (a Devnet) ─▶ RunReport ─▶ judge ─▶ exit code
//!                                    ▲
//!  FILE.defect.yaml ─▶ Twin ─────────┘ must fail, by the criteria that it names
//! ```
//!
//! Invariants:
//! * A scenario that parses can run on any machine with its requirements: programs, data, the right to mount. Keys of
//!   node.yaml are checked by the node's own crate, and attacks by their names. Only keys of nodes with another program
//!   are not checked.
//! * An error names the file, the line and the key, and says what to write.
//! * No number in a file is used before it is checked.
//! * The seed determines keys, load, and the times and victims of faults.
//! * A criterion whose figure was not measured is not met.
//!
//! Nodes have no code for scenarios: every fault comes from outside. A library that the loader puts before libc
//! (`slipstream-preload`) controls a node's clock and flushes. A validator lies by running twice, by old data, or
//! through a program that replaces it. Lying peers are servers of that program, which the operator's command gives to a
//! node.
//!
//! ```
//! use slipnet::scenario::Scenario;
//!
//! let text = "name: a\ndescription: b\nduration: 10s\ncriteria: [equal_roots]\nfaults:\n\
//!     - at: 3s\n  what: { kill: { nodes: [validator-9] } }\n";
//! let error = Scenario::parse(text, "a.yaml".as_ref()).unwrap_err().to_string();
//! assert!(error.starts_with("a.yaml:7:") && error.contains("no node is called `validator-9`"), "{error}");
//! ```

mod attacks;
mod cli;
pub mod criteria;
mod engine;
mod error;
pub mod fault;
pub mod model;
mod names;
mod notes;
mod parse;
mod plan;
mod rules;
mod schema;
pub mod shipped;
mod span;
mod twin;

pub use attacks::ATTACKS;
pub use cli::{RunScenarios, ScenariosCommand};
pub use engine::{RunOptions, run};
pub use error::ScenarioError;
pub use model::Scenario;
pub use parse::SCENARIO_BYTES_MAX;
pub use rules::{NODES_MAX, VALIDATORS_MAX};
pub use schema::schema;
pub use span::{InvalidSpan, Span};
pub use twin::{Defect, TWIN_SUFFIX, Twin};

/// The directory of exported snapshots, in the nodes' directory.
pub(crate) const ARCHIVE: &str = "archive";
/// The largest disk of a node's own: it is in memory.
pub(crate) const DISK_MIB_MAX: u64 = 4_096;
