//! Tests of the contracts that a genesis may include: their code is right, and they work.

use crate::support::*;
use alloy_primitives::{Address, B256, Bytes, U256, hex, keccak256};
use slipstream_executor::{BatchEnv, CallRequest, Interrupt, Transaction, call, execute};
use slipstream_storage::{MemoryState, StateReader};
use slipstream_types::predeploys::{BEACON_ROOTS, CREATE2_DEPLOYER, HISTORY_STORAGE, MULTICALL3, predeploys};

/// The transactions that deploy the contracts on every chain that admits them, and the contracts' addresses.
const TRANSACTIONS: [(Address, &str); 2] = [
    (CREATE2_DEPLOYER, include_str!("../../../types/src/predeploys/create2_deployer.transaction.hex")),
    (MULTICALL3, include_str!("../../../types/src/predeploys/multicall3.transaction.hex")),
];

/// A chain whose genesis includes the contracts, and the environment of its batch 1.
fn begun() -> (MemoryState, BatchEnv) {
    let genesis = genesis().with_predeploys();
    let env = BatchEnv::new(&genesis.chain, &genesis.header().unwrap(), 2_500, PROPOSER);
    (MemoryState::from_genesis(&genesis).unwrap(), env)
}

fn view(state: &MemoryState, env: &BatchEnv, to: Address, data: &[u8]) -> Bytes {
    let request = CallRequest {
        from: account(1),
        to: Some(to),
        data: Bytes::copy_from_slice(data),
        ..CallRequest::default()
    };
    let outcome = call(state, env, &request, &Interrupt::never()).unwrap();
    assert!(outcome.success, "{outcome:?}");
    outcome.output
}

/// Goal: the contracts have the code and the addresses that their transactions produce.
#[test]
fn contracts_are_those_of_their_transactions() {
    let (state, _, env) = chain();
    for (address, raw) in TRANSACTIONS {
        let raw = bytes(raw.trim());
        // They name no chain, so a strict chain does not admit them.
        assert!(Transaction::decode(&raw, STRICT).is_err());
        let transaction = Transaction::decode_any(&raw).unwrap();
        assert_eq!(transaction.sender.create(transaction.nonce()), address);
        let create = CallRequest { data: transaction.input().clone(), ..CallRequest::default() };
        let made = call(&state, &env, &create, &Interrupt::never()).unwrap();
        assert_eq!(made.output.to_vec(), predeploys()[&address].code.to_vec());
    }
}

/// Goal: the deployer deploys a contract at the address that follows from salt and code.
#[test]
fn the_deployer_deploys() {
    let (mut state, env) = begun();
    let init_code = bytes("64 5f355f5500 5f52 6005 601b f3");
    let salt = B256::repeat_byte(9);
    let transaction = invoke(1, 0, CREATE2_DEPLOYER, &[salt.to_vec(), init_code.clone()].concat());
    let outcome = execute(&state, &env, &[transaction]).unwrap();
    assert!(outcome.receipts.receipts[0].success);
    state.apply(&outcome.delta);
    let deployed = state.account(&CREATE2_DEPLOYER.create2(salt, keccak256(init_code))).unwrap();
    let code = state.code(&deployed.unwrap().code_hash.unwrap()).unwrap().unwrap();
    assert_eq!(code.to_vec(), bytes("5f355f5500"));
}

/// Goal: Multicall3 executes calls, and knows the block number.
#[test]
fn multicall_calls() {
    let (state, env) = begun();
    // getBlockNumber(), and getEthBalance(account 5).
    assert_eq!(view(&state, &env, MULTICALL3, &hex!("42cbb15c")).to_vec(), word(env.number));
    let balance = [hex!("4d2301cc").to_vec(), account(5).into_word().to_vec()].concat();
    assert_eq!(view(&state, &env, MULTICALL3, &balance).to_vec(), ether(100).to_be_bytes::<32>());
}

/// Goal: the system contracts hold the documented values: the parent's digest by time, and by number.
#[test]
fn system_contracts_hold_parents() {
    let (mut state, env) = begun();
    let outcome = execute(&state, &env, &[]).unwrap();
    state.apply(&outcome.delta);
    let next = BatchEnv { number: env.number + 1, parent_hash: B256::repeat_byte(7), ..env.clone() };
    let roots = view(&state, &next, BEACON_ROOTS, &U256::from(env.timestamp_s).to_be_bytes::<32>());
    assert_eq!(roots, Bytes::from(env.parent_hash.to_vec()));
    let hash = view(&state, &next, HISTORY_STORAGE, &word(env.number - 1));
    assert_eq!(hash, Bytes::from(env.parent_hash.to_vec()));
    // A later batch in the same second overwrites the entry of the one before.
    let later = BatchEnv { parent_beacon_root: Some(B256::repeat_byte(8)), ..next };
    let outcome = execute(&state, &later, &[]).unwrap();
    state.apply(&outcome.delta);
    let roots = view(&state, &later, BEACON_ROOTS, &U256::from(env.timestamp_s).to_be_bytes::<32>());
    assert_eq!(roots, Bytes::from(vec![8; 32]));
}
