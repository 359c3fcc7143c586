//! [`World`]: one run: machines, the network between them and a clock, all drawn from one seed.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::{Error, Result, anyhow};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use slipstream_consensus::simulated::Defences;
use slipstream_network::PeerChanges;
use slipstream_types::{
    BatchNumber, ChainConfig, Genesis, SecretKey, U256, Validator, ValidatorSet, bounded::BoundedVec,
    genesis::GenesisAccount,
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until},
};

use super::{
    super::{
        explain::{Kind, Recording},
        trace::Trace,
    },
    fault::{Troubles, WorldFault},
    load::{Load, accounts, owner, recipient},
    machine::{BEGINS_MS, Machine},
    oracle::Oracle,
    plan::{Happening, MachinePlan, Plan},
    port::Arrivals,
    think::Thoughts,
};

/// Within this time after the last fault every machine must gain [`PROGRESS`] batches, and every transaction must be
/// executed.
const PROGRESS_WITHIN: Duration = Duration::from_secs(60);
/// The number of batches for [`PROGRESS_WITHIN`].
const PROGRESS: u64 = 5;
/// The interval at which progress is checked.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long after the last fault the load ends.
const LOAD_ENDS_AFTER: Duration = Duration::from_secs(2);

/// The random numbers of a world, and the faults that they caused.
pub(super) struct Chance {
    pub(super) rng: StdRng,
    pub(super) troubles: Troubles,
    pub(super) arrivals: Arrivals,
}

impl Chance {
    /// Returns both parts at once.
    pub(super) fn both(&mut self) -> (&mut StdRng, &mut Troubles) {
        (&mut self.rng, &mut self.troubles)
    }
}

/// A world of validators.
pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) genesis: Genesis,
    pub(super) machines: Vec<Machine>,
    pub(super) defences: Defences,
    pub(super) chance: Mutex<Chance>,
    pub(super) oracle: Mutex<Oracle>,
    pub(super) load: Mutex<Load>,
    begun: Instant,
    trace: Mutex<Trace>,
    pub(super) thoughts: Mutex<Thoughts>,
    /// The side of each machine in a split.
    sides: Mutex<Vec<bool>>,
    /// Reports splits, and machines that start or die.
    pub(super) peer_changes: PeerChanges,
    calm: AtomicBool,
    failed: Mutex<Option<Error>>,
    stop: Notify,
}

/// The result of a run without failure.
pub(super) struct Outcome {
    pub(super) trace: [u8; 32],
    pub(super) troubles: Troubles,
    /// The virtual time of the run.
    pub(super) took: Duration,
    pub(super) batches: u64,
    /// The virtual time from the last fault until all machines had recovered.
    pub(super) recovered: Duration,
}

fn genesis(plan: &Plan, machines: &[Machine]) -> Result<Genesis> {
    let validator = |(index, machine): (usize, &Machine)| Validator {
        public_key: machine.id,
        fee_recipient: recipient(index),
    };
    let validators = machines.iter().take(plan.validators).enumerate().map(validator).collect();
    let rich = GenesisAccount { balance: U256::from(10).pow(U256::from(20)), ..GenesisAccount::default() };
    let genesis = Genesis {
        chain: ChainConfig::default(),
        timestamp_ms: BEGINS_MS - 1_000,
        validators: BoundedVec::new(validators)?,
        failures: Some(plan.failures),
        accounts: accounts()
            .iter()
            .map(|account| (account.address, rich.clone()))
            .collect::<BTreeMap<_, _>>(),
        ..Genesis::default()
    };
    Ok(genesis.with_validators_contract(owner(), plan.epoch_batches)?)
}

impl World {
    /// Makes a world, within the runtime that it runs on.
    pub(super) fn new(mut rng: StdRng, defences: Defences, verbose: bool) -> Result<Arc<World>> {
        let plan = Plan::draw(&mut rng);
        let machine = |(index, plan): (usize, &MachinePlan)| {
            Machine::new(SecretKey::from_seed([index as u8 + 1; 32]), plan.clone())
        };
        let machines: Vec<Machine> = plan.machines.iter().enumerate().map(machine).collect();
        let genesis = genesis(&plan, &machines)?;
        let ids = machines.iter().map(|machine| machine.id).collect();
        let oracle = Oracle::new(&genesis, ids, plan.traitor.map(|(machine, _)| machine))?;
        let world = World {
            genesis,
            sides: Mutex::new(vec![false; machines.len()]),
            peer_changes: PeerChanges::default(),
            machines,
            defences,
            chance: Mutex::new(Chance { rng, troubles: Troubles::new(), arrivals: Arrivals::new() }),
            oracle: Mutex::new(oracle),
            load: Mutex::default(),
            begun: Instant::now(),
            trace: Mutex::new(Trace::new(verbose)),
            thoughts: Mutex::default(),
            calm: AtomicBool::new(false),
            failed: Mutex::new(None),
            stop: Notify::new(),
            plan,
        };
        world.note(format_args!("{:?}", world.plan), &[]);
        Ok(Arc::new(world))
    }

    /// Returns the time since the world began.
    pub(super) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Returns the true time, in milliseconds.
    pub(super) fn now_ms(&self) -> u64 {
        BEGINS_MS + self.elapsed().as_millis() as u64
    }

    /// Whether all faults are over, except a traitor's.
    pub(super) fn is_calm(&self) -> bool {
        self.calm.load(Relaxed)
    }

    /// Records that a fault occurred.
    pub(super) fn fire(&self, trouble: WorldFault) {
        self.chance.lock().troubles.insert(trouble);
    }

    /// Adds an event to the trace.
    pub(super) fn note(&self, what: fmt::Arguments<'_>, bytes: &[u8]) {
        self.trace.lock().note(self.elapsed().as_micros() as u64, what, bytes);
    }

    /// Adds an event that changes the course of a run, as [`World::note`] does.
    pub(super) fn mark(&self, what: fmt::Arguments<'_>) {
        self.trace.lock().mark(self.elapsed().as_micros() as u64, Kind::World, what);
    }

    /// Records something for the reader that no machine can see. It is not part of the trace's digest.
    pub(super) fn tell(&self, kind: Kind, what: fmt::Arguments<'_>) {
        self.trace.lock().tell(self.elapsed().as_micros() as u64, kind, what);
    }

    /// Starts the recording for a human reader.
    pub(super) fn record(&self) {
        self.trace.lock().record();
    }

    pub(super) fn is_recorded(&self) -> bool {
        self.trace.lock().is_recorded()
    }

    pub(super) fn take_recording(&self) -> Option<Recording> {
        self.trace.lock().take_recording()
    }

    /// Ends the run with its first failure.
    pub(super) fn hold(&self, result: Result<()>) {
        if let Err(error) = result {
            self.failed.lock().get_or_insert(error);
            self.stop.notify_one();
        }
    }

    /// Whether a process on one machine can reach one on another.
    pub(super) fn reaches(&self, from: usize, to: usize) -> bool {
        let is_whole = {
            let sides = self.sides.lock();
            sides[from] == sides[to]
        };
        from != to && is_whole && self.machines[to].is_up()
    }

    /// Runs the world to its end.
    pub(super) async fn run(self: Arc<World>) -> Result<Outcome> {
        (0..self.machines.len()).try_for_each(|machine| self.start(machine))?;
        tokio::spawn(self.clone().load());
        tokio::spawn(self.clone().attack());
        tokio::spawn(self.clone().send_again());
        let played = tokio::select! {
            biased;
            () = self.stop.notified() => Err(anyhow!("it ends")),
            played = self.play() => played,
        };
        let failed = self.failed.lock().take();
        match (failed, played) {
            // A reader of a recording sees how the machines stood.
            (Some(error), _) | (None, Err(error)) if self.is_recorded() => Err(error),
            (Some(error), _) | (None, Err(error)) => Err(anyhow!("{error:#}\n{}", self.picture())),
            (None, Ok(())) => {
                let troubles = self.chance.lock().troubles.clone();
                let trace = self.trace.lock().digest();
                let batches = self.oracle.lock().head().get();
                let (took, calm) = (self.elapsed(), self.plan.calm());
                Ok(Outcome { trace, troubles, took, batches, recovered: took.saturating_sub(calm) })
            }
        }
    }

    async fn play(self: &Arc<World>) -> Result<()> {
        for (at_ms, happening) in self.plan.happenings.clone() {
            if at_ms >= self.plan.calm_ms {
                break;
            }
            sleep_until(self.begun + Duration::from_millis(at_ms)).await;
            self.mark(format_args!("{happening:?}"));
            self.happen(happening)?;
        }
        sleep_until(self.begun + self.plan.calm()).await;
        self.mark(format_args!("the last fault is over"));
        self.calm.store(true, Relaxed);
        self.machines.iter().for_each(|machine| machine.set_clock(0));
        self.sides.lock().fill(false);
        self.peer_changes.report();
        self.progress().await
    }

    fn happen(self: &Arc<World>, happening: Happening) -> Result<()> {
        match happening {
            Happening::Crash(machine) => self.fall(machine, WorldFault::Crash),
            Happening::Blackout => {
                (0..self.machines.len()).try_for_each(|machine| self.fall(machine, WorldFault::Blackout))
            }
            Happening::Wipe(machine) => self.fall(machine, WorldFault::Wipe),
            Happening::Partition(sides) => {
                if sides.iter().any(|side| *side != sides[0]) {
                    self.fire(WorldFault::Partition);
                }
                *self.sides.lock() = sides;
                self.peer_changes.report();
                Ok(())
            }
            Happening::Clock(machine, skew_ms) => {
                self.fire(WorldFault::WrongClock);
                self.machines[machine].set_clock(skew_ms);
                Ok(())
            }
            Happening::Change(change) => self.change(change),
        }
    }

    /// Waits until all machines have recovered.
    async fn progress(self: &Arc<World>) -> Result<()> {
        let target = self.oracle.lock().head().after(PROGRESS);
        let until = Instant::now() + PROGRESS_WITHIN;
        while Instant::now() < until {
            if self.elapsed() > self.plan.calm() + LOAD_ENDS_AFTER && self.has_gone_on(target)? {
                return self.end();
            }
            sleep(LOOK_EVERY).await;
        }
        Err(anyhow!(
            "liveness: {PROGRESS_WITHIN:?} after the last fault not all machines have batch {target} and all transactions"
        ))
    }

    fn has_gone_on(&self, target: BatchNumber) -> Result<bool> {
        for machine in &self.machines {
            let Some(up) = machine.up() else { return Ok(false) };
            let head = up.store.head()?.header.number;
            if head < target || !self.waiting(&up.store).is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Checks everything once more.
    fn end(&self) -> Result<()> {
        let mut oracle = self.oracle.lock();
        for up in self.machines.iter().filter_map(|machine| machine.up()) {
            oracle.check_ledger(&up, self.now_ms())?;
        }
        let mut chance = self.chance.lock();
        for (epoch, set) in &oracle.sets {
            if epoch.0 > 0 {
                chance.troubles.insert(WorldFault::NewValidators);
            }
            let joined = self.machines.iter().skip(self.plan.validators);
            if joined.into_iter().any(|machine| set.index_of(&machine.id).is_some()) {
                chance.troubles.insert(WorldFault::Joined);
            }
        }
        let sets: Vec<_> = oracle.sets.values().collect();
        let left = |pair: &[&ValidatorSet]| {
            pair[0].validators.iter().any(|it| pair[1].index_of(&it.public_key).is_none())
        };
        if sets.windows(2).any(left) {
            chance.troubles.insert(WorldFault::Left);
        }
        Ok(())
    }

    /// Describes all machines, for the reader of a failure.
    fn picture(&self) -> String {
        let line = |(index, machine): (usize, &Machine)| {
            let Some(up) = machine.up() else { return format!("machine {index}: down") };
            let head = up.store.head().map(|head| head.header.number);
            let status = up.validator.lock().as_ref().map(|validator| validator.status());
            let waits = self.waiting(&up.store);
            format!("machine {index}: head {head:?}, waiting accounts {waits:?}, {status:?}")
        };
        let lines: Vec<String> = self.machines.iter().enumerate().map(line).collect();
        format!("{}\n{:?}\n{:?}", lines.join("\n"), self.plan, self.elapsed())
    }
}
