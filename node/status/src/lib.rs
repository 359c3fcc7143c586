//! [`NodeStatus`]: a node's state and work, as one typed document. `/v1/status` serves it. `slipstream status` parses
//! it and shows it as text or JSON, once or repeatedly; `slipstream wait` waits for one condition in it. The log's
//! periodic line and the metrics are built from the same struct, so all of them agree.
//!
//! ```text
//!  store, follower, seat, network, pool ─┐
//!  Health (judged)  ─────────────────────┼─▶ StatusSource::read ─▶ NodeStatus ─┬─▶ /v1/status ─▶ slipstream status, wait
//!  Resources (sampled apart) ────────────┘                                     ├─▶ sample ─▶ /metrics
//!                                                                              └─▶ watch ─▶ the log, /v1/events
//! ```
//!
//! The document contains only numbers that are kept anyway, because anyone who can reach the API may request it.
//! Costlier numbers are sampled in the background (`Resources`). Programs match enums, whose names do not change; texts
//! are for people.

mod barred;
mod document;
pub mod events;
#[cfg(any(test, feature = "testing"))]
pub mod fixture;
pub mod health;
pub mod metrics;
mod named;
mod names;
pub mod peers;
mod progress;
mod reporter;
mod resources;
mod sample;
#[cfg(test)]
mod sample_tests;
pub mod seat;
mod source;
pub mod speed;
mod spread;

pub use self::{
    document::{EpochStatus, HeadStatus, NodeStatus, RulesStatus},
    names::{Names, archive_id},
    progress::{Eta, Progress, Unit},
    resources::{DataPaths, DiskStatus, DiskUse, ProcessStatus, Resources, sample as sample_resources},
    source::{StatusSource, watch},
};
