//! Executes real Ethereum blocks, Frontier to Cancun, with the code that executes batches, and compares their known
//! results.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Read,
    path::Path,
    sync::Mutex,
};

use alloy_consensus::{
    Eip658Value, Receipt, ReceiptEnvelope, ReceiptWithBloom, Transaction as _, TxType,
    proofs::calculate_receipt_root,
};
use alloy_primitives::{Address, B256, Bloom, Bytes, U256};
use alloy_rpc_types_eth::Block;
use slipstream_executor::{
    BatchEnv, ExecutionState, ForcedMethod, Outcome, PrefetchLimits, PrefetchRequest, Prefetcher, SpecId,
    Transaction, WarmState, Workers, announced_conflicts, execute, execute_parallel, open_hints, seal_hints,
    seal_hints_with_values,
};
use slipstream_storage::{MemoryState, StateReader, StorageError};
use slipstream_types::{
    AccountValue, BatchNumber, Conflicts, Digest, Hints, Receipts, StateKey, StateValue, hints::AccountHints,
};

use crate::data;

/// Number of blocks: one that fails to load is a failure, and must not go unnoticed.
const BLOCKS: usize = 45;
/// Maximum bytes of hints with values, at the median of blocks since London: half of the plain form of the keys alone.
const VALUED_BYTES_MAX: usize = 17 << 10;

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct PreAccount {
    balance: U256,
    nonce: u64,
    code_hash: Option<B256>,
    storage: BTreeMap<U256, U256>,
}

pub(crate) struct Case {
    pub(crate) block: Block,
    /// Hashes of the transactions, as in the file.
    hashes: Vec<B256>,
    pub(crate) state: MemoryState,
}

/// Every block whose number is wanted, with its pre-state, the oldest first; `None` if the data is missing.
pub(crate) fn cases(is_wanted: impl Fn(u64) -> bool) -> Option<impl Iterator<Item = Case>> {
    let codes_path = data::find("mainnet/codes.bin.gz")?;
    let data = codes_path.parent().unwrap().to_owned();
    let codes = read_codes(&codes_path);
    let hashes: BTreeMap<u64, B256> =
        serde_json::from_slice(&fs::read(data.join("block_hashes.json")).unwrap()).unwrap();
    let mut numbers = block_numbers(&data);
    numbers.retain(|number| is_wanted(*number));
    Some(numbers.into_iter().map(move |number| load(&data.join(number.to_string()), &codes, &hashes)))
}

/// Goal: gas, bloom and (where receipts hold a status) receipts root of every block equal mainnet's. Hints name every
/// key that was read. Rows that were read ahead, complete or useless, leave the outcome unchanged. So do the values in
/// hints.
#[test]
fn mainnet_blocks_have_their_known_results() {
    let Some(cases) = cases(|_| true) else { return };
    let mut specs = BTreeSet::new();
    let mut blocks = 0;
    let mut valued = Vec::new();
    for case in cases {
        let (spec, bytes) = check(&case);
        specs.insert(spec);
        valued.extend(bytes.filter(|_| spec >= SpecId::LONDON));
        blocks += 1;
    }
    valued.sort_unstable();
    let median = valued[valued.len() / 2];
    assert!(median < VALUED_BYTES_MAX, "hints with values have {median} bytes at the median: {valued:?}");
    assert_eq!(blocks, BLOCKS);
    assert_eq!(specs.first(), Some(&SpecId::FRONTIER));
    assert_eq!(specs.last(), Some(&SpecId::CANCUN));
    assert_eq!(specs.len(), 12, "every fork from Frontier to Cancun is covered: {specs:?}");
}

/// Returns the block's rules, and the bytes of its hints with values.
fn check(case: &Case) -> (SpecId, Option<usize>) {
    let header = &case.block.header.inner;
    let number = header.number;
    let env = BatchEnv::mainnet(header);
    let transactions = transactions(&case.block);
    let hashes: Vec<_> = transactions.iter().map(|transaction| transaction.hash).collect();
    assert_eq!(hashes, case.hashes, "transactions of block {number}");
    let logged = Logged { inner: &case.state, seen: Mutex::default() };
    let outcome = execute(&logged, &env, &transactions).unwrap_or_else(|error| panic!("{number}: {error}"));

    assert_eq!(outcome.gas_used, header.gas_used, "gas of block {number}");
    assert_eq!(bloom(&outcome.receipts), header.logs_bloom, "bloom of block {number}");
    if env.spec >= SpecId::BYZANTIUM {
        assert_eq!(receipts_root(&outcome.receipts), header.receipts_root, "receipts of block {number}");
    }
    let hinted: BTreeSet<_> = outcome.hints.keys().collect();
    let seen = logged.seen.into_inner().unwrap();
    assert_eq!(hinted, seen, "hints of block {number} are exactly what was read");
    check_net(&case.state, &outcome, number);
    check_warm(&case.state, &env, &transactions, &outcome);
    check_parallel(&case.state, &env, &transactions, &outcome);
    // Under the prices before Berlin, a block could read more keys than hints may name.
    let valued = (env.spec >= SpecId::BERLIN).then(|| {
        check_sealed(number, header.beneficiary, &transactions, &outcome);
        check_values(&case.state, &env, &transactions, &outcome)
    });
    (env.spec, valued)
}

/// The delta holds only real changes, and every key that it changes was read before.
fn check_net(state: &MemoryState, outcome: &Outcome, number: u64) {
    let keys: Vec<_> = outcome.delta.entries().iter().map(|entry| entry.key).collect();
    let before = state.rows(&keys).unwrap();
    for (entry, before) in outcome.delta.entries().iter().zip(before) {
        assert_ne!(entry.value, before, "block {number} does not change {:?}", entry.key);
    }
    assert!(!keys.is_empty(), "block {number} changes something");
}

fn check_warm(state: &MemoryState, env: &BatchEnv, transactions: &[Transaction], expected: &Outcome) {
    let limits = PrefetchLimits { threads: 3, ..PrefetchLimits::default() };
    let prefetcher = Prefetcher::new(limits).unwrap();
    let read_ahead =
        |hints: &Hints| prefetcher.read_ahead(BatchNumber::new(env.number), state.clone(), hints.into());
    let warm = read_ahead(&expected.hints);
    assert_eq!(execute(&warm, env, transactions).unwrap(), *expected);
    assert_eq!(warm.stats().misses, 0, "complete hints leave no misses");
    assert_eq!(warm.prefetched().keys, expected.hints.keys().count());

    let useless = read_ahead(&garbage(&expected.hints));
    assert_eq!(execute(&useless, env, transactions).unwrap(), *expected);
}

/// Executes with exact conflicts, with those that the transactions announce, and with none.
fn check_parallel(state: &MemoryState, env: &BatchEnv, transactions: &[Transaction], expected: &Outcome) {
    let workers =
        [ForcedMethod::Ahead, ForcedMethod::Groups].map(|eager| Workers::new(2).unwrap().eager(eager));
    let graphs = [expected.conflicts(), announced_conflicts(transactions), Conflicts::default()];
    for (graph, workers) in graphs.iter().flat_map(|graph| workers.iter().map(move |it| (graph, it))) {
        let (outcome, stats) = execute_parallel(state, env, transactions, graph, workers).unwrap();
        assert_eq!(outcome.hints, expected.hints, "hints of block {}", env.number);
        assert_eq!(outcome, *expected, "block {}, {stats:?}", env.number);
    }
}

/// The hints of a seal hold the recorder's keys, and may add unread keys of access lists. They are small, because
/// mappings and the transactions' addresses express most keys. The plain form has 32 KB at the median of blocks since
/// London.
fn check_sealed(number: u64, beneficiary: Address, transactions: &[Transaction], outcome: &Outcome) {
    let blob = seal_hints(outcome, beneficiary, transactions).unwrap();
    let opened = open_hints(&blob, outcome.gas_used, beneficiary, transactions).unwrap();
    let (made, read) = (outcome.conflicts().predecessors, opened.conflicts.unwrap().predecessors);
    assert_eq!(read, made, "conflicts of block {number} come back");
    let opened = opened.hints;
    let (opened_keys, keys): (BTreeSet<_>, BTreeSet<_>) =
        (opened.keys().collect(), outcome.hints.keys().collect());
    let listed = transactions.iter().filter_map(|transaction| transaction.envelope.access_list());
    let listed: BTreeSet<_> = listed.flat_map(|list| list.iter().map(|item| item.address)).collect();
    let surplus = opened_keys.difference(&keys);
    assert!(surplus.into_iter().all(|key| listed.contains(key.address())), "surplus hints of block {number}");
    assert!(keys.is_subset(&opened_keys), "hints of block {number} come back");
    let codes: BTreeSet<_> = opened.codes().collect();
    assert_eq!(codes, outcome.hints.codes().collect(), "code of block {number}");
    assert!(blob.len() < 10_000, "hints of block {number} have {} bytes", blob.len());
}

/// The values are those before the block, and executing on them alone gives the block's outcome.
fn check_values(
    state: &MemoryState,
    env: &BatchEnv,
    transactions: &[Transaction],
    expected: &Outcome,
) -> usize {
    let blob = seal_hints_with_values(expected, env.beneficiary, transactions).unwrap();
    let opened = open_hints(&blob, expected.gas_used, env.beneficiary, transactions).unwrap();
    let rows: BTreeMap<_, _> = opened.values.iter().copied().collect();
    let touched: BTreeMap<_, _> = expected.touched.rows.iter().copied().collect();
    assert_eq!(rows, touched, "values of block {}", env.number);
    let wanted = PrefetchRequest { values: opened.values, ..PrefetchRequest::from(&opened.hints) };
    let warm = WarmState::deferred(state.clone(), wanted);
    assert_eq!(execute(&warm, env, transactions).unwrap(), *expected);
    let rows = expected.hints.keys().count() as u64;
    assert_eq!(warm.stats().shipped, rows, "all rows of block {} are answered by their values", env.number);
    assert_eq!(warm.confirm().unwrap(), []);
    blob.len()
}

/// Half of the accounts with half of their slots, keys that do not exist, and everything twice.
fn garbage(hints: &Hints) -> Hints {
    let half = hints.accounts.iter().step_by(2).map(|account| {
        let mut slots: Vec<B256> = account.slots.iter().step_by(2).copied().collect();
        slots.push(B256::repeat_byte(0xee));
        AccountHints { slots, ..account.clone() }
    });
    let mut accounts: Vec<_> = half.collect();
    let nobody = Address::repeat_byte(0xdd);
    accounts.push(AccountHints { address: nobody, code: true, slots: vec![B256::ZERO] });
    accounts.extend(accounts.clone());
    Hints { accounts }
}

pub(crate) fn transactions(block: &Block) -> Vec<Transaction> {
    let decode = |transaction: &alloy_rpc_types_eth::Transaction| {
        let built = Transaction::from_envelope(transaction.inner.inner().clone().into()).unwrap();
        assert_eq!(built.sender, transaction.inner.signer(), "sender of {}", built.hash);
        let decoded = Transaction::decode_any(&built.raw).unwrap();
        assert_eq!(decoded, built);
        decoded
    };
    block.transactions.txns().map(decode).collect()
}

pub(crate) fn bloom(receipts: &Receipts) -> Bloom {
    let mut bloom = Bloom::ZERO;
    receipts.receipts.iter().for_each(|receipt| bloom |= receipt.bloom());
    bloom
}

pub(crate) fn receipts_root(receipts: &Receipts) -> B256 {
    let mut cumulative_gas_used = 0;
    let envelope = |receipt: &slipstream_types::Receipt| {
        cumulative_gas_used += receipt.gas_used;
        let logs_bloom = receipt.bloom();
        let logs: Vec<alloy_primitives::Log> = receipt.logs.iter().map(Into::into).collect();
        let status = Eip658Value::Eip658(receipt.success);
        let receipt_with_bloom =
            ReceiptWithBloom { receipt: Receipt { status, cumulative_gas_used, logs }, logs_bloom };
        match TxType::try_from(receipt.tx_type).unwrap() {
            TxType::Legacy => ReceiptEnvelope::Legacy(receipt_with_bloom),
            TxType::Eip2930 => ReceiptEnvelope::Eip2930(receipt_with_bloom),
            TxType::Eip1559 => ReceiptEnvelope::Eip1559(receipt_with_bloom),
            TxType::Eip4844 => ReceiptEnvelope::Eip4844(receipt_with_bloom),
            TxType::Eip7702 => ReceiptEnvelope::Eip7702(receipt_with_bloom),
        }
    };
    let envelopes: Vec<ReceiptEnvelope> = receipts.receipts.iter().map(envelope).collect();
    calculate_receipt_root(&envelopes)
}

/// Records every row that is read, independently of the recorder.
struct Logged<'a> {
    inner: &'a MemoryState,
    seen: Mutex<BTreeSet<StateKey>>,
}

impl StateReader for Logged<'_> {
    fn account(&self, address: &Address) -> Result<Option<AccountValue>, StorageError> {
        self.seen.lock().unwrap().insert(StateKey::Account(*address));
        self.inner.account(address)
    }

    fn slot(&self, address: &Address, slot: &B256) -> Result<U256, StorageError> {
        self.seen.lock().unwrap().insert(StateKey::Slot(*address, *slot));
        self.inner.slot(address, slot)
    }

    fn code(&self, hash: &Digest) -> Result<Option<Bytes>, StorageError> {
        self.inner.code(hash)
    }

    fn header_digest(&self, number: BatchNumber) -> Result<Option<Digest>, StorageError> {
        self.inner.header_digest(number)
    }
}

impl ExecutionState for Logged<'_> {}

fn block_numbers(data: &Path) -> Vec<u64> {
    let entries = fs::read_dir(data).unwrap().map(|entry| entry.unwrap());
    let folders = entries.filter(|entry| entry.file_type().unwrap().is_dir());
    let mut numbers: Vec<u64> =
        folders.map(|entry| entry.file_name().to_str().unwrap().parse().unwrap()).collect();
    numbers.sort_unstable();
    numbers
}

fn load(dir: &Path, codes: &BTreeMap<B256, Bytes>, hashes: &BTreeMap<u64, B256>) -> Case {
    let json: serde_json::Value = serde_json::from_slice(&gunzip(&dir.join("block.json.gz"))).unwrap();
    let hash = |transaction: &serde_json::Value| transaction["hash"].as_str().unwrap().parse().unwrap();
    let hashes_in_file = json["transactions"].as_array().unwrap().iter().map(hash).collect();
    let block = serde_json::from_value(json).unwrap();
    let accounts: BTreeMap<Address, PreAccount> =
        serde_json::from_slice(&gunzip(&dir.join("pre_state.json.gz"))).unwrap();
    let mut state = MemoryState::default();
    for (number, hash) in hashes {
        state.insert_header(BatchNumber::new(*number), (*hash).into());
    }
    for (address, account) in accounts {
        let code_hash = account.code_hash.map(|hash| {
            assert_eq!(B256::from(state.insert_code(codes[&hash].clone())), hash);
            Digest::from(hash)
        });
        let value = AccountValue { nonce: account.nonce, balance: account.balance, code_hash };
        state.insert(StateKey::Account(address), StateValue::Account(value));
        for (slot, value) in account.storage.into_iter().filter(|(_, value)| !value.is_zero()) {
            state.insert(StateKey::Slot(address, slot.into()), StateValue::Slot(value));
        }
    }
    Case { block, hashes: hashes_in_file, state }
}

/// Records of 32 bytes of hash, 4 of length (little-endian), and the code.
fn read_codes(path: &Path) -> BTreeMap<B256, Bytes> {
    let bytes = gunzip(path);
    let mut rest = &bytes[..];
    let mut codes = BTreeMap::new();
    while let Some((hash, after)) = rest.split_first_chunk::<32>() {
        let (len, after) = after.split_first_chunk::<4>().unwrap();
        let (code, after) = after.split_at(u32::from_le_bytes(*len) as usize);
        codes.insert(B256::from(*hash), Bytes::copy_from_slice(code));
        rest = after;
    }
    codes
}

fn gunzip(path: &Path) -> Vec<u8> {
    let file = fs::File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(file).read_to_end(&mut bytes).unwrap();
    bytes
}
