//! [`Pipeline`]: the ranges between the head and the last requested batch, each on its way through the pipeline.
//!
//! ```text
//!  Asked ─▶ Checked ─▶ Preparing ─▶ Prepared ─▶ Executing ─▶ Ready ─▶ Committing
//!    (in any order)                             └── replay only, in order ──┘  (in order, as many at once as there are)
//! ```

mod left;

use std::collections::BTreeMap;

use slipstream_network::PeerId;
use slipstream_types::BatchNumber;

use crate::{
    plan::{Amount, RangeMode},
    verify::VerifiedRange,
    work::{Job, PreparedRange, ReadyRange},
};

/// Maximum number of ranges in the pipeline. Together with the bound on bytes, it limits the work that one failure
/// wastes.
const PIECES_MAX: usize = 256;
/// Maximum number of ranges that are prepared and not executed: their hinted rows are in memory.
const PREPARED_MAX: usize = 2;
/// A commit takes no further range once it has this many bytes.
const COMMIT_BYTES: u64 = 16 << 20;
/// Maximum number of compressed bytes of applied, uncommitted ranges below one that executes on them. As layers in memory they take
/// about ten times as much.
const BELOW_BYTES_MAX: u64 = 16 << 20;

/// A range in the pipeline.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) last: BatchNumber,
    pub(super) mode: RangeMode,
    /// Whether everything that the node keeps of its batches was requested, or is made here. Otherwise the backfill
    /// fetches the rest.
    pub(super) is_whole: bool,
    /// Compressed bytes that it holds: first estimated, then as they came, hints included.
    pub(super) bytes: u64,
    /// The work in its batches: first presumed, then from their headers.
    amount: Amount,
    pub(super) state: State,
}

#[derive(Debug)]
pub(super) enum State {
    Asked,
    Checked(Box<VerifiedRange>, PeerId),
    Preparing,
    Prepared(Box<PreparedRange>),
    Executing,
    Ready(ReadyRange),
    Committing,
}

/// The pieces by their first batch. Each begins right behind the one before.
#[derive(Debug)]
pub(super) struct Pipeline {
    pieces: BTreeMap<BatchNumber, Piece>,
    /// The first batch behind all pieces.
    next: BatchNumber,
}

/// A job, and the first batch of the piece that it is about.
pub(super) type StageJob = (BatchNumber, Job);

impl Pipeline {
    pub(super) fn new(head: BatchNumber) -> Pipeline {
        Pipeline { pieces: BTreeMap::new(), next: head.next() }
    }

    /// The first batch that was not requested.
    pub(super) fn next(&self) -> BatchNumber {
        self.next
    }

    /// The last batch that was requested.
    pub(super) fn last(&self) -> BatchNumber {
        self.next.before(1)
    }

    /// Bytes of the pieces that are being committed.
    pub(super) fn committing_bytes(&self) -> u64 {
        let committing = self.pieces.values().filter(|piece| matches!(piece.state, State::Committing));
        committing.map(|piece| piece.bytes).sum()
    }

    /// Whether pieces that are being committed lack parts that the node keeps.
    pub(super) fn commits_lacking(&self) -> bool {
        self.pieces.values().any(|piece| matches!(piece.state, State::Committing) && !piece.is_whole)
    }

    /// Records whether everything that the node keeps of a piece's batches was requested, or is made here.
    pub(super) fn set_whole(&mut self, first: BatchNumber, is_whole: bool) {
        if let Some(piece) = self.pieces.get_mut(&first) {
            piece.is_whole = is_whole;
        }
    }

    /// Changes the mode of a piece that is not prepared, with `bytes` expected bytes. Drops the range that came for it,
    /// if any.
    pub(super) fn remode(&mut self, first: BatchNumber, mode: RangeMode, bytes: u64) {
        if let Some(piece) = self.pieces.get_mut(&first) {
            (piece.mode, piece.bytes, piece.state) = (mode, bytes, State::Asked);
        }
    }

    /// The last piece that is to be replayed and is not prepared: its first and its last batch.
    pub(super) fn last_to_replay(&self) -> Option<(BatchNumber, BatchNumber)> {
        let to_replay =
            |(_, piece): &(&BatchNumber, &Piece)| piece.mode == RangeMode::Replay && piece.state.is_open();
        self.pieces.iter().rev().find(to_replay).map(|(first, piece)| (*first, piece.last))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Whether another piece may begin, within a budget of bytes. A single one always may.
    pub(super) fn has_room(&self, budget: u64) -> bool {
        self.pieces.is_empty() || (self.pieces.len() < PIECES_MAX && self.bytes() < budget)
    }

    /// Bytes of all pieces.
    pub(super) fn bytes(&self) -> u64 {
        self.pieces.values().map(|piece| piece.bytes).sum()
    }

    /// Bytes that wait for each stage: fetch, prepare, execute, commit.
    pub(super) fn queues(&self) -> [u64; 4] {
        let mut queues = [0; 4];
        for piece in self.pieces.values() {
            let queue = match &piece.state {
                State::Asked => 0,
                State::Checked(..) => 1,
                State::Prepared(_) => 2,
                State::Ready(_) => 3,
                State::Preparing | State::Executing | State::Committing => continue,
            };
            queues[queue] += piece.bytes;
        }
        queues
    }

    /// Begins a piece behind the last one.
    pub(super) fn push(&mut self, last: BatchNumber, mode: RangeMode, bytes: u64, amount: Amount) {
        let first = self.next;
        self.next = last.next();
        self.pieces.insert(first, Piece { last, mode, is_whole: true, bytes, amount, state: State::Asked });
    }

    pub(super) fn get(&self, first: BatchNumber) -> Option<&Piece> {
        self.pieces.get(&first)
    }

    /// The pieces that have not arrived, with the mode in which they were requested.
    pub(super) fn asked(&self) -> impl Iterator<Item = (BatchNumber, RangeMode)> {
        self.pieces
            .iter()
            .filter(|(_, piece)| matches!(piece.state, State::Asked))
            .map(|(first, piece)| (*first, piece.mode))
    }

    /// The first piece that has not arrived, if all before it are ready: the pipeline then waits for it alone.
    pub(super) fn awaited(&self) -> Option<BatchNumber> {
        let is_done = |piece: &&Piece| matches!(piece.state, State::Ready(_) | State::Committing);
        let (first, piece) = self.pieces.iter().find(|(_, piece)| !is_done(piece))?;
        matches!(piece.state, State::Asked).then_some(*first)
    }

    /// Takes a checked range, with the work that its headers show. If it ends before its piece, the rest becomes a
    /// piece of its own. Returns the first batch of that piece.
    pub(super) fn arrived(
        &mut self,
        first: BatchNumber,
        range: VerifiedRange,
        amount: Amount,
        from: PeerId,
    ) -> Option<BatchNumber> {
        let piece = self.pieces.get_mut(&first).filter(|piece| matches!(piece.state, State::Asked))?;
        let end = range.batches().last()?.header.number;
        let rest = (end < piece.last).then(|| {
            let batches = piece.last.since(first) + 1;
            let left = piece.last.since(end);
            let (bytes, amount) =
                (piece.bytes * left / batches, piece.amount.times(left as f64 / batches as f64));
            (
                end.next(),
                Piece {
                    last: piece.last,
                    mode: piece.mode,
                    is_whole: piece.is_whole,
                    bytes,
                    amount,
                    state: State::Asked,
                },
            )
        });
        piece.last = end.min(piece.last);
        piece.bytes = range.held_bytes() as u64;
        piece.amount = amount;
        piece.state = State::Checked(Box::new(range), from);
        let (first, rest) = rest?;
        self.pieces.insert(first, rest);
        Some(first)
    }

    /// Takes an announced batch, if it is the next one or a piece of its own that has not arrived. Returns whether it
    /// was taken.
    pub(super) fn announced(&mut self, range: VerifiedRange, amount: Amount, from: PeerId) -> bool {
        let Some(number) = range.batches().first().map(|batch| batch.header.number) else { return false };
        if number == self.next {
            self.push(number, RangeMode::Replay, 0, amount);
        }
        match self.pieces.get_mut(&number) {
            Some(piece) if piece.last == number && matches!(piece.state, State::Asked) => {
                piece.mode = RangeMode::Replay;
                piece.bytes = range.held_bytes() as u64;
                piece.amount = amount;
                piece.state = State::Checked(Box::new(range), from);
                true
            }
            _ => false,
        }
    }

    /// Drops all pieces behind a batch; their batches have to be requested again. Returns whether anything was dropped.
    pub(super) fn cut(&mut self, head: BatchNumber) -> bool {
        let dropped = self.pieces.split_off(&head.next());
        self.next = self.pieces.last_key_value().map_or(head.next(), |(_, piece)| piece.last.next());
        !dropped.is_empty()
    }

    /// Drops the pieces that are not being committed.
    pub(super) fn cut_uncommitted(&mut self, head: BatchNumber) {
        let committing = self.pieces.values().rev().find(|piece| matches!(piece.state, State::Committing));
        let last = committing.map_or(head, |piece| piece.last);
        self.cut(last);
    }

    /// Records that the head moved, by a commit of these pieces or by another component.
    pub(super) fn advance(&mut self, head: BatchNumber) {
        while let Some((first, piece)) = self.pieces.first_key_value() {
            if piece.last > head || matches!(piece.state, State::Committing) {
                break;
            }
            let first = *first;
            self.pieces.remove(&first);
        }
        self.next = self.next.max(head.next());
    }

    /// Removes the pieces of a commit that is over.
    pub(super) fn committed(&mut self, head: BatchNumber) {
        self.pieces.retain(|_, piece| !matches!(piece.state, State::Committing));
        self.advance(head);
    }

    /// Takes a prepared piece.
    pub(super) fn prepared(&mut self, first: BatchNumber, prepared: Box<PreparedRange>) {
        if let Some(piece) =
            self.pieces.get_mut(&first).filter(|piece| matches!(piece.state, State::Preparing))
        {
            piece.state = match prepared.is_replay() {
                true => State::Prepared(prepared),
                false => State::Ready(ReadyRange::Opened(prepared)),
            };
        }
    }

    /// Takes an executed piece.
    pub(super) fn executed(&mut self, first: BatchNumber, ready: ReadyRange) {
        if let Some(piece) =
            self.pieces.get_mut(&first).filter(|piece| matches!(piece.state, State::Executing))
        {
            piece.state = State::Ready(ready);
        }
    }

    /// Puts a piece back to be prepared again.
    pub(super) fn unprepared(&mut self, first: BatchNumber, range: VerifiedRange, from: PeerId) {
        if let Some(piece) =
            self.pieces.get_mut(&first).filter(|piece| matches!(piece.state, State::Executing))
        {
            piece.state = State::Checked(Box::new(range), from);
        }
    }

    /// The jobs that can begin now, at most one of each kind.
    pub(super) fn work(&mut self, head: BatchNumber, target: BatchNumber, free: FreeStages) -> Vec<StageJob> {
        let mut work = Vec::new();
        if free.commit {
            work.extend(self.commit(head, target));
        }
        if free.execute {
            work.extend(self.execute());
        }
        if free.prepare {
            work.extend(self.prepare(head));
        }
        work
    }

    fn commit(&mut self, head: BatchNumber, target: BatchNumber) -> Option<StageJob> {
        let (mut next, mut bytes) = (head.next(), 0);
        let mut ranges = Vec::new();
        // A piece may begin at or below the head, if another component committed its first batches.
        for (first, piece) in &mut self.pieces {
            if *first > next || bytes >= COMMIT_BYTES || !matches!(piece.state, State::Ready(_)) {
                break;
            }
            next = piece.last.next();
            bytes += piece.bytes;
            if let State::Ready(ready) = std::mem::replace(&mut piece.state, State::Committing) {
                ranges.push(ready);
            }
        }
        (!ranges.is_empty()).then(|| (head.next(), Job::Commit { ranges, target }))
    }

    fn execute(&mut self) -> Option<StageJob> {
        for (first, piece) in &mut self.pieces {
            match &piece.state {
                State::Prepared(_) => {
                    let prepared = std::mem::replace(&mut piece.state, State::Executing);
                    let State::Prepared(range) = prepared else { return None };
                    return Some((*first, Job::Execute { range }));
                }
                State::Ready(_) | State::Committing => {}
                _ => return None,
            }
        }
        None
    }

    fn prepare(&mut self, head: BatchNumber) -> Option<StageJob> {
        // Pieces prepared behind this one do not count: they wait for it, and it may have to be prepared again.
        let mut prepared = 0;
        let (mut has_all_before, mut below_bytes) = (true, 0);
        for (first, piece) in &mut self.pieces {
            // A replay builds on committed batches, on batches executed here, and on opened deltas. Deltas that are not
            // opened, or more of them than memory allows, do not count.
            let has_base = *first <= head.next() || (has_all_before && below_bytes <= BELOW_BYTES_MAX);
            match &piece.state {
                State::Checked(..) => {
                    let mode = piece.mode;
                    if mode == RangeMode::Replay && (!has_base || prepared >= PREPARED_MAX) {
                        return None;
                    }
                    let checked = std::mem::replace(&mut piece.state, State::Preparing);
                    let State::Checked(range, from) = checked else { return None };
                    return Some((*first, Job::Prepare { range: *range, mode, from }));
                }
                State::Asked if piece.mode == RangeMode::Replay => return None,
                state => {
                    prepared += usize::from(matches!(state, State::Prepared(_)));
                    let is_open = matches!(state, State::Ready(_) | State::Committing);
                    has_all_before &= piece.mode == RangeMode::Replay || is_open;
                    below_bytes += if piece.mode == RangeMode::Delta { piece.bytes } else { 0 };
                }
            }
        }
        None
    }
}

/// The kinds of jobs that may start: at most one of each kind runs at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct FreeStages {
    pub(super) prepare: bool,
    pub(super) execute: bool,
    pub(super) commit: bool,
}
