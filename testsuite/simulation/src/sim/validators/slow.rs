//! [`Slowness`]: how long executions take, from a tenth of a view's patience to twenty times that patience.
//!
//! Gas does not show which transactions slow a chain down: all of these are transfers. *Heavy* ones are honest. Each
//! alone fits a batch of the slowest machine, but many do not. *Endless* ones belong to an attacker, and need not be
//! included. A *standing* machine takes long for a batch that others execute fast, and takes as long for the same batch
//! again.

use std::time::Duration;

use rand::{Rng, SeedableRng, rngs::StdRng};
use slipstream_consensus::simulated::Work;
use slipstream_executor::Transaction;
use slipstream_types::Address;

use super::{load::ATTACKERS, plan::Plan};

/// The callee of heavy transfers.
pub(super) const HEAVY: Address = Address::repeat_byte(0xea);
/// The callee of endless transfers.
pub(super) const ENDLESS: Address = Address::repeat_byte(0xed);
/// The total time of a world's heavy transfers on the slowest machine, in milliseconds: they are executed soon after
/// the faults end.
const HEAVY_MS_MAX: f64 = 2_500.0;
/// The range of an endless execution's time, in units of a view's patience.
const LEAST: f64 = 0.1;
const MOST: f64 = 20.0;

/// The slowness of a world. Times are in units of a view's patience.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Slowness {
    seed: u64,
    /// Each machine's execution time as a share of the slowest one's.
    machines: Vec<f64>,
    /// The time of a heavy transfer on the slowest machine.
    heavy: f64,
    /// The share of transfers that are heavy.
    pub(super) heavy_share: f64,
    /// The number of endless transactions.
    pub(super) attacks: usize,
    /// The share of batches for which a machine stands, during faults.
    stands: f64,
}

impl Slowness {
    pub(super) fn draw(plan: &Plan, rng: &mut StdRng) -> Slowness {
        let patience_ms = plan.consensus.view_timeout_ms.get() as f64;
        let heavy = between(0.01, 0.2, rng);
        let transfers = (plan.calm_ms / plan.load_ms) as f64;
        Slowness {
            seed: rng.random(),
            machines: plan.machines.iter().map(|_| between(0.1, 1.0, rng)).collect(),
            heavy,
            heavy_share: (HEAVY_MS_MAX / (transfers * heavy * patience_ms)).min(0.5),
            attacks: if rng.random_bool(0.7) { rng.random_range(1..=ATTACKERS) } else { 0 },
            stands: if rng.random_bool(0.5) { rng.random_range(0.01..0.2) } else { 0.0 },
        }
    }

    /// Returns a machine's time for transactions, in units of a view's patience.
    pub(super) fn share(&self, machine: usize, work: Work, transactions: &[Transaction], calm: bool) -> f64 {
        let own: f64 = transactions.iter().map(|transaction| self.share_of(machine, transaction)).sum();
        if calm || work == Work::Build || self.stands == 0.0 {
            return own;
        }
        let content = transactions
            .iter()
            .fold(0, |content: u64, transaction| content.rotate_left(7) ^ content_of(transaction));
        let mut rng = self.rng(content ^ machine as u64);
        own + if rng.random_bool(self.stands) { between(LEAST, MOST, &mut rng) } else { 0.0 }
    }

    /// Describes a machine's speed.
    pub(super) fn of(&self, machine: usize) -> String {
        format!("takes {:.0} % of the slowest machine's time", self.machines[machine] * 100.0)
    }

    fn share_of(&self, machine: usize, transaction: &Transaction) -> f64 {
        let most = match transaction.to() {
            Some(HEAVY) => self.heavy,
            Some(ENDLESS) => between(LEAST, MOST, &mut self.rng(content_of(transaction))),
            _ => return 0.0,
        };
        // The same transaction is not equally slow on all machines: caches differ.
        let luck = self.rng(content_of(transaction) ^ machine as u64).random_range(0.5..1.0);
        most * luck * self.machines[machine]
    }

    fn rng(&self, of: u64) -> StdRng {
        StdRng::seed_from_u64(self.seed ^ of)
    }
}

impl Plan {
    /// Returns a machine's time for transactions.
    pub(super) fn takes(
        &self,
        machine: usize,
        work: Work,
        transactions: &[Transaction],
        calm: bool,
    ) -> Duration {
        let share = |slowness: &Slowness| slowness.share(machine, work, transactions, calm);
        self.patience().mul_f64(self.slowness.as_ref().map_or(0.0, share))
    }

    /// Returns the patience of a view after a batch.
    pub(super) fn patience(&self) -> Duration {
        Duration::from_millis(self.consensus.view_timeout_ms.get())
    }
}

/// Draws a log-uniform number, so that each order of magnitude is equally likely.
fn between(least: f64, most: f64, rng: &mut StdRng) -> f64 {
    rng.random_range(least.ln()..most.ln()).exp()
}

fn content_of(transaction: &Transaction) -> u64 {
    u64::from_le_bytes(transaction.hash[..8].try_into().expect("eight bytes"))
}
