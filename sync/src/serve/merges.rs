//! [`Merges`]: the most recently requested range deltas and states, each merged once for all of its chunks or subtrees.
//!
//! A merge takes seconds of several threads and, while it is made, up to four times its memory. So few are made at once, in places and on
//! threads of their own. A peer that asks for many ranges evicts its own results, and leaves those of others.

use std::{
    collections::BTreeSet,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use slipstream_network::{PeerId, Refusal};
use slipstream_storage::{RangeDelta, StateAt, StorageError, Store};
use slipstream_types::BatchNumber;
use tokio::{runtime::Handle, sync::watch, time::Instant};

use super::{
    error::ServeError,
    lane::{Lane, Limits},
};

/// Maximum bytes of memory for one merge: 199,728 keys of 168 bytes. A client with the default bound of 512 MiB counts
/// 2,252 bytes for each key: 2,000 for copied nodes of its tree, 125 for a new leaf, 127 for the row. So it takes
/// 238,000 of the longest keys, or 253,000 average ones. A merge served here therefore fits there, with 83 MiB to spare
/// for new code and for subtrees that come back into memory. A client further behind takes deltas one by one, or a
/// snapshot.
const MERGE_BYTES_MAX: u64 = 32 << 20;
/// Maximum bytes of memory of the kept ranges.
const KEPT_BYTES_MAX: u64 = 128 << 20;
/// Maximum number of ranges that are kept: some bases for each of two snapshots, because askers differ in how far they are behind.
/// Impossible merges count too: they take no memory, but finding out took time.
const KEPT_MAX: usize = 8;
/// Two merges are made at once, so that a peer's first merge does not wait for all the merges that another peer wants.
/// Waits for a place and for the merge end well before the asker's deadline; the result is there when the asker
/// retries.
pub(super) const LIMITS: Limits =
    Limits { places: 2, of_peer: 1, waiting: 128, wait: Duration::from_secs(5) };

/// A peer that asks for a merge in progress retries after this.
pub(super) const RETRY: Duration = Duration::from_secs(2);

/// Maximum bytes of the deltas of a state that is made for a peer to compare its own with. With the nodes that they
/// change, the state takes 200 MiB at most.
const STATE_BYTES_MAX: u64 = 16 << 20;
/// Maximum number of states kept besides the ranges, and most bytes of their memory. Two states serve two comparing
/// nodes, or one node while its peers make the next state.
const STATES_MAX: usize = 2;
const STATES_BYTES_MAX: u64 = 256 << 20;
/// One state is made at once: every batch has a state, and none is as urgent as the ranges that followers need.
pub(super) const STATE_LIMITS: Limits = Limits { places: 1, ..LIMITS };
/// A state that no peer requested for this long is dropped: it keeps files of a snapshot from being freed.
const STATE_IDLE: Duration = Duration::from_secs(60);

/// The subject of a merge.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum MergeKey {
    /// The range delta after the first batch up to the second.
    Range(BatchNumber, BatchNumber),
    /// The state after a batch.
    State(BatchNumber),
}

/// The result of a merge.
#[derive(Clone, Debug)]
pub(super) enum MergeOutput {
    Range(Arc<RangeDelta>),
    State(Arc<StateAt>),
}

/// A merge, or the lasting reason why it is impossible.
pub(super) type Merge = Result<MergeOutput, Refusal>;

/// Merges by their subject, and the places in which they are made.
pub(super) struct Merges {
    ranges: Lane,
    states: Lane,
    state: Arc<Mutex<State>>,
    /// Notifies waiters that a merge was made or given up.
    changed: watch::Sender<()>,
}

#[derive(Default)]
struct State {
    /// The most recently used one is last.
    kept: Vec<CachedMerge>,
    making: BTreeSet<MergeKey>,
    /// Whether a task waits for the states to become idle.
    is_swept: bool,
}

struct CachedMerge {
    range: MergeKey,
    merge: Merge,
    /// The peer that it was made for.
    peer: PeerId,
    /// When it was last requested.
    used: Instant,
}

/// Where a merge stands.
pub(super) enum MergeLookup {
    Cached(Merge),
    InProgress,
    Absent,
}

/// The duty to make one merge. Others wait for it until it is dropped.
pub(super) struct MergeGuard<'a> {
    merges: &'a Merges,
    range: MergeKey,
}

impl Default for Merges {
    fn default() -> Self {
        Merges {
            ranges: Lane::new(LIMITS),
            states: Lane::new(STATE_LIMITS),
            state: Arc::default(),
            changed: watch::Sender::new(()),
        }
    }
}

impl Merges {
    /// The lane in which a merge is made.
    pub(super) fn lane(&self, range: MergeKey) -> &Lane {
        match range {
            MergeKey::Range(..) => &self.ranges,
            MergeKey::State(_) => &self.states,
        }
    }

    /// Looks a merge up. A kept one counts as used.
    pub(super) fn look(&self, range: MergeKey) -> MergeLookup {
        let mut state = self.state.lock();
        match state.kept.iter().position(|kept| kept.range == range) {
            Some(at) => {
                state.kept[at..].rotate_left(1);
                let kept = state.kept.last_mut().expect("it was found");
                kept.used = Instant::now();
                MergeLookup::Cached(kept.merge.clone())
            }
            None if state.making.contains(&range) => MergeLookup::InProgress,
            None => MergeLookup::Absent,
        }
    }

    /// Takes the right to make a merge; `None` if it is kept or being made.
    pub(super) fn begin(&self, range: MergeKey) -> Option<MergeGuard<'_>> {
        let mut state = self.state.lock();
        let is_free = state.kept.iter().all(|kept| kept.range != range) && state.making.insert(range);
        is_free.then(|| MergeGuard { merges: self, range })
    }

    /// Returns a receiver that is notified of every change from now on.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Bytes of the kept merges, and their number.
    #[cfg(test)]
    pub(super) fn kept(&self) -> (u64, usize) {
        let state = self.state.lock();
        (state.kept.iter().map(CachedMerge::bytes).sum(), state.kept.len())
    }
}

impl MergeGuard<'_> {
    /// Keeps a merge that was made for a peer.
    pub(super) fn land(self, peer: PeerId, merge: Merge) {
        let mut state = self.merges.state.lock();
        let kept = CachedMerge { range: self.range, merge, peer, used: Instant::now() };
        let (is_state, limits) = (kept.is_state(), kept.limits());
        state.kept.push(kept);
        state.trim(is_state, limits);
        if is_state && !state.is_swept {
            // A state begins to take memory here, whether or not its asker is still there.
            if let Ok(runtime) = Handle::try_current() {
                state.is_swept = true;
                runtime.spawn(sweep(Arc::downgrade(&self.merges.state)));
            }
        }
    }
}

/// Drops states that no peer requests any more, as long as some are kept.
async fn sweep(state: Weak<Mutex<State>>) {
    let next = || state.upgrade().and_then(|state| state.lock().drop_idle(Instant::now()));
    while let Some(at) = next() {
        tokio::time::sleep_until(at).await;
    }
}

impl Drop for MergeGuard<'_> {
    fn drop(&mut self) {
        self.merges.state.lock().making.remove(&self.range);
        self.merges.changed.send_replace(());
    }
}

impl State {
    /// Evicts states, or ranges, until they are within their bounds. The victim is the least recently used merge of the
    /// peer with the most merges. The newest merge stays.
    fn trim(&mut self, states: bool, (count_max, bytes_max): (usize, u64)) {
        loop {
            let alike = || self.kept.iter().enumerate().filter(|(_, kept)| kept.is_state() == states);
            if alike().count() <= count_max && alike().map(|(_, kept)| kept.bytes()).sum::<u64>() <= bytes_max
            {
                return;
            }
            let of = |peer: &PeerId| alike().filter(|(_, kept)| kept.peer == *peer).count();
            let older = alike().filter(|(at, _)| at + 1 < self.kept.len());
            let Some((_, victim)) = older.map(|(at, kept)| (std::cmp::Reverse(of(&kept.peer)), at)).min()
            else {
                return;
            };
            self.kept.remove(victim);
        }
    }

    /// Drops the states that no peer requested lately. Returns when the next one will have been idle for too long;
    /// `None` if none is left.
    fn drop_idle(&mut self, now: Instant) -> Option<Instant> {
        self.kept.retain(|kept| !kept.is_state() || now < kept.used + STATE_IDLE);
        let next = self.kept.iter().filter(|kept| kept.is_state()).map(|kept| kept.used + STATE_IDLE).min();
        self.is_swept = next.is_some();
        next
    }
}

impl CachedMerge {
    fn is_state(&self) -> bool {
        matches!(self.range, MergeKey::State(_))
    }

    /// Maximum number of merges of its kind that are kept, and their bytes.
    fn limits(&self) -> (usize, u64) {
        if self.is_state() { (STATES_MAX, STATES_BYTES_MAX) } else { (KEPT_MAX, KEPT_BYTES_MAX) }
    }

    fn bytes(&self) -> u64 {
        match &self.merge {
            Ok(MergeOutput::Range(merged)) => merged.bytes(),
            Ok(MergeOutput::State(state)) => state.bytes(),
            Err(_) => 0,
        }
    }
}

/// Makes a merge of deltas or a state.
///
/// # Errors
/// An error that another attempt may avoid.
pub(super) fn merge(store: &Store, merging: MergeKey) -> Result<Merge, ServeError> {
    let merged = match merging {
        MergeKey::Range(from, to) => {
            store.range_delta(from, to, MERGE_BYTES_MAX).map(|merged| MergeOutput::Range(Arc::new(merged)))
        }
        MergeKey::State(number) => {
            store.state_at(number, STATE_BYTES_MAX).map(|state| MergeOutput::State(Arc::new(state)))
        }
    };
    match merged {
        Ok(merged) => Ok(Ok(merged)),
        Err(error @ (StorageError::RangeDelta(_) | StorageError::Repair(_))) => {
            Ok(Err(ServeError::from(error).into_refusal()))
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use slipstream_types::{Path, PublicKey, delta::DeltaEntry, state::ROW_BYTES_MAX};

    use super::*;
    use crate::work::RANGE_DELTA_BYTES_MAX;

    /// Goal: no client fetches a merge from here only to find that it is too large for it.
    #[test]
    fn what_is_merged_fits_a_client() {
        let keys = MERGE_BYTES_MAX / size_of::<(Path, DeltaEntry)>() as u64;
        // As storage counts: sixteen leaves that are copied, and one that is new, of 125 bytes each.
        let key_bytes = (16 + 1) * 125 + (size_of::<Path>() + ROW_BYTES_MAX) as u64;
        assert_eq!(keys, 199_728);
        assert!(keys * key_bytes <= RANGE_DELTA_BYTES_MAX - (64 << 20), "{}", keys * key_bytes);
    }

    fn range(from: u64) -> MergeKey {
        MergeKey::Range(BatchNumber::new(from), BatchNumber::new(1_000))
    }

    fn keep(merges: &Merges, id: u8, from: u64) {
        let making = merges.begin(range(from)).unwrap();
        making.land(PublicKey([id; 32]), Err(Refusal::not_kept("too large")));
    }

    fn is_kept(merges: &Merges, from: u64) -> bool {
        matches!(merges.look(range(from)), MergeLookup::Cached(_))
    }

    #[test]
    fn the_ranges_asked_for_last_are_kept() {
        let merges = Merges::default();
        (0..KEPT_MAX as u64).for_each(|from| keep(&merges, 1, from));
        assert!(is_kept(&merges, 0), "it is there, and the last again");
        keep(&merges, 1, 100);
        assert!(is_kept(&merges, 0) && !is_kept(&merges, 1), "the oldest made room");
        assert_eq!(merges.kept(), (0, KEPT_MAX));
    }

    /// Goal: a peer that asks from every possible base does not make this node repeat merges that another peer asks
    /// for.
    #[test]
    fn who_asks_for_many_ranges_displaces_its_own() {
        let merges = Merges::default();
        keep(&merges, 1, 0);
        (1..1_000).for_each(|from| keep(&merges, 2, from));
        assert!(is_kept(&merges, 0) && is_kept(&merges, 999));
        assert_eq!(merges.kept().1, KEPT_MAX);
    }

    fn keep_state(merges: &Merges, id: u8, number: u64) {
        let making = merges.begin(MergeKey::State(BatchNumber::new(number))).unwrap();
        making.land(PublicKey([id; 32]), Err(Refusal::not_kept("too large")));
    }

    /// Goal: comparing states evicts no range. A peer that asks for every batch's state does not evict the state
    /// that another asks for.
    #[test]
    fn states_displace_states() {
        let merges = Merges::default();
        (0..KEPT_MAX as u64).for_each(|from| keep(&merges, 1, from));
        keep_state(&merges, 1, 0);
        (1..1_000).for_each(|number| keep_state(&merges, 2, number));
        assert!((0..KEPT_MAX as u64).all(|from| is_kept(&merges, from)));
        assert!(matches!(merges.look(MergeKey::State(BatchNumber::GENESIS)), MergeLookup::Cached(_)));
        assert_eq!(merges.kept().1, KEPT_MAX + STATES_MAX);
    }

    /// Goal: however many states are made, one task waits for them to become idle, and it begins with the first kept
    /// one.
    #[tokio::test(start_paused = true)]
    async fn states_that_nobody_asks_for_are_dropped_by_one_task() {
        let merges = Merges::default();
        let tasks = || Handle::current().metrics().num_alive_tasks();
        let before = tasks();
        for round in 0..3 {
            (0..100).for_each(|number| keep_state(&merges, 1, 100 * round + number));
            assert_eq!((merges.kept().1, tasks() - before), (STATES_MAX, 1));
            tokio::time::sleep(STATE_IDLE / 2).await;
            merges.look(MergeKey::State(BatchNumber::new(100 * round + 99)));
            tokio::time::sleep(STATE_IDLE / 2 + Duration::from_secs(1)).await;
            assert_eq!((merges.kept().1, tasks() - before), (1, 1), "one was asked for");
            tokio::time::sleep(STATE_IDLE).await;
            assert_eq!((merges.kept().1, tasks() - before), (0, 0));
        }
    }

    #[tokio::test]
    async fn one_makes_it_and_the_others_hear_of_it() {
        let merges = Merges::default();
        let mut changes = merges.changes();
        let making = merges.begin(range(1)).unwrap();
        assert!(merges.begin(range(1)).is_none() && matches!(merges.look(range(1)), MergeLookup::InProgress));
        drop(making);
        changes.changed().await.unwrap();
        assert!(matches!(merges.look(range(1)), MergeLookup::Absent), "it was given up");
        keep(&merges, 1, 1);
        changes.changed().await.unwrap();
        assert!(is_kept(&merges, 1) && merges.begin(range(1)).is_none());
    }
}
