//! [`Ledger`]: computes what every balance must be at the end, to the last unit. Sans-I/O: openings, movements and
//! findings come from outside.
//!
//! The arithmetic is bookkeeping: `expected = opening + credits - debits`. The order of movements does not matter.
//!
//! ```text
//!  balances before ──▶ open ─┐
//!  receipts of all batches ──▶ credit, debit ──▶ expected ──┬──▶ Audit
//!  balances at the end ──────────────────────────▶ check ───┘
//! ```

use std::collections::BTreeMap;

use alloy_primitives::{Address, B256, U256};
use serde::{Deserialize, Serialize};

/// The most differences that an audit lists; it counts all of them.
const DIFFERENCES_MAX: usize = 20;

/// The unit of a balance.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Wei.
    Wei,
    /// The smallest unit of this ERC-20.
    Token(Address),
    /// An account's nonce, which counts its transactions.
    Nonce,
    /// The value of one storage slot of the holder.
    Slot(B256),
}

/// The key of a balance: its holder and its unit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct BalanceKey {
    /// The account or contract.
    pub holder: Address,
    /// The unit.
    pub unit: Unit,
}

/// A balance that differs from what the receipts imply.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Difference {
    /// The balance's key.
    pub place: BalanceKey,
    /// The balance implied by the receipts; `None` if they spend more than there was.
    pub expected: Option<U256>,
    /// The balance that the node reports.
    pub found: U256,
}

/// The comparison counts of a load, exact to the last unit, and the deviations found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditFigures {
    /// Receipts compared with the transactions sent: those of all committed transactions of the run.
    pub receipts: u64,
    /// The receipts among them of failed transactions.
    pub receipts_failed: u64,
    /// Receipts that do not match their transaction: another sender, a missing contract, a transfer of another value.
    pub receipts_wrong: u64,
    /// Transactions that are in two batches, or twice in one.
    pub duplicates: u64,
    /// Accepted transactions that are in no batch.
    pub lost: u64,
    /// Transactions from the load's accounts that the load did not send.
    pub foreign: u64,
    /// Balances, nonces and slots that were compared with the sums of the receipts.
    pub balances: u64,
    /// The balances, nonces and slots among them that differ.
    pub balances_wrong: u64,
}

impl AuditFigures {
    /// Adds the figures of another load.
    pub fn add(&mut self, other: AuditFigures) {
        self.receipts += other.receipts;
        self.receipts_failed += other.receipts_failed;
        self.receipts_wrong += other.receipts_wrong;
        self.duplicates += other.duplicates;
        self.lost += other.lost;
        self.foreign += other.foreign;
        self.balances += other.balances;
        self.balances_wrong += other.balances_wrong;
    }

    /// Describes the deviations in words; empty if there are none.
    pub fn wrong(&self) -> Vec<String> {
        let counts = [
            (self.receipts_failed, "failed"),
            (self.receipts_wrong, "with wrong receipts"),
            (self.duplicates, "committed twice"),
            (self.lost, "lost"),
            (self.foreign, "foreign"),
            (self.balances_wrong, "wrong balances"),
        ];
        counts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect()
    }
}

/// The result of an audit.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Audit {
    /// The comparison counts.
    #[serde(flatten)]
    pub figures: AuditFigures,
    /// The first twenty balances that differ.
    pub differences: Vec<Difference>,
}

impl Audit {
    /// Whether all committed transactions are accounted for exactly. Lost transactions do not count as an error here.
    pub fn is_clean(&self) -> bool {
        let AuditFigures { receipts_wrong, duplicates, foreign, balances_wrong, .. } = self.figures;
        receipts_wrong == 0 && duplicates == 0 && foreign == 0 && balances_wrong == 0
    }
}

#[derive(Clone, Copy, Default, Debug)]
struct Entry {
    opening: U256,
    credits: U256,
    debits: U256,
}

/// The bookkeeping of a run.
#[derive(Clone, Default, Debug)]
pub(super) struct Ledger {
    entries: BTreeMap<BalanceKey, Entry>,
}

impl Ledger {
    /// Sets a balance before the run. Balances that are never set begin at zero.
    pub(super) fn open(&mut self, place: BalanceKey, amount: U256) {
        self.entries.entry(place).or_default().opening = amount;
    }

    pub(super) fn credit(&mut self, place: BalanceKey, amount: U256) {
        let entry = self.entries.entry(place).or_default();
        entry.credits = entry.credits.saturating_add(amount);
    }

    pub(super) fn debit(&mut self, place: BalanceKey, amount: U256) {
        let entry = self.entries.entry(place).or_default();
        entry.debits = entry.debits.saturating_add(amount);
    }

    /// Moves an amount from one holder to another.
    pub(super) fn transfer(&mut self, unit: Unit, from: Address, to: Address, amount: U256) {
        self.debit(BalanceKey { holder: from, unit }, amount);
        self.credit(BalanceKey { holder: to, unit }, amount);
    }

    /// Returns the keys of all balances to compare.
    pub(super) fn places(&self) -> impl Iterator<Item = BalanceKey> {
        self.entries.keys().copied()
    }

    /// Returns the expected balance; `None` if more was spent than there was.
    pub(super) fn expected(&self, place: BalanceKey) -> Option<U256> {
        let entry = self.entries.get(&place).copied().unwrap_or_default();
        entry.opening.checked_add(entry.credits)?.checked_sub(entry.debits)
    }

    /// Compares a balance, and records a difference in the audit.
    pub(super) fn check(&self, place: BalanceKey, found: U256, audit: &mut Audit) {
        audit.figures.balances += 1;
        let expected = self.expected(place);
        if expected == Some(found) {
            return;
        }
        audit.figures.balances_wrong += 1;
        if audit.differences.len() < DIFFERENCES_MAX {
            audit.differences.push(Difference { place, expected, found });
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wei(byte: u8) -> BalanceKey {
        BalanceKey { holder: Address::repeat_byte(byte), unit: Unit::Wei }
    }

    #[test]
    fn one_wei_too_much_is_a_difference() {
        let mut ledger = Ledger::default();
        ledger.open(wei(1), U256::from(100));
        ledger.transfer(Unit::Wei, wei(1).holder, wei(2).holder, U256::from(30));
        let mut audit = Audit::default();
        ledger.check(wei(1), U256::from(70), &mut audit);
        ledger.check(wei(2), U256::from(30), &mut audit);
        assert!(audit.is_clean());
        ledger.check(wei(2), U256::from(31), &mut audit);
        let difference = Difference { place: wei(2), expected: Some(U256::from(30)), found: U256::from(31) };
        assert_eq!(
            (audit.is_clean(), audit.figures.balances, audit.differences),
            (false, 3, vec![difference])
        );
    }

    #[test]
    fn whoever_spends_more_than_there_was_has_no_expected_balance() {
        let mut ledger = Ledger::default();
        ledger.debit(wei(1), U256::from(1));
        assert_eq!(ledger.expected(wei(1)), None);
        let mut audit = Audit::default();
        ledger.check(wei(1), U256::ZERO, &mut audit);
        assert_eq!(audit.figures.balances_wrong, 1);
    }

    #[test]
    fn the_list_of_differences_ends_and_their_count_does_not() {
        let (ledger, mut audit) = (Ledger::default(), Audit::default());
        for byte in 0..100 {
            ledger.check(wei(byte), U256::from(1), &mut audit);
        }
        assert_eq!((audit.figures.balances_wrong, audit.differences.len()), (100, DIFFERENCES_MAX));
    }

    /// Goal: the report names each figure of an audit, and the figures of several loads add up.
    #[test]
    fn an_audit_is_told_whole() {
        let mut sum = AuditFigures {
            receipts: 1,
            receipts_failed: 2,
            receipts_wrong: 3,
            duplicates: 4,
            lost: 5,
            foreign: 6,
            balances: 7,
            balances_wrong: 8,
        };
        assert_eq!(
            sum.wrong(),
            [
                "2 failed",
                "3 with wrong receipts",
                "4 committed twice",
                "5 lost",
                "6 foreign",
                "8 wrong balances"
            ]
        );
        sum.add(sum);
        let wanted = AuditFigures {
            receipts: 2,
            receipts_failed: 4,
            receipts_wrong: 6,
            duplicates: 8,
            lost: 10,
            foreign: 12,
            balances: 14,
            balances_wrong: 16,
        };
        assert_eq!(sum, wanted);
        let right = AuditFigures { receipts: 9, balances: 9, ..AuditFigures::default() };
        assert!(right.wrong().is_empty());
    }

    /// Goal: figures and differences are side by side in JSON, and survive a round trip.
    #[test]
    fn an_audit_is_read_as_it_was_written() {
        let difference = Difference { place: wei(2), expected: None, found: U256::from(31) };
        let figures = AuditFigures { receipts: 3, balances_wrong: 1, ..AuditFigures::default() };
        let audit = Audit { figures, differences: vec![difference] };
        let json = serde_json::to_value(&audit).unwrap();
        assert_eq!((json["receipts"].as_u64(), json["balances_wrong"].as_u64()), (Some(3), Some(1)));
        assert_eq!(serde_json::from_value::<Audit>(json).unwrap(), audit);
    }

    proptest! {
        /// Goal: transfers neither create nor destroy units, in any order.
        #[test]
        fn transfers_keep_the_sum(moves in prop::collection::vec((0..5u8, 0..5u8, 0..200u64), 0..100)) {
            let (mut forward, mut backward) = (Ledger::default(), Ledger::default());
            for byte in 0..5 {
                forward.open(wei(byte), U256::from(100_000));
                backward.open(wei(byte), U256::from(100_000));
            }
            let post = |ledger: &mut Ledger, (from, to, amount): (u8, u8, u64)| {
                ledger.transfer(Unit::Wei, wei(from).holder, wei(to).holder, U256::from(amount));
            };
            moves.iter().for_each(|it| post(&mut forward, *it));
            moves.iter().rev().for_each(|it| post(&mut backward, *it));
            let balances = |ledger: &Ledger| (0..5).map(|byte| ledger.expected(wei(byte)).unwrap()).collect::<Vec<_>>();
            prop_assert_eq!(balances(&forward), balances(&backward));
            prop_assert_eq!(balances(&forward).into_iter().sum::<U256>(), U256::from(500_000));
        }
    }
}
