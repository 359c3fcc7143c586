//! [`Machine`]: a disk that outlives the process, and the process: a node's consensus and sync, with its own clock.

use std::sync::Arc;

use anyhow::{Result, anyhow};
use parking_lot::Mutex;
use rand::Rng;
use slipstream_consensus::{Pool, PoolConfig, Validator};
use slipstream_executor::{ExecutorConfig, HintsMode, Session};
use slipstream_network::PeerId;
use slipstream_storage::{Faults, MemoryDisk, StorageConfig, Store};
use slipstream_types::{ChainConfig, Clock, SecretKey};
use tokio::{
    sync::mpsc,
    task::{AbortHandle, JoinSet},
    time::{Duration, sleep},
};

use super::{fault::WorldFault, follow, plan::MachinePlan, seat, world::World};

/// The time at which a world's clocks begin, in milliseconds.
pub(super) const BEGINS_MS: u64 = 1_800_000_000_000;
/// The most announcements that wait for a machine.
const ANNOUNCEMENTS_MAX: usize = 16;
/// The longest time until a process restarts, in milliseconds.
const DOWN_MS_MAX: u64 = 2_500;

/// A machine with its disk.
pub(super) struct Machine {
    pub(super) key: SecretKey,
    pub(super) id: PeerId,
    pub(super) plan: MachinePlan,
    disk: Mutex<MemoryDisk>,
    state: Mutex<State>,
}

struct State {
    /// The number of processes that ran so far.
    life: u64,
    process: Option<Process>,
    /// The error of the machine's clock, in milliseconds.
    skew_ms: i64,
}

struct Process {
    up: Arc<Up>,
    tasks: AbortHandle,
}

/// The public part of a process.
pub(super) struct Up {
    pub(super) machine: usize,
    pub(super) life: u64,
    pub(super) store: Store,
    pub(super) pool: Pool,
    pub(super) session: Arc<Session>,
    pub(super) chain: ChainConfig,
    pub(super) validator: Mutex<Option<Validator>>,
    pub(super) announcements: mpsc::Sender<(PeerId, Vec<u8>)>,
    /// Whether a fault of the process' store is armed.
    is_armed: bool,
}

/// A machine's clock, with its error.
pub(super) struct SkewedClock {
    pub(super) world: Arc<World>,
    pub(super) machine: usize,
}

impl Clock for SkewedClock {
    fn now_ms(&self) -> u64 {
        let skew_ms = self.world.machines[self.machine].state.lock().skew_ms;
        self.world.now_ms().saturating_add_signed(skew_ms)
    }
}

/// Keeps all of a run's work on its own thread.
fn executor() -> ExecutorConfig {
    ExecutorConfig {
        prefetch_threads: 0,
        hints: HintsMode::Keys,
        threads: 1,
        hot_cache_mib: 1,
        ..ExecutorConfig::default()
    }
}

fn storage() -> StorageConfig {
    StorageConfig { snapshot_interval_batches: 0, tree_memory_mib: 16, ..StorageConfig::default() }
}

impl Machine {
    pub(super) fn new(key: SecretKey, plan: MachinePlan) -> Machine {
        let state = State { life: 0, process: None, skew_ms: plan.skew_ms };
        Machine { id: key.public(), key, plan, disk: Mutex::default(), state: Mutex::new(state) }
    }

    /// Returns the running process.
    pub(super) fn up(&self) -> Option<Arc<Up>> {
        self.state.lock().process.as_ref().map(|process| process.up.clone())
    }

    pub(super) fn is_up(&self) -> bool {
        self.state.lock().process.is_some()
    }

    /// Whether the process with this life still runs.
    pub(super) fn is_in(&self, life: u64) -> bool {
        let state = self.state.lock();
        state.life == life && state.process.is_some()
    }

    pub(super) fn set_clock(&self, skew_ms: i64) {
        self.state.lock().skew_ms = skew_ms;
    }
}

impl World {
    /// Whether a process still runs. A dead process may take another step before its tasks end, but nothing that it
    /// then writes reaches a disk. It sends nothing more, and the oracle checked it for the last time when it died.
    pub(super) fn lives(&self, up: &Up) -> bool {
        self.machines[up.machine].is_in(up.life)
    }

    /// Lets the oracle check what a process has committed.
    pub(super) fn look_at_ledger(&self, up: &Up) {
        if self.lives(up) {
            let checked = self.oracle.lock().check_ledger(up, self.now_ms());
            self.hold(checked.map(|_| ()));
        }
    }

    /// Starts a process on the store that the previous process left.
    pub(super) fn start(self: &Arc<World>, index: usize) -> Result<()> {
        let machine = &self.machines[index];
        if machine.is_up() {
            return Ok(());
        }
        let life = {
            let mut state = machine.state.lock();
            state.life += 1;
            state.life
        };
        let points = &machine.plan.points;
        let point = (!self.is_calm()).then(|| points.get(life as usize - 1).copied()).flatten();
        let faults = point.map_or_else(Faults::none, |(point, passing)| Faults::fail_at(point, passing));
        let planned = point.map_or_else(String::new, |(point, _)| format!("; its store fails at {point:?}"));
        self.mark(format_args!("machine {index} starts, life {life}{planned}"));
        let store = Store::memory_on(&machine.disk.lock(), &storage(), &faults)?;
        if !store.is_initialized() {
            store.initialize(&self.genesis)?;
        }
        let chain = ChainConfig::clone(&*store.chain()?);
        let pool = Pool::new(PoolConfig::default(), chain.clone(), store.clone())?;
        let session = Arc::new(Session::new(&executor(), chain.clone())?);
        let (announcements, heard) = mpsc::channel(ANNOUNCEMENTS_MAX);
        let up = Arc::new(Up {
            machine: index,
            life,
            store,
            pool,
            session,
            chain,
            validator: Mutex::new(None),
            announcements,
            is_armed: point.is_some(),
        });
        self.oracle.lock().check_start(&up)?;
        let tasks = tokio::spawn(run(self.clone(), up.clone(), heard)).abort_handle();
        machine.state.lock().process = Some(Process { up, tasks });
        self.peer_changes.report();
        Ok(())
    }

    /// Kills a process. In a power cut nothing unsynced is kept; otherwise a random part may be.
    pub(super) fn fall(self: &Arc<World>, index: usize, trouble: WorldFault) -> Result<()> {
        let machine = &self.machines[index];
        let Some(Process { up, tasks }) = machine.state.lock().process.take() else { return Ok(()) };
        self.peer_changes.report();
        self.mark(format_args!("machine {index} dies: {trouble:?}"));
        self.fire(trouble);
        // After a failed write the next process finds the rest: only acknowledged batches must be present.
        if trouble != WorldFault::CrashPoint {
            self.oracle.lock().check_ledger(&up, self.now_ms())?;
        }
        let (kept, pause_ms) = {
            let rng = &mut self.chance.lock().rng;
            let kept = match rng.random_range(0..3) {
                0 => usize::MAX,
                1 => 0,
                _ => rng.random_range(0..=machine.disk.lock().unsynced()),
            };
            (if trouble == WorldFault::Blackout { 0 } else { kept }, rng.random_range(20..DOWN_MS_MAX))
        };
        // The disk crashes before the handles are dropped, so that their later writes do not reach it.
        let mut disk = machine.disk.lock();
        disk.crash(kept);
        if trouble == WorldFault::Wipe {
            *disk = MemoryDisk::default();
            self.oracle.lock().forget(index);
        }
        drop(disk);
        tasks.abort();
        let world = self.clone();
        tokio::spawn(async move {
            sleep(Duration::from_millis(pause_ms)).await;
            let started = world.start(index);
            world.hold(started);
        });
        Ok(())
    }
}

/// Runs the tasks of a process until one of them ends.
async fn run(world: Arc<World>, up: Arc<Up>, heard: mpsc::Receiver<(PeerId, Vec<u8>)>) {
    let mut tasks = JoinSet::new();
    tasks.spawn(seat::run(world.clone(), up.clone()));
    tasks.spawn(follow::run(world.clone(), up.clone(), heard));
    let Some(ended) = tasks.join_next().await else { return };
    let stopped = match ended {
        // No task may end by itself.
        Ok(Ok(())) => Err(anyhow!("a task of machine {} ended by itself", up.machine)),
        Ok(Err(error)) if up.is_armed && has_failed(&up) => {
            world.mark(format_args!("machine {} stops: {error}", up.machine));
            world.fall(up.machine, WorldFault::CrashPoint)
        }
        Ok(Err(error)) => Err(error.context(format!("machine {} failed", up.machine))),
        Err(panic) => Err(anyhow!("a task of machine {} panicked: {panic}", up.machine)),
    };
    world.hold(stopped);
}

/// Whether a process' store failed as planned, and refuses every write.
fn has_failed(up: &Up) -> bool {
    up.store.put_record("sim/probe", &[]).is_err()
}

#[cfg(test)]
mod tests {
    use slipstream_consensus::simulated::Defences;

    use super::{
        super::{plan, port::Port},
        *,
    };

    /// Runs `deed` in a world of `machines` machines without crash points. Their network loses nothing.
    fn within<T>(machines: usize, deed: impl AsyncFnOnce(Arc<World>) -> T) -> T {
        let is_it = |seed: &u64| {
            let plan = plan::Plan::draw(&mut plan::rng(*seed));
            plan.machines.len() == machines
                && plan.weather.loss == 0.0
                && plan.machines.iter().all(|machine| machine.points.is_empty())
        };
        let seed = (0..).find(is_it).expect("some world is so");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(async {
            let world = World::new(plan::rng(seed), Defences::without(None).unwrap(), false).unwrap();
            (0..machines).try_for_each(|machine| world.start(machine)).unwrap();
            deed(world).await
        })
    }

    /// Goal: the oracle raises no false alarm ("had committed batch 9 and lost it") for a machine that was wiped.
    #[test]
    fn a_wiped_machine_is_not_asked_for_what_its_dead_process_shows() {
        within(1, async |world| {
            let dead = world.machines[0].up().unwrap();
            while dead.store.head().unwrap().header.number.get() == 0 {
                sleep(Duration::from_millis(50)).await;
            }
            world.look_at_ledger(&dead);
            assert!(world.oracle.lock().head().get() > 0, "the oracle looks at the living");
            world.fall(0, WorldFault::Wipe).unwrap();
            world.look_at_ledger(&dead);
            world.start(0).unwrap();
        });
    }

    /// Goal: a dead process sends nothing. Its statements would be on no disk, so the next process could contradict
    /// them and be convicted.
    #[test]
    fn a_dead_process_says_nothing() {
        within(2, async |world| {
            let port = Port::new(world.clone(), &world.machines[0].up().unwrap());
            let sends = || {
                world.chance.lock().arrivals.clear();
                port.announce(b"announcement");
                !world.chance.lock().arrivals.is_empty()
            };
            assert!(sends(), "the living say something");
            world.fall(0, WorldFault::Crash).unwrap();
            assert!(!sends());
        });
    }
}
