//! Searches for what must not happen: simulated worlds, a model of the validators' protocol, and campaigns against real stores and nodes.
//!
//! The program `slipnet-simulation` is a thin command line over this library, and `slipnet` becomes it for `sim`, `explain`,
//! `model` and `campaign`. It is a program of its own, as `slipnet-bench` is: simulations reach into every crate, and devnets, load
//! and the demo need none of that. `slipnet` cannot link it: the siege starts devnets with the library of `slipnet`'s package, and two
//! packages must not depend on each other.
//!
//! ```text
//!  sim        seed ─▶ world: the crates that ship, on simulated time, disks and links ─▶ oracles ─▶ trace hash
//!               itself: sync's daemon     validators: whole validators     broadcast: thousands of meshes
//!               explain: a seed as a timeline
//!  model      bounds ─▶ all states of the validators' core ─▶ what violates the protocol
//!  campaign   storage: processes that are killed, files that are damaged     siege: slipnet's devnet, attackers, honest load
//!               gas: the slowest programs, and four validators that get them
//!               liar: a program in a validator's place, for scenarios of `slipnet run`
//!  altered    an honest answer ─▶ a lie, for the peers of both sim and siege
//! ```
//!
//! Invariants:
//! * One seed is one run: simulations take time and randomness from the seed alone.
//! * A search that finds something fails, and says how to repeat it.
//!
//! It trusts nothing that it tests: oracles compute what must be from the definitions, beside the code under test.
//!
//! ```
//! use slipnet_simulation::sim::Seeds;
//!
//! // Seeds that `slipnet sim --seeds 3..7` runs.
//! assert_eq!("3..7".parse(), Ok(Seeds(3..7)));
//! ```

mod altered;
pub mod campaign;
pub mod cli;
pub mod model;
pub mod sim;
