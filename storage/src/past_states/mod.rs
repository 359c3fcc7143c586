//! The past states of a store: what each commit records of them ([`record`]), and which of them are known, as views
//! ([`window`]). How they are stored: see [`crate::history`].

mod record;
mod window;

pub(crate) use record::{forget, row_of};
