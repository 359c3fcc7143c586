//! The state-sync daemon: it catches a node up with its ledger, keeps it at the head, and serves other nodes.
//!
//! Other crates do the rest: `executor` executes, `storage` stores, `network` moves bytes, `consensus` decides.
//!
//! ```text
//!  peers ─ summaries ─▶ plan ─▶ ranges ─▶ verify ─▶ replay │ apply ─▶ Store::commit
//!    ▲                   │        ▲                                        │
//!    │                   └─────▶ snapshot ─ chunks ─▶ Restore ─────────────┤
//!    └── PeerBook: scored by proofs, banned for proven lies               ▼
//!                                                     SyncServer ◀── the same Store
//! ```
//!
//! * [`protocol`]: requests and answers, each bounded. [`SyncServer`] answers them from a store. Equal requests share
//!   one answer.
//! * [`verify`]: pure checks of an answer against a certificate and its signers; [`Trust`]: the validators of every epoch.
//! * [`range_delta`]: how a node that is far behind fetches the changes since its head, instead of batch after batch.
//! * `engine/backfill`: how a node that began at a state fetches the history below it, newest first. It runs while the
//!   head needs nothing.
//! * [`repair`]: how a node with a wrong state compares it with its peers' states and fetches the differences.
//! * [`plan`]: the next step, as a pure function of the local head, the policy, the peers' offers and the costs on this
//!   machine.
//! * [`engine`]: all decisions, without I/O; [`work`]: the stages of the pipeline, as jobs; [`Follower`]: the driver,
//!   which moves bytes and runs jobs for the engine.
//!
//! The modules are layers, and each uses only those above it:
//!
//! ```text
//!  config, protocol, error ─▶ trust ─▶ verify ─▶ range_delta ─▶ plan       pure: formats, checks, prices
//!  repair, serve, work                                                     with a store
//!  status ─▶ peers ─▶ engine                                               pure: what is known, what is decided
//!  driver, waypoint                                                        with a network and a clock
//! ```
//!
//! Invariants: a certificate covers everything that reaches the store. An answer that breaks a protocol rule gets its
//! sender banned, with a reason. A late or missing answer gets its sender paused. A failed range goes to another peer.
//!
//! Trusted: the genesis (or the waypoint), and through it the validators. Not trusted: any peer.
//!
//! An [`engine::Engine`] by hand:
//!
//! ```
//! use std::time::Duration;
//! use slipstream_network::NetworkError;
//! use slipstream_storage::{StorageConfig, Store};
//! use slipstream_sync::{SyncConfig, engine::{Effect, Engine, Local, Setup}, protocol::Request};
//! use slipstream_types::BatchNumber;
//! use tokio::time::Instant;
//!
//! let keys = slipstream_testkit::keys(1..=4);
//! let store = Store::memory(&StorageConfig::default());
//! store.initialize(&slipstream_testkit::genesis(&keys, 1_000))?;
//! let (patience, waypoint) = (Duration::ZERO, BatchNumber::GENESIS);
//! let setup = Setup { hints: false, patience, waypoint, cores: 2, seed: 7, defences: Default::default() };
//! let (peer, mut now) = (keys[0].public(), Instant::now());
//! let mut engine = Engine::new(SyncConfig::default(), &setup, Local::of(&store)?, None, now);
//!
//! // A peer connects: the engine asks for its head.
//! engine.handle_peers(&[peer], now);
//! let Some(Effect::Send { id, request: Request::Summary, .. }) = engine.poll_effect() else { panic!() };
//! // The peer hangs up. The engine pauses it, and asks again when a timer fires.
//! engine.handle_answer(id, Err(NetworkError::Closed { peer }), now);
//! while !std::iter::from_fn(|| engine.poll_effect()).any(|it| matches!(it, Effect::Send { .. })) {
//!     now = engine.poll_timeout().expect("the end of the pause");
//!     engine.handle_timeout(now);
//! }
//! # Ok::<(), slipstream_sync::SyncError>(())
//! ```

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
pub use error::{Fault, SyncError, TrustError, Violation};
#[doc(hidden)]
pub use planted::{Defences, NotPlantable, Planted};
pub use protocol::announcement;
#[doc(hidden)]
pub use serve::answer;
pub use serve::{ServeStatus, SyncServer};
pub use status::{
    BackfillStatus, PastStatesStatus, PeerStatus, Phase, ScoreReason, Serves, SnapshotStatus, StageStatus,
    SyncStatus, Waiting,
};
pub use trust::Trust;
pub use waypoint::{Patience, fetch_genesis};
