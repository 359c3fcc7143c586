//! Converts between this crate's types and revm's.

use std::collections::BTreeMap;

use alloy_consensus::Transaction as _;
use alloy_eips::eip2718::{EIP1559_TX_TYPE_ID, EIP7702_TX_TYPE_ID};
use alloy_primitives::{Address, B256, U256};
use revm::{
    context::{BlockEnv, CfgEnv, ContextTr as _, TxEnv, either::Either, result::InvalidTransaction},
    context_interface::block::BlobExcessGasAndPrice,
    database::EmptyDB,
    handler::{MainnetContext, validation},
    precompile::{PrecompileSpecId, Precompiles},
    primitives::{KECCAK_EMPTY, TxKind},
    state::AccountInfo,
};
use slipstream_types::{AccountValue, Digest, Rules, chain::Fork};

use super::env::{BatchEnv, chain_spec};
use crate::{error::Rejection, request::CallRequest, transaction::Transaction};

pub(super) fn block_env(env: &BatchEnv) -> BlockEnv {
    BlockEnv {
        number: U256::from(env.number),
        beneficiary: env.beneficiary,
        timestamp: U256::from(env.timestamp_s),
        gas_limit: env.gas_limit,
        basefee: env.base_fee_wei,
        difficulty: env.difficulty,
        prevrandao: env.prev_randao,
        blob_excess_gas_and_price: env
            .excess_blob_gas
            .map(|excess| BlobExcessGasAndPrice::new_with_spec(excess, env.spec)),
        slot_num: 0,
    }
}

pub(super) fn cfg_env(env: &BatchEnv) -> CfgEnv {
    let mut cfg = CfgEnv::new_with_spec(env.spec).with_chain_id(env.chain_id);
    cfg.tx_gas_limit_cap = Some(env.transaction_gas_max);
    cfg
}

pub(super) fn tx_env(transaction: &Transaction) -> TxEnv {
    let envelope = &*transaction.envelope;
    TxEnv {
        tx_type: transaction.tx_type(),
        caller: transaction.sender,
        gas_limit: envelope.gas_limit(),
        gas_price: envelope.max_fee_per_gas(),
        kind: envelope.kind(),
        value: envelope.value(),
        data: envelope.input().clone(),
        nonce: envelope.nonce(),
        chain_id: envelope.chain_id(),
        access_list: envelope.access_list().cloned().unwrap_or_default(),
        gas_priority_fee: envelope.max_priority_fee_per_gas(),
        blob_hashes: envelope.blob_versioned_hashes().unwrap_or_default().to_vec(),
        max_fee_per_blob_gas: envelope.max_fee_per_blob_gas().unwrap_or_default(),
        authorization_list: envelope
            .authorization_list()
            .unwrap_or_default()
            .iter()
            .map(|authorization| Either::Left(authorization.clone()))
            .collect(),
    }
}

pub(super) fn call_env(request: &CallRequest, env: &BatchEnv, gas_limit: u64) -> TxEnv {
    TxEnv {
        tx_type: if request.authorizations.is_some() { EIP7702_TX_TYPE_ID } else { EIP1559_TX_TYPE_ID },
        caller: request.from,
        gas_limit,
        gas_price: request.max_fee_wei,
        kind: request.to.map_or(TxKind::Create, TxKind::Call),
        value: request.value,
        data: request.data.clone(),
        nonce: request.nonce.unwrap_or_default(),
        chain_id: Some(env.chain_id),
        access_list: request.access_list.clone(),
        gas_priority_fee: Some(request.max_tip_wei),
        blob_hashes: Vec::new(),
        max_fee_per_blob_gas: 0,
        authorization_list: request.authorizations.iter().flatten().cloned().map(Either::Right).collect(),
    }
}

/// A blob price that does not derive from earlier batches' blobs.
pub(super) fn blob_price(wei: u128) -> BlobExcessGasAndPrice {
    BlobExcessGasAndPrice { excess_blob_gas: 0, blob_gasprice: wei }
}

/// Whether a precompile is at an address.
pub(crate) fn is_precompile(address: &Address, env: &BatchEnv) -> bool {
    Precompiles::new(PrecompileSpecId::from_spec_id(env.spec)).contains(address)
}

/// The precompiles of a fork, by their EIP-7910 names.
pub fn precompiles(fork: Fork) -> BTreeMap<String, Address> {
    let all = Precompiles::new(PrecompileSpecId::from_spec_id(chain_spec(fork)));
    all.inner().values().map(|one| (one.id().name().to_owned(), *one.address())).collect()
}

/// Converts an account for revm. Leaves out the code: revm asks for code by its hash when needed.
pub(super) fn account_info(account: &AccountValue) -> AccountInfo {
    AccountInfo {
        balance: account.balance,
        nonce: account.nonce,
        code_hash: account.code_hash.map_or(KECCAK_EMPTY, B256::from),
        account_id: None,
        code: None,
    }
}

/// Converts revm's account to a row; `None` for an empty account (EIP-161).
pub(super) fn account_value(info: &AccountInfo) -> Option<AccountValue> {
    let code_hash = (info.code_hash != KECCAK_EMPTY).then(|| Digest::from(info.code_hash));
    Some(AccountValue { nonce: info.nonce, balance: info.balance, code_hash })
        .filter(|account| *account != AccountValue::default())
}

/// Checks whether some state and batch under these rules could take the transaction. Runs only those of revm's checks
/// that need no state or batch.
///
/// # Errors
/// Returns the rule that the transaction breaks on any state. The checks cover intrinsic gas and calldata floor, gas
/// cap, type, fees, init code, an empty list of authorizations, and the last nonce.
pub fn check_static(transaction: &Transaction, rules: &Rules) -> Result<(), Rejection> {
    let (spec, cap) = (chain_spec(rules.fork), rules.transaction_gas_max);
    // The caller checks the base fee, a batch's gas limit and the chain id.
    let block = BlockEnv { basefee: 0, gas_limit: u64::MAX, ..BlockEnv::default() };
    let mut cfg = CfgEnv::new_with_spec(spec).disable_tx_chain_id_check();
    cfg.tx_gas_limit_cap = Some(cap);
    let mut context = MainnetContext::new(EmptyDB::new(), spec)
        .with_cfg(cfg)
        .with_block(block)
        .with_tx(tx_env(transaction));
    let gas_limit = transaction.gas_limit();
    let reject = |error| rejection(error, gas_limit, u64::MAX);
    validation::validate_tx_env(&mut context, spec).map_err(reject)?;
    validation::validate_initial_tx_gas(context.tx(), spec, false, false, cap, None).map_err(reject)?;
    Ok(())
}

/// Returns the rule that revm found broken.
pub(super) fn rejection(error: InvalidTransaction, gas_limit: u64, batch_gas_limit: u64) -> Rejection {
    use InvalidTransaction as Invalid;
    match error {
        Invalid::NonceTooLow { tx, state } => Rejection::NonceTooLow { expected: state, found: tx },
        Invalid::NonceTooHigh { tx, state } => Rejection::NonceTooHigh { expected: state, found: tx },
        Invalid::LackOfFundForMaxFee { fee, balance } => {
            Rejection::InsufficientFunds { needed: *fee, balance: *balance }
        }
        Invalid::GasPriceLessThanBasefee => Rejection::FeeBelowBase,
        Invalid::CallGasCostMoreThanGasLimit { initial_gas, gas_limit } => {
            Rejection::IntrinsicGas { needed: initial_gas, gas_limit }
        }
        Invalid::GasFloorMoreThanGasLimit { gas_floor, gas_limit } => {
            Rejection::IntrinsicGas { needed: gas_floor, gas_limit }
        }
        Invalid::CallerGasLimitMoreThanBlock => {
            Rejection::GasLimitTooHigh { gas_limit, max: batch_gas_limit }
        }
        Invalid::TxGasLimitGreaterThanCap { gas_limit, cap } => {
            Rejection::GasLimitTooHigh { gas_limit, max: cap }
        }
        Invalid::RejectCallerWithCode => Rejection::SenderHasCode,
        Invalid::PriorityFeeGreaterThanMaxFee => Rejection::TipAboveFeeCap,
        Invalid::CreateInitCodeSizeLimit => Rejection::InitCodeTooLong,
        Invalid::EmptyAuthorizationList => Rejection::NoAuthorizations,
        Invalid::Eip7702NotSupported => Rejection::UnsupportedType,
        Invalid::NonceOverflowInTransaction => Rejection::LastNonce,
        other => Rejection::Other(other.to_string()),
    }
}
