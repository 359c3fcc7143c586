//! [`OpenedRanges`]: ranges to apply that are not committed yet, for ranges that are executed behind them.

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

    /// The layer of the range's changes, made for its first user. `None` for a range without batches.
    pub(super) fn layer(&self) -> Option<&Arc<Layer>> {
        let layer = || {
            let (first, rest) = self.batches.split_first()?;
            let mut layer = Layer::of(&first.batch.header, None, &first.delta);
            rest.iter().for_each(|opened| layer.extend(&opened.batch.header, None, &opened.delta));
            Some(Arc::new(layer))
        };
        self.layer.get_or_init(layer).as_ref()
    }

    /// As [`OpenedRange::layer`], if it was made already.
    pub(super) fn made_layer(&self) -> Option<&Arc<Layer>> {
        self.layer.get()?.as_ref()
    }

    /// Its batches. Copies them only if the range is still shared.
    pub(super) fn into_batches(range: Arc<OpenedRange>) -> Vec<OpenedBatch> {
        Arc::try_unwrap(range).map_or_else(|shared| shared.batches.clone(), |range| range.batches)
    }

    pub(super) fn last(&self) -> Option<BatchNumber> {
        Some(self.batches.last()?.batch.header.number)
    }
}

/// See the module. This has only weak references: the pipeline and the commits own the ranges.
#[derive(Default)]
pub(super) struct OpenedRanges(Mutex<BTreeMap<BatchNumber, Weak<OpenedRange>>>);

impl OpenedRanges {
    /// Registers a range that is ready to be applied.
    pub(super) fn note(&self, range: &Arc<OpenedRange>) {
        let mut opened = self.0.lock();
        opened.retain(|_, range| range.strong_count() > 0);
        opened.extend(range.last().map(|last| (last, Arc::downgrade(range))));
    }

    /// The ranges that are not committed and dropped yet, in the order of their last batches.
    pub(super) fn all(&self) -> Vec<Arc<OpenedRange>> {
        self.0.lock().values().filter_map(Weak::upgrade).collect()
    }
}
