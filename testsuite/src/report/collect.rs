//! [`Collector`]: polls nodes' `/v1/status`, and makes series of it.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use serde::Deserialize;
use tokio::{
    task::JoinHandle,
    time::{MissedTickBehavior, interval, timeout},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{NamedSeries, NodeSeries, Series};
use crate::{devnet::MemoryPeak, rpc::Rpc, time::now_ms};

/// The silence after which a node counts as gone: a point must not be older than the next sample.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// The most peers of one node that are followed: the first ones in its status. A chart with more lines is unreadable.
const PEERS_MAX: usize = 64;
/// The most stages of one node that are followed: there are seven today.
const STAGES_MAX: usize = 32;
/// The least window of a stage's rate. Stages count a job when it ends: in a shorter window, long jobs would look like
/// many cores.
const STAGE_WINDOW_MS: u64 = 1_000;
/// The least window of CPU use. A node measures its process every second, and a sample sees that up to one interval
/// later: over four seconds the error is small.
const CPU_WINDOW_MS: u64 = 4_000;
/// The digits of a key that identify a peer.
pub(crate) const PEER_DIGITS: usize = 10;

const MIB: f64 = (1 << 20) as f64;

/// The followed part of the status. Every field may be missing: nodes of several releases run side by side in a rolling
/// upgrade.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Sampled {
    role: String,
    head: Head,
    health: Health,
    process: ProcessUse,
    disk: Option<Disk>,
    sync: SyncUse,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Head {
    number: Option<u64>,
    timestamp_ms: Option<u64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Health {
    head_age_seconds: Option<f64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ProcessUse {
    started_ms: u64,
    memory_bytes: Option<u64>,
    cpu_seconds: Option<f64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Disk {
    used: Option<DiskUse>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct DiskUse {
    total_bytes: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct SyncUse {
    stages: Vec<Stage>,
    peers: Vec<Peer>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Stage {
    stage: String,
    busy_seconds: f64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Peer {
    id: String,
    score: f64,
}

impl Sampled {
    /// Computes the head's age by this clock: the node's clock may have jumped. If the node reports no timestamp of its
    /// head, the age that it reports stays.
    fn by_clock(mut self, now_ms: u64) -> Sampled {
        // The genesis has the time at which the chain was defined, not that at which it started.
        let has_batch = self.head.number.is_some_and(|number| number > 0);
        if let Some(timestamp_ms) = self.head.timestamp_ms.filter(|_| has_batch) {
            // The age is negative if this clock is slow, or the validators' is fast.
            self.health.head_age_seconds = Some((now_ms as f64 - timestamp_ms as f64) / 1_000.0);
        }
        self
    }
}

/// Polls nodes during a run. Dropping it stops the polling.
pub struct Collector {
    begin: Instant,
    every: Duration,
    stop: CancellationToken,
    tasks: Vec<JoinHandle<NodeSeries>>,
    /// Ends the tasks of a run that failed.
    _end: DropGuard,
}

impl Collector {
    /// Makes a collector without nodes. Times count from `begin`; each node is polled every `every`, at least 10 ms.
    pub fn new(begin: Instant, every: Duration) -> Collector {
        let stop = CancellationToken::new();
        let every = every.max(Duration::from_millis(10));
        Collector { begin, every, _end: stop.clone().drop_guard(), stop, tasks: Vec::new() }
    }

    /// Polls one more node from now on, under this name, and reads its memory peak with each sample. The node may be
    /// down for any time.
    pub fn add(&mut self, name: &str, rpc: &Rpc, peak: &MemoryPeak) {
        let watched = Watched::new(name, peak.clone());
        self.tasks.push(tokio::spawn(watched.watch(rpc.clone(), self.begin, self.every, self.stop.clone())));
    }

    /// Stops polling, and returns the series in the order in which the nodes were added.
    ///
    /// # Errors
    /// If a reader panicked.
    pub async fn finish(self) -> Result<Vec<NodeSeries>> {
        self.stop.cancel();
        let mut nodes = Vec::with_capacity(self.tasks.len());
        for task in self.tasks {
            nodes.push(task.await.context("a reader of /v1/status panicked")?);
        }
        Ok(nodes)
    }
}

/// A node that is polled, with the counters from which the next rates are computed.
struct Watched {
    series: NodeSeries,
    /// The start time of the current process; counters of another process do not count.
    started_ms: Option<u64>,
    cpu: Option<Cpu>,
    stages: Option<(u64, BTreeMap<String, f64>)>,
    peak: MemoryPeak,
}

/// CPU seconds of a process, as its node reports them.
struct Cpu {
    /// The value in the last sample.
    seen: f64,
    /// The time and value of the last change; `None` before the first change, because the age of the value is unknown
    /// until then.
    base: Option<(u64, f64)>,
}

impl Watched {
    fn new(name: &str, peak: MemoryPeak) -> Watched {
        let series = NodeSeries {
            name: name.to_owned(),
            head: Series::new("batches"),
            head_age: Series::new("s"),
            cpu: Series::new("cores"),
            memory: Series::new("MiB"),
            disk: Series::new("MiB"),
            ..NodeSeries::default()
        };
        Watched { series, started_ms: None, cpu: None, stages: None, peak }
    }

    async fn watch(
        mut self,
        rpc: Rpc,
        begin: Instant,
        every: Duration,
        stop: CancellationToken,
    ) -> NodeSeries {
        let mut ticks = interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let answer = tokio::select! {
                () = stop.cancelled() => {
                    self.peak.look();
                    self.series.memory_peak_mib = self.peak.mib();
                    return self.series;
                }
                answer = async {
                    ticks.tick().await;
                    timeout(ANSWER_MAX, rpc.page("/v1/status")).await
                } => answer,
            };
            let sampled: Option<Sampled> =
                answer.ok().and_then(Result::ok).and_then(|page| serde_json::from_value(page).ok());
            self.peak.look();
            let at_ms = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
            match sampled {
                Some(sampled) => self.take(at_ms, sampled.by_clock(now_ms())),
                None => self.series.unanswered += 1,
            }
        }
    }

    fn take(&mut self, at_ms: u64, sampled: Sampled) {
        let Sampled { role, head, health, process, disk, sync } = sampled;
        let NodeSeries { head: heads, head_age, memory, disk: disks, peers, .. } = &mut self.series;
        heads.push(at_ms, head.number.map_or(f64::NAN, |number| number as f64));
        head_age.push(at_ms, health.head_age_seconds.unwrap_or(f64::NAN));
        memory.push(at_ms, process.memory_bytes.map_or(f64::NAN, |bytes| bytes as f64 / MIB));
        let used = disk.and_then(|disk| disk.used);
        disks.push(at_ms, used.map_or(f64::NAN, |used| used.total_bytes as f64 / MIB));
        for peer in &sync.peers {
            let name: String = peer.id.trim_start_matches("0x").chars().take(PEER_DIGITS).collect();
            push_named(peers, &name, "points", PEERS_MAX, (at_ms, peer.score));
        }
        self.series.role = role;
        if self.started_ms.replace(process.started_ms) != Some(process.started_ms) {
            (self.cpu, self.stages) = (None, None);
        }
        if let Some(seconds) = process.cpu_seconds {
            self.take_cpu(at_ms, seconds);
        }
        let busy = sync.stages.into_iter().take(STAGES_MAX);
        self.take_stages(at_ms, busy.map(|stage| (stage.stage, stage.busy_seconds)).collect());
    }

    /// Records CPU seconds. The node's figure stays constant between its own measurements, so a rate counts from one
    /// change to another.
    fn take_cpu(&mut self, at_ms: u64, seconds: f64) {
        let Some(cpu) = &mut self.cpu else {
            self.cpu = Some(Cpu { seen: seconds, base: None });
            return;
        };
        if cpu.seen == seconds {
            return;
        }
        cpu.seen = seconds;
        let Some((since_ms, before)) = cpu.base else {
            cpu.base = Some((at_ms, seconds));
            return;
        };
        let passed_ms = at_ms.saturating_sub(since_ms);
        if passed_ms >= CPU_WINDOW_MS {
            self.series.cpu.push(at_ms, (seconds - before).max(0.0) * 1_000.0 / passed_ms as f64);
            cpu.base = Some((at_ms, seconds));
        }
    }

    fn take_stages(&mut self, at_ms: u64, busy: BTreeMap<String, f64>) {
        let Some((last_ms, last)) = &self.stages else {
            self.stages = Some((at_ms, busy));
            return;
        };
        let passed_ms = at_ms.saturating_sub(*last_ms);
        if passed_ms < STAGE_WINDOW_MS {
            return;
        }
        for (stage, after) in &busy {
            let Some(before) = last.get(stage) else { continue };
            let cores = (after - before).max(0.0) * 1_000.0 / passed_ms as f64;
            push_named(&mut self.series.stages, stage, "cores", STAGES_MAX, (at_ms, cores));
        }
        self.stages = Some((at_ms, busy));
    }
}

/// Adds a value to the series with this name; a new name is added while there are fewer than `most`.
fn push_named(all: &mut Vec<NamedSeries>, name: &str, unit: &str, most: usize, (at_ms, value): (u64, f64)) {
    let place = all.iter().position(|named| named.name == name);
    let place = match place {
        Some(place) => place,
        None if all.len() < most => {
            all.push(NamedSeries { name: name.to_owned(), series: Series::new(unit) });
            all.len() - 1
        }
        None => return,
    };
    all[place].series.push(at_ms, value);
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn status(head: u64, started_ms: u64, cpu: f64, busy: f64) -> Sampled {
        let status = json!({
            "role": "fullnode", "head": { "number": head, "digest": "0x00" }, "health": { "head_age_seconds": 0.5 },
            "process": { "started_ms": started_ms, "memory_bytes": 3 << 20, "cpu_seconds": cpu },
            "disk": { "used": { "total_bytes": 5 << 20 } },
            "sync": {
                "stages": [{ "stage": "execute", "busy_seconds": busy }],
                "peers": [{ "id": "0x0123456789abcdef", "score": 900 }],
            },
        });
        serde_json::from_value(status).unwrap()
    }

    /// Goal: rates are computed between two samples of one process; a restart gives no negative rate.
    #[test]
    fn counters_become_rates_of_one_process() {
        let mut node = Watched::new("fullnode-0", MemoryPeak::default());
        node.take(1_000, status(10, 7, 4.0, 1.0));
        node.take(3_000, status(30, 7, 4.0, 2.5));
        node.take(4_000, status(31, 8, 0.1, 0.0));
        node.take(4_500, status(32, 8, 0.1, 0.2));
        node.take(5_000, status(33, 8, 0.1, 0.25));
        let NodeSeries { role, head, memory, disk, stages, peers, .. } = node.series;
        assert_eq!(role, "fullnode");
        let heads = [(1_000, 10.0), (3_000, 30.0), (4_000, 31.0), (4_500, 32.0), (5_000, 33.0)];
        assert_eq!(head.points, heads);
        assert_eq!((memory.last(), disk.last()), (Some(3.0), Some(5.0)));
        assert_eq!(stages.len(), 1);
        assert_eq!(stages[0].series.points, [(3_000, 0.75), (5_000, 0.25)]);
        assert_eq!((peers[0].name.as_str(), peers[0].series.last()), ("0123456789", Some(900.0)));
    }

    /// Goal: a figure that the node updates every two seconds, and that is polled every half second, gives a curve
    /// without peaks and zeros.
    #[test]
    fn cpu_counts_between_two_looks_of_the_node() {
        let mut node = Watched::new("fullnode-0", MemoryPeak::default());
        for step in 0..40_u64 {
            let looked = (step / 4) as f64;
            node.take(step * 500, status(step, 7, looked, 0.0));
        }
        // One CPU second in two seconds: half a core, from the first change on.
        assert_eq!(node.series.cpu.points, [(6_000, 0.5), (10_000, 0.5), (14_000, 0.5), (18_000, 0.5)]);
        node.take(20_000, status(40, 8, 0.0, 0.0));
        assert_eq!(node.series.cpu.points.len(), 4);
    }

    /// Goal: a jump of a node's clock changes the age of its head in neither direction.
    #[test]
    fn the_age_of_a_head_is_by_the_readers_clock() {
        const NOW_MS: u64 = 1_700_000_005_000;
        let age = |head: Value| {
            let page = json!({ "head": head, "health": { "head_age_seconds": 3_600.0 } });
            let sampled: Sampled = serde_json::from_value(page).unwrap();
            sampled.by_clock(NOW_MS).health.head_age_seconds
        };
        assert_eq!(age(json!({ "number": 7, "timestamp_ms": NOW_MS - 2_500 })), Some(2.5));
        assert_eq!(age(json!({ "number": 7, "timestamp_ms": NOW_MS + 9_000 })), Some(-9.0), "it lies ahead");
        assert_eq!(age(json!({ "number": 7 })), Some(3_600.0), "it does not tell when");
        let genesis = json!({ "head": { "number": 0, "timestamp_ms": 5 }, "health": {} });
        let genesis: Sampled = serde_json::from_value(genesis).unwrap();
        assert_eq!(genesis.by_clock(NOW_MS).health.head_age_seconds, None);
    }

    /// Goal: the status of an older release, or of a node that is starting, is no failure.
    #[test]
    fn missing_fields_leave_gaps() {
        let mut node = Watched::new("old", MemoryPeak::default());
        for (at_ms, page) in
            [(1, json!({})), (2, json!({ "disk": null, "health": { "head_age_seconds": Value::Null } }))]
        {
            node.take(at_ms, serde_json::from_value(page).unwrap());
        }
        assert_eq!((node.series.head.points.len(), node.series.cpu.points.len()), (0, 0));
    }

    #[test]
    fn only_so_many_peers_are_followed() {
        let mut all = Vec::new();
        (0..100).for_each(|name: u32| push_named(&mut all, &name.to_string(), "points", PEERS_MAX, (0, 1.0)));
        push_named(&mut all, "0", "points", PEERS_MAX, (1, 2.0));
        assert_eq!((all.len(), all[0].series.points.len()), (PEERS_MAX, 2));
    }
}
