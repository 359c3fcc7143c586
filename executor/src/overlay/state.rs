//! [`State`]: the state on which a batch executes.

use std::sync::Arc;

use alloy_primitives::{Address, B256, Bytes, U256};
use slipstream_predict::JumpWatch;
use slipstream_storage::{StateReader, StorageError, View};
use slipstream_types::{AccountValue, BatchNumber, Digest, StateKey, StateValue};

use super::Overlay;
use crate::{
    evm::{AnalysedCode, ExecutionState},
    hot::HotCache,
    interrupt::Interrupt,
    prefetch::WarmState,
};

/// The state after a batch: a committed state, with the changes of the batches since then.
#[derive(Clone, Copy)]
pub struct State<'a> {
    base: &'a dyn ExecutionState,
    /// `base` is the state after the batch whose header has this digest.
    at: Digest,
    overlay: &'a Overlay,
}

impl<'a> State<'a> {
    /// The state after the overlay's last batch, or the view's own state if the overlay is empty. Returns `None` at a
    /// gap: the view's batch must be in the overlay or directly before it.
    ///
    /// Layers of batches that the view already has are harmless: they repeat the view's values. While these layers are
    /// kept, rows that were read ahead from an older view are usable too.
    pub fn on(view: &'a View, overlay: &'a Overlay) -> Option<State<'a>> {
        State::over(view, view.head().digest(), overlay)
    }

    /// As [`State::on`], over any reader of the state after the batch whose header has the digest `at`.
    pub fn over(base: &'a dyn ExecutionState, at: Digest, overlay: &'a Overlay) -> Option<State<'a>> {
        let is_whole = overlay.tip().is_none() || overlay.reaches(at);
        is_whole.then_some(State { base, at, overlay })
    }

    /// The digest of the header of the last batch: the parent of a batch that is executed on this state.
    pub fn tip(&self) -> Digest {
        self.overlay.tip().unwrap_or(self.at)
    }

    /// A reader of the state.
    pub fn reader(&self) -> LayeredState<'a> {
        LayeredState::new(self.overlay, None, self.base)
    }

    /// A reader of the state. Reads cached rows from the cache, and the rest from its [base](State::base).
    pub(crate) fn reader_with<'b>(&self, hot: &'b HotCache, base: &'b dyn ExecutionState) -> LayeredState<'b>
    where
        'a: 'b,
    {
        let hot = hot.at().is_some_and(|at| self.covers(at)).then_some(hot);
        LayeredState::new(self.overlay, hot, base)
    }

    /// The uncommitted layers.
    pub(crate) fn layers(&self) -> &'a Overlay {
        self.overlay
    }

    /// The reader below the layers: the committed state, or rows that were read ahead from a state that this state
    /// [covers](State::covers).
    pub(crate) fn base<'b>(&self, warm: Option<&'b WarmState>) -> &'b dyn ExecutionState
    where
        'a: 'b,
    {
        warm.map_or(self.base, |warm| warm as &dyn ExecutionState)
    }

    /// Whether this state equals the state after `batch`, except for the rows in the layers.
    pub(crate) fn covers(&self, batch: Digest) -> bool {
        batch == self.at || self.overlay.reaches(batch)
    }
}

/// Layers over a cache over a state: the first of them that knows a key answers. The cache and the state may be older
/// than the layers' last batch, because the layers have every change since then.
pub struct LayeredState<'a> {
    overlay: &'a Overlay,
    hot: Option<&'a HotCache>,
    base: &'a dyn ExecutionState,
    watch: Option<Arc<JumpWatch>>,
    interrupt: Interrupt,
}

impl<'a> LayeredState<'a> {
    pub(crate) fn new(
        overlay: &'a Overlay,
        hot: Option<&'a HotCache>,
        base: &'a dyn ExecutionState,
    ) -> LayeredState<'a> {
        LayeredState { overlay, hot, base, watch: None, interrupt: Interrupt::never() }
    }

    /// Reads the state after the batch whose header has the digest `at`. Cached rows come from the cache, and the
    /// others from `base`, which must be that state. If the cache belongs to another state, every row comes from
    /// `base`.
    pub fn cached(hot: &'a HotCache, at: Digest, base: &'a dyn ExecutionState) -> LayeredState<'a> {
        static NO_LAYERS: Overlay = Overlay::new();
        LayeredState::new(&NO_LAYERS, hot.is_at(at).then_some(hot), base)
    }

    /// The same reader for an execution whose jumps are recorded.
    pub(crate) fn watched(self, watch: Option<Arc<JumpWatch>>) -> LayeredState<'a> {
        LayeredState { watch, ..self }
    }

    /// The same reader for an execution that the interrupt can end.
    pub(crate) fn interrupted_by(self, interrupt: Interrupt) -> LayeredState<'a> {
        LayeredState { interrupt, ..self }
    }

    /// Counts a hit in a layer as a hit of the cache: the cache will have the row soon.
    fn count_hit(&self) {
        if let Some(hot) = self.hot {
            hot.count_hit();
        }
    }

    fn row(&self, key: &StateKey) -> Option<Option<StateValue>> {
        match self.overlay.row(key) {
            Some(row) => {
                self.count_hit();
                Some(row)
            }
            None => self.hot.and_then(|hot| hot.row(key)),
        }
    }
}

impl StateReader for LayeredState<'_> {
    fn account(&self, address: &Address) -> Result<Option<AccountValue>, StorageError> {
        match self.row(&StateKey::Account(*address)) {
            Some(Some(StateValue::Account(account))) => Ok(Some(account)),
            Some(None) => Ok(None),
            _ => self.base.account(address),
        }
    }

    fn slot(&self, address: &Address, slot: &B256) -> Result<U256, StorageError> {
        match self.row(&StateKey::Slot(*address, *slot)) {
            Some(Some(StateValue::Slot(value))) => Ok(value),
            Some(None) => Ok(U256::ZERO),
            _ => self.base.slot(address, slot),
        }
    }

    fn code(&self, hash: &Digest) -> Result<Option<Bytes>, StorageError> {
        match self.analysed(hash) {
            Some(code) => Ok(Some(code.bytes())),
            None => self.base.code(hash),
        }
    }

    fn header_digest(&self, number: BatchNumber) -> Result<Option<Digest>, StorageError> {
        match self.overlay.header_digest(number) {
            Some(digest) => Ok(Some(digest)),
            None => self.base.header_digest(number),
        }
    }
}

impl ExecutionState for LayeredState<'_> {
    fn watch(&self) -> Option<&Arc<JumpWatch>> {
        self.watch.as_ref()
    }

    fn interrupt(&self) -> Interrupt {
        self.interrupt.clone()
    }

    fn analysed(&self, hash: &Digest) -> Option<AnalysedCode> {
        if let Some(code) = self.overlay.code(hash) {
            self.count_hit();
            return Some(code.clone());
        }
        let hot = self.hot.and_then(|hot| hot.code(&B256::from(*hash)));
        hot.or_else(|| self.base.analysed(hash))
    }
}
