//! Real Ethereum blocks with their pre-states, from a directory:
//!
//! ```text
//! mainnet/NUMBER/block.json.gz       the block as JSON-RPC returns it, with full transactions
//! mainnet/NUMBER/pre_state.json.gz   {address: {balance, nonce, code_hash?, storage: {slot: value}}}
//! mainnet/codes.bin.gz               code hash (32 bytes), length (4 bytes, little-endian), code; repeated
//! mainnet/block_hashes.json          {number: hash}, for BLOCKHASH
//! ```

use std::{
    collections::BTreeMap,
    fs,
    io::Read as _,
    path::{Path, PathBuf},
};

use alloy_primitives::{Address, B256, Bytes, U256};
use alloy_rpc_types_eth::Block as RpcBlock;
use anyhow::{Context, Result, ensure};
use slipstream_executor::{BatchEnv, Transaction};
use slipstream_storage::MemoryState;
use slipstream_types::{AccountValue, BatchNumber, Digest, StateKey, StateValue};

/// The largest accepted size of an uncompressed file: ten times the size of the largest file in use.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// A block, and the state that it reads.
pub(super) struct Block {
    pub(super) env: BatchEnv,
    pub(super) transactions: Vec<Transaction>,
    pub(super) state: MemoryState,
    /// The gas used, as the block's header states it.
    pub(super) gas_used: u64,
    /// The total bytes of the transactions.
    pub(super) payload_bytes: usize,
}

#[derive(serde::Deserialize)]
struct PreAccount {
    balance: U256,
    nonce: u64,
    code_hash: Option<B256>,
    storage: BTreeMap<U256, U256>,
}

/// Returns the data's directory: the named one, `$SLIPSTREAM_DATA`, or shared/data in a parent directory.
pub(super) fn data_dir(asked: Option<&Path>) -> Result<PathBuf> {
    let named = asked.map(Path::to_owned).or_else(|| std::env::var_os("SLIPSTREAM_DATA").map(PathBuf::from));
    let dir = match named {
        Some(dir) => dir,
        None => {
            let here = std::env::current_dir()?;
            let mut above = here.ancestors().map(|dir| dir.join("shared/data"));
            above.find(|dir| dir.exists()).context("no parent directory has shared/data: use --data")?
        }
    };
    ensure!(dir.join("mainnet").exists(), "{} has no mainnet directory", dir.display());
    Ok(dir)
}

/// Loads all blocks from number `from` on, in order.
pub(super) fn load(data: &Path, from: u64) -> Result<Vec<Block>> {
    let dir = data.join("mainnet");
    let codes = read_codes(&dir.join("codes.bin.gz"))?;
    let hashes: BTreeMap<u64, B256> = serde_json::from_slice(&fs::read(dir.join("block_hashes.json"))?)?;
    let mut numbers: Vec<u64> = Vec::new();
    for entry in fs::read_dir(&dir)? {
        let name = entry?.file_name();
        numbers.extend(name.to_str().and_then(|name| name.parse::<u64>().ok()).filter(|it| *it >= from));
    }
    numbers.sort_unstable();
    let block = |number: &u64| {
        let dir = dir.join(number.to_string());
        read_block(&dir, &codes, &hashes).with_context(|| format!("cannot load {}", dir.display()))
    };
    numbers.iter().map(block).collect()
}

fn read_block(dir: &Path, codes: &BTreeMap<B256, Bytes>, hashes: &BTreeMap<u64, B256>) -> Result<Block> {
    let block: RpcBlock = serde_json::from_slice(&gunzip(&dir.join("block.json.gz"))?)?;
    let header = &block.header.inner;
    let decode = |transaction: &alloy_rpc_types_eth::Transaction| {
        let envelope = transaction.inner.inner().clone();
        Transaction::from_envelope(envelope.into()).context("a transaction's signature does not recover")
    };
    let transactions: Vec<Transaction> = block.transactions.txns().map(decode).collect::<Result<_>>()?;
    Ok(Block {
        env: BatchEnv::mainnet(header),
        payload_bytes: transactions.iter().map(|transaction| transaction.raw.len()).sum(),
        transactions,
        state: read_state(&dir.join("pre_state.json.gz"), codes, hashes)?,
        gas_used: header.gas_used,
    })
}

fn read_state(
    path: &Path,
    codes: &BTreeMap<B256, Bytes>,
    hashes: &BTreeMap<u64, B256>,
) -> Result<MemoryState> {
    let accounts: BTreeMap<Address, PreAccount> = serde_json::from_slice(&gunzip(path)?)?;
    let mut state = MemoryState::default();
    for (number, hash) in hashes {
        state.insert_header(BatchNumber::new(*number), (*hash).into());
    }
    for (address, account) in accounts {
        if let Some(hash) = account.code_hash {
            let code = codes.get(&hash).with_context(|| format!("codes.bin.gz lacks the code {hash}"))?;
            ensure!(B256::from(state.insert_code(code.clone())) == hash, "the code {hash} has another hash");
        }
        let code_hash = account.code_hash.map(Digest::from);
        let value = AccountValue { nonce: account.nonce, balance: account.balance, code_hash };
        // Since EIP-161 an empty account does not exist.
        if value != AccountValue::default() {
            state.insert(StateKey::Account(address), StateValue::Account(value));
        }
        for (slot, value) in account.storage.into_iter().filter(|(_, value)| !value.is_zero()) {
            state.insert(StateKey::Slot(address, slot.into()), StateValue::Slot(value));
        }
    }
    Ok(state)
}

fn read_codes(path: &Path) -> Result<BTreeMap<B256, Bytes>> {
    let bytes = Bytes::from(gunzip(path)?);
    let (mut at, mut codes) = (0, BTreeMap::new());
    while let Some((hash, after)) = bytes[at..].split_first_chunk::<32>() {
        let (len, after) = after.split_first_chunk::<4>().context("codes.bin.gz is cut short")?;
        let len = u32::from_le_bytes(*len) as usize;
        ensure!(len <= after.len(), "codes.bin.gz is cut short");
        codes.insert(B256::from(*hash), bytes.slice(at + 36..at + 36 + len));
        at += 36 + len;
    }
    Ok(codes)
}

pub(super) fn gunzip(path: &Path) -> Result<Vec<u8>> {
    let file = fs::File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(file).take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    ensure!(
        bytes.len() as u64 <= FILE_BYTES_MAX,
        "{} unpacks to more than {FILE_BYTES_MAX} bytes",
        path.display()
    );
    Ok(bytes)
}
