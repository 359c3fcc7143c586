//! Flips one bit of a node's state on its disk.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use slipstream_storage::{StorageConfig, plain_database};

/// The directory of a node's rows, in its data.
const DATABASE: &str = "db";
/// The column families of state rows. One holds the state. A state that is downloaded whole goes into the other one.
const ROWS: [&str; 2] = ["state_a", "state_b"];
/// The most rows from which one is drawn.
const ROWS_MAX: usize = 10_000;

/// Flips a bit in a row of a stopped node's state. The bit is below the database's checksums, so only the node can
/// detect it. `draw` determines the bit.
///
/// # Errors
/// If the database cannot be opened, or has no rows.
pub(crate) fn row(data: &Path, draw: u64) -> Result<()> {
    let database = plain_database(&StorageConfig::default(), &data.join(DATABASE))?;
    let mut found = Vec::new();
    for name in ROWS {
        let rows = database.cf_handle(name).with_context(|| format!("the database has no {name}"))?;
        let mut all = database.raw_iterator_cf(rows);
        all.seek_to_first();
        while let Some((key, row)) = all.item().filter(|_| found.len() < ROWS_MAX) {
            if !row.is_empty() {
                found.push((rows, key.to_vec(), row.to_vec()));
            }
            all.next();
        }
    }
    ensure!(!found.is_empty(), "the state of {} has no rows yet: schedule the fault later", data.display());
    let count = u64::try_from(found.len())?;
    let (rows, key, mut row) = found.swap_remove(usize::try_from(draw % count)?);
    let bits = u64::try_from(row.len())? * 8;
    let bit = draw / count % bits;
    row[usize::try_from(bit / 8)?] ^= 1 << (bit % 8);
    database.put_cf(rows, key, row).context("cannot write the row")
}
