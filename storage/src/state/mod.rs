//! The state tree in memory: kept up to date by copy on write, so that an old root costs only what changed since.

pub(crate) mod proof;
pub(crate) mod tree;

pub(crate) use tree::{Tree, Update};
