//! Chunks that wait for verification, and chunks that are verified.

use std::{collections::BTreeMap, mem, sync::Arc};

use slipstream_types::PublicKey;

use super::{
    chunk::Chunk,
    matrix::{Echelon, Rank},
    pieces::Shape,
    scalar::Factor,
};
use crate::{codec::Accepted, limits::SPARES_MAX};

/// A chunk that is not verified yet.
#[derive(Debug)]
struct Entry {
    from: PublicKey,
    chunk: Arc<Chunk>,
    /// Whether it is a combination of other chunks, some of them unverified. It is useful only if one of those is
    /// forged.
    is_spare: bool,
}

/// What a chunk adds to those that are here. Its coefficients alone determine that.
#[derive(Debug)]
pub(super) enum ChunkPlace {
    /// The chunk is a combination of verified chunks.
    Dependent,
    /// The chunk is a combination of verified and unverified chunks.
    Spare,
    /// The chunk is new. The value is what it adds to the echelon form.
    New(Vec<Factor>),
}

/// The chunks of one payload. Those in `verified`, `checking` and `waiting` that are no spares are independent; the
/// echelon form has a row for each, in this order.
pub(super) struct Waiting {
    shape: Shape,
    echelon: Echelon,
    verified: Vec<Arc<Chunk>>,
    checking: Vec<Entry>,
    waiting: Vec<Entry>,
}

impl Waiting {
    pub(super) fn new(shape: Shape) -> Self {
        Self {
            shape,
            echelon: Echelon::default(),
            verified: Vec::new(),
            checking: Vec::new(),
            waiting: Vec::new(),
        }
    }

    /// The verified chunks.
    pub(super) fn verified(&self) -> &[Arc<Chunk>] {
        &self.verified
    }

    /// Counts the chunks that wait for verification, without spares.
    pub(super) fn independent(&self) -> usize {
        self.waiting.iter().filter(|entry| !entry.is_spare).count()
    }

    /// Counts the chunks that are not verified.
    pub(super) fn len(&self) -> usize {
        self.checking.len() + self.waiting.len()
    }

    /// Returns what a chunk with these coefficients would add.
    pub(super) fn place(&self, coefficients: &[Factor]) -> ChunkPlace {
        match self.echelon.reduce(coefficients.to_vec(), self.verified.len()) {
            Rank::Dependent => ChunkPlace::Dependent,
            Rank::DependentOnAll => ChunkPlace::Spare,
            Rank::Independent(row) => ChunkPlace::New(row),
        }
    }

    /// Takes a chunk whose `place` was just determined, if there is room. If all room is taken, the sender with the
    /// most waiting chunks gives up its newest one for a sender with fewer. So one sender cannot shut others out.
    pub(super) fn add(&mut self, from: PublicKey, chunk: Chunk, place: ChunkPlace) -> Accepted {
        let is_spare = matches!(place, ChunkPlace::Spare);
        if is_spare && self.checking.iter().chain(&self.waiting).any(|entry| *entry.chunk == chunk) {
            return Accepted::Duplicate;
        }
        let is_full = self.verified.len() + self.len() >= self.shape.pieces + SPARES_MAX;
        if is_full && !self.make_room_for(&from) {
            return Accepted::Surplus;
        }
        self.waiting.push(Entry { from, chunk: Arc::new(chunk), is_spare });
        match place {
            // The removed chunk may have been a row.
            _ if is_full => self.rebuild(),
            ChunkPlace::New(row) => self.echelon.push(row),
            ChunkPlace::Spare | ChunkPlace::Dependent => {}
        }
        Accepted::Waiting
    }

    fn make_room_for(&mut self, from: &PublicKey) -> bool {
        let mut counts = BTreeMap::<_, usize>::new();
        for entry in &self.waiting {
            *counts.entry(entry.from).or_default() += 1;
        }
        let own = counts.get(from).copied().unwrap_or(0);
        let Some((most, _)) =
            counts.into_iter().filter(|(_, count)| *count > own + 1).max_by_key(|(_, count)| *count)
        else {
            return false;
        };
        let newest = self.waiting.iter().rposition(|entry| entry.from == most);
        newest.map(|newest| self.waiting.remove(newest)).is_some()
    }

    /// Takes out the waiting independent chunks, to be checked.
    pub(super) fn take(&mut self) -> Vec<Arc<Chunk>> {
        let (spares, taken): (Vec<_>, _) =
            mem::take(&mut self.waiting).into_iter().partition(|entry| entry.is_spare);
        (self.waiting, self.checking) = (spares, taken);
        self.checking.iter().map(|entry| entry.chunk.clone()).collect()
    }

    /// Takes the verdict on the chunks under verification. Returns the senders of fitting chunks, one entry for each
    /// chunk, and the senders of forged ones. Drops all other waiting chunks of forgers, and spares that combine only
    /// verified chunks. Other spares take the place of lost rows.
    pub(super) fn judge(&mut self, forged: &[bool]) -> (Vec<PublicKey>, Vec<PublicKey>) {
        let (mut fit, mut forgers) = (Vec::new(), Vec::new());
        for (entry, is_forged) in mem::take(&mut self.checking).into_iter().zip(forged) {
            if !is_forged {
                fit.push(entry.from);
                self.verified.push(entry.chunk);
            } else if !forgers.contains(&entry.from) {
                forgers.push(entry.from);
            }
        }
        if !forgers.is_empty() {
            self.waiting.retain(|entry| !forgers.contains(&entry.from));
            self.rebuild();
        }
        let (echelon, verified) = (&self.echelon, self.verified.len());
        let is_useless = |entry: &Entry| {
            entry.is_spare && echelon.reduce(entry.chunk.coefficients.clone(), verified) == Rank::Dependent
        };
        self.waiting.retain(|entry| !is_useless(entry));
        (fit, forgers)
    }

    /// Ends the wait once the payload is here: only verified chunks are still of use. Returns the senders of the chunks
    /// under verification.
    pub(super) fn close(&mut self) -> Vec<PublicKey> {
        self.waiting.clear();
        self.echelon = Echelon::default();
        mem::take(&mut self.checking).into_iter().map(|entry| entry.from).collect()
    }

    /// Drops this peer's waiting chunks.
    pub(super) fn forget(&mut self, peer: &PublicKey) {
        let before = self.waiting.len();
        self.waiting.retain(|entry| entry.from != *peer);
        if self.waiting.len() < before {
            self.rebuild();
        }
    }

    /// Rebuilds the echelon form after chunks were removed.
    fn rebuild(&mut self) {
        self.echelon = Echelon::default();
        let known = self.verified.iter().chain(self.checking.iter().map(|entry| &entry.chunk));
        for chunk in known {
            self.echelon.add(&chunk.coefficients);
        }
        for entry in &mut self.waiting {
            entry.is_spare = !self.echelon.add(&entry.chunk.coefficients);
        }
    }

    pub(super) fn held_bytes(&self) -> usize {
        (self.verified.len() + self.len()) * self.shape.chunk_bytes()
            + self.echelon.rank() * 32 * self.shape.pieces
    }

    pub(super) fn held_bytes_max(shape: &Shape) -> usize {
        (shape.pieces + SPARES_MAX) * shape.chunk_bytes() + 32 * shape.pieces * shape.pieces
    }
}
