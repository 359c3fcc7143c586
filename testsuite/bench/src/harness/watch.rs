//! [`Watcher`]: when two nodes were first seen with each batch.

use std::{
    collections::BTreeMap,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use slipnet::rpc::Rpc;

/// How often both are polled: the error of a lag. The errors of both sides cancel on average.
const POLL: Duration = Duration::from_millis(2);
/// The longest time for the follower to get the last batches of a load.
const DRAIN: Duration = Duration::from_secs(20);

/// When each batch was first seen.
#[derive(Default)]
struct Seen {
    last: Option<u64>,
    batches: BTreeMap<u64, Instant>,
}

impl Seen {
    /// Notes a head, for all batches up to it; batches from before the first poll do not count.
    fn note(&mut self, head: u64, now: Instant) {
        let last = *self.last.get_or_insert(head);
        self.batches.extend((last + 1..=head).map(|number| (number, now)));
        self.last = Some(last.max(head));
    }
}

/// A thread that polls; it ends when it is finished or dropped.
pub(crate) struct Watcher {
    stop: CancellationToken,
    until: tokio::sync::watch::Sender<u64>,
    thread: Option<JoinHandle<Result<[Seen; 2]>>>,
}

impl Watcher {
    /// Starts polling the two nodes at these addresses.
    pub(crate) fn start(leader: &str, follower: &str) -> Result<Watcher> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, (until, last)) = (CancellationToken::new(), tokio::sync::watch::channel(u64::MAX));
        let (stopped, urls) = (stop.clone(), [leader.to_owned(), follower.to_owned()]);
        let watch = move || {
            runtime.block_on(async {
                // Its own connections: their tasks run here, not on a busy runtime.
                let nodes = [Rpc::new(&urls[0])?, Rpc::new(&urls[1])?];
                watch(&nodes, last, stopped).await
            })
        };
        let thread = std::thread::Builder::new().name("watcher".into()).spawn(watch)?;
        Ok(Watcher { stop, until, thread: Some(thread) })
    }

    /// Waits until the follower has batch `last`; returns the sorted lags, in milliseconds, of all batches that were
    /// seen at both nodes.
    pub(crate) async fn finish(mut self, last: u64) -> Result<Vec<f64>> {
        self.until.send_replace(last);
        let thread = self.thread.take().context("the watcher was already finished")?;
        let joined = tokio::task::spawn_blocking(move || thread.join()).await?;
        let [leader, follower] = joined.map_err(|_| anyhow!("the watcher panicked"))??;
        Ok(lags(&leader, &follower))
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            // A panic was printed by its own thread.
            let _ = thread.join();
        }
    }
}

/// Returns the lags. The follower may be seen with a batch before its leader, by less than the polling interval: that
/// counts as 0.
fn lags(leader: &Seen, follower: &Seen) -> Vec<f64> {
    let lag = |(number, followed): (&u64, &Instant)| {
        let led = leader.batches.get(number)?;
        Some(followed.saturating_duration_since(*led).as_secs_f64() * 1e3)
    };
    let mut lags: Vec<f64> = follower.batches.iter().filter_map(lag).collect();
    lags.sort_by(f64::total_cmp);
    lags
}

async fn watch(
    nodes: &[Rpc; 2],
    until: tokio::sync::watch::Receiver<u64>,
    stop: CancellationToken,
) -> Result<[Seen; 2]> {
    let mut seen = <[Seen; 2]>::default();
    let mut ticks = tokio::time::interval(POLL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut draining = None;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = stop.cancelled() => return Ok(seen),
        }
        let head = async |node: &Rpc| -> Result<(u64, Instant)> {
            let head = node.head().await?;
            Ok((head, Instant::now()))
        };
        let (leader, follower) = tokio::try_join!(head(&nodes[0]), head(&nodes[1]))?;
        for (seen, (head, now)) in seen.iter_mut().zip([leader, follower]) {
            seen.note(head, now);
        }
        let last = *until.borrow();
        if follower.0 >= last {
            return Ok(seen);
        }
        if last < u64::MAX {
            let since = *draining.get_or_insert_with(Instant::now);
            anyhow::ensure!(
                since.elapsed() < DRAIN,
                "the fullnode reached only batch {} of {last} in time",
                follower.0
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lag_is_between_first_sights_of_the_same_batch() {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let (mut leader, mut follower) = (Seen::default(), Seen::default());
        for (head, ms) in [(7, 0), (8, 10), (8, 12), (10, 20)] {
            leader.note(head, at(ms));
        }
        // It was behind at the first poll, then got two batches at once, and does not have the last one.
        for (head, ms) in [(5, 0), (7, 5), (9, 110)] {
            follower.note(head, at(ms));
        }
        assert_eq!(lags(&leader, &follower), [90.0, 100.0]);
    }
}
