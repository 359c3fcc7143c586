//! [`Constants`]: the constants of a model during a search.

use std::{collections::BTreeMap, time::Instant};

use slipstream_eve::{Order, Settings, SignedOrder};
use slipstream_testkit::{info, keys, set};
use slipstream_types::{Address, BatchNumber, Digest, Epoch, LedgerInfo, SecretKey, ValidatorSet};

use crate::Bounds;

/// Validators: `2u + r + 1` with `u = r = 1`.
pub(crate) const SEATS: u16 = 4;

/// Names of the liar's batches; those of honest validators are 0, 1, ...
const NAMES: [u8; 2] = [100, 101];

/// Rotation and protection are off: [`slipstream_eve::Core::hash_conduct`] leaves out their counters.
pub(crate) const SETTINGS: Settings = Settings {
    view_timeout_ms: 1_000,
    rotate_after: 0,
    protect_after: 0,
    protect_wait_ms: 0,
    recalls_votes: false,
};

/// The set and its keys, the chain, and what may happen.
pub(crate) struct Constants {
    pub(crate) set: ValidatorSet,
    pub(crate) keys: Vec<SecretKey>,
    pub(crate) domain: Digest,
    pub(crate) genesis: LedgerInfo,
    /// The time of all inputs to cores: a search has no clock.
    pub(crate) now: Instant,
    pub(crate) bounds: Bounds,
    /// Seats that run a core.
    pub(crate) honest: Vec<u16>,
    /// The seat that signs anything.
    pub(crate) liar: Option<u16>,
    /// The orders that the liar may give. The flag is set unless the order is the second of two that differ only in
    /// their names.
    pub(crate) lying_orders: Vec<(bool, SignedOrder)>,
    #[cfg(test)]
    pub(crate) fault: Option<slipstream_eve::Fault>,
}

impl Constants {
    pub(crate) fn new(bounds: Bounds) -> Constants {
        let keys = keys(1..=SEATS as u8);
        let accumulator_root = Digest::tagged("genesis", b"");
        let genesis = LedgerInfo { accumulator_root, ..info(0, BatchNumber::GENESIS.get()) };
        let away = [bounds.liar, bounds.silent];
        let mut constants = Constants {
            lying_orders: Vec::new(),
            set: set(0, &keys, Address::ZERO),
            keys,
            domain: Digest::tagged("model", b""),
            genesis,
            now: Instant::now(),
            honest: (0..SEATS).filter(|seat| !away.contains(&Some(*seat))).collect(),
            liar: bounds.liar,
            bounds,
            #[cfg(test)]
            fault: None,
        };
        constants.lying_orders = constants.lie();
        constants
    }

    /// The liar's orders for each view that it leads: two that begin each history, and one successor of each of
    /// these.
    fn lie(&self) -> Vec<(bool, SignedOrder)> {
        let is_its = |view: &u64| self.liar == Some(self.set.primary(*view));
        let mut all = Vec::new();
        for view in (0..=self.bounds.last_view).filter(is_its) {
            let mut before: Vec<Digest> = Vec::new();
            for number in 1..=self.bounds.batches {
                let alone = NAMES.iter().filter(|_| number == 1 || view > 0);
                let alone =
                    alone.map(|name| (*name == NAMES[0], self.order(view, number, Digest::ZERO, *name)));
                let next = before.iter().map(|parent| (true, self.order(view, number, *parent, NAMES[0])));
                let orders: Vec<_> = alone.chain(next).collect();
                before = orders.iter().map(|(_, order)| order.order.digest(&self.domain)).collect();
                all.extend(orders);
            }
        }
        all
    }

    /// Removes the planted fault's defence from the cores that this thread feeds next.
    pub(crate) fn plant(&self) {
        #[cfg(test)]
        slipstream_eve::plant(self.fault);
    }

    /// Whether the planted fault drops outcomes instead of keeping them.
    pub(crate) fn lacks_outcomes(&self) -> bool {
        #[cfg(test)]
        return self.fault == Some(slipstream_eve::Fault::ForgetOutcomes);
        #[cfg(not(test))]
        false
    }

    pub(crate) fn key(&self, seat: u16) -> &SecretKey {
        &self.keys[usize::from(seat)]
    }

    /// Executes an order on the outcome before it; a wrong execution gets another outcome.
    pub(crate) fn execute(&self, before: &LedgerInfo, order: &Order, is_wrong: bool) -> LedgerInfo {
        let content =
            [before.digest().as_bytes(), order.digest(&self.domain).as_bytes(), &[u8::from(is_wrong)][..]]
                .concat();
        LedgerInfo {
            accumulator_root: Digest::tagged("accumulator", &content),
            state_root: Digest::tagged("state", &content),
            timestamp_ms: order.timestamp_ms,
            ..info(0, order.number.get())
        }
    }

    /// An order of the batch with this name. All batches of one number have the same time.
    pub(crate) fn order(&self, view: u64, number: u64, parent: Digest, name: u8) -> SignedOrder {
        let order = Order {
            epoch: Epoch(0),
            view,
            number: BatchNumber::new(number),
            parent,
            timestamp_ms: number,
            transactions: Digest::tagged("body", &[name]),
        };
        SignedOrder::new(order, &self.domain, self.key(self.set.primary(view)))
    }

    /// Honest votes that make a quorum, if the liar adds its own.
    pub(crate) fn quorum_of_honest(&self) -> usize {
        self.set.quorum() - usize::from(self.liar.is_some())
    }
}

/// Ledger infos by token.
pub(crate) type InfosByToken = BTreeMap<Digest, LedgerInfo>;
