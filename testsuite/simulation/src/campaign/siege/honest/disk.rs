//! The disk that all nodes of a stage share: the duration of a short synced write. A transfer waits for several such
//! writes: on the node that accepts it, on the validator, and on every node that commits it.

use std::{
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use tokio::time::MissedTickBehavior;

use super::Waits;

/// Rare enough not to load the disk.
const INTERVAL: Duration = Duration::from_millis(100);
/// About the size of a transfer in a journal.
const BYTES: usize = 512;

/// Writes until it is stopped. A failed write counts as one that does not end.
pub(super) async fn watch(path: PathBuf, waits: Waits) {
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let scheduled = ticks.tick().await.into_std();
        let place = waits.begin(scheduled);
        let path = path.clone();
        if let Ok(Ok(())) = tokio::task::spawn_blocking(move || write(&path)).await {
            waits.end(place, Instant::now());
        }
    }
}

/// Appends to a file, and returns when the data is on disk.
fn write(path: &Path) -> io::Result<()> {
    let mut file = File::options().create(true).append(true).open(path)?;
    file.write_all(&[0; BYTES])?;
    file.sync_data()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: writes that end are short waits, and a disk that refuses them does not count as fast.
    #[tokio::test]
    async fn writes_count_until_they_are_on_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        (0..2).for_each(|_| write(&path).unwrap());
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 2 * BYTES as u64);
        let (waits, begin) = (Waits::default(), Instant::now());
        let watching = watch(dir.path().join("missing/disk"), waits.clone());
        assert!(tokio::time::timeout(2 * INTERVAL, watching).await.is_err(), "it goes on");
        let now = begin + 100 * INTERVAL;
        let open = waits.between((begin, now), now);
        assert!(open.first().is_some_and(|ms| *ms > 5_000.0), "{open:?}");
    }
}
