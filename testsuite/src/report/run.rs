//! [`RunReport`]: everything that one run of a scenario measured.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::{Environment, LiarOpinion, PhaseFigures, SearchFigures, Series, series::POINTS_MAX};
use crate::load::Percentiles;

/// The longest report that is read. A hundred nodes of an hour take some 60 MB.
const FILE_BYTES_MAX: u64 = 256 << 20;
/// Most nodes, load series, faults, criteria and curves each: above it a page cannot be looked at. A scenario of 256 phases, each with a
/// follower and reads, has eight curves of each.
pub(crate) const LIST_MAX: usize = 2_048;

/// One run, as JSON: the one source of Markdown, HTML and comparisons.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunReport {
    /// The scenario's name.
    pub scenario: String,
    /// The command line that repeats the run.
    pub command: String,
    /// Where it ran.
    pub environment: Environment,
    /// When it began, in milliseconds since 1970. All other times count from here.
    pub started_ms: u64,
    /// How long it took.
    pub seconds: f64,
    /// What nodes said of themselves.
    pub nodes: Vec<NodeSeries>,
    /// What the load measured.
    pub load: Vec<LoadSeries>,
    /// What each stretch of load came to; of a search each step.
    #[serde(default)]
    pub phases: Vec<PhaseFigures>,
    /// The searches for the rate that the chain sustains.
    #[serde(default)]
    pub searches: Vec<SearchFigures>,
    /// What was done to the nodes.
    pub faults: Vec<FaultMark>,
    /// What nodes thought of peers that lied to them.
    #[serde(default)]
    pub liars: Vec<LiarOpinion>,
    /// What the scenario asked for, and what came.
    pub criteria: Vec<CriterionResult>,
    /// How nodes that were behind caught up.
    pub catch_up: Vec<CatchUp>,
    /// What the harness says of itself.
    pub harness: HarnessFigures,
}

/// A series beside others of its kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedSeries {
    /// What it is of: a stage, or a peer by the first digits of its key.
    pub name: String,
    /// Its values.
    pub series: Series,
}

/// What one node said of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSeries {
    /// Its name in the devnet.
    pub name: String,
    /// Its role, as it stands in the status.
    pub role: String,
    /// Number of its last batch.
    pub head: Series,
    /// Seconds since its last batch was made.
    pub head_age: Series,
    /// Cores that its process kept busy, over four seconds or more.
    pub cpu: Series,
    /// MiB of memory of its process, sample by sample.
    pub memory: Series,
    /// The most MiB that its processes took from their beginning, as the kernel counted it (`VmHWM`): no sample misses it. None where
    /// nobody could ask the kernel.
    #[serde(default)]
    pub memory_peak_mib: Option<f64>,
    /// MiB that it takes on disk, which a node measures every 30 s.
    pub disk: Series,
    /// Cores that each stage of sync kept busy.
    pub stages: Vec<NamedSeries>,
    /// The scores that it gives its peers, 0 to 1000.
    pub peers: Vec<NamedSeries>,
    /// Samples that it did not answer, most of them while it was down.
    pub unanswered: u64,
}

/// What one generator or one mix of load measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadSeries {
    /// What it is of, such as `commit main`, `follow main at fullnode-0`, `read main at fullnode-0 by HTTP` or `newHeads main at fullnode-0 by
    /// WebSocket`.
    pub name: String,
    /// Transactions that were done in each second, or the reads and heads that were due then and came; in a long run in each stretch of some.
    pub per_second: Series,
    /// Median latency of what was due in each second, in ms from then.
    pub p50: Series,
    /// 90 % quantile of the same.
    pub p90: Series,
    /// 99 % quantile of the same.
    pub p99: Series,
    /// All of it together, which no median of seconds tells: a stall is few seconds and many transactions.
    #[serde(default)]
    pub total: Option<Total>,
}

/// A load as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Total {
    /// Transactions that were done, over the time of the load.
    pub per_second: f64,
    /// In ms from when each was due; none if nothing was done.
    pub latency_ms: Option<Percentiles>,
}

/// What was done to a node, or to all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultMark {
    /// When it began, in ms since the run began.
    pub at_ms: u64,
    /// When it ended; none if it was a moment, or lasted to the end.
    pub until_ms: Option<u64>,
    /// What, such as `kill`.
    pub what: String,
    /// The node; none if it met all.
    pub node: Option<String>,
}

/// One thing that the scenario asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CriterionResult {
    /// Its name in the scenario.
    pub name: String,
    /// Whether it was met.
    pub passed: bool,
    /// What was found, with its unit.
    pub measured: String,
    /// What was asked for.
    pub wanted: String,
}

/// One node that was behind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CatchUp {
    /// The node.
    pub node: String,
    /// How it followed: snapshot, delta or replay.
    pub mode: String,
    /// Seconds until it was at the head; none if the run ended before.
    pub seconds: Option<f64>,
    /// Batches that it was behind.
    pub behind: Series,
}

/// What the harness says of itself: a figure of a node is worth no more than these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HarnessFigures {
    /// Transactions per second that were due, on the mean of all phases.
    pub offered: f64,
    /// Transactions per second that left by the end of their schedule. What the chain made of them is no figure of the harness.
    pub achieved: f64,
    /// Delay that the relay adds beyond the one asked for, 99 % quantile in microseconds; none without a relay.
    pub relay_overhead_us: Option<f64>,
    /// Whether the generators of some load were the limit: then its figures say nothing of the nodes.
    #[serde(default)]
    pub generators_limit: bool,
}

impl NodeSeries {
    /// The most MiB of memory: the kernel's own peak, which is beside the samples in their maximum.
    pub fn memory_max(&self) -> Option<f64> {
        self.memory.max().into_iter().chain(self.memory_peak_mib).max_by(f64::total_cmp)
    }

    fn all(&self) -> Vec<&Series> {
        let plain = [&self.head, &self.head_age, &self.cpu, &self.memory, &self.disk];
        plain.into_iter().chain(self.stages.iter().chain(&self.peers).map(|named| &named.series)).collect()
    }
}

impl LoadSeries {
    fn all(&self) -> Vec<&Series> {
        vec![&self.per_second, &self.p50, &self.p90, &self.p99]
    }

    /// No value yet.
    pub fn new(name: &str) -> LoadSeries {
        let [p50, p90, p99] = ["ms"; 3].map(Series::new);
        LoadSeries { name: name.to_owned(), per_second: Series::new("1/s"), p50, p90, p99, total: None }
    }

    /// Adds a stretch of the run, by its end: what was done per second, and how late it was; no latency if nothing was due.
    pub fn push(&mut self, at_ms: u64, per_second: f64, latency_ms: Option<Percentiles>) {
        self.per_second.push(at_ms, per_second);
        if let Some(latency) = latency_ms {
            self.p50.push(at_ms, latency.p50);
            self.p90.push(at_ms, latency.p90);
            self.p99.push(at_ms, latency.p99);
        }
    }
}

impl RunReport {
    /// Whether everything that the scenario asked for came.
    pub fn passed(&self) -> bool {
        self.criteria.iter().all(|criterion| criterion.passed)
    }

    /// Reads a report of JSON.
    ///
    /// # Errors
    /// If the file cannot be read, is longer than 256 MiB, or is no report of a run.
    pub fn load(path: &Path) -> Result<RunReport> {
        let length = fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?.len();
        ensure!(
            length <= FILE_BYTES_MAX,
            "{} has {length} bytes: reports have at most {FILE_BYTES_MAX}",
            path.display()
        );
        let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let report = RunReport::parse(&text);
        report.with_context(|| format!("{} is no report that `slipnet run` wrote", path.display()))
    }

    fn parse(text: &[u8]) -> Result<RunReport> {
        let report: RunReport = serde_json::from_slice(text)?;
        let lists = [
            ("nodes", report.nodes.len()),
            ("load", report.load.len()),
            ("phases", report.phases.len()),
            ("searches", report.searches.len()),
            ("faults", report.faults.len()),
            ("liars", report.liars.len()),
            ("criteria", report.criteria.len()),
            ("catch_up", report.catch_up.len()),
        ];
        for (name, length) in lists {
            ensure!(length <= LIST_MAX, "{name} has {length} entries, at most {LIST_MAX} are read");
        }
        for SearchFigures { name, steps, .. } in &report.searches {
            let length = steps.len();
            ensure!(length <= LIST_MAX, "the search {name} has {length} steps, at most {LIST_MAX} are read");
        }
        for PhaseFigures { name, latencies, .. } in &report.phases {
            let length = latencies.len();
            ensure!(
                length <= LIST_MAX,
                "the phase {name} has {length} latencies, at most {LIST_MAX} are read"
            );
        }
        for node in &report.nodes {
            let inner = [("stages", node.stages.len()), ("peers", node.peers.len())];
            for (name, length) in inner {
                ensure!(
                    length <= LIST_MAX,
                    "{name} of {} has {length} entries, at most {LIST_MAX}",
                    node.name
                );
            }
        }
        for series in report.all_series() {
            let length = series.points.len();
            ensure!(length <= POINTS_MAX, "a series has {length} points, at most {POINTS_MAX} are read");
            ensure!(
                series.points.is_sorted_by_key(|(at_ms, _)| *at_ms),
                "a series is not in the order of time"
            );
        }
        Ok(report)
    }

    fn all_series(&self) -> impl Iterator<Item = &Series> {
        let nodes = self.nodes.iter().flat_map(NodeSeries::all);
        nodes
            .chain(self.load.iter().flat_map(LoadSeries::all))
            .chain(self.catch_up.iter().map(|curve| &curve.behind))
    }

    /// Writes `report.json`, `report.md` and `report.html` into a directory, which it makes.
    ///
    /// # Errors
    /// If one cannot be written.
    pub fn write(&self, dir: &Path) -> Result<()> {
        fs::create_dir_all(dir).with_context(|| format!("cannot make the directory {}", dir.display()))?;
        let json = serde_json::to_string_pretty(self)? + "\n";
        for (name, text) in
            [("report.json", json), ("report.md", self.to_markdown()), ("report.html", self.to_html())]
        {
            let path = dir.join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests;
