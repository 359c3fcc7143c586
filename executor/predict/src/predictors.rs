//! [`Predictors`]: the programs of contracts that are called often.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use alloy_primitives::{
    Bytes,
    map::{HashMap, HashSet},
};
use parking_lot::{Mutex, RwLock};
use slipstream_storage::{StateReader, StorageError, Store};
use slipstream_types::Digest;

use crate::{
    config::{PredictConfig, PredictLimits, PredictMode},
    flow::JumpEdge,
    program::{CODE_BYTES_MAX, Program, build},
    program_store::ProgramStore,
    request::{BlockValues, TransactionRef},
    run::Run,
    stats::{PredictStats, Predicted},
    watch::JumpWatch,
};

/// Contracts whose calls are counted. Beyond this number, all counts are halved and those at zero dropped.
const COUNTED_MAX: usize = 65_536;
/// Maximum number of contracts that wait for analysis. Further contracts are skipped until they are called again.
const QUEUED_MAX: usize = 1_024;
/// Contracts whose observed jumps are kept.
const OBSERVED_CONTRACTS_MAX: usize = 4_096;
/// Maximum number of observed jumps of one contract.
const OBSERVED_EDGES_MAX: usize = 256;

/// Counts calls, analyses contracts that are called often, and predicts the reads of transactions. Threads share it:
/// execution and predictions count, a background thread builds, helper threads predict.
#[derive(Debug)]
pub struct Predictors {
    config: PredictConfig,
    kept: RwLock<ProgramCache>,
    waiting: Mutex<AnalysisQueue>,
    /// Counts predictions, to find the least recently used program.
    clock: AtomicU64,
    /// Records jumps during execution; `None` while every program has resolved its jumps.
    watch: RwLock<Option<Arc<JumpWatch>>>,
    /// Storage of programs across restarts.
    saved: Option<ProgramStore>,
}

#[derive(Debug, Default)]
struct ProgramCache {
    programs: HashMap<Digest, Entry>,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    program: Arc<Program>,
    used: AtomicU64,
    /// Set when jumps were observed that are missing in the program.
    is_stale: AtomicBool,
}

#[derive(Debug, Default)]
struct AnalysisQueue {
    calls: HashMap<Digest, u32>,
    queue: VecDeque<(Digest, Bytes)>,
    queued: HashSet<Digest>,
    observed: HashMap<Digest, Vec<JumpEdge>>,
}

impl Predictors {
    /// Makes predictors without programs.
    pub fn new(config: PredictConfig) -> Self {
        let (kept, waiting, clock) = (RwLock::default(), Mutex::default(), AtomicU64::new(0));
        Self { config, kept, waiting, clock, watch: RwLock::default(), saved: None }
    }

    /// Loads the programs that an earlier run saved in the store, and saves new programs there from now on.
    ///
    /// # Errors
    /// If the disk fails, or the store is damaged.
    pub fn with_saved(mut self, store: Store) -> Result<Predictors, StorageError> {
        let (saved, programs) = ProgramStore::open(store, self.config.programs_bytes_max)?;
        for (hash, program) in programs {
            self.kept.write().insert(hash, Arc::new(program), 0, self.config.programs_bytes_max);
        }
        self.saved = Some(saved);
        self.renew_watch();
        Ok(self)
    }

    /// The limits of one transaction's prediction.
    pub fn limits(&self) -> &PredictLimits {
        &self.config.limits
    }

    /// Number of programs.
    pub fn len(&self) -> usize {
        self.kept.read().programs.len()
    }

    /// Whether no program is stored.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of all programs.
    pub fn size_bytes(&self) -> usize {
        self.kept.read().bytes
    }

    /// Number of contracts that wait for analysis.
    pub fn queued(&self) -> usize {
        self.waiting.lock().queue.len()
    }

    /// Counts calls of an executed contract, and queues the contract once it was called often enough. `code` is cheap
    /// to clone.
    pub fn note_executed(&self, hash: Digest, code: &Bytes, calls: u32) {
        if self.has_program(&hash) {
            return;
        }
        let mut waiting = self.waiting.lock();
        if waiting.count(hash, calls) >= self.config.calls_min {
            waiting.calls.remove(&hash);
            waiting.enqueue(hash, code.clone());
        }
    }

    /// Counts a predicted call of a contract without a program. Predicted calls count too, because many batches are
    /// prepared before the first of them is executed.
    fn note_foretold(&self, hash: &Digest, state: &dyn StateReader) {
        // Tries only once, even if the contract is not queued: its code may be too long, and reading the code takes a
        // while.
        if self.waiting.lock().count(*hash, 1) != self.config.calls_min {
            return;
        }
        if let Ok(Some(code)) = state.code(hash) {
            self.waiting.lock().enqueue(*hash, code);
        }
    }

    /// The recorder through which predictors learn from execution; `None` if every jump is resolved.
    pub fn watch(&self) -> Option<Arc<JumpWatch>> {
        self.watch.read().clone()
    }

    /// Learns the jumps that executions recorded since the last call.
    pub fn learn_jumps(&self) {
        let Some(watch) = self.watch() else { return };
        for (hash, edge) in watch.take() {
            self.observe_jumps(hash.into(), &[edge]);
        }
    }

    fn renew_watch(&self) {
        let kept = self.kept.read();
        let watch = JumpWatch::of(kept.programs.iter().map(|(hash, entry)| (hash, &*entry.program)));
        *self.watch.write() = watch.map(Arc::new);
    }

    /// Learns jumps that execution or a prediction made and analysis cannot resolve. A contract keeps its old program
    /// until it was again called often, and then gets a better program.
    pub fn observe_jumps(&self, hash: Digest, edges: &[JumpEdge]) {
        let mut waiting = self.waiting.lock();
        if waiting.observed.len() >= OBSERVED_CONTRACTS_MAX && !waiting.observed.contains_key(&hash) {
            // Useful jumps will be seen again.
            waiting.observed.clear();
        }
        let observed = waiting.observed.entry(hash).or_default();
        let before = observed.len();
        for edge in edges {
            if observed.len() < OBSERVED_EDGES_MAX && !observed.contains(edge) {
                observed.push(*edge);
            }
        }
        if observed.len() > before
            && let Some(entry) = self.kept.read().programs.get(&hash)
        {
            entry.is_stale.store(true, Relaxed);
        }
    }

    /// Analyses queued contracts, the longest waiting first, until their code adds up to `code_bytes`. Returns the
    /// number of contracts analysed.
    pub fn build_queued(&self, code_bytes: usize) -> usize {
        let (mut built, mut bytes) = (0, 0);
        while bytes < code_bytes {
            let Some((hash, code)) = self.waiting.lock().dequeue() else { break };
            self.build_now(hash, &code);
            built += 1;
            bytes += code.len().max(1);
        }
        built
    }

    /// Analyses a contract regardless of its calls, and keeps the program.
    pub fn build_now(&self, hash: Digest, code: &[u8]) -> Arc<Program> {
        let observed = self.waiting.lock().observed.get(&hash).cloned().unwrap_or_default();
        let program = Arc::new(build(code, &observed));
        let before = self.kept.read().programs.get(&hash).map(|entry| entry.program.clone());
        let dropped =
            self.kept.write().insert(hash, program.clone(), self.now(), self.config.programs_bytes_max);
        if before.as_ref().map_or(&[][..], |it| it.unresolved()) != program.unresolved() {
            self.renew_watch();
        }
        if let Some(saved) = &self.saved {
            saved.put(&hash, &program);
            dropped.iter().for_each(|hash| saved.remove(hash));
        }
        program
    }

    /// The program of some code, if it is kept.
    #[cfg(test)]
    pub(crate) fn program_of(&self, hash: &Digest) -> Option<Arc<Program>> {
        self.kept.read().programs.get(hash).map(|entry| entry.program.clone())
    }

    /// Predicts a transaction's reads and passes each key and code to `sink` once. It does so as soon as each is known,
    /// so that a prefetcher can begin. `state` may be older than the transaction; the older it is, the more predictions
    /// are wrong.
    ///
    /// Reads of `state` happen on the caller's thread. The prediction never fails: it leaves out unreadable keys and
    /// unknown paths.
    pub fn predict(
        &self,
        transaction: TransactionRef<'_>,
        block: &BlockValues,
        state: &dyn StateReader,
        mode: PredictMode,
        sink: &mut dyn FnMut(Predicted),
    ) -> PredictStats {
        if mode == PredictMode::Off {
            return PredictStats::default();
        }
        self.clock.fetch_add(1, Relaxed);
        let find = |hash: &Digest| self.program(hash, state);
        let mut run = Run::new(&find, &self.config, transaction, block, state, sink);
        run.transaction(mode);
        let (stats, missed) = run.finish();
        for (hash, edge) in missed {
            self.observe_jumps(hash, &[edge]);
        }
        stats
    }

    /// The program of some code. A missing or stale program is built now if the configuration says so.
    fn program(&self, hash: &Digest, state: &dyn StateReader) -> Option<Arc<Program>> {
        let kept = self.kept.read().programs.get(hash).map(|entry| {
            entry.used.store(self.now(), Relaxed);
            (entry.program.clone(), entry.is_stale.load(Relaxed))
        });
        match kept {
            Some((program, false)) => Some(program),
            Some((program, true)) if !self.config.builds_at_once => Some(program),
            None if !self.config.builds_at_once => {
                self.note_foretold(hash, state);
                None
            }
            _ => {
                let code = state.code(hash).ok()??;
                Some(self.build_now(*hash, &code))
            }
        }
    }

    fn has_program(&self, hash: &Digest) -> bool {
        let kept = self.kept.read();
        kept.programs.get(hash).is_some_and(|entry| !entry.is_stale.load(Relaxed))
    }

    fn now(&self) -> u64 {
        self.clock.load(Relaxed)
    }
}

impl ProgramCache {
    /// Adds a program. Returns the programs that were evicted, perhaps including the new one.
    fn insert(&mut self, hash: Digest, program: Arc<Program>, now: u64, bytes_max: usize) -> Vec<Digest> {
        self.remove(&hash);
        let size = program.size_bytes();
        if size > bytes_max {
            return vec![hash];
        }
        let mut dropped = Vec::new();
        if self.bytes + size > bytes_max {
            dropped = self.make_room(bytes_max - size);
        }
        self.bytes += size;
        self.programs
            .insert(hash, Entry { program, used: AtomicU64::new(now), is_stale: AtomicBool::new(false) });
        dropped
    }

    fn remove(&mut self, hash: &Digest) {
        if let Some(entry) = self.programs.remove(hash) {
            self.bytes -= entry.program.size_bytes();
        }
    }

    /// Evicts the least recently used programs, and an eighth more than needed so that this sorting is rare.
    fn make_room(&mut self, bytes_max: usize) -> Vec<Digest> {
        let goal = bytes_max - bytes_max / 8;
        let mut by_use: Vec<_> =
            self.programs.iter().map(|(hash, entry)| (entry.used.load(Relaxed), *hash)).collect();
        by_use.sort_unstable();
        let mut dropped = Vec::new();
        for (_, hash) in by_use {
            if self.bytes <= goal {
                break;
            }
            self.remove(&hash);
            dropped.push(hash);
        }
        dropped
    }
}

impl AnalysisQueue {
    /// Adds calls of a contract, and returns the new count.
    fn count(&mut self, hash: Digest, calls: u32) -> u32 {
        if self.calls.len() > COUNTED_MAX {
            self.calls.values_mut().for_each(|count| *count /= 2);
            self.calls.retain(|_, count| *count > 0);
        }
        let count = self.calls.entry(hash).or_default();
        *count = count.saturating_add(calls);
        *count
    }

    fn enqueue(&mut self, hash: Digest, code: Bytes) {
        let fits = code.len() <= CODE_BYTES_MAX && self.queue.len() < QUEUED_MAX;
        if fits && self.queued.insert(hash) {
            self.queue.push_back((hash, code));
        }
    }

    fn dequeue(&mut self) -> Option<(Digest, Bytes)> {
        let (hash, code) = self.queue.pop_front()?;
        self.queued.remove(&hash);
        Some((hash, code))
    }
}
