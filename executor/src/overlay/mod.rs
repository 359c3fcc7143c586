//! [`Overlay`]: batches that were executed and are not committed, and [`State`]: a committed state with an overlay on it.
//!
//! ```text
//!  Outcome of n + 2 ─▶ Layer ┐
//!  Outcome of n + 1 ─▶ Layer ┴▶ Overlay ─┐            ┌─ the newest layer that knows a key answers
//!  Store's view of batch n ──────────────┴▶ State ─▶ reader ─ what no layer knows comes from the view
//! ```
//! A layer holds the writes and reads of its batches, with the values behind the last of them. Digests of headers name the layers. Each
//! stands on the one before it, and a [`State`] exists only without a gap between its committed batch and its layers. So execution
//! ahead of agreement or of the disk never reads a value of another branch. A rollback forgets layers, which nothing below refers to.

mod layer;
mod state;

use std::sync::Arc;

use slipstream_types::{BatchHeader, BatchNumber, Delta, Digest, StateKey, StateValue};

pub use self::{
    layer::Layer,
    state::{Stacked, State},
};
use crate::{evm::AnalysedCode, hot::Touched};

/// Layers in a row, each on the one before it. A clone shares the layers, so it costs next to nothing.
///
/// A read asks every layer at worst, so there should be few: an owner of many batches puts several into one layer ([`Overlay::extend`]).
/// How many batches are executed ahead is for its owner to bound, by [`Overlay::batches`] and [`Overlay::bytes`].
#[derive(Clone, Debug, Default)]
pub struct Overlay {
    /// Oldest first.
    layers: Vec<Arc<Layer>>,
}

impl Overlay {
    /// An overlay without layers.
    pub const fn new() -> Overlay {
        Overlay { layers: Vec::new() }
    }

    /// Puts a layer on top of the batch that it stands on. The layers behind that batch are forgotten: it takes their place, as that of
    /// all layers if none ends in that batch.
    pub fn push(&mut self, layer: Arc<Layer>) {
        self.roll_back(layer.parent());
        self.layers.push(layer);
    }

    /// As [`Overlay::push`], but the batch becomes part of the newest layer, and can be rolled back only with it.
    pub fn extend(&mut self, header: &BatchHeader, touched: Option<&Touched>, delta: &Delta) {
        match self.layers.last_mut().filter(|layer| layer.tip() == header.parent) {
            Some(layer) => Arc::make_mut(layer).extend(header, touched, delta),
            None => self.push(Arc::new(Layer::of(header, touched, delta))),
        }
    }

    /// Forgets the layers behind the batch whose header has this digest; all layers if none of them ends in that batch.
    pub fn roll_back(&mut self, to: Digest) {
        let kept = self.layers.iter().rposition(|layer| layer.tip() == to);
        self.layers.truncate(kept.map_or(0, |last| last + 1));
    }

    /// Forgets the layers that hold no batch above this number.
    pub fn forget_up_to(&mut self, number: BatchNumber) {
        self.layers.retain(|layer| layer.header().number > number);
    }

    /// Forgets the layers that hold a batch above this number.
    pub fn forget_above(&mut self, number: BatchNumber) {
        let kept = self.layers.iter().take_while(|layer| layer.header().number <= number).count();
        self.layers.truncate(kept);
    }

    /// The layers that end in this batch or before it, or `None` if no layer ends in it.
    pub fn up_to(&self, number: BatchNumber) -> Option<Overlay> {
        let last = self.layers.iter().rposition(|layer| layer.header().number == number)?;
        Some(Overlay { layers: self.layers[..=last].to_vec() })
    }

    /// The newest layer, or `None` if there is none.
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

    /// Batches in its layers.
    pub fn batches(&self) -> usize {
        self.layers.iter().map(|layer| layer.batches()).sum()
    }

    /// About how many bytes of memory its layers take, those that other overlays share included.
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(|layer| layer.bytes()).sum()
    }

    /// Whether the layers are all that came behind the batch whose header has this digest.
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
