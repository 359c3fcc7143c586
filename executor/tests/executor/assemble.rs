//! Proposing: which candidates go into a batch, and what becomes of the others.

use std::collections::BTreeSet;

use crate::support::*;
use alloy_consensus::TxEip1559;
use alloy_primitives::{B256, Bytes};
use slipstream_executor::{
    BatchEnv, BuildLimits, Built, ExecuteError, Outcome, Rejection, StateReader, Touched, Transaction, build,
    execute,
};
use slipstream_storage::StorageError;
use slipstream_types::{
    AccountValue, Address, BatchNumber, Body, Digest, Hints, U256,
    limits::{BATCH_TRANSACTIONS_MAX, BODY_BYTES_MAX, DELTA_BYTES_MAX, RECEIPTS_BYTES_MAX},
};

const LIMITS: BuildLimits =
    BuildLimits { gas: u64::MAX, body_bytes: BODY_BYTES_MAX, transactions: BATCH_TRANSACTIONS_MAX };

fn build_with(env: &BatchEnv, candidates: &[Transaction], limits: BuildLimits) -> Built {
    let (state, _, _) = chain();
    let built = build(&state, env, &mut candidates.iter().cloned(), &limits).unwrap();
    // Whatever a proposer builds, every follower accepts, with the same outcome.
    let followed = execute(&state, env, &built.included).unwrap();
    assert_eq!(
        Outcome {
            hints: Hints::default(),
            preimages: vec![],
            touched: Touched::default(),
            ..built.outcome.clone()
        },
        Outcome {
            hints: Hints::default(),
            preimages: vec![],
            touched: Touched::default(),
            ..followed.clone()
        }
    );
    // The proposer also read for those that it left out.
    let hinted: BTreeSet<_> = built.outcome.hints.keys().collect();
    assert!(followed.hints.keys().all(|key| hinted.contains(&key)));
    built
}

fn hashes(transactions: &[Transaction]) -> Vec<B256> {
    transactions.iter().map(|transaction| transaction.hash).collect()
}

#[test]
fn invalid_candidates_are_skipped_and_only_hopeless_ones_rejected() {
    let (_, _, env) = chain();
    let good = [transfer(1, 0, account(2), 1), transfer(2, 0, account(3), 1), transfer(1, 1, account(2), 1)];
    let gap = transfer(3, 5, account(2), 1);
    let poor = transfer(9, 0, account(2), 1);
    let old = transfer(1, 0, account(2), 2);
    let huge = decode(sign(4, TxEip1559 { gas_limit: env.gas_limit + 1, ..dynamic(0, account(2)) }));
    let candidates =
        [good[0].clone(), gap, poor.clone(), old.clone(), good[1].clone(), huge.clone(), good[2].clone()];
    let built = build_with(&env, &candidates, LIMITS);
    assert_eq!(hashes(&built.included), hashes(&good));
    let rejected: Vec<_> = built.rejected.iter().map(|(hash, _)| *hash).collect();
    assert_eq!(rejected, [poor.hash, old.hash, huge.hash], "a gap in the nonces is no reason to forget");
    let (_, reason) = &built.rejected[1];
    assert_eq!(*reason, Rejection::NonceTooLow { expected: 1, found: 0 }.to_string());
    assert!(reason.starts_with("nonce too low"));
}

#[test]
fn stops_at_the_number_of_transactions_without_taking_another_candidate() {
    let (state, _, env) = chain();
    let mut candidates = (0..10).map(|nonce| transfer(1, nonce, account(2), 1));
    let limits = BuildLimits { transactions: 3, ..LIMITS };
    let built = build(&state, &env, &mut candidates, &limits).unwrap();
    assert_eq!(built.included.len(), 3);
    assert_eq!(candidates.next().unwrap().nonce(), 3);
}

#[test]
fn stays_within_gas_and_keeps_what_does_not_fit_for_later() {
    let (_, _, env) = chain();
    let big = decode(sign(2, TxEip1559 { gas_limit: 1_000_000, ..dynamic(0, account(3)) }));
    let candidates = [transfer(1, 0, account(2), 1), big, transfer(1, 1, account(2), 1)];
    let limits = BuildLimits { gas: 100_000, ..LIMITS };
    let built = build_with(&env, &candidates, limits);
    assert_eq!(built.included.len(), 2, "the big one is skipped, not the ones after it");
    assert!(built.rejected.is_empty());
    assert!(built.outcome.gas_used <= 100_000);

    let many: Vec<_> = (0..20).map(|nonce| transfer(1, nonce, account(2), 1)).collect();
    assert_eq!(build_with(&env, &many, limits).included.len(), 4);
    let small = BatchEnv { gas_limit: 50_000, ..env };
    assert_eq!(build_with(&small, &many, LIMITS).included.len(), 2, "the chain's limit holds too");
}

#[test]
fn the_body_fits_its_bytes() {
    let (_, _, env) = chain();
    let data = [1; 1_000];
    let many: Vec<_> = (0..8).map(|nonce| invoke(1, nonce, account(2), &data)).collect();
    let whole = Body::new(many.iter().map(|transaction| transaction.raw.to_vec()).collect()).unwrap();
    let limit = whole.content().unwrap().len() / 2;
    let built = build_with(&env, &many, BuildLimits { body_bytes: limit, ..LIMITS });
    let raws = built.included.iter().map(|transaction| transaction.raw.to_vec()).collect();
    assert!(Body::new(raws).unwrap().content().unwrap().len() <= limit);
    assert_eq!(built.included.len(), 3);
    assert!(built.rejected.is_empty());
}

/// Goal: events are cheap. Nobody may make a batch whose receipts cannot be sealed, or the proposer would stop for good.
#[test]
fn receipts_stay_within_their_limit() {
    let (state, _, env) = chain();
    let env = BatchEnv { gas_limit: 2_000_000_000, ..env };
    let loud = |seed, times: u64| {
        let gas_limit = 30_000_000 + times * 300_000;
        let input = Bytes::copy_from_slice(&word(times));
        decode(sign(seed, TxEip1559 { gas_limit, input, ..dynamic(0, LOUD) }))
    };
    let logs_max = (RECEIPTS_BYTES_MAX / 0x8000) as u64;
    let alone_too_long = loud(1, logs_max + 1);
    let (half, other_half) = (loud(2, logs_max / 2), loud(3, logs_max / 2));
    let candidates =
        [alone_too_long.clone(), half.clone(), other_half.clone(), transfer(4, 0, account(2), 1)];
    let built = build_with(&env, &candidates, LIMITS);
    assert_eq!(built.rejected.iter().map(|(hash, _)| *hash).collect::<Vec<_>>(), [alone_too_long.hash]);
    assert_eq!(hashes(&built.included), [half.hash, candidates[3].hash], "the second half comes again");
    assert_eq!(built.outcome.receipts.receipts[0].logs.len() as u64, logs_max / 2);

    let error = execute(&state, &env, &[alone_too_long]).unwrap_err();
    assert!(
        matches!(error, ExecuteError::InvalidTransaction { index: 0, reason: Rejection::TooMuch(_), .. }),
        "{error}"
    );
    let error = execute(&state, &env, &[half, other_half]).unwrap_err();
    assert!(matches!(error, ExecuteError::ReceiptsTooLong { index: 1, .. }), "{error}");
}

/// Goal: the same for the delta, whose limit only a chain with a very high gas limit can reach.
#[test]
fn the_delta_stays_within_its_limit() {
    let (_, _, env) = chain();
    let env = BatchEnv { gas_limit: 30_000_000_000, ..env };
    let fill = |seed, first: u64, slots: u64| {
        let gas_limit = 100_000 + slots * 23_000;
        let input = [word(first), word(first + slots)].concat().into();
        decode(sign(seed, TxEip1559 { gas_limit, input, max_fee_per_gas: 20_000_000, ..dynamic(0, FILLER) }))
    };
    let slots_max = (DELTA_BYTES_MAX / 90) as u64;
    let alone_too_long = fill(1, 1, slots_max + 1);
    let (half, other_half) = (fill(2, 1, slots_max / 2), fill(3, slots_max, slots_max / 2));
    let candidates = [alone_too_long.clone(), half.clone(), other_half, transfer(4, 0, account(2), 1)];
    let built = build_with(&env, &candidates, LIMITS);
    assert_eq!(built.rejected.iter().map(|(hash, _)| *hash).collect::<Vec<_>>(), [alone_too_long.hash]);
    assert_eq!(hashes(&built.included), [half.hash, candidates[3].hash]);
    assert!(built.outcome.delta.entries().len() as u64 > slots_max / 2);
}

/// Knows accounts, but not the code that they name: what a damaged store looks like.
struct Damaged(slipstream_executor::MemoryState);

impl StateReader for Damaged {
    fn account(&self, address: &Address) -> Result<Option<AccountValue>, StorageError> {
        self.0.account(address)
    }
    fn slot(&self, address: &Address, slot: &B256) -> Result<U256, StorageError> {
        self.0.slot(address, slot)
    }
    fn code(&self, _: &Digest) -> Result<Option<Bytes>, StorageError> {
        Ok(None)
    }
    fn header_digest(&self, number: BatchNumber) -> Result<Option<Digest>, StorageError> {
        self.0.header_digest(number)
    }
}

#[test]
fn a_state_that_cannot_be_read_is_nobodys_transaction_to_blame() {
    let (state, _, env) = chain();
    let env = BatchEnv { parent_beacon_root: None, spec: slipstream_executor::SpecId::CANCUN, ..env };
    let candidates = [transfer(1, 0, account(2), 1), invoke(1, 1, COUNTER, &[])];
    let error = build(&Damaged(state), &env, &mut candidates.iter().cloned(), &LIMITS).unwrap_err();
    assert!(matches!(error, ExecuteError::MissingCode { .. }), "{error}");
}
