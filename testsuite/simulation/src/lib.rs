//! Searches for violations: simulated worlds, a model of the validators' protocol, and campaigns against real stores
//! and nodes.
//!
//! The program `slipnet-simulation` is a thin command line over this library. `slipnet` replaces itself with that
//! program for `sim`, `explain`, `model` and `campaign`. It is a separate program, like `slipnet-bench`: simulations
//! need every crate, and devnets, load and the demo need none of that. `slipnet` cannot link it: the siege starts
//! devnets with the library of `slipnet`'s package, and two packages must not depend on each other.
//!
//! ```text
//!  sim        seed ─▶ world: the crates that ship, on simulated time, disks and links ─▶ oracles ─▶ trace hash
//!               alone: sync's daemon      validators: whole validators     broadcast: one mesh of thousands of nodes
//!               explain: a seed as a timeline
//!  model      bounds ─▶ all states of the validators' core ─▶ violations of the protocol
//!  campaign   storage: killed processes, damaged files     siege: slipnet's devnet, attackers, honest load
//!               gas: the slowest programs, and four validators that execute them
//!               liar: a program in a validator's place, for scenarios of `slipnet run`
//!  lies       an honest answer ─▶ a lie, for the peers of sim, siege and a bench
//! ```
//!
//! Invariants:
//! * One seed is one run: simulations take time and randomness from the seed alone.
//! * A search that finds something fails, and reports how to repeat it.
//!
//! The library trusts nothing that it tests: oracles compute the expected results from the definitions, beside the code
//! under test.
//!
//! ```
//! use slipnet_simulation::sim::Seeds;
//!
//! // The seeds of `slipnet sim --seeds 3..7`.
//! assert_eq!("3..7".parse(), Ok(Seeds(3..7)));
//! ```

pub mod campaign;
pub mod cli;
pub mod lies;
pub mod model;
pub mod sim;
