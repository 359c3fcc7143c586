//! [`Overlay`]: batches that are executed but not committed, and [`State`]: a committed state with an overlay on top.
//!
//! ```text
//!  Outcome of n + 2 ─▶ Layer ┐
//!  Outcome of n + 1 ─▶ Layer ┴▶ Overlay ─┐            ┌─ the newest layer that knows a key answers
//!  Store's view of batch n ──────────────┴▶ State ─▶ reader ─ what no layer knows comes from the view
//! ```
//! A layer holds the writes and reads of its batches, with the values after the last of them. Header digests identify
//! the layers. Each layer builds on the one before it, and a [`State`] exists only without a gap between its committed
//! batch and its layers. So execution ahead of agreement or of the disk never reads a value of another branch. A
//! rollback drops layers; nothing below refers to them.

mod layer;
mod state;

use std::sync::Arc;

use slipstream_types::{BatchHeader, BatchNumber, Delta, Digest, StateKey, StateValue};

pub use self::{
    layer::Layer,
    state::{LayeredState, State},
};
use crate::evm::{AnalysedCode, ReadSet};

/// A stack of layers, each built on the one before it. A clone shares the layers, so it costs next to nothing.
///
/// In the worst case, a read asks every layer, so an overlay should have few layers. An owner of many batches puts
/// several into one layer ([`Overlay::extend`]). The owner must bound the number of batches executed ahead, by
/// [`Overlay::batches`] and [`Overlay::bytes`].
#[derive(Clone, Debug, Default)]
pub struct Overlay {
    /// Layers, oldest first.
    layers: Vec<Arc<Layer>>,
}

impl Overlay {
    /// An overlay without layers.
    pub const fn new() -> Overlay {
        Overlay { layers: Vec::new() }
    }

    /// Puts a layer on top of its parent batch. First drops the layers after that batch, or all layers if none ends in
    /// that batch.
    pub fn push(&mut self, layer: Arc<Layer>) {
        self.roll_back(layer.parent());
        self.layers.push(layer);
    }

    /// As [`Overlay::push`], but adds the batch to the newest layer. The batch can be rolled back only with that layer.
    pub fn extend(&mut self, header: &BatchHeader, touched: Option<&ReadSet>, delta: &Delta) {
        match self.layers.last_mut().filter(|layer| layer.tip() == header.parent) {
            Some(layer) => Arc::make_mut(layer).extend(header, touched, delta),
            None => self.push(Arc::new(Layer::of(header, touched, delta))),
        }
    }

    /// Drops the layers after the batch whose header has this digest. Drops all layers if none ends in that batch.
    pub fn roll_back(&mut self, to: Digest) {
        let kept = self.layers.iter().rposition(|layer| layer.tip() == to);
        self.layers.truncate(kept.map_or(0, |last| last + 1));
    }

    /// Drops the layers that hold no batch above this number.
    pub fn forget_up_to(&mut self, number: BatchNumber) {
        self.layers.retain(|layer| layer.header().number > number);
    }

    /// Drops the layers that hold a batch above this number.
    pub fn forget_above(&mut self, number: BatchNumber) {
        let kept = self.layers.iter().take_while(|layer| layer.header().number <= number).count();
        self.layers.truncate(kept);
    }

    /// The layers up to the one that ends in this batch, or `None` if no layer ends in it.
    pub fn up_to(&self, number: BatchNumber) -> Option<Overlay> {
        let last = self.layers.iter().rposition(|layer| layer.header().number == number)?;
        Some(Overlay { layers: self.layers[..=last].to_vec() })
    }

    /// The newest layer, or `None` if the overlay is empty.
    pub fn newest(&self) -> Option<&Arc<Layer>> {
        self.layers.last()
    }

    /// The header of the last batch.
    pub fn header(&self) -> Option<&BatchHeader> {
        Some(self.layers.last()?.header())
    }

    /// The digest of the last batch's header.
    pub fn tip(&self) -> Option<Digest> {
        Some(self.layers.last()?.tip())
    }

    /// Number of batches in all layers.
    pub fn batches(&self) -> usize {
        self.layers.iter().map(|layer| layer.batches()).sum()
    }

    /// Approximate memory of the layers in bytes, including layers that other overlays share.
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(|layer| layer.bytes()).sum()
    }

    /// Whether the layers hold every change since the batch whose header has this digest.
    fn reaches(&self, digest: Digest) -> bool {
        self.layers.iter().any(|layer| layer.reaches(digest))
    }

    pub(crate) fn row(&self, key: &StateKey) -> Option<Option<StateValue>> {
        self.layers.iter().rev().find_map(|layer| layer.row(key))
    }

    pub(crate) fn code(&self, hash: &Digest) -> Option<&AnalysedCode> {
        self.layers.iter().rev().find_map(|layer| layer.code(hash))
    }

    fn header_digest(&self, number: BatchNumber) -> Option<Digest> {
        self.layers.iter().rev().find_map(|layer| layer.header_digest(number))
    }
}
