//! Bounds and intervals that more than one part of the core uses.

/// Batches above the head that may be ordered, executed and voted on.
pub(crate) const WINDOW: u64 = 8;
/// Batches above the last decision that a primary orders. While validators agree on one batch, they execute the next,
/// so the next batch's tokens are ready in time. The transactions of a third batch wait in the pool, where later ones
/// can still join them.
pub(crate) const AHEAD: u64 = 2;
/// Maximum number of batches above the head that a primary orders: decisions may be faster than commits.
pub(crate) const UNCOMMITTED_MAX: u64 = 4;
/// Decisions that are kept for validators that missed them.
pub(crate) const RECENT_MAX: usize = 16;
/// Interval at which a validator sends its status while nothing is decided, in milliseconds.
pub(crate) const TELL_MS: u64 = 500;
