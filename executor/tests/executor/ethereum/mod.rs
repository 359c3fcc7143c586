//! Runs the state tests of ethereum/tests, as blocks, by every way to execute a batch.

mod cases;
mod differences;

use std::{collections::BTreeMap, path::Path, sync::mpsc};

use alloy_consensus::TxLegacy;
use alloy_primitives::{TxKind, U256};
use rayon::prelude::*;
use slipstream_executor::{BatchEnv, Transaction, execute};
use slipstream_storage::{MemoryState, StateReader};
use slipstream_types::{AccountValue, BatchNumber, StateKey, StateValue};

use self::{
    cases::{Block, Case, Outside},
    differences::DIFFERENCES,
};
use crate::{
    data,
    mainnet::{bloom, receipts_root},
    support::{account, ether, sign},
    ways::Ways,
};

/// Fewer cases mean that some were not found. The archive of one file in six has 973.
const CASES_MIN: usize = 973;
/// Maximum number of files that wait for a thread.
const FILES_AHEAD: usize = 16;

/// Goal: gas, receipts and the final state equal Ethereum's, and blocks that Ethereum refuses are refused. Each
/// deliberate difference still exists.
#[test]
fn ethereum_tests_end_as_on_ethereum() {
    let Some(archive) = data::find("ethereum-tests.tar.gz") else { return };
    let (sender, files) = mpsc::sync_channel(FILES_AHEAD);
    let ended: Vec<(String, Result<(), String>)> = std::thread::scope(|scope| {
        scope
            .spawn(move || cases::for_each_file(&archive, |path, bytes| sender.send((path, bytes)).unwrap()));
        let files = files.into_iter().par_bridge();
        files
            .map_init(|| Ways::new(2), |ways, (path, bytes)| run_file(ways, &path, &bytes))
            .flatten()
            .collect()
    });
    assert!(ended.len() >= CASES_MIN, "only {} cases", ended.len());

    let difference = |name: &str| DIFFERENCES.iter().find(|(prefix, _)| name.starts_with(prefix));
    let wrong = ended.iter().filter_map(|(name, end)| match (end, difference(name)) {
        (Err(difference), None) => Some(format!("{name}: {difference}")),
        (Ok(()), Some((_, reason))) => Some(format!("{name} is no difference any more: {reason}")),
        _ => None,
    });
    let is_met = |prefix: &str| ended.iter().any(|(name, _)| name.starts_with(prefix));
    let unmet = DIFFERENCES.iter().filter(|(prefix, _)| !is_met(prefix));
    let unmet = unmet.map(|(prefix, _)| format!("no case begins with {prefix}"));
    let wrong: Vec<String> = wrong.chain(unmet).collect();
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), ended.len(), wrong.join("\n"));
}

fn run_file(ways: &Ways, path: &Path, bytes: &[u8]) -> Vec<(String, Result<(), String>)> {
    let cases: BTreeMap<String, Case> =
        serde_json::from_slice(bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    cases
        .into_iter()
        .map(|(name, case)| {
            let end = run(ways, &case);
            (name, end)
        })
        .collect()
}

fn run(ways: &Ways, case: &Case) -> Result<(), String> {
    let mut state = cases::state(&case.pre);
    state.insert_header(BatchNumber::GENESIS, case.genesis.hash.into());
    for (block, number) in case.blocks.iter().zip(1..) {
        let ended = match &block.expect_exception {
            Some(exception) => refuse(ways, &state, case, block, exception),
            None => follow(ways, &mut state, case, block),
        };
        ended.map_err(|difference| format!("block {number}: {difference}"))?;
    }
    compare(&state, &cases::state(&case.post_state))
}

/// Executes a block that Ethereum accepts.
fn follow(ways: &Ways, state: &mut MemoryState, case: &Case, block: &Block) -> Result<(), String> {
    let (env, transactions, outside) = case.decode(block)?;
    let outcome = execute(state, &env, &transactions).map_err(|error| error.to_string())?;
    let Outside { header, payments } = outside;
    if outcome.gas_used != header.gas_used {
        return Err(format!("gas: {} instead of {}", outcome.gas_used, header.gas_used));
    }
    if receipts_root(&outcome.receipts) != header.receipts_root
        || bloom(&outcome.receipts) != header.logs_bloom
    {
        return Err("receipts".into());
    }
    let gas_left = env.gas_limit - outcome.gas_used;
    agree(ways, state, &env, transactions, gas_left)?;
    state.apply(&outcome.delta);
    for (address, wei) in payments {
        let account = state.account(&address).unwrap().unwrap_or_default();
        let value = AccountValue { balance: account.balance + wei, ..account };
        state.insert(StateKey::Account(address), StateValue::Account(value));
    }
    state.insert_header(BatchNumber::new(header.number), header.hash_slow().into());
    Ok(())
}

/// Checks a block that Ethereum refuses.
fn refuse(
    ways: &Ways,
    state: &MemoryState,
    case: &Case,
    block: &Block,
    exception: &str,
) -> Result<(), String> {
    let Ok((env, transactions, _)) = case.decode(block) else { return Ok(()) };
    match ways.agree(state, &env, &transactions, &[])? {
        Ok(_) => Err(format!("executed, in spite of {exception}")),
        Err(_) => Ok(()),
    }
}

/// Checks that every way to execute the block gives the same outcome. Most blocks have one transaction. A stranger's is
/// added if the block has room; otherwise nothing would run in parallel.
fn agree(
    ways: &Ways,
    state: &MemoryState,
    env: &BatchEnv,
    mut transactions: Vec<Transaction>,
    gas_left: u64,
) -> Result<(), String> {
    const GAS: u64 = 21_000;
    let mut state = state.clone();
    if gas_left >= GAS {
        let rich = AccountValue { balance: ether(1), ..AccountValue::default() };
        state.insert(StateKey::Account(account(1)), StateValue::Account(rich));
        transactions.push(stranger(env.base_fee_wei, GAS));
    }
    ways.agree(&state, env, &transactions, &[])?.map(drop)
}

fn stranger(base_fee_wei: u64, gas_limit: u64) -> Transaction {
    let (to, value) = (TxKind::Call(account(2)), U256::from(1));
    let tx = TxLegacy { gas_price: base_fee_wei.into(), gas_limit, to, value, ..TxLegacy::default() };
    Transaction::decode_any(&sign(1, tx)).unwrap()
}

/// Checks that both states have the same rows; an empty account equals none.
fn compare(found: &MemoryState, expected: &MemoryState) -> Result<(), String> {
    let rows = |state: &MemoryState| -> BTreeMap<StateKey, StateValue> {
        let empty = StateValue::Account(AccountValue::default());
        state.iter().filter(|(_, value)| **value != empty).map(|(key, value)| (*key, *value)).collect()
    };
    let (found, expected) = (rows(found), rows(expected));
    match found.keys().chain(expected.keys()).find(|key| found.get(key) != expected.get(key)) {
        Some(key) => Err(format!("{key:?}: {:?} instead of {:?}", found.get(key), expected.get(key))),
        None => Ok(()),
    }
}
