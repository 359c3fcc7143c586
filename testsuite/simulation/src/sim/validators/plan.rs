//! [`Plan`]: a seed's version of a world: the participants, the network, and the faults with their times.

use std::time::Duration;

use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use slipstream_consensus::ConsensusConfig;
use slipstream_storage::{CrashPoint, WriteStep};
use slipstream_types::Failures;

use super::{slow::Slowness, traitor::Habit};

/// The initial sets: their number of validators, and the failures of any kind and of commission that they tolerate.
const SIZES: [(usize, u16, u16); 12] = [
    (4, 1, 1),
    (4, 1, 1),
    (4, 1, 1),
    (4, 1, 1),
    (5, 1, 1),
    (5, 1, 2),
    (3, 1, 0),
    (5, 2, 0),
    (6, 2, 1),
    (7, 2, 2),
    (2, 0, 1),
    (1, 0, 0),
];

/// The store's steps at which a validating process can crash.
const STEPS: [WriteStep; 4] =
    [WriteStep::PutRecord, WriteStep::PutRecord, WriteStep::PutRecord, WriteStep::Commit];

/// A change of the validators.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// The machine becomes a validator.
    Join(usize),
    /// The machine stops being a validator.
    Leave(usize),
}

/// The event at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Happening {
    /// The process of a machine dies.
    Crash(usize),
    /// The power of all machines fails.
    Blackout,
    /// A machine comes back without its data.
    Wipe(usize),
    /// Splits the machines between two sides; with all on one side the network is whole.
    Partition(Vec<bool>),
    /// The clock of a machine is off by this many milliseconds from now on.
    Clock(usize, i64),
    /// The owner of the validators contract requests a change.
    Change(Change),
}

/// The faults of a network.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct NetworkFaults {
    /// The least delay of a message, in milliseconds.
    pub(super) delay_ms: u64,
    /// The most jitter on top of it, in milliseconds.
    pub(super) jitter_ms: u64,
    /// The share of messages that are lost.
    pub(super) loss: f64,
    /// The share of commits and certificates that are lost in addition, so that views end between a decision and its
    /// news.
    pub(super) news_loss: f64,
    /// The share of prepares that are lost in addition.
    pub(super) prepare_loss: f64,
    /// The share of messages that arrive twice.
    pub(super) repeats: f64,
}

/// The plan of a machine.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct MachinePlan {
    /// The initial error of the machine's clock, in milliseconds.
    pub(super) skew_ms: i64,
    /// The share of the machine's executions that go wrong; sequential executions never do.
    pub(super) errs: f64,
    /// The longest delay of the machine's disk, in milliseconds.
    pub(super) disk_ms: u64,
    /// The crash point of the machine's store for each of its processes, and the pass at which the point fires.
    pub(super) points: Vec<(CrashPoint, u64)>,
}

/// The plan of a world.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Plan {
    /// The number of initial validators; the machines after them follow, and may join.
    pub(super) validators: usize,
    pub(super) failures: Failures,
    pub(super) machines: Vec<MachinePlan>,
    pub(super) traitor: Option<(usize, Habit)>,
    pub(super) consensus: ConsensusConfig,
    pub(super) weather: NetworkFaults,
    /// The durations of executions, if they take any time.
    pub(super) slowness: Option<Slowness>,
    /// The epoch ends with a batch whose number is a multiple of this.
    pub(super) epoch_batches: u64,
    /// The events in order of time, in milliseconds.
    pub(super) happenings: Vec<(u64, Happening)>,
    /// The mean time between two transactions, in milliseconds.
    pub(super) load_ms: u64,
    /// When the last fault ends, in milliseconds.
    pub(super) calm_ms: u64,
}

/// Returns the random numbers of a seed.
pub(super) fn rng(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed ^ 0x51ee_7e5e)
}

impl Plan {
    pub(super) fn draw(rng: &mut StdRng) -> Plan {
        let &(validators, any, commission) = SIZES.choose(rng).expect("there are sizes");
        let failures = Failures { any, commission };
        let joiners = if rng.random_bool(0.5) { rng.random_range(1..=2) } else { 0 };
        let calm_ms = rng.random_range(8_000..16_000);
        // The number of machines that may be wrong about a batch's outcome or about the time.
        let mut wrong = usize::from(any.max(commission)).min(validators.saturating_sub(1));
        let lies = commission > 0 && any > 0 && rng.random_bool(0.5);
        let traitor = lies.then(|| (rng.random_range(0..validators), Habit::draw(rng)));
        wrong -= usize::from(lies);
        let mut plan = Plan {
            validators,
            failures,
            machines: (0..validators + joiners).map(|_| machine(rng)).collect(),
            traitor,
            consensus: consensus(rng),
            weather: weather(rng),
            slowness: None,
            epoch_batches: if rng.random_bool(0.5) { 1 } else { rng.random_range(2..8) },
            happenings: Vec::new(),
            load_ms: rng.random_range(40..400),
            calm_ms,
        };
        let forgets = plan.traitor.is_none() && commission > 0 && any > 0 && rng.random_bool(0.3);
        plan.let_fall(rng);
        if forgets {
            plan.let_forget(rng);
        } else {
            plan.let_err(wrong, rng);
            plan.let_change(joiners, rng);
        }
        if lies && any < 2 {
            // A joiner that enters its epoch late is silent for two batches: beside a liar, one failure too many.
            plan.happenings.retain(|(_, happening)| !matches!(happening, Happening::Change(_)));
        }
        plan.happenings.sort_by_key(|(at, _)| *at);
        plan.slowness = rng.random_bool(0.25).then(|| Slowness::draw(&plan, rng));
        plan
    }

    /// Whether the machine is the traitor.
    pub(super) fn is_traitor(&self, machine: usize) -> bool {
        self.traitor.is_some_and(|(traitor, _)| traitor == machine)
    }

    pub(super) fn calm(&self) -> Duration {
        Duration::from_millis(self.calm_ms)
    }

    fn moment(&self, rng: &mut StdRng) -> u64 {
        rng.random_range(300..self.calm_ms - 500)
    }

    /// Draws machines that execute wrongly, or whose clock is wrong. Together with the traitor they are too few to
    /// agree on a wrong outcome.
    fn let_err(&mut self, wrong: usize, rng: &mut StdRng) {
        let mut others: Vec<usize> = (0..self.validators).filter(|it| !self.is_traitor(*it)).collect();
        for _ in 0..wrong {
            let Some(at) = (!others.is_empty()).then(|| rng.random_range(0..others.len())) else { return };
            let machine = others.swap_remove(at);
            if rng.random_bool(0.4) {
                self.machines[machine].errs = rng.random_range(0.05..0.6);
            } else if rng.random_bool(0.4) {
                let wrong_ms = rng.random_range(12_000..120_000);
                let wrong_ms = if rng.random_bool(0.5) { wrong_ms } else { -wrong_ms };
                let at = self.moment(rng);
                self.happenings.push((at, Happening::Clock(machine, wrong_ms)));
            }
        }
    }

    fn let_fall(&mut self, rng: &mut StdRng) {
        if rng.random_bool(0.6) {
            for _ in 0..rng.random_range(1..8) {
                let (at, machine) = (self.moment(rng), rng.random_range(0..self.machines.len()));
                self.happenings.push((at, Happening::Crash(machine)));
            }
        }
        if rng.random_bool(0.3) {
            for _ in 0..rng.random_range(1..4) {
                let at = self.moment(rng);
                self.happenings.push((at, Happening::Blackout));
            }
        }
        if rng.random_bool(0.4) {
            for _ in 0..rng.random_range(1..4) {
                let sides = self.machines.iter().map(|_| rng.random_bool(0.4)).collect();
                let at = self.moment(rng);
                self.happenings.push((at, Happening::Partition(sides)));
                let whole = Happening::Partition(vec![false; self.machines.len()]);
                self.happenings.push((at + rng.random_range(200..5_000), whole));
            }
        }
    }

    /// Draws a validator that loses its data. It counts as a liar, and is silent for a while. Meanwhile there is no
    /// other liar, some machines stay up, and joiners wait, because a late joiner is silent as well.
    fn let_forget(&mut self, rng: &mut StdRng) {
        self.happenings.retain(|(_, happening)| *happening != Happening::Blackout);
        let (at, machine) = (self.moment(rng), rng.random_range(0..self.validators));
        self.happenings.push((at, Happening::Wipe(machine)));
    }

    /// Draws validators that join and leave. The world's faults stay within what the set tolerates.
    fn let_change(&mut self, joiners: usize, rng: &mut StdRng) {
        let mut members: Vec<usize> = (0..self.validators).collect();
        let mut waiting: Vec<usize> = (self.validators..self.validators + joiners).collect();
        let mut at = 0;
        while rng.random_bool(0.6) {
            at += rng.random_range(500..4_000);
            if at + 500 >= self.calm_ms {
                return;
            }
            let leavers: Vec<usize> =
                members.iter().copied().filter(|machine| !self.is_traitor(*machine)).collect();
            let change = match (waiting.pop(), leavers.choose(rng)) {
                (Some(joiner), _) => Change::Join(joiner),
                (None, Some(leaver)) if members.len() > self.failures.validators_min() => {
                    Change::Leave(*leaver)
                }
                _ => return,
            };
            match change {
                Change::Join(machine) => members.push(machine),
                Change::Leave(machine) => {
                    members.retain(|member| *member != machine);
                    waiting.push(machine);
                }
            }
            self.happenings.push((at, Happening::Change(change)));
        }
    }
}

fn machine(rng: &mut StdRng) -> MachinePlan {
    let mut points = Vec::new();
    while rng.random_bool(0.25) && points.len() < 4 {
        let step = *STEPS.choose(rng).expect("there are steps");
        let point = if rng.random_bool(0.5) { CrashPoint::Before(step) } else { CrashPoint::After(step) };
        points.push((point, rng.random_range(1..60)));
    }
    MachinePlan {
        skew_ms: rng.random_range(-2_000..2_000),
        errs: 0.0,
        disk_ms: if rng.random_bool(0.7) { rng.random_range(2..15) } else { rng.random_range(15..150) },
        points,
    }
}

fn consensus(rng: &mut StdRng) -> ConsensusConfig {
    let often = |rng: &mut StdRng, share: f64, most: u64| match rng.random_bool(share) {
        true => rng.random_range(1..most),
        false => 0,
    };
    ConsensusConfig {
        batch_interval_ms: rng.random_range(100..500),
        empty_batch_interval_ms: rng.random_range(500..1_500),
        view_timeout_ms: rng.random_range(250..1_500).try_into().expect("not zero"),
        rotate_after: match rng.random_range(0..4) {
            0 => rng.random_range(1..12),
            1 => 0,
            _ => ConsensusConfig::default().rotate_after,
        },
        protect_after: often(rng, 0.2, 8),
        protect_wait_ms: 20,
        ..ConsensusConfig::default()
    }
}

fn weather(rng: &mut StdRng) -> NetworkFaults {
    let mut often = |share: f64, most: f64| match rng.random_bool(share) {
        true => rng.random_range(0.0..most),
        false => 0.0,
    };
    let (loss, news_loss) = (often(0.4, 0.25), often(0.4, 0.9));
    let (prepare_loss, repeats) = (often(0.25, 0.5), often(0.3, 0.2));
    let delay_ms = rng.random_range(1..20);
    let jitter_ms = if rng.random_bool(0.7) { rng.random_range(1..30) } else { rng.random_range(30..300) };
    NetworkFaults { delay_ms, jitter_ms, loss, news_loss, prepare_loss, repeats }
}
