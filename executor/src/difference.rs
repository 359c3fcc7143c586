//! [`difference`]: the first field in which two headers of one batch differ.

use std::fmt;

use slipstream_types::{BatchHeader, Totals};

/// The first field in which a header differs from the expected one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// The header's field, as in docs/formats.md.
    pub field: &'static str,
    /// The value in the expected header.
    pub expected: String,
    /// The value in the header found.
    pub found: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { field, expected, found } = self;
        write!(f, "{field} is {found}, but expected is {expected}")
    }
}

/// Compares two headers field by field, beginning with the results of execution. A wrong transaction changes its
/// receipt and everything after it, so the first differing field says most about the cause.
pub fn difference(expected: &BatchHeader, found: &BatchHeader) -> Option<Difference> {
    // Uses no `..`, so that a field added later fails to compile until it is compared.
    let BatchHeader {
        number,
        parent,
        epoch,
        rules,
        timestamp_ms,
        proposer,
        tx_count,
        tx_bytes,
        gas_used,
        delta_bytes,
        transactions_root,
        receipts_root,
        delta_digest,
        state_root,
        totals,
    } = expected;
    let totals_of = |totals: &Totals| {
        let Totals { transactions, gas, body_bytes, receipts_bytes, delta_bytes } = totals;
        format!(
            "{transactions} transactions, {gas} gas, {body_bytes} + {receipts_bytes} + {delta_bytes} bytes"
        )
    };
    let fields: [(&'static str, &dyn fmt::Display, &dyn fmt::Display); 15] = [
        ("rules", rules, &found.rules),
        ("receipts_root", receipts_root, &found.receipts_root),
        ("gas_used", gas_used, &found.gas_used),
        ("delta_digest", delta_digest, &found.delta_digest),
        ("state_root", state_root, &found.state_root),
        ("delta_bytes", delta_bytes, &found.delta_bytes),
        ("transactions_root", transactions_root, &found.transactions_root),
        ("tx_count", tx_count, &found.tx_count),
        ("tx_bytes", tx_bytes, &found.tx_bytes),
        ("number", number, &found.number),
        ("parent", parent, &found.parent),
        ("epoch", epoch, &found.epoch),
        ("timestamp_ms", timestamp_ms, &found.timestamp_ms),
        ("proposer", proposer, &found.proposer),
        ("totals", &totals_of(totals), &totals_of(&found.totals)),
    ];
    let texts = fields.map(|(field, expected, found)| (field, expected.to_string(), found.to_string()));
    let (field, expected, found) = texts.into_iter().find(|(_, expected, found)| expected != found)?;
    Some(Difference { field, expected, found })
}

#[cfg(test)]
mod tests {
    use slipstream_types::{Address, BatchNumber, Digest, Epoch, RulesId};

    use super::*;

    type Change = fn(&mut BatchHeader);

    fn header() -> BatchHeader {
        BatchHeader {
            number: BatchNumber::new(7),
            parent: Digest([1; 32]),
            epoch: Epoch(2),
            rules: RulesId([2; 8]),
            timestamp_ms: 3,
            proposer: Address::repeat_byte(4),
            tx_count: 5,
            tx_bytes: 6,
            gas_used: 7,
            delta_bytes: 8,
            transactions_root: Digest([9; 32]),
            receipts_root: Digest([10; 32]),
            delta_digest: Digest([11; 32]),
            state_root: Digest([12; 32]),
            totals: Totals { gas: 13, ..Totals::default() },
        }
    }

    /// Goal: the comparison names every field that differs, and keeps expected and found values apart.
    #[test]
    fn every_field_is_compared_and_named() {
        let expected = header();
        assert_eq!(difference(&expected, &header()), None);
        let changes: [(&str, Change); 15] = [
            ("rules", |it| it.rules = RulesId::GENESIS),
            ("number", |it| it.number = BatchNumber::GENESIS),
            ("parent", |it| it.parent = Digest::ZERO),
            ("epoch", |it| it.epoch = Epoch(0)),
            ("timestamp_ms", |it| it.timestamp_ms = 0),
            ("proposer", |it| it.proposer = Address::ZERO),
            ("tx_count", |it| it.tx_count = 0),
            ("tx_bytes", |it| it.tx_bytes = 0),
            ("gas_used", |it| it.gas_used = 0),
            ("delta_bytes", |it| it.delta_bytes = 0),
            ("transactions_root", |it| it.transactions_root = Digest::ZERO),
            ("receipts_root", |it| it.receipts_root = Digest::ZERO),
            ("delta_digest", |it| it.delta_digest = Digest::ZERO),
            ("state_root", |it| it.state_root = Digest::ZERO),
            ("totals", |it| it.totals = Totals::default()),
        ];
        for (field, change) in changes {
            let mut found = header();
            change(&mut found);
            assert_ne!(found.digest(), expected.digest());
            assert_eq!(difference(&expected, &found).unwrap().field, field);
        }
        let found = BatchHeader { gas_used: 21_000, state_root: Digest::ZERO, ..header() };
        let text = difference(&expected, &found).unwrap().to_string();
        assert_eq!(text, "gas_used is 21000, but expected is 7");
    }
}
