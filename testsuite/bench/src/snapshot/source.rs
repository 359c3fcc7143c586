//! The store whose snapshot is exported: rows like a chain's, under a certificate.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use slipstream_storage::{CommitBatch, RestoreTarget, StorageConfig, Store};
use slipstream_testkit::{certify, keys, next_header};
use slipstream_types::{
    AccountValue, Address, B256, BatchHeader, BatchNumber, Certificate, Delta, Digest, Genesis, StateKey,
    StateValue, U256, accumulator::AccumulatorRangeProof, codec, delta::DeltaEntry,
};

use slipnet::progress::Progress;

/// Rows of one batch.
const BATCH_ROWS: u64 = 200_000;
/// Contracts that share the slots.
const CONTRACTS: u64 = 1_000;

/// The data that a restore needs beside the rows.
#[derive(Serialize, Deserialize)]
pub(super) struct Target {
    header: BatchHeader,
    certificate: Certificate,
    headers: Vec<BatchHeader>,
    proof: AccumulatorRangeProof,
    genesis_proof: AccumulatorRangeProof,
}

impl Target {
    pub(super) fn read(dir: &Path) -> Result<Target> {
        Ok(codec::decode("target", &fs::read(dir.join("target"))?, usize::MAX)?)
    }

    pub(super) fn restore_target(&self) -> RestoreTarget {
        RestoreTarget { header: self.header.clone(), certificate: self.certificate.clone() }
    }

    /// Returns the headers, their proof, and the proof of the genesis.
    pub(super) fn headers(&self) -> (&[BatchHeader], &AccumulatorRangeProof, &AccumulatorRangeProof) {
        (&self.headers, &self.proof, &self.genesis_proof)
    }
}

/// The seed of the only validator's key.
const VALIDATOR: u8 = 5;

pub(super) fn genesis() -> Genesis {
    slipstream_testkit::genesis(&keys([VALIDATOR]), 1_000)
}

/// Fills a store with `leaves` leaves: half accounts, half slots. Its head is certified.
pub(crate) fn filled(dir: &Path, leaves: u64, progress: Progress) -> Result<Store> {
    let config = StorageConfig { fsync: false, snapshot_interval_batches: 0, ..StorageConfig::default() };
    let store = Store::open(&config, dir)?;
    store.initialize(&genesis())?;
    let mut task = progress.task("leaves", leaves);
    for first in (0..leaves).step_by(BATCH_ROWS as usize) {
        let last = leaves.min(first + BATCH_ROWS);
        commit(&store, first, last)?;
        task.update(last, "");
    }
    Ok(store)
}

fn commit(store: &Store, first: u64, last: u64) -> Result<()> {
    let head = store.head()?;
    let delta = Delta::new((first..last).into_par_iter().map(entry).collect(), Vec::new())?;
    let speculation = store.speculate(&delta)?;
    let header = next_header(&head.header, speculation.root());
    let certificate = certify(&head.accumulator, &header, None, &keys([VALIDATOR]));
    let batch = CommitBatch { certificate: Some(&certificate), ..CommitBatch::new(&header, &delta) };
    Ok(store.commit(batch, Some(speculation))?)
}

/// Returns the leaf with this index; hashed parts make it look like any chain's.
fn entry(index: u64) -> DeltaEntry {
    let hash = Digest::tagged("slipnet/bench-snapshot", &index.to_le_bytes()).0;
    let (key, value) = if index.is_multiple_of(2) {
        let account = AccountValue {
            nonce: 1 + index % 100,
            balance: U256::from_be_slice(&hash[20..30]),
            code_hash: None,
        };
        (StateKey::Account(Address::from_slice(&hash[..20])), StateValue::Account(account))
    } else {
        let mut contract = [0x77; 20];
        contract[..8].copy_from_slice(&(index / 2 % CONTRACTS).to_be_bytes());
        let value = U256::from(index) + U256::from(1);
        (StateKey::Slot(Address::from(contract), B256::from(hash)), StateValue::Slot(value))
    };
    DeltaEntry { key, value: Some(value) }
}

/// Writes the data that the restore needs beside the rows.
pub(super) fn write_target(store: &Store, number: BatchNumber, dir: &Path) -> Result<()> {
    let header = store.header(number)?.context("the snapshot's header is missing")?;
    let certificate = store.certificate(number)?.context("the snapshot's certificate is missing")?;
    let proof = store.header_range_proof(number.leaves(), number, 1)?;
    let genesis_proof = store.header_range_proof(number.leaves(), BatchNumber::GENESIS, 1)?;
    let target = Target { headers: vec![header.clone()], header, certificate, proof, genesis_proof };
    Ok(fs::write(dir.join("target"), codec::encode("target", &target)?)?)
}
