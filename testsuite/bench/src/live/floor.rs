//! The floor: the work that no chain can avoid, in one process and without a network. It recovers senders, executes
//! transactions, updates rows and root, and writes and syncs batches.

use std::path::Path;

use anyhow::Result;
use slipnet::cpu;
use slipstream_executor::{HintsMode, Transaction};
use slipstream_storage::{StorageConfig, Store};

use super::generator::ACCOUNTS;
use crate::harness::{
    chain::{Maker, one_validator},
    workload::{Signer, Workload},
};

/// Ten seconds of a chain at 1,500 transfers a second.
const BATCHES: u64 = 100;
const BATCH_TRANSFERS: usize = 150;

/// Returns the CPU microseconds per transfer.
///
/// # Errors
/// If the disk fails.
pub(super) fn cpu_us(dir: &Path) -> Result<f64> {
    let signer = Signer::new(Workload::Transfers, Default::default(), ACCOUNTS as u32);
    let genesis = one_validator(&signer.funded());
    let admission = &genesis.chain;
    let batches = signer.batches_of(0, BATCHES, BATCH_TRANSFERS)?;
    let store = Store::open(&StorageConfig::default(), dir)?;
    store.initialize(&genesis)?;
    let mut maker = Maker::new(&store, &genesis, HintsMode::Keys);
    let before_s = cpu::of_this_process();
    for batch in &batches {
        let transactions: Result<Vec<_>, _> =
            batch.iter().map(|known| Transaction::decode(&known.raw, admission)).collect();
        maker.append(&transactions?)?;
    }
    let spent_s = cpu::of_this_process() - before_s;
    store.close();
    Ok(1e6 * spent_s / (BATCHES * BATCH_TRANSFERS as u64) as f64)
}
