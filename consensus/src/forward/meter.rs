//! [`Meter`]: bounds the useless work that each sender of transactions may cause.
//!
//! A transaction costs its receiver the recovery of the sender from the signature. A transaction that the pool takes
//! pays for that by its fee, so its charge is refunded. The charge for a refused one stays, against the allowance of
//! the peer that sent it. So honest peers are never delayed, however fast they are. A peer that sends junk gets a few
//! percent of a core, then nothing for a while.

use std::{collections::HashMap, hash::Hash, time::Duration};

use tokio::time::Instant;

/// Units of one recovery, some 30 microseconds.
pub(super) const RECOVERY: i64 = 64;
/// Units of a transaction that is recognised by its hash.
pub(super) const LOOKUP: i64 = 1;
/// Units of a transaction that is decoded and refused before its sender is recovered.
pub(super) const DECODE: i64 = 4;
/// Bytes that are copied and hashed in the time of one unit.
const BYTES_PER_UNIT: usize = 192;

/// The units for copying and hashing that number of bytes.
pub(super) fn hashing(bytes: usize) -> i64 {
    (bytes / BYTES_PER_UNIT) as i64
}

/// Charge for a transaction that an honest node's own pool would have refused, so that the node would not have passed
/// it on.
pub(super) const JUNK: i64 = 64 * RECOVERY;

/// Units that an allowance regains each second: those of 512 useless recoveries, 15 milliseconds of one core.
const PER_SECOND: i64 = 512 * RECOVERY;
/// The first allowance of an unknown sender: two full messages.
const FIRST: i64 = 4_096 * RECOVERY;
/// Allowance that all new senders share at first: sixteen full first allowances. It refills like one sender's
/// allowance, so an endless stream of new keys gets no more than one peer does.
const NEWCOMERS: i64 = 16 * FIRST;
/// The first allowance of a sender once the newcomers' share is used up: a few transactions.
const FIRST_LEAST: i64 = 256 * RECOVERY;
/// The largest allowance of any sender: eight full messages.
const MOST: i64 = 16_384 * RECOVERY;
/// The largest debt of a sender: the units regained in ten minutes.
const DEBT_MAX: i64 = 600 * PER_SECOND;
/// Maximum number of senders with an allowance of their own. Beyond it, the senders with most left are forgotten, and
/// debtors stay.
const SENDERS_MAX: usize = 4_096;
/// Pause of a sender whose earlier messages are still in progress: most of their charge will be refunded.
const SOON: Duration = Duration::from_millis(100);

/// The allowances of all senders of one kind: peers by their key, wallets by their address.
#[derive(Debug)]
pub(super) struct Meter<K> {
    senders: HashMap<K, Allowance>,
    /// The shared allowance that is left for new senders; `None` before the first sender.
    newcomers: Option<Allowance>,
}

#[derive(Clone, Copy, Debug)]
struct Allowance {
    left: i64,
    /// Charged for work that is not done yet.
    held: i64,
    at: Instant,
}

impl Allowance {
    fn refill(&mut self, most: i64, now: Instant) {
        let elapsed_us = now.saturating_duration_since(self.at).as_micros();
        let earned = i64::try_from(elapsed_us).unwrap_or(i64::MAX).saturating_mul(PER_SECOND) / 1_000_000;
        if earned > 0 {
            self.left = self.left.saturating_add(earned).min(most - self.held);
            self.at = now;
        }
    }

    /// Time until `units` are left.
    fn wait(&self, units: i64) -> Duration {
        let missing = u64::try_from(units.saturating_sub(self.left)).unwrap_or(0);
        Duration::from_millis(missing.saturating_mul(1_000) / PER_SECOND as u64 + 1)
    }
}

impl<K: Copy + Eq + Hash> Meter<K> {
    pub(super) fn new() -> Meter<K> {
        Meter { senders: HashMap::new(), newcomers: None }
    }

    /// Charges a sender for work that is about to be done. If too little is left, returns the time after which to
    /// retry.
    pub(super) fn charge(&mut self, sender: K, units: i64, now: Instant) -> Result<(), Duration> {
        if !self.senders.contains_key(&sender) {
            self.make_room(now);
            let first = Allowance { left: self.first(now), held: 0, at: now };
            self.senders.insert(sender, first);
        }
        let Some(allowance) = self.senders.get_mut(&sender) else { return Err(SOON) };
        allowance.refill(MOST, now);
        if allowance.left < units {
            let is_soon = allowance.held > 0 && allowance.left >= 0;
            return Err(if is_soon { SOON } else { allowance.wait(units) });
        }
        allowance.left -= units;
        allowance.held += units;
        Ok(())
    }

    /// Settles work that was charged for in advance: refunds the charge, and takes the cost of useless work.
    pub(super) fn settle(&mut self, sender: &K, charged: i64, cost: i64) {
        if let Some(allowance) = self.senders.get_mut(sender) {
            allowance.held -= charged;
            allowance.left = (allowance.left + charged - cost).clamp(-DEBT_MAX, MOST - allowance.held);
        }
    }

    /// Whether most of the sender's recent work was useful: half of a first allowance is left.
    pub(super) fn is_useful(&self, sender: &K) -> bool {
        self.senders.get(sender).is_none_or(|allowance| allowance.left + allowance.held >= FIRST / 2)
    }

    /// Whether the sender owes for junk.
    pub(super) fn is_in_debt(&self, sender: &K) -> bool {
        self.senders.get(sender).is_some_and(|allowance| allowance.left + allowance.held < 0)
    }

    /// The first allowance of an unknown sender.
    fn first(&mut self, now: Instant) -> i64 {
        let newcomers = self.newcomers.get_or_insert(Allowance { left: NEWCOMERS, held: 0, at: now });
        newcomers.refill(NEWCOMERS, now);
        let first = newcomers.left.clamp(FIRST_LEAST, FIRST);
        newcomers.left = (newcomers.left - first).max(0);
        first
    }

    fn make_room(&mut self, now: Instant) {
        if self.senders.len() < SENDERS_MAX {
            return;
        }
        self.senders.values_mut().for_each(|allowance| allowance.refill(MOST, now));
        let mut left: Vec<i64> = self.senders.values().map(|allowance| allowance.left).collect();
        let (_, median, _) = left.select_nth_unstable(SENDERS_MAX / 2);
        let median = *median;
        // Senders with work in progress stay, so that it can be settled.
        self.senders.retain(|_, allowance| allowance.held > 0 || allowance.left < median);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: i64 = 2_048 * RECOVERY;

    /// Goal: a sender of useful transactions is never delayed, at any rate.
    #[test]
    fn useful_work_is_free() {
        let (mut meter, now) = (Meter::new(), Instant::now());
        for _ in 0..1_000 {
            meter.charge(1, MESSAGE, now).unwrap();
            meter.settle(&1, MESSAGE, 0);
        }
        // While two messages are in progress, a stranger must retry the third in a moment.
        meter.charge(2, MESSAGE, now).unwrap();
        meter.charge(2, MESSAGE, now).unwrap();
        assert_eq!(meter.charge(2, MESSAGE, now), Err(SOON));
        meter.settle(&2, MESSAGE, 0);
        meter.charge(2, MESSAGE, now).unwrap();
    }

    /// Goal: junk repeated for ever costs a few percent of a core, and known transactions a sixty-fourth of that.
    #[test]
    fn useless_work_is_rationed() {
        let (mut meter, begun) = (Meter::new(), Instant::now());
        let done = |meter: &mut Meter<u8>, cost: i64| {
            let mut done = 0;
            for ms in 0..60_000 {
                if meter.charge(1, MESSAGE, begun + Duration::from_millis(ms)).is_ok() {
                    meter.settle(&1, MESSAGE, cost);
                    done += 1;
                }
            }
            done
        };
        assert_eq!(done(&mut meter, MESSAGE), 2 + 60 * 512 / 2_048 - 1);
        let mut meter = Meter::new();
        assert!(done(&mut meter, 2_048 * LOOKUP) > 800);
    }

    /// Goal: one message of transactions that every pool refuses costs its sender minutes, and the debt is bounded.
    #[test]
    fn junk_puts_its_sender_into_debt() {
        let (mut meter, now) = (Meter::new(), Instant::now());
        meter.charge(1, MESSAGE, now).unwrap();
        assert!(!meter.is_in_debt(&1) && meter.is_useful(&1), "work under way says nothing");
        meter.settle(&1, MESSAGE, 2_048 * JUNK);
        assert!(meter.is_in_debt(&1) && !meter.is_useful(&1) && meter.is_useful(&2));
        let wait = meter.charge(1, MESSAGE, now).unwrap_err();
        assert!((240..300).contains(&wait.as_secs()), "{wait:?}");
        assert!(meter.charge(1, MESSAGE, now + wait).is_ok());
        for _ in 0..100 {
            meter.settle(&1, 0, 2_048 * JUNK);
        }
        assert!(meter.charge(1, MESSAGE, now).unwrap_err() <= Duration::from_secs(620));
    }

    /// Goal: ever new senders cannot fill the memory or clear a debt.
    #[test]
    fn senders_are_bounded_and_debtors_stay() {
        let (mut meter, now) = (Meter::new(), Instant::now());
        meter.charge(0, MESSAGE, now).unwrap();
        meter.settle(&0, MESSAGE, 2_048 * JUNK);
        let mut full = 0;
        for sender in 1..20_000 {
            full += usize::from(meter.charge(sender, MESSAGE, now).is_ok());
            meter.charge(sender, RECOVERY, now).unwrap();
            meter.settle(&sender, RECOVERY, i64::from(sender % 7));
        }
        assert_eq!(full, 15, "with the debtor sixteen begin with a full allowance");
        assert!(meter.charge(50_000, MESSAGE, now + Duration::from_secs(8)).is_ok());
        assert!(meter.senders.len() <= SENDERS_MAX);
        assert!(meter.is_in_debt(&0));
    }
}
