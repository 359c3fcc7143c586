//! [`Course`]: the work between two batches of the ledger, from the totals of known headers.

use std::collections::BTreeMap;

use slipstream_types::{BatchNumber, Totals};

/// Maximum number of marks kept. A survey adds 32 at most, and each range in flight adds one. Beyond the bound every second mark is
/// dropped.
const MARKS_MAX: usize = 512;
/// Batches beyond the last mark are presumed to be like this many before it. With fewer, one odd batch would be the
/// measure.
const ALIKE_BATCHES: u64 = 64;

/// The work in consecutive batches. Bytes are counted before compression.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Amount {
    /// Number of batches.
    pub batches: f64,
    /// Transactions in them.
    pub transactions: f64,
    /// Gas that they use.
    pub gas: f64,
    /// Bytes of their bodies.
    pub body: f64,
    /// Bytes of their receipts.
    pub receipts: f64,
    /// Bytes of their deltas.
    pub changes: f64,
}

impl Amount {
    /// Presumed work of `batches` batches while no header is known: 200 transfers each.
    pub fn presumed(batches: f64) -> Amount {
        let one = Amount {
            batches: 1.0,
            transactions: 200.0,
            gas: 4.2e6,
            body: 24e3,
            receipts: 10e3,
            changes: 16e3,
        };
        one.times(batches)
    }

    /// The work up to a batch, from its header's totals.
    fn up_to(number: BatchNumber, totals: &Totals) -> Amount {
        let Totals { transactions, gas, body_bytes, receipts_bytes, delta_bytes } = *totals;
        Amount {
            batches: number.get() as f64,
            transactions: transactions as f64,
            gas: gas as f64,
            body: body_bytes as f64,
            receipts: receipts_bytes as f64,
            changes: delta_bytes as f64,
        }
    }

    /// Adds `more` to this work.
    pub fn plus(self, more: Amount) -> Amount {
        Amount {
            batches: self.batches + more.batches,
            transactions: self.transactions + more.transactions,
            gas: self.gas + more.gas,
            body: self.body + more.body,
            receipts: self.receipts + more.receipts,
            changes: self.changes + more.changes,
        }
    }

    /// Multiplies this work by `factor`.
    pub fn times(self, factor: f64) -> Amount {
        Amount {
            batches: self.batches * factor,
            transactions: self.transactions * factor,
            gas: self.gas * factor,
            body: self.body * factor,
            receipts: self.receipts * factor,
            changes: self.changes * factor,
        }
    }
}

/// See the module. Its marks come from verified headers of one ledger.
#[derive(Clone, Debug, Default)]
pub struct Course(BTreeMap<BatchNumber, Totals>);

impl Course {
    /// Records a verified header's totals.
    pub fn mark(&mut self, number: BatchNumber, totals: Totals) {
        self.0.insert(number, totals);
        if self.0.len() > MARKS_MAX {
            let last = self.last();
            let mut place = 0;
            self.0.retain(|number, _| {
                place += 1;
                place % 2 == 1 || Some(*number) == last
            });
        }
    }

    /// The last batch whose totals are known.
    pub fn last(&self) -> Option<BatchNumber> {
        self.0.last_key_value().map(|(number, _)| *number)
    }

    /// The work of the batches behind `after` up to `last`: exact at marks, interpolated between them, extrapolated
    /// beyond the last one.
    pub fn amount(&self, after: BatchNumber, last: BatchNumber) -> Amount {
        let (from, to) = (self.up_to(after), self.up_to(last));
        to.plus(from.times(-1.0))
    }

    /// The work up to a batch. Without marks, only differences between two results mean something.
    fn up_to(&self, number: BatchNumber) -> Amount {
        let before = self.0.range(..=number).next_back();
        let behind = self.0.range(number..).next();
        let (from, rate) = match (before, behind) {
            (Some(before), Some(behind)) => (before, rate(before, behind)),
            (Some(last), None) => {
                let alike = self.0.range(..=last.0.before(ALIKE_BATCHES)).next_back();
                (last, rate(alike.or(self.0.first_key_value()).unwrap_or(last), last))
            }
            (None, Some(first)) => {
                let second = self.0.range(first.0.next()..).next();
                (first, rate(first, second.unwrap_or(first)))
            }
            (None, None) => return Amount::presumed(number.get() as f64),
        };
        let batches = number.get() as f64 - from.0.get() as f64;
        Amount::up_to(*from.0, from.1).plus(rate.times(batches))
    }
}

/// The average work of one batch between two marks; presumed if both are the same mark.
fn rate(earlier: (&BatchNumber, &Totals), later: (&BatchNumber, &Totals)) -> Amount {
    match later.0.since(*earlier.0) {
        0 => Amount::presumed(1.0),
        batches => {
            let work =
                Amount::up_to(*later.0, later.1).plus(Amount::up_to(*earlier.0, earlier.1).times(-1.0));
            work.times(1.0 / batches as f64)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(number: u64) -> BatchNumber {
        BatchNumber::new(number)
    }

    fn totals(transactions: u64) -> Totals {
        Totals { transactions, ..Totals::default() }
    }

    fn transactions(course: &Course, after: u64, last: u64) -> f64 {
        course.amount(number(after), number(last)).transactions
    }

    /// Goal: empty first batches and a later burst count where they are, not as an average over the ledger.
    #[test]
    fn each_stretch_has_its_own_work() {
        let mut course = Course::default();
        for (at, sum) in [(0, 0), (1_000, 0), (1_100, 100_000), (2_000, 100_900)] {
            course.mark(number(at), totals(sum));
        }
        assert_eq!(transactions(&course, 0, 1_000), 0.0);
        assert_eq!(transactions(&course, 1_000, 2_000), 100_900.0);
        assert_eq!(transactions(&course, 0, 2_000), 100_900.0);
        assert_eq!(transactions(&course, 1_050, 1_100), 50_000.0, "even between two marks");
        assert_eq!(transactions(&course, 900, 1_050), 50_000.0);
        assert_eq!(course.amount(number(900), number(1_050)).batches, 150.0);
    }

    /// Goal: the target moves before its header is known, so batches beyond the last mark count like those before it.
    #[test]
    fn beyond_the_last_mark_batches_are_as_before_it() {
        let mut course = Course::default();
        for (at, sum) in [(0, 0), (1_000, 1_000), (1_099, 100_000), (1_100, 100_000)] {
            course.mark(number(at), totals(sum));
        }
        assert_eq!(transactions(&course, 1_100, 1_200), 99_000.0, "one empty batch is no measure");
        assert_eq!(transactions(&course, 1_000, 1_200), 198_000.0);
        assert_eq!(course.last(), Some(number(1_100)));
    }

    /// Goal: a node that knows at most one header presumes some work.
    #[test]
    fn without_headers_something_is_presumed() {
        let mut course = Course::default();
        let presumed = Amount::presumed(10.0);
        assert_eq!(course.amount(number(5), number(15)), presumed);
        course.mark(number(5), Totals::default());
        assert_eq!(course.amount(number(5), number(15)), presumed);
        course.mark(number(15), totals(10));
        assert_eq!(transactions(&course, 0, 5), 5.0, "as behind it");
    }

    /// Goal: the course stays short and keeps both ends, however many marks it gets.
    #[test]
    fn it_stays_short() {
        let mut course = Course::default();
        (0..10_000).for_each(|at| course.mark(number(at), totals(at * 3)));
        assert!(course.0.len() <= MARKS_MAX, "{}", course.0.len());
        assert_eq!(transactions(&course, 0, 9_999), 29_997.0);
    }
}
