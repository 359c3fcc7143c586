//! The past states of a store: what each commit records of them ([`record`]), which of them are known, as views
//! ([`window`]), and how those before the first known one come back ([`reverse`]). How they are stored: see
//! [`crate::history`].

mod record;
mod reverse;
mod window;

pub(crate) use record::forget;
pub use reverse::{PastStates, REVERSE_DELTA_BATCHES_MAX, StateBacklog};
