//! The state's rows compared with the tree behind the node's work, after a start that read hardly any of them: see [`Store::scrub`].
//!
//! A round goes once around all paths. It begins where the one before stopped, so that a node which is started often still comes round.

use std::time::{Duration, Instant};

use slipstream_storage::Store;
use slipstream_types::Path;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use crate::tasks::TaskError;

/// Where the next step begins.
const RECORD: &str = "scrub";
/// The work of the start goes first.
const DELAY: Duration = Duration::from_secs(30);
/// Rest after a step, in times that it took: 4 % of one core.
const REST: u32 = 24;
/// Rest after a step at least.
const REST_MIN: Duration = Duration::from_millis(20);
/// Steps after which the place is written down.
const STEPS_PER_RECORD: u64 = 256;

/// Goes once around the rows that the start did not read, and then waits to be told to end.
///
/// # Errors
/// [`slipstream_storage::StorageError::Corrupt`] names rows that are not those of the state root. The node stops, and its next start
/// repairs them.
pub(crate) async fn run(store: Store, shutdown: CancellationToken) -> Result<(), TaskError> {
    let rest = async |time: Duration| {
        tokio::select! {
            () = shutdown.cancelled() => true,
            () = tokio::time::sleep(time) => false,
        }
    };
    if rest(DELAY).await {
        return Ok(());
    }
    if store.is_unread() {
        let begin = store.record(RECORD)?.and_then(|bytes| bytes.try_into().ok()).map_or(Path::MIN, Path);
        tracing::info!(from = ?begin, "the rows that the start did not read are compared with the state's tree");
        let start = Instant::now();
        let (mut place, mut has_wrapped, mut rows) = (begin, begin == Path::MIN, 0);
        for step in 1u64.. {
            let scrubbing = store.clone();
            let scrubbed = spawn_blocking(move || scrubbing.scrub(place)).await??;
            rows += scrubbed.rows;
            place = scrubbed.next.unwrap_or(Path::MIN);
            let is_round = has_wrapped && (scrubbed.next.is_none() || begin != Path::MIN && place >= begin);
            has_wrapped |= scrubbed.next.is_none();
            if step.is_multiple_of(STEPS_PER_RECORD) || is_round {
                store.put_derived_record(RECORD, &place.0)?;
                tracing::debug!(?place, rows, "comparing rows with the state's tree");
            }
            if is_round {
                break;
            }
            if rest((REST * scrubbed.time).max(REST_MIN)).await {
                store.put_derived_record(RECORD, &place.0)?;
                return Ok(());
            }
        }
        spawn_blocking(move || store.end_scrub()).await?;
        let s = start.elapsed().as_secs();
        tracing::info!(rows, s, "all rows of the state were compared with its tree");
    }
    shutdown.cancelled().await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use slipstream_storage::StorageConfig;
    use slipstream_testkit::keys;
    use slipstream_types::Genesis;

    use super::*;

    /// Goal: a round ends wherever it begins, and the next begins at its rest.
    #[tokio::test(start_paused = true)]
    async fn a_round_comes_round_from_anywhere() {
        for begin in [Path::MIN, Path([0x80; 32]), Path::MAX] {
            let dir = tempfile::tempdir().unwrap();
            let config = StorageConfig::default();
            let accounts = (0..3_000u32).map(|i| {
                let mut address = [0; 20];
                address[..4].copy_from_slice(&i.to_be_bytes());
                (address.into(), Default::default())
            });
            let genesis =
                Genesis { accounts: accounts.collect(), ..slipstream_testkit::genesis(&keys([1]), 0) };
            let store = Store::open(&config, dir.path()).unwrap();
            store.initialize(&genesis).unwrap();
            store.put_record(RECORD, &begin.0).unwrap();
            store.close();
            drop(store);
            let store = Store::open(&config, dir.path()).unwrap();
            assert!(store.is_unread());
            let shutdown = CancellationToken::new();
            let task = tokio::spawn(run(store.clone(), shutdown.clone()));
            while store.is_unread() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            shutdown.cancel();
            task.await.unwrap().unwrap();
        }
    }
}
