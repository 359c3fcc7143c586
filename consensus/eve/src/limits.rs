//! Bounds and intervals that more than one part of the core uses.

/// Batches above the head that may be ordered, executed and voted on.
pub(crate) const WINDOW: u64 = 8;
/// Batches above the last decision that a primary orders. While validators agree on one, they execute the other, so its
/// tokens are ready when its turn comes. Any more would wait here instead of in the pool, where later transactions can
/// still join them.
pub(crate) const AHEAD: u64 = 2;
/// Batches above the head that a primary orders: decisions may be faster than commits.
pub(crate) const UNCOMMITTED_MAX: u64 = 4;
/// Decisions that are kept for validators that missed them.
pub(crate) const RECENT_MAX: usize = 16;
/// Interval at which a validator sends its status while nothing is decided, in milliseconds.
pub(crate) const TELL_MS: u64 = 500;
