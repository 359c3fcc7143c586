//! The state-sync daemon: how a node catches up with its ledger and stays at its head, and how it serves others.
//!
//! Left to others: executing (`executor`), keeping (`storage`), moving bytes (`network`), deciding (`consensus`).
//!
//! ```text
//!  peers ─ summaries ─▶ plan ─▶ ranges ─▶ verify ─▶ replay │ apply ─▶ Store::commit
//!    ▲                   │        ▲                                        │
//!    │                   └─────▶ snapshot ─ chunks ─▶ Restore ─────────────┤
//!    └── PeerBook: scored by proofs, banned for proven lies               ▼
//!                                                     SyncServer ◀── the same Store
//! ```
//!
//! * [`protocol`]: requests and answers, each bounded. [`SyncServer`] answers them from a store, once for all who ask alike.
//! * [`verify`]: pure checks of an answer against a certificate and its signers; [`Trust`]: the validators of every epoch.
//! * [`range_delta`]: how a node that is far behind asks for what changed since, instead of batch after batch.
//! * `engine/backfill`: how a node that began at a state fetches the history below it, newest first, while the head needs nothing.
//! * [`repair`]: how a node whose state went wrong compares it with others' and fetches what differs.
//! * [`plan`]: what to do next, as a pure function of local head, policy, what peers offer and what everything costs here.
//! * [`engine`]: all decisions, without I/O; [`work`]: the stages of the pipeline, as jobs; [`Follower`]: the driver that moves bytes and
//!   runs jobs for the engine.
//!
//! Invariants: a certificate covers all that reaches the store. An answer that breaks a rule of the protocol gets its sender
//! banned, with a reason; a late or missing answer costs it a pause. A failed range goes to another peer.
//!
//! Trusted: the genesis (or the waypoint), and through it the validators. Not trusted: any peer.

mod config;
mod driver;
pub mod engine;
mod error;
mod peers;
pub mod plan;
mod planted;
pub mod protocol;
pub mod range_delta;
pub mod repair;
mod secret;
mod serve;
mod status;
mod trust;
pub mod verify;
mod waypoint;
pub mod work;

pub use config::{Mode, RepairMode, SyncConfig};
pub use driver::Follower;
pub use error::{Fault, SyncError};
#[doc(hidden)]
pub use planted::{Defences, NotPlantable, Planted};
pub use protocol::announcement;
#[doc(hidden)]
pub use serve::answer;
pub use serve::{ServeStatus, SyncServer};
pub use status::{
    BackfillStatus, PastStatesStatus, PeerStatus, Phase, ScoreReason, Serves, SnapshotStatus, SyncStatus,
    Waiting,
};
pub use trust::{Trust, TrustError};
pub use waypoint::{Patience, fetch_genesis};
