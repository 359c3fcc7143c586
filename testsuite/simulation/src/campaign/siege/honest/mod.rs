//! [`Honest`]: a wallet, a reader and a follower that run through the whole campaign, and how long each had to wait.

mod disk;
mod follower;
mod reader;
mod wallet;

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Result;
use parking_lot::Mutex;
use slipnet::quantiles::quantile;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub(super) use wallet::Wallet;

use super::{outcome::Machine, stage::Stage};

/// The addresses of the wallet and the reader. A node treats callers from 127.0.0.1 as its operator. These two are
/// strangers, like the attackers, with their own addresses.
const WALLET: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 32, 0, 1));
const READER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 32, 1, 1));

/// How often the honest users check how late they get a core.
const LATENESS_INTERVAL: Duration = Duration::from_millis(10);

/// Waits of one honest user, by their beginning. An open wait counts with its time so far, so that endless waits count
/// too.
#[derive(Clone, Default)]
pub(super) struct Waits(Arc<Mutex<Vec<Wait>>>);

/// When a wait began, and when it ended if it did.
type Wait = (Instant, Option<Instant>);

impl Waits {
    /// Notes that a wait begins; returns its index for [`Waits::end`].
    fn begin(&self, at: Instant) -> usize {
        let mut waits = self.0.lock();
        waits.push((at, None));
        waits.len() - 1
    }

    fn end(&self, place: usize, at: Instant) {
        if let Some((_, end)) = self.0.lock().get_mut(place) {
            *end = Some(at);
        }
    }

    /// Returns the sorted waits that began within `window`, in milliseconds.
    pub(super) fn between(&self, window: (Instant, Instant), now: Instant) -> Vec<f64> {
        let waits = self.0.lock();
        let within = waits.iter().filter(|(begin, _)| (window.0..window.1).contains(begin));
        let took =
            |(begin, end): &Wait| end.unwrap_or(now).saturating_duration_since(*begin).as_secs_f64() * 1e3;
        let mut waits: Vec<f64> = within.map(took).collect();
        waits.sort_by(f64::total_cmp);
        waits
    }
}

/// An honest user that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, strum::EnumCount, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub(super) enum User {
    /// From the scheduled time of a transfer to its receipt.
    Wallet,
    /// From the scheduled time of a request to its answer.
    Reader,
    /// From the validator's having a batch to the follower's having it.
    Follower,
}

impl User {
    pub(super) const ALL: [User; <User as strum::EnumCount>::COUNT] =
        [User::Wallet, User::Reader, User::Follower];

    pub(super) fn name(self) -> &'static str {
        self.into()
    }
}

/// The honest users of a stage.
pub(super) struct Honest {
    waits: [Waits; 3],
    /// How late this process runs for its own reasons.
    lateness: Waits,
    /// The durations of writes to the disk that all nodes share.
    disk: Waits,
    pub(super) wallet: Arc<Wallet>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Honest {
    /// Starts the honest users.
    pub(super) async fn start(stage: &Stage) -> Result<Honest> {
        let waits = <[Waits; 3]>::default();
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let wallet =
            Wallet::new(stage.wallet_accounts(), stage.money, stage.victim().rpc(), waits[0].clone()).await?;
        let until = |task: futures::future::BoxFuture<'static, ()>| {
            let stop = stop.clone();
            async move { stop.run_until_cancelled(task).await }
        };
        tasks.spawn(until(Box::pin(wallet.clone().run(tasks.clone(), stop.clone()))));
        let url = stage.victim().rpc().url().to_owned();
        tasks.spawn(until(Box::pin(reader::run(url, waits[1].clone(), tasks.clone(), stop.clone()))));
        let nodes = [stage.validator(), stage.follower()].map(|node| node.rpc().clone());
        tasks.spawn(until(Box::pin(follower::run(nodes, waits[2].clone()))));
        let (lateness, disk) = <(Waits, Waits)>::default();
        tasks.spawn(until(Box::pin(watch_lateness(lateness.clone()))));
        tasks.spawn(until(Box::pin(disk::watch(stage.files().join("disk"), disk.clone()))));
        Ok(Honest { waits, lateness, disk, wallet, stop, tasks })
    }

    /// Returns the sorted waits of one user that began within `window`, in milliseconds.
    pub(super) fn waits(&self, user: User, window: (Instant, Instant)) -> Vec<f64> {
        self.waits[user as usize].between(window, Instant::now())
    }

    /// Returns the delays that are due to this machine, and not to the node.
    pub(super) fn machine(&self, window: (Instant, Instant)) -> Machine {
        let p99 = |waits: &Waits| quantile(&waits.between(window, Instant::now()), 0.99).unwrap_or_default();
        Machine { late_ms: p99(&self.lateness), disk_ms: p99(&self.disk) }
    }

    pub(super) async fn end(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Wakes up periodically, and notes how late.
async fn watch_lateness(lateness: Waits) {
    let mut ticks = tokio::time::interval(LATENESS_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let scheduled = ticks.tick().await.into_std();
        let place = lateness.begin(scheduled);
        lateness.end(place, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_without_end_counts_with_the_time_so_far() {
        let waits = Waits::default();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let first = waits.begin(at(0));
        waits.begin(at(10));
        waits.begin(at(100));
        waits.end(first, at(30));
        assert_eq!(waits.between((at(0), at(100)), at(1_010)), [30.0, 1_000.0]);
        assert_eq!(waits.between((at(0), at(101)), at(1_010)).len(), 3);
    }
}
