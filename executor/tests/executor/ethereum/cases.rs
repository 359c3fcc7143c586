//! A test case: the state before, blocks, and the state afterwards.

use std::{
    collections::BTreeMap,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use alloy_consensus::Header;
use alloy_primitives::{Address, B256, Bytes, U64, U256};
use alloy_rlp::Decodable as _;
use flate2::read::GzDecoder;
use serde::Deserialize;
use slipstream_executor::{BatchEnv, Envelope, SpecId, Transaction};
use slipstream_storage::MemoryState;
use slipstream_types::{AccountValue, StateKey, StateValue};

use crate::support::ether;

#[derive(Deserialize)]
pub(super) struct Case {
    network: String,
    #[serde(rename = "genesisBlockHeader")]
    pub(super) genesis: GenesisHeader,
    pub(super) pre: BTreeMap<Address, Account>,
    #[serde(rename = "postState")]
    pub(super) post_state: BTreeMap<Address, Account>,
    pub(super) blocks: Vec<Block>,
}

#[derive(Deserialize)]
pub(super) struct GenesisHeader {
    pub(super) hash: B256,
}

#[derive(Deserialize)]
pub(super) struct Account {
    balance: U256,
    nonce: U64,
    code: Bytes,
    storage: BTreeMap<U256, U256>,
}

#[derive(Deserialize)]
pub(super) struct Block {
    rlp: Bytes,
    /// The reason for which Ethereum refuses it.
    #[serde(rename = "expectException")]
    pub(super) expect_exception: Option<String>,
}

/// The parts of a block other than its transactions.
pub(super) struct Outside {
    pub(super) header: Header,
    /// The payments after its transactions: withdrawals, and before the Merge the miner's reward. A Slipstream batch
    /// has neither.
    pub(super) payments: Vec<(Address, U256)>,
}

impl Case {
    /// Decodes a block into its environment, its transactions and the rest.
    pub(super) fn decode(&self, block: &Block) -> Result<(BatchEnv, Vec<Transaction>, Outside), String> {
        let decoded = alloy_consensus::Block::<Envelope>::decode(&mut &block.rlp[..]);
        let alloy_consensus::Block { header, body } = decoded.map_err(|error| error.to_string())?;
        let spec = spec(&self.network, header.timestamp)?;
        let env = BatchEnv { spec, transaction_gas_max: u64::MAX, ..BatchEnv::mainnet(&header) };
        let transactions = body.transactions.into_iter().map(Transaction::from_envelope);
        let transactions = transactions.collect::<Result<_, _>>().map_err(|error| error.to_string())?;
        let withdrawals = body.withdrawals.unwrap_or_default();
        let withdrawn = withdrawals.iter().map(|it| (it.address, U256::from(it.amount_wei())));
        let reward = (spec < SpecId::MERGE).then(|| (header.beneficiary, ether(2)));
        let payments = withdrawn.chain(reward).collect();
        Ok((env, transactions, Outside { header, payments }))
    }
}

/// The rules of a network in the test suite at a time. Petersburg reverted Constantinople's relevant change.
fn spec(network: &str, timestamp_s: u64) -> Result<SpecId, String> {
    Ok(match network {
        "Constantinople" | "ConstantinopleFix" => SpecId::PETERSBURG,
        "Istanbul" => SpecId::ISTANBUL,
        "Berlin" => SpecId::BERLIN,
        "London" => SpecId::LONDON,
        "Paris" => SpecId::MERGE,
        "Shanghai" => SpecId::SHANGHAI,
        "ShanghaiToCancunAtTime15k" if timestamp_s < 15_000 => SpecId::SHANGHAI,
        "Cancun" | "ShanghaiToCancunAtTime15k" => SpecId::CANCUN,
        other => return Err(format!("unknown network {other}")),
    })
}

pub(super) fn state(accounts: &BTreeMap<Address, Account>) -> MemoryState {
    let mut state = MemoryState::default();
    for (address, Account { balance, nonce, code, storage }) in accounts {
        let code_hash = (!code.is_empty()).then(|| state.insert_code(code.clone()));
        let value = AccountValue { nonce: nonce.to(), balance: *balance, code_hash };
        state.insert(StateKey::Account(*address), StateValue::Account(value));
        for (slot, value) in storage.iter().filter(|(_, value)| !value.is_zero()) {
            state.insert(StateKey::Slot(*address, (*slot).into()), StateValue::Slot(*value));
        }
    }
    state
}

/// Unpacks the archive file by file.
pub(super) fn for_each_file(archive: &Path, mut take: impl FnMut(PathBuf, Vec<u8>)) {
    let file = File::open(archive).unwrap();
    for entry in tar::Archive::new(GzDecoder::new(file)).entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().into_owned();
        if path.extension().is_some_and(|extension| extension == "json") {
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            take(path, bytes);
        }
    }
}
