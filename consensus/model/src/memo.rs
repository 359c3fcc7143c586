//! Locks the tables that keep results. A thread that panics leaves no partial entry.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a table, also after a panic.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
