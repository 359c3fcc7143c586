//! Figure 9 of the Eve paper for this system: how many concurrency bugs replicas mask.
//!
//! Four replicas execute every batch with the real executor on threads, ahead of their turn. The executor detects a
//! transaction that ran concurrently with a conflicting one, and repairs it. At that point an injected bug corrupts the
//! result at a chosen rate ([`InjectedFaults`]). Real cores agree on the results, in virtual time with measured
//! execution times. The mixer is the set of conflicts in a batch's hints: a transaction with a listed conflict waits.
//! Without the mixer no transaction waits. A false negative is an unlisted conflict.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use alloy_primitives::Address;
use anyhow::{Context, Result, ensure};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use slipstream_executor::{
    ConcurrencyBug, ForcedMethod, InjectedFaults, Outcome, Transaction, Workers, execute, execute_parallel,
};
use slipstream_storage::{MemoryState, StateReader};
use slipstream_types::{Conflicts, Digest};

use super::{
    local::Local,
    object::Request,
    world::{Job, Machine, Pace, Ran, World},
};

/// The number of validators, which tolerates one failure of any kind and one lie.
const VALIDATORS: u8 = 4;
const SENDERS: u32 = 48;
/// The number of objects of two slots; every request changes one of them.
const OBJECTS: u64 = 24;
/// The longest virtual time of a run, in microseconds.
const TIME_MAX_US: u64 = 3_600_000_000;
/// A data centre's one-way latency, a durable write to disk, and a small commit.
const PACE: Pace = Pace { one_way_us: 250, record_us: 1_000, commit_us: 1_000, intake_us: 0, cores: 2 };

/// The settings of a trial.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting {
    pub(super) bug: ConcurrencyBug,
    /// The rate of bugs among conflicting transactions that ran concurrently.
    pub(super) rate: f64,
    /// Whether a bug hits a concurrent transaction at all replicas, or at each one independently.
    pub(super) alike: bool,
    /// The share of the conflicts that the mixer misses; 1 is the same as no mixer.
    pub(super) false_negatives: f64,
    pub(super) batches: u64,
    pub(super) seed: u64,
}

/// The counted results of a trial.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Counts {
    /// Batches for which a replica computed a wrong outcome.
    pub(super) manifested: u64,
    /// Of these, batches for which the right outcome was agreed on at once.
    pub(super) outvoted: u64,
    /// Of these, batches that were rolled back and executed again in another view.
    pub(super) rolled_back: u64,
    /// Of these, batches for which a wrong outcome was agreed on.
    pub(super) not_masked: u64,
    /// Conflicting transactions that ran concurrently, over all replicas.
    pub(super) met: u64,
    /// Transactions per second of virtual time.
    pub(super) tps: f64,
}

impl Counts {
    /// Returns the share of wrong outcomes that was masked; 1 if none occurred.
    pub(super) fn masked(self) -> f64 {
        match self.manifested {
            0 => 1.0,
            manifested => 1.0 - self.not_masked as f64 / manifested as f64,
        }
    }

    /// Returns the sums of both counts.
    pub(super) fn plus(self, other: Counts) -> Counts {
        Counts {
            manifested: self.manifested + other.manifested,
            outvoted: self.outvoted + other.outvoted,
            rolled_back: self.rolled_back + other.rolled_back,
            not_masked: self.not_masked + other.not_masked,
            met: self.met + other.met,
            tps: self.tps + other.tps,
        }
    }
}

/// A batch, and its known conflicts.
struct Known {
    transactions: Vec<Transaction>,
    conflicts: Conflicts,
}

struct Replicas<'a> {
    local: &'a Local,
    request: Request,
    setting: Setting,
    workers: Vec<(Workers, Arc<InjectedFaults>)>,
    states: BTreeMap<Digest, Arc<MemoryState>>,
    bodies: BTreeMap<Digest, Known>,
    /// The right outcome of a body on a state.
    right: BTreeMap<(Digest, Digest), Digest>,
    /// The number of replicas with a wrong outcome in parallel execution.
    wrong: BTreeMap<(Digest, Digest), u64>,
    random: SmallRng,
    failure: Option<anyhow::Error>,
}

impl Replicas<'_> {
    fn make(&mut self, before: Digest) -> Result<Digest> {
        let state = self.states.get(&before).context("no replica made this state")?.clone();
        let sender = self.local.sender(0);
        let nonce = state.account(&sender)?.map_or(0, |account| account.nonce);
        let objects: Vec<u64> = (0..SENDERS).map(|_| self.random.random_range(0..OBJECTS)).collect();
        let transactions = self.local.batch(self.request, nonce, |index| objects[index as usize])?;
        let outcome = execute(&*state, &self.local.env, &transactions)?;
        let mut conflicts = outcome.conflicts();
        for predecessors in &mut conflicts.predecessors {
            predecessors.retain(|_| !self.random.random_bool(self.setting.false_negatives));
        }
        let hashes: Vec<u8> = transactions.iter().flat_map(|transaction| transaction.hash.0).collect();
        let body = Digest::tagged("slipnet/bench/body", &hashes);
        self.bodies.insert(body, Known { transactions, conflicts });
        Ok(body)
    }

    fn execute(&mut self, job: &Job) -> Result<Ran> {
        let state = self.states.get(&job.before).context("no replica made this state")?.clone();
        let known = self.bodies.get(&job.body).context("no replica made this body")?;
        let env = &self.local.env;
        let begun = Instant::now();
        let outcome = match job.sequential {
            true => execute(&*state, env, &known.transactions)?,
            false => {
                let workers = &self.workers[usize::from(job.seat)].0;
                execute_parallel(&*state, env, &known.transactions, &known.conflicts, workers)?.0
            }
        };
        let took_us = begun.elapsed().as_micros() as u64;
        let state_root = self.keep(job.before, &state, &outcome)?;
        let place = (job.before, job.body);
        if !self.right.contains_key(&place) {
            let right = execute(&*state, env, &self.bodies[&job.body].transactions)?;
            let root = self.keep(job.before, &state, &right)?;
            self.right.insert(place, root);
        }
        *self.wrong.entry(place).or_default() += u64::from(self.right[&place] != state_root);
        Ok(Ran { state_root, took_us })
    }

    fn keep(&mut self, before: Digest, state: &MemoryState, outcome: &Outcome) -> Result<Digest> {
        let root =
            Digest::tagged("slipnet/bench/state", &[&before.0[..], &outcome.delta.content()?].concat());
        self.states.entry(root).or_insert_with(|| {
            let mut state = state.clone();
            state.apply(&outcome.delta);
            Arc::new(state)
        });
        Ok(root)
    }

    /// Records the first failure, and continues with a state that no replica agrees with.
    fn failed<T>(&mut self, result: Result<T>, instead: T) -> T {
        result.unwrap_or_else(|error| {
            self.failure.get_or_insert(error);
            instead
        })
    }
}

impl Machine for Replicas<'_> {
    fn body(&mut self, before: Digest) -> Digest {
        let made = self.make(before);
        self.failed(made, Digest::ZERO)
    }

    fn run(&mut self, job: &Job) -> Ran {
        let ran = self.execute(job);
        self.failed(ran, Ran { state_root: Digest::ZERO, took_us: 0 })
    }
}

/// Runs one setting.
///
/// # Errors
/// If a batch cannot be executed, or the cores stop making progress.
pub(super) fn run(local: &Local, request: Request, setting: Setting) -> Result<Counts> {
    let root = Digest::tagged("slipnet/bench/state", b"genesis");
    let replica = |seat: u8| -> Result<_> {
        let Setting { bug, rate, seed, .. } = setting;
        let faults = match setting.alike {
            true => InjectedFaults::alike(bug, rate, seed),
            false => InjectedFaults::new(bug, rate, seed.wrapping_mul(31).wrapping_add(seat.into())),
        };
        let faults = Arc::new(faults);
        Ok((Workers::new(2)?.eager(ForcedMethod::Ahead).with_faults(faults.clone()), faults))
    };
    let replicas = Replicas {
        local,
        request,
        setting,
        workers: (0..VALIDATORS).map(replica).collect::<Result<_>>()?,
        states: BTreeMap::from([(root, Arc::new(local.state.clone()))]),
        bodies: BTreeMap::new(),
        right: BTreeMap::new(),
        wrong: BTreeMap::new(),
        random: SmallRng::seed_from_u64(setting.seed),
        failure: None,
    };
    let mut world = World::new(VALIDATORS, root, PACE, replicas);
    let decisions = world.run(setting.batches, TIME_MAX_US);
    if let Some(error) = world.machine.failure.take() {
        return Err(error);
    }
    ensure!(decisions.len() as u64 == setting.batches, "{} batches were decided", decisions.len());
    let replicas = &world.machine;
    let (mut counts, mut before, mut view) = (Counts::default(), root, 0);
    for decision in &decisions {
        let place = (before, decision.body);
        let is_wrong = replicas.right.get(&place).is_none_or(|right| *right != decision.info.state_root);
        // A rolled-back batch is ordered again: its errors are recorded under its first body.
        let rolled_back = decision.view > view;
        let tried = replicas.wrong.range((before, Digest::ZERO)..).take_while(|((at, _), _)| *at == before);
        if tried.map(|(_, wrong)| wrong).sum::<u64>() > 0 {
            counts.manifested += 1;
            counts.not_masked += u64::from(is_wrong);
            counts.rolled_back += u64::from(!is_wrong && rolled_back);
            counts.outvoted += u64::from(!is_wrong && !rolled_back);
        }
        (before, view) = (decision.info.state_root, decision.view);
    }
    counts.met = replicas.workers.iter().map(|(_, faults)| faults.counts().0).sum();
    let (first, last) = (&decisions[0], &decisions[decisions.len() - 1]);
    let seconds = (last.at_us - first.at_us) as f64 / 1e6;
    counts.tps = (decisions.len() - 1) as f64 * f64::from(SENDERS) / seconds;
    Ok(counts)
}

/// Makes senders and a contract for [`run`].
///
/// # Errors
/// Those of [`Local::new`].
pub(super) fn local() -> Result<Local> {
    Local::new(SENDERS)
}

/// The senders' addresses, for reading a nonce.
impl Local {
    fn sender(&self, index: usize) -> Address {
        self.senders[index].address
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: Request = Request { hashes: 50, slots: 2 };

    /// Maximum number of runs of one kind until a bug shows: the scheduler decides how often conflicting transactions meet.
    const RUNS_MAX: u64 = 40;

    fn counts(bug: ConcurrencyBug, rate: f64, false_negatives: f64, seed: u64) -> Counts {
        let setting = Setting { bug, rate, alike: false, false_negatives, batches: 12, seed };
        run(&local().unwrap(), REQUEST, setting).unwrap()
    }

    /// Goal: without bugs all goes well, also with a mixer that knows all conflicts. With bugs every affected batch
    /// counts as masked or not masked.
    #[test]
    fn bugs_show_only_where_conflicts_meet() {
        let none = counts(ConcurrencyBug::LostUpdate, 0.0, 1.0, 3);
        assert_eq!((none.manifested, none.not_masked), (0, 0));
        let mixed = counts(ConcurrencyBug::SkippedIncrement, 1.0, 0.0, 3);
        assert_eq!((mixed.met, mixed.manifested), (0, 0));
        for bug in [ConcurrencyBug::LostUpdate, ConcurrencyBug::SkippedIncrement, ConcurrencyBug::TornRead] {
            let shows = (0..RUNS_MAX).any(|seed| {
                let unmixed = counts(bug, 1.0, 1.0, seed);
                let sum = unmixed.outvoted + unmixed.rolled_back + unmixed.not_masked;
                assert_eq!(sum, unmixed.manifested, "{bug:?}: {unmixed:?}");
                unmixed.met > 0 && unmixed.manifested > 0
            });
            assert!(shows, "{bug:?} did not manifest in {RUNS_MAX} runs");
        }
    }
}
