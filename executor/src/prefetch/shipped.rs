//! [`Shipped`]: values from hints, for rows that are not read yet.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use slipstream_types::{StateKey, StateValue, hints::RowBefore};

/// For each key's index, the row that the hints claim, and whether execution got it as an answer.
#[derive(Debug, Default)]
pub(super) struct Shipped {
    /// Empty if the hints ship no value.
    rows: Vec<Option<Row>>,
    is_distrusted: AtomicBool,
}

#[derive(Debug)]
struct Row {
    value: Option<StateValue>,
    is_told: AtomicBool,
}

impl Shipped {
    /// Takes the shipped values of wanted keys, and drops the other values. `keys` is the number of wanted keys.
    pub(super) fn new(
        values: Vec<RowBefore>,
        keys: usize,
        place: impl Fn(&StateKey) -> Option<usize>,
    ) -> Shipped {
        let mut shipped = Shipped::default();
        for (key, value) in values {
            if let Some(place) = place(&key) {
                shipped.rows.resize_with(keys, || None);
                shipped.rows[place] = Some(Row { value, is_told: AtomicBool::new(false) });
            }
        }
        shipped
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The shipped value, if execution should get it: if the store's row is still unread, or if execution got the
    /// shipped value before. Execution must never get two different answers.
    pub(super) fn answer(&self, place: usize, is_read: impl Fn() -> bool) -> Option<Option<StateValue>> {
        let row = self.rows.get(place)?.as_ref().filter(|_| !self.is_distrusted.load(Relaxed))?;
        if !row.is_told.load(Relaxed) {
            if is_read() {
                return None;
            }
            row.is_told.store(true, Relaxed);
        }
        Some(row.value)
    }

    /// The shipped value of a row, whether or not execution got it.
    pub(super) fn value(&self, place: usize) -> Option<Option<StateValue>> {
        Some(self.rows.get(place)?.as_ref()?.value)
    }

    /// The values that execution got and may have used, in the order of the indexes.
    pub(super) fn told(&self) -> impl Iterator<Item = (usize, Option<StateValue>)> {
        let rows = if self.is_distrusted.load(Relaxed) { &[] } else { &self.rows[..] };
        let rows = rows.iter().enumerate().filter_map(|(place, row)| Some((place, row.as_ref()?)));
        rows.filter(|(_, row)| row.is_told.load(Relaxed)).map(|(place, row)| (place, row.value))
    }

    /// Stops answering with shipped values.
    pub(super) fn distrust(&self) {
        self.is_distrusted.store(true, Relaxed);
    }
}
