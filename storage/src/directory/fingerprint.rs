//! The fingerprint of the stored formats, the second line of the file `FORMAT`.

use slipstream_types::{
    AccountValue, Address, B256, BatchHeader, BatchNumber, BlobKind, Certificate, ChainConfig, Digest, Epoch,
    Failures, Genesis, LedgerInfo, PublicKey, RulesId, Schedule, Signature, StateKey, StateValue, Totals,
    U256, Validator, ValidatorSet,
    accumulator::{Accumulator, NodePosition},
    batch::content_digest,
    bounded::BoundedVec,
    chain::Fork,
    delta::Code,
    genesis::GenesisAccount,
    tree::{self, Leaf},
};

use crate::{
    column::Column,
    history_log,
    schema::{
        self, GENESIS_KEY, HEAD_KEY, HISTORY_KEY, HeadRecord, PRUNED_HEADERS_KEY, PRUNED_KEY, PrunedRecord,
        RESTORE_KEY, RestoreRecord, Retargeted, SEALED_KEY, StateColumn,
    },
    spans::Spans,
    transactions,
};

/// Raised when the meaning of a record changes in a way that [`fingerprint`] cannot see.
const RECORDS: u32 = 2;

/// A digest over one example of everything that shapes the stored bytes. It covers paths, rows, records, keys, column names,
/// and the hashes of leaves, inner nodes and blobs.
pub(super) fn fingerprint() -> String {
    let address = Address::repeat_byte(0x11);
    let account = AccountValue { nonce: 1, balance: U256::from(2), code_hash: Some(Digest([3; 32])) };
    let rows = [
        (StateKey::Account(address), StateValue::Account(account)),
        (StateKey::Slot(address, B256::repeat_byte(0x22)), StateValue::Slot(U256::from(4))),
    ];
    let mut leaves = rows.map(|(key, value)| Leaf { path: key.path(), value_hash: value.hash(&key) });
    leaves.sort_unstable_by_key(|leaf| leaf.path);
    let mut accumulator = Accumulator::default();
    let nodes = [5, 6, 7].map(|byte| accumulator.append(Digest([byte; 32])));

    let mut shape = Vec::new();
    shape.extend(RECORDS.to_le_bytes());
    for (key, value) in &rows {
        shape.extend(key.path().0);
        shape.extend(schema::encode_row(key, value));
    }
    shape.extend(tree::root(&leaves).0);
    shape.extend(accumulator.root().0);
    for (position, node) in nodes.concat() {
        shape.extend(schema::node_key(position));
        shape.extend(node.0);
    }
    shape.extend(schema::number_key(BatchNumber::new(8)));
    shape.extend(schema::epoch_key(Epoch(51)));
    shape.extend(schema::node_key(NodePosition { level: 9, index: 10 }));
    shape.extend(
        transactions::place_key(&B256::repeat_byte(11), BatchNumber::new(12), 13).unwrap_or_default(),
    );
    for kind in schema::KINDS {
        shape.extend(content_digest(kind, b"content").0);
    }
    shape.extend(content_digest(BlobKind::Genesis, b"content").0);
    shape.extend(records());
    for &column in Column::ALL {
        shape.extend(column.name().as_bytes());
        shape.push(b'\n');
    }
    Digest::tagged("slipstream/storage-shape/1", &shape).0[..8]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Returns one example of each record, with every part of it, and the names of the records that stand alone.
fn records() -> Vec<u8> {
    let digest = |byte| Digest([byte; 32]);
    let header = BatchHeader {
        number: BatchNumber::new(20),
        parent: digest(21),
        epoch: Epoch(22),
        rules: RulesId([66; 8]),
        timestamp_ms: 23,
        proposer: Address::repeat_byte(24),
        tx_count: 25,
        tx_bytes: 26,
        gas_used: 27,
        delta_bytes: 28,
        transactions_root: digest(29),
        receipts_root: digest(30),
        delta_digest: digest(31),
        state_root: digest(32),
        totals: Totals { transactions: 67, gas: 68, body_bytes: 69, receipts_bytes: 70, delta_bytes: 71 },
    };
    let validator = Validator { public_key: PublicKey([33; 32]), fee_recipient: Address::repeat_byte(34) };
    let validators = BoundedVec::new(vec![validator]).expect("one is within the limit");
    let failures = Failures { any: 63, commission: 64 };
    let info = LedgerInfo {
        epoch: Epoch(35),
        number: BatchNumber::new(36),
        accumulator_root: digest(37),
        state_root: digest(38),
        timestamp_ms: 39,
        next_validators: Some(ValidatorSet { epoch: Epoch(40), validators, failures }),
    };
    let signatures = BoundedVec::new(vec![(41, Signature([42; 64]))]).expect("one is within the limit");
    let certificate = Certificate { info, view: 62, signatures };
    let numbers = [43, 44, 45, 46].map(BatchNumber::new);
    let head = HeadRecord { number: BatchNumber::new(47), active: StateColumn::B, lowest: numbers };
    let restore = RestoreRecord {
        header: header.clone(),
        certificate: certificate.clone(),
        column: StateColumn::B,
        todo: Spans::divided(1),
        unchecked: Spans::divided(0),
        rows: 48,
        kept: Retargeted { rows: 49, bytes: 50 },
    };
    let names = [HEAD_KEY, RESTORE_KEY, PRUNED_KEY, PRUNED_HEADERS_KEY, GENESIS_KEY, HISTORY_KEY, SEALED_KEY];
    let values = [
        schema::encode(&header),
        header.digest().0.to_vec(),
        schema::encode(&certificate),
        schema::encode(&head),
        schema::encode(&restore),
        schema::encode(&PrunedRecord { below: numbers }),
        schema::encode(&genesis()),
        history_log::example(),
    ];
    names.concat().into_iter().chain(values.concat()).collect()
}

/// The content of batch 0's body.
fn genesis() -> Genesis {
    let account = GenesisAccount {
        balance: U256::from(51),
        nonce: 52,
        code: Code::new(vec![53]).expect("one byte is within the limit"),
        storage: [(B256::repeat_byte(54), U256::from(55))].into(),
    };
    let (fork, gas_limit, transaction_gas_max) = (Fork::Prague, 56, 57);
    Genesis {
        chain: ChainConfig {
            chain_id: 58,
            fork,
            gas_limit,
            transaction_gas_max,
            base_fee_wei: 59,
            schedule: Schedule::default(),
            unprotected_transactions: false,
        },
        timestamp_ms: 60,
        validators: BoundedVec::default(),
        failures: Some(Failures { any: 1, commission: 1 }),
        validators_contract: Some(Address::repeat_byte(0xaa)),
        accounts: [(Address::repeat_byte(61), account)].into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: no stored format changes unnoticed. Changing the fingerprint makes every earlier store unreadable, so do it
    /// deliberately, in a commit of its own.
    #[test]
    fn the_fingerprint_is_pinned() {
        assert_eq!(fingerprint(), "7e64c333d23a5529");
    }
}
