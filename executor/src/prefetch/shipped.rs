//! [`Shipped`]: what hints say of rows that are not read yet.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use slipstream_types::{StateKey, StateValue, hints::RowBefore};

/// By the place of a key, the row that a stranger says it has, and whether execution was told so.
#[derive(Debug, Default)]
pub(super) struct Shipped {
    rows: HashMap<usize, Row>,
    is_distrusted: AtomicBool,
}

#[derive(Debug)]
struct Row {
    value: Option<StateValue>,
    is_used: AtomicBool,
}

impl Shipped {
    /// What is said of keys that have a place.
    pub(super) fn new(values: Vec<RowBefore>, place: impl Fn(&StateKey) -> Option<usize>) -> Shipped {
        let row = |value| Row { value, is_used: AtomicBool::new(false) };
        let rows = values.into_iter().filter_map(|(key, value)| Some((place(&key)?, row(value))));
        Shipped { rows: rows.collect(), is_distrusted: AtomicBool::new(false) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// What is said of a row, if execution is told that: because it was before, so that it never gets two answers, or because its
    /// own is not read yet.
    pub(super) fn answer(&self, place: usize, is_read: impl Fn() -> bool) -> Option<Option<StateValue>> {
        let row = self.rows.get(&place).filter(|_| !self.is_distrusted.load(Relaxed))?;
        if !row.is_used.load(Relaxed) {
            if is_read() {
                return None;
            }
            row.is_used.store(true, Relaxed);
        }
        Some(row.value)
    }

    /// What is said of a row, whether anybody was told or not.
    pub(super) fn value(&self, place: usize) -> Option<Option<StateValue>> {
        self.rows.get(&place).map(|row| row.value)
    }

    /// What execution was told, in the order of the places.
    pub(super) fn used(&self) -> Vec<(usize, Option<StateValue>)> {
        if self.is_distrusted.load(Relaxed) {
            return Vec::new();
        }
        let used = self.rows.iter().filter(|(_, row)| row.is_used.load(Relaxed));
        let mut used: Vec<_> = used.map(|(place, row)| (*place, row.value)).collect();
        used.sort_unstable_by_key(|(place, _)| *place);
        used
    }

    /// From here on nothing is answered by it.
    pub(super) fn distrust(&self) {
        self.is_distrusted.store(true, Relaxed);
    }
}
