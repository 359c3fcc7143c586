//! Finds which past states are known, and makes their views. A view reads a held state. For any other state it reads a
//! later held one, and undoes the batches in between with their logged old rows.

use std::sync::Arc;

use slipstream_types::BatchNumber;

use crate::{
    backend::Column,
    error::StorageError,
    history::{past_rows::recorded_from, past_state::PastState, seal::SealJob},
    shared::HeadState,
    store::Store,
    view::View,
    writer::Writer,
};

impl Store {
    /// Returns the state after a batch, or `None` if the window does not have it.
    ///
    /// # Errors
    /// [`StorageError::NotInitialized`], or errors of the disk.
    pub fn view_of(&self, number: BatchNumber) -> Result<Option<View>, StorageError> {
        let current = self.current()?;
        if number > current.record.number || number < self.first_state(&current)? {
            return Ok(None);
        }
        let found = {
            let held = self.0.history.held.lock();
            held.from(number).map(|(at, state)| (at, Arc::clone(state)))
        };
        // The head's state is held, unless another head replaces it right now.
        let (at, state) = found.unwrap_or((current.record.number, current));
        if at == number {
            return Ok(Some(View::new(state)));
        }
        let header = self.header(number)?;
        let past_rows = Arc::clone(&self.0.history.past_rows);
        Ok(header.map(|header| View::of_past(state, PastState::new(header, at, past_rows))))
    }

    /// Returns the first batch after which the state is known. All later states up to the head are known too.
    ///
    /// # Errors
    /// As [`Store::view_of`].
    pub fn states_from(&self) -> Result<BatchNumber, StorageError> {
        self.first_state(&*self.current()?)
    }

    /// Returns the first batch after which `storage.state_history` wants the state, known or not.
    ///
    /// # Errors
    /// As [`Store::head`].
    pub fn states_wanted_from(&self) -> Result<BatchNumber, StorageError> {
        Ok(self.0.config.state_history.first(self.head()?.header.number))
    }

    pub(crate) fn first_state(&self, current: &HeadState) -> Result<BatchNumber, StorageError> {
        let head = current.record.number;
        let recorded = recorded_from(&*current.reader)?.unwrap_or(head);
        Ok(recorded.max(self.0.config.state_history.first(head)))
    }

    /// Whether anybody reads a state that is not held.
    pub(crate) fn has_older_readers(&self) -> bool {
        self.0.backend.has_readers_beyond(self.0.history.held.lock().len())
    }

    /// Empties a state column that no held state uses, and frees its space.
    pub(crate) fn reclaim(&self, column: Column) -> Result<(), StorageError> {
        let held = self.0.history.held.lock().len();
        self.guard(|backend| backend.reclaim(column, held))
    }
}

impl Writer<'_> {
    /// Holds the state of a new head. Releases states that are no longer known, and the data that leads to them. All
    /// other held states must be of the same column.
    pub(crate) fn hold(&self, current: &Arc<HeadState>) {
        let (store, history) = (self.store, &self.store.0.history);
        let head = current.record.number;
        history.held.lock().push(head, Arc::clone(current));
        // An unreadable record fails every reader of past states, and releases nothing.
        let Ok(recorded) = recorded_from(&*current.reader) else { return };
        let slack = store.0.config.tuning.history_slack_batches;
        let floor = recorded.map_or(head.get(), |first| first.get().saturating_sub(slack));
        history.past_rows.raise_floor(BatchNumber::new(floor));
        store.0.backend.forget_history_up_to(floor);

        let sealed = history.past_rows.sealed();
        let first = recorded.unwrap_or(head).max(store.0.config.state_history.first(head));
        history.held.lock().release(first, sealed);
        // Only the record counts: a wider window shows only states that exist.
        let Some(known) = recorded else { return };
        let sealed = sealed.max(known);
        let to = match sealed < history.start {
            true => Some(history.start),
            false => history.held.lock().due(sealed),
        };
        history.sealer.ask(SealJob { first: known, to }, head);
    }
}
