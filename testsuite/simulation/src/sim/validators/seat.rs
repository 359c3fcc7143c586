//! A machine's place among the validators, from epoch to epoch, as in `node`: the driver that ships, one per epoch.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use anyhow::Result;
use rand::Rng;
use slipstream_consensus::{
    DecidedBatch, Driver, Refused, Validator,
    simulated::{Machine, Seams, Work},
};
use slipstream_executor::Transaction;
use slipstream_sync::announcement;
use slipstream_types::{BatchNumber, Epoch, ValidatorSet};
use tokio::{sync::mpsc, time::sleep};
use tokio_util::sync::CancellationToken;

use super::{
    fault::WorldFault,
    machine::{SkewedClock, Up},
    port::Port,
    world::World,
};

/// How often a seat checks whether its epoch is over, and the oracle checks its evidence.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The most decided batches that wait to be announced.
const DECIDED_MAX: usize = 16;
/// One piece of work in this many is slow.
const SLOW_ONE_IN: u32 = 40;
/// The longest time of slow work, in milliseconds.
const SLOW_MS_MAX: u64 = 600;

/// The duration of a machine's work, in virtual time.
struct Pace {
    world: Weak<World>,
    machine: usize,
}

impl Machine for Pace {
    fn pace(&self, work: &'static str) -> [Duration; 2] {
        let Some(world) = self.world.upgrade() else { return [Duration::ZERO; 2] };
        let most = world.machines[self.machine].plan.disk_ms;
        // Building and executing need only the processor.
        let most = if work == "build" || work == "execute" { most.min(10) } else { most };
        let calm = world.is_calm();
        let rng = &mut world.chance.lock().rng;
        let slow = !calm && rng.random_ratio(1, SLOW_ONE_IN);
        let most = if slow { SLOW_MS_MAX } else { most };
        [(); 2].map(|()| Duration::from_millis(rng.random_range(0..=most)))
    }

    fn takes(&self, work: Work, transactions: &[Transaction]) -> Duration {
        let Some(world) = self.world.upgrade() else { return Duration::ZERO };
        let takes = world.plan.takes(self.machine, work, transactions, world.is_calm());
        if work == Work::Execute && takes > world.plan.patience() {
            world.fire(WorldFault::SlowExecution);
        }
        takes
    }

    fn errs(&self, number: BatchNumber, sequential: bool) -> bool {
        let Some(world) = self.world.upgrade() else { return false };
        let share = world.machines[self.machine].plan.errs;
        let errs =
            share > 0.0 && !sequential && !world.is_calm() && world.chance.lock().rng.random_bool(share);
        if errs {
            world.fire(WorldFault::WrongExecution);
            world.oracle.lock().note_error(self.machine, number);
        }
        errs
    }
}

/// Runs the validator of each epoch in turn.
pub(super) async fn run(world: Arc<World>, up: Arc<Up>) -> Result<()> {
    let mut is_new = true;
    loop {
        let set = up.store.next_set()?;
        let id = world.machines[up.machine].id;
        let validates = set.index_of(&id).is_some() && set.epoch >= up.store.epoch();
        let epoch = set.epoch;
        if !validates {
            until_over(&world, &up, epoch, None, &mut is_new).await?;
            continue;
        }
        let (decided, announced) = mpsc::channel(DECIDED_MAX);
        let (validator, driver) = validator(&world, &up, ValidatorSet::clone(&set), decided)?;
        *up.validator.lock() = Some(validator.clone());
        world.mark(format_args!("machine {} validates in epoch {}", up.machine, epoch.0));
        let token = CancellationToken::new();
        let running = driver.run(token.clone());
        tokio::pin!(running);
        let announcing = announce(&world, &up, announced);
        let over = until_over(&world, &up, epoch, Some(&validator), &mut is_new);
        tokio::select! {
            biased;
            ended = &mut running => {
                ended?;
                return Ok(());
            }
            over = over => over?,
            announced = announcing => return announced,
        }
        // The next driver must find everything that this one was writing.
        token.cancel();
        running.await?;
        *up.validator.lock() = None;
    }
}

fn validator(
    world: &Arc<World>,
    up: &Arc<Up>,
    set: ValidatorSet,
    decided: mpsc::Sender<DecidedBatch>,
) -> Result<(Validator, Driver)> {
    let machine = &world.machines[up.machine];
    let pace = Pace { world: Arc::downgrade(world), machine: up.machine };
    let made = Validator::simulated(
        Seams::new(Arc::new(pace), world.defences),
        world.plan.consensus.clone(),
        up.session.clone(),
        up.chain.clone(),
        up.store.clone(),
        up.pool.clone(),
        machine.key.clone(),
        set,
        Arc::new(Port::new(world.clone(), up)),
        Arc::new(SkewedClock { world: world.clone(), machine: up.machine }),
        decided,
    )?;
    Ok(made)
}

/// Waits until the machine's role may change, and checks its evidence meanwhile.
async fn until_over(
    world: &Arc<World>,
    up: &Up,
    epoch: Epoch,
    validator: Option<&Validator>,
    is_new: &mut bool,
) -> Result<()> {
    let mut view = None;
    let mut diverged = 0;
    loop {
        let head = up.store.head()?.header.number;
        if up.store.epoch() > epoch {
            let last = up.store.epoch_ends(epoch, 1)?.pop().map(|end| end.info.number);
            if validator.is_some() || last.is_some_and(|last| last <= head) {
                return Ok(());
            }
        }
        if let Some(validator) = validator {
            let status = validator.status();
            if view.replace(status.view).is_some_and(|before| before < status.view) {
                world.fire(WorldFault::NewView);
            }
            if world.plan.slowness.is_some() && refused_as_slow(up) > 0 {
                world.fire(WorldFault::TooSlow);
            }
            if std::mem::replace(&mut diverged, status.divergences) < status.divergences {
                world.fire(WorldFault::Fetched);
            }
            if !world.plan.is_traitor(up.machine) && world.lives(up) {
                if !status.evidence.is_empty() {
                    world.fire(WorldFault::Conviction);
                }
                let mut oracle = world.oracle.lock();
                let judged = oracle.check_evidence(up, epoch, &status.evidence, *is_new, world.elapsed());
                *is_new = false;
                world.hold(judged);
            }
        }
        sleep(LOOK_EVERY).await;
    }
}

/// Returns the number of transactions that the machine dropped because each of them alone takes longer than a batch
/// may.
fn refused_as_slow(up: &Up) -> u64 {
    up.pool.refused().filter(|(reason, _)| *reason == Refused::TooSlow).map(|(_, count)| count).sum()
}

/// Announces decided batches to all machines.
async fn announce(world: &Arc<World>, up: &Arc<Up>, mut decided: mpsc::Receiver<DecidedBatch>) -> Result<()> {
    let port = Port::new(world.clone(), up);
    while let Some(DecidedBatch { leads, header, certificate, body, hints }) = decided.recv().await {
        if !leads {
            continue;
        }
        port.announce(&announcement(header, certificate, body, hints)?);
    }
    // The driver ends first, and has reported why.
    std::future::pending().await
}
