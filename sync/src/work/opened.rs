//! [`Opened`]: ranges that are to be applied and not committed yet, for who executes a range behind them.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock, Weak},
};

use parking_lot::Mutex;
use slipstream_executor::Layer;
use slipstream_types::BatchNumber;

use super::prepare::OpenedBatch;

/// A range to apply.
#[derive(Debug)]
pub(super) struct OpenedRange {
    pub(super) batches: Vec<OpenedBatch>,
    layer: OnceLock<Option<Arc<Layer>>>,
}

impl OpenedRange {
    pub(super) fn new(batches: Vec<OpenedBatch>) -> OpenedRange {
        OpenedRange { batches, layer: OnceLock::new() }
    }

    /// The layer that the range makes of the state, made for its first user. `None` for a range without batches.
    pub(super) fn layer(&self) -> Option<&Arc<Layer>> {
        let layer = || {
            let (first, rest) = self.batches.split_first()?;
            let mut layer = Layer::of(&first.batch.header, None, &first.delta);
            rest.iter().for_each(|opened| layer.extend(&opened.batch.header, None, &opened.delta));
            Some(Arc::new(layer))
        };
        self.layer.get_or_init(layer).as_ref()
    }

    /// As [`OpenedRange::layer`], if somebody asked for it.
    pub(super) fn made_layer(&self) -> Option<&Arc<Layer>> {
        self.layer.get()?.as_ref()
    }

    /// Its batches: as they are, if nobody else holds the range any more.
    pub(super) fn into_batches(range: Arc<OpenedRange>) -> Vec<OpenedBatch> {
        Arc::try_unwrap(range).map_or_else(|shared| shared.batches.clone(), |range| range.batches)
    }

    pub(super) fn last(&self) -> Option<BatchNumber> {
        Some(self.batches.last()?.batch.header.number)
    }
}

/// See the module. The committer of the ranges owns them; this only finds them.
#[derive(Default)]
pub(super) struct Opened(Mutex<BTreeMap<BatchNumber, Weak<OpenedRange>>>);

impl Opened {
    /// A range is ready to be applied.
    pub(super) fn note(&self, range: &Arc<OpenedRange>) {
        let mut opened = self.0.lock();
        opened.retain(|_, range| range.strong_count() > 0);
        opened.extend(range.last().map(|last| (last, Arc::downgrade(range))));
    }

    /// Those that nobody has committed and forgotten, in the order of their last batches.
    pub(super) fn all(&self) -> Vec<Arc<OpenedRange>> {
        self.0.lock().values().filter_map(Weak::upgrade).collect()
    }
}
