//! [`Collector`]: reads nodes' `/v1/status` again and again, and makes series of what they say.

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
use crate::rpc::Rpc;

/// A node that answers later than this is taken for one that does not: a point must not be older than the next sample.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Peers of one node that are followed: the first that it names. A page with more lines shows nothing.
const PEERS_MAX: usize = 64;
/// Stages of one node that are followed: there are seven today.
const STAGES_MAX: usize = 32;
/// Digits of a key that name a peer.
const PEER_DIGITS: usize = 10;

const MIB: f64 = (1 << 20) as f64;

/// The part of the status that is followed. Every field may be missing: nodes of several releases run side by side in a rolling upgrade.
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

/// Reads nodes beside a run. Dropped, it stops reading.
pub struct Collector {
    begin: Instant,
    every: Duration,
    stop: CancellationToken,
    tasks: Vec<JoinHandle<NodeSeries>>,
    /// Ends the tasks of a run that failed.
    _end: DropGuard,
}

impl Collector {
    /// A collector of no node yet. Times count from `begin`; each node is read every `every`, at least 10 ms.
    pub fn new(begin: Instant, every: Duration) -> Collector {
        let stop = CancellationToken::new();
        let every = every.max(Duration::from_millis(10));
        Collector { begin, every, _end: stop.clone().drop_guard(), stop, tasks: Vec::new() }
    }

    /// Reads one more node from now on, under this name. It may be down for as long as it likes.
    pub fn add(&mut self, name: &str, rpc: &Rpc) {
        let watched = Watched::new(name);
        self.tasks.push(tokio::spawn(watched.watch(rpc.clone(), self.begin, self.every, self.stop.clone())));
    }

    /// Stops reading; what was read, in the order in which the nodes were added.
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

/// One node that is read, and the counters of its last sample.
struct Watched {
    series: NodeSeries,
    last: Option<Counters>,
}

/// Counters of one process; rates are differences of two.
struct Counters {
    at_ms: u64,
    started_ms: u64,
    cpu_seconds: Option<f64>,
    busy_seconds: BTreeMap<String, f64>,
}

impl Watched {
    fn new(name: &str) -> Watched {
        let series = NodeSeries {
            name: name.to_owned(),
            role: String::new(),
            head: Series::new("batches"),
            head_age: Series::new("s"),
            cpu: Series::new("cores"),
            memory: Series::new("MiB"),
            disk: Series::new("MiB"),
            stages: Vec::new(),
            peers: Vec::new(),
            unanswered: 0,
        };
        Watched { series, last: None }
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
                () = stop.cancelled() => return self.series,
                answer = async {
                    ticks.tick().await;
                    timeout(ANSWER_MAX, rpc.page("/v1/status")).await
                } => answer,
            };
            let sampled = answer.ok().and_then(Result::ok).and_then(|page| serde_json::from_value(page).ok());
            let at_ms = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
            match sampled {
                Some(sampled) => self.take(at_ms, sampled),
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
        let busy = sync.stages.into_iter().take(STAGES_MAX);
        let counters = Counters {
            at_ms,
            started_ms: process.started_ms,
            cpu_seconds: process.cpu_seconds,
            busy_seconds: busy.map(|stage| (stage.stage, stage.busy_seconds)).collect(),
        };
        if let Some(last) = self.last.replace(counters) {
            self.rate(&last);
        }
    }

    /// What was used since the last sample. Counters of another process say nothing.
    fn rate(&mut self, last: &Counters) {
        let Some(now) = &self.last else { return };
        let seconds = now.at_ms.saturating_sub(last.at_ms) as f64 / 1_000.0;
        if now.started_ms != last.started_ms || seconds <= 0.0 {
            return;
        }
        if let (Some(before), Some(after)) = (last.cpu_seconds, now.cpu_seconds) {
            self.series.cpu.push(now.at_ms, (after - before).max(0.0) / seconds);
        }
        for (stage, after) in &now.busy_seconds {
            let Some(before) = last.busy_seconds.get(stage) else { continue };
            let cores = (after - before).max(0.0) / seconds;
            push_named(&mut self.series.stages, stage, "cores", STAGES_MAX, (now.at_ms, cores));
        }
    }
}

/// Adds a value to the series of this name; a new name finds a place while there are fewer than `most`.
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

    /// Goal: rates are those between two samples of one process; a restart shows no negative one.
    #[test]
    fn counters_become_rates_of_one_process() {
        let mut node = Watched::new("fullnode-0");
        node.take(1_000, status(10, 7, 4.0, 1.0));
        node.take(3_000, status(30, 7, 5.0, 2.5));
        node.take(4_000, status(31, 8, 0.1, 0.0));
        node.take(5_000, status(32, 8, 0.6, 0.25));
        let NodeSeries { role, head, cpu, memory, disk, stages, peers, .. } = node.series;
        assert_eq!(role, "fullnode");
        assert_eq!(head.points, [(1_000, 10.0), (3_000, 30.0), (4_000, 31.0), (5_000, 32.0)]);
        assert_eq!(cpu.points, [(3_000, 0.5), (5_000, 0.5)]);
        assert_eq!((memory.last(), disk.last()), (Some(3.0), Some(5.0)));
        assert_eq!(stages.len(), 1);
        assert_eq!(stages[0].series.points, [(3_000, 0.75), (5_000, 0.25)]);
        assert_eq!((peers[0].name.as_str(), peers[0].series.last()), ("0123456789", Some(900.0)));
    }

    /// Goal: the status of an older release, or of a node that starts, is no failure.
    #[test]
    fn missing_fields_leave_gaps() {
        let mut node = Watched::new("old");
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
