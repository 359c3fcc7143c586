//! [`RangeAhead`]: the read-ahead of a range's batches, and how many of them are confirmed.

use slipstream_executor::Ahead;
use slipstream_storage::StorageError;
use slipstream_types::StateKey;

/// See the module.
pub(super) struct RangeAhead {
    /// Read-aheads by batch. Once one is confirmed, its rows make room for others.
    ahead: Vec<Ahead>,
    /// The batches before this index were executed on this node's own rows alone.
    confirmed: usize,
    /// For each batch, the number of rows that its hints had wrong.
    pub(super) wrong: Vec<u64>,
}

/// A batch that was executed on wrong values.
pub(super) struct WrongValues {
    pub(super) index: usize,
    pub(super) keys: Vec<StateKey>,
}

impl RangeAhead {
    pub(super) fn new(ahead: Vec<Ahead>) -> RangeAhead {
        let wrong = vec![0; ahead.len()];
        RangeAhead { ahead, confirmed: 0, wrong }
    }

    /// The read-ahead of a batch.
    pub(super) fn of(&self, index: usize) -> &Ahead {
        &self.ahead[index]
    }

    /// Compares the hinted values with the store's rows, batch by batch up to `executed`. Unless it `waits`, it stops
    /// at the first batch whose rows are not here. Returns the first batch with a wrong value, and stays there.
    pub(super) fn confirm(
        &mut self,
        executed: usize,
        waits: bool,
    ) -> Result<Option<WrongValues>, StorageError> {
        while self.confirmed < executed {
            let ahead = &mut self.ahead[self.confirmed];
            if !waits && !ahead.is_confirmable() {
                break;
            }
            let keys = ahead.confirm()?;
            if !keys.is_empty() {
                return Ok(Some(WrongValues { index: self.confirmed, keys }));
            }
            ahead.release();
            self.confirmed += 1;
        }
        Ok(None)
    }

    /// Continues from a wrong batch without any more hinted values: one maker wrote most of a range's hints, so the
    /// others are suspect too.
    pub(super) fn distrust(&mut self, wrong: &WrongValues) {
        self.wrong[wrong.index] = wrong.keys.len() as u64;
        self.ahead.iter().for_each(Ahead::distrust);
    }
}
