//! Compares the state's rows with the tree in the background, after a start that read hardly any of them: see
//! [`Store::scrub`].
//!
//! A round covers all paths once. It starts where the previous one stopped, so that even a node that is restarted often
//! completes rounds.

use std::time::{Duration, Instant};

use slipstream_base::tasks::TaskError;
use slipstream_storage::Store;
use slipstream_types::Path;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

/// The record with the start of the next step.
const RECORD: &str = "scrub";
/// Delay after the start, whose own work goes first.
const DELAY: Duration = Duration::from_secs(30);
/// Pause after a step, as a multiple of its duration: 4 % of one core.
const REST: u32 = 24;
/// The shortest pause after a step.
const REST_MIN: Duration = Duration::from_millis(20);
/// Steps after which the position is recorded.
const STEPS_PER_RECORD: u64 = 256;

/// Makes one round if the start left rows unread, and then waits for `shutdown`.
///
/// # Errors
/// [`slipstream_storage::StorageError::Corrupt`] names rows that do not match the state root. The node stops, and its
/// next start repairs them.
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
        tracing::info!(from = ?begin, "comparing the rows that the start did not read with the state's tree");
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

    /// Goal: a round ends wherever it starts, and the next one starts there.
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
