//! [`Ahead`]: what was read ahead of the batches of a range, and which of them stand on confirmed rows.

use slipstream_executor::Warm;
use slipstream_storage::StorageError;
use slipstream_types::StateKey;

/// See the module.
pub(super) struct Ahead {
    /// By batch. None if nothing was read for it, or once it is confirmed: then its rows make room for others.
    warm: Vec<Option<Warm>>,
    /// The batches before this one are executed on this node's rows alone.
    confirmed: usize,
    /// By batch, the rows that hints told wrongly.
    pub(super) wrong: Vec<u64>,
}

/// A batch that was executed on wrong values.
pub(super) struct Wrong {
    pub(super) index: usize,
    pub(super) keys: Vec<StateKey>,
}

impl Ahead {
    pub(super) fn new(warm: Vec<Option<Warm>>) -> Ahead {
        let wrong = vec![0; warm.len()];
        Ahead { warm, confirmed: 0, wrong }
    }

    /// What was read ahead of a batch that is not confirmed.
    pub(super) fn of(&self, index: usize) -> Option<&Warm> {
        self.warm.get(index)?.as_ref()
    }

    /// Compares what execution was told with the store's rows, batch by batch up to `executed`; unless it `waits`, only while those are
    /// here. Gives the first batch that was told anything wrong, and stays there.
    pub(super) fn confirm(&mut self, executed: usize, waits: bool) -> Result<Option<Wrong>, StorageError> {
        while self.confirmed < executed {
            let place = &mut self.warm[self.confirmed];
            if let Some(warm) = place {
                if !waits && !warm.is_confirmable() {
                    break;
                }
                let keys = warm.confirm()?;
                if !keys.is_empty() {
                    return Ok(Some(Wrong { index: self.confirmed, keys }));
                }
            }
            *place = None;
            self.confirmed += 1;
        }
        Ok(None)
    }

    /// Goes on from a wrong batch with this node's rows alone. The range is of one peer, which has lied.
    pub(super) fn distrust(&mut self, wrong: &Wrong) {
        self.wrong[wrong.index] = wrong.keys.len() as u64;
        self.warm.iter().flatten().for_each(Warm::distrust);
    }
}
