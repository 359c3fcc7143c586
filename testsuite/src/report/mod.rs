//! The results of a run: [`RunReport`] as JSON, Markdown and one HTML page; and the figures of a benchmark, as
//! [`Report`].
//!
//! ```text
//!  nodes' /v1/status ──▶ Collector ─┐
//!  load, faults, criteria ──────────┴─▶ RunReport ─┬─▶ JSON ──▶ slipnet compare
//!                                                  ├─▶ Markdown
//!                                                  └─▶ one HTML page, which draws the JSON
//! ```
//!
//! JSON is the only source: Markdown and HTML are made from it and show nothing that it lacks.

mod bench;
mod built;
mod catch_up;
mod collect;
mod environment;
mod figures;
mod html;
mod liar;
mod markdown;
mod phase;
mod run;
mod search;
mod series;

pub use bench::{BenchFigure, BenchReport, Better};
pub use collect::Collector;
pub(crate) use collect::PEER_DIGITS;
pub use environment::Environment;
pub use figures::{Aim, Figure, Report, number};
pub use html::escaped;
pub use liar::LiarOpinion;
pub use phase::{LatencyFigures, PhaseFigures};
pub(crate) use run::LIST_MAX;
pub use run::{
    CatchUp, CriterionResult, FaultMark, HarnessFigures, LoadSeries, NamedSeries, NodeSeries, RunReport,
    Total,
};
pub use search::{SearchFigures, SearchStep};
pub use series::Series;

pub use crate::load::AuditFigures;
