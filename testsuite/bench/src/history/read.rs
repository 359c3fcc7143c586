//! Point reads with checked answers: a past state that shows later values would be fast but wrong.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use slipstream_storage::View;
use slipstream_types::StateKey;

/// One read of a key at a batch.
pub(super) struct Read<'a> {
    pub(super) view: &'a View,
    pub(super) key: StateKey,
    /// The newest version that the view may show.
    pub(super) version_max: u64,
}

/// Returns the nanoseconds per read, one after another.
pub(super) fn time(reads: &[Read<'_>]) -> Result<f64> {
    let start = Instant::now();
    for Read { view, key, version_max } in reads {
        check(version(view, key)?, *version_max)?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e9 / reads.len() as f64)
}

pub(super) fn check(version: u64, version_max: u64) -> Result<()> {
    ensure!(
        (1..=version_max).contains(&version),
        "a row of version {version} was read from a state of version {version_max}"
    );
    Ok(())
}

/// Returns the version of a row, as the workload writes it.
pub(super) fn version(view: &View, key: &StateKey) -> Result<u64> {
    match key {
        StateKey::Account(address) => Ok(view.account(address)?.context("an account has no row")?.nonce),
        StateKey::Slot(address, slot) => Ok(view.slot(address, slot)?.as_limbs()[0]),
    }
}
