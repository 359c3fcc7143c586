//! [`RunReport`]: all results of one run of a scenario.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::{Environment, LiarOpinion, PhaseFigures, SearchFigures, Series, series::POINTS_MAX};
use crate::load::Percentiles;

/// The longest report that is read. One with a hundred nodes and an hour has about 60 MB.
const FILE_BYTES_MAX: u64 = 256 << 20;
/// The most entries of each list: nodes, load series, faults, criteria and curves. A page with more is unreadable. A
/// scenario of 256 phases, each with a follower and reads, has eight curves per phase.
pub(crate) const LIST_MAX: usize = 2_048;

/// One run, as JSON: the only source of Markdown, HTML and comparisons.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunReport {
    /// The scenario's name.
    pub scenario: String,
    /// The command line that repeats the run.
    pub command: String,
    /// The machine and program of the run.
    pub environment: Environment,
    /// When it began, in milliseconds since 1970. All other times count from here.
    pub started_ms: u64,
    /// Its duration in seconds.
    pub seconds: f64,
    /// The series from the nodes' statuses.
    pub nodes: Vec<NodeSeries>,
    /// The series of the load.
    pub load: Vec<LoadSeries>,
    /// The figures of each phase of load; for a search, of each step.
    #[serde(default)]
    pub phases: Vec<PhaseFigures>,
    /// The searches for the rate that the chain sustains.
    #[serde(default)]
    pub searches: Vec<SearchFigures>,
    /// The events that affected the nodes.
    pub faults: Vec<FaultMark>,
    /// The nodes' opinions of peers that lied to them.
    #[serde(default)]
    pub liars: Vec<LiarOpinion>,
    /// The scenario's criteria with their results.
    pub criteria: Vec<CriterionResult>,
    /// How nodes that were behind caught up.
    pub catch_up: Vec<CatchUp>,
    /// The harness's own figures.
    pub harness: HarnessFigures,
}

/// A series with a name among others of its kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedSeries {
    /// The name: a stage, or a peer by the first digits of its key.
    pub name: String,
    /// Its values.
    pub series: Series,
}

/// The series from one node's status.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSeries {
    /// The node's name in the devnet.
    pub name: String,
    /// The node's role, as in its status.
    pub role: String,
    /// The number of its last batch.
    pub head: Series,
    /// Seconds since its last batch was made.
    pub head_age: Series,
    /// The cores that its process used, over windows of at least four seconds.
    pub cpu: Series,
    /// The MiB of memory of its process, by sample.
    pub memory: Series,
    /// The peak memory of its processes in MiB, as counted by the kernel (`VmHWM`), so that no peak is missed. `None`
    /// if the kernel could not be asked.
    #[serde(default)]
    pub memory_peak_mib: Option<f64>,
    /// The MiB that it uses on disk, which a node measures every 30 s.
    pub disk: Series,
    /// The cores that each stage of sync used.
    pub stages: Vec<NamedSeries>,
    /// The scores that it gives its peers, 0 to 1000.
    pub peers: Vec<NamedSeries>,
    /// Samples that it did not answer, most of them while it was down.
    pub unanswered: u64,
}

/// One series of a load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadSeries {
    /// What it measures, such as `commit main`, `follow main at fullnode-0`, `read main at fullnode-0 by HTTP` or
    /// `newHeads main at fullnode-0 by WebSocket`.
    pub name: String,
    /// Transactions committed or shown per second, or due reads and heads that arrived; in a long run, over slices of
    /// several seconds.
    pub per_second: Series,
    /// The median latency of the samples due in each second, in ms from their due times.
    pub p50: Series,
    /// The 90th percentile of the same.
    pub p90: Series,
    /// The 99th percentile of the same.
    pub p99: Series,
    /// The total, which medians over seconds do not show: a stall is few seconds and many transactions.
    #[serde(default)]
    pub total: Option<Total>,
}

/// The totals of a load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Total {
    /// Transactions per second, over the time of the load.
    pub per_second: f64,
    /// The latency in ms from the due time; `None` without samples.
    pub latency_ms: Option<Percentiles>,
}

/// An event that affected one node, or all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultMark {
    /// When it began, in ms since the run began.
    pub at_ms: u64,
    /// When it ended; `None` if it took effect at once, or lasted to the end.
    pub until_ms: Option<u64>,
    /// The event, such as `kill`.
    pub what: String,
    /// The node; `None` if it affected all.
    pub node: Option<String>,
}

/// One of the scenario's criteria, with its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CriterionResult {
    /// The criterion's name in the scenario.
    pub name: String,
    /// Whether it was met.
    pub passed: bool,
    /// The measured value, with its unit.
    pub measured: String,
    /// The required value.
    pub wanted: String,
}

/// One node that was behind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CatchUp {
    /// The node.
    pub node: String,
    /// Its sync mode: snapshot, delta or replay.
    pub mode: String,
    /// Seconds until it was at the head; `None` if the run ended before.
    pub seconds: Option<f64>,
    /// The number of batches that it was behind.
    pub behind: Series,
}

/// The harness's own figures: a node's figure is only as trustworthy as these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HarnessFigures {
    /// Transactions per second that were due, averaged over all phases.
    pub offered: f64,
    /// Transactions per second that were sent by the end of their schedule, whatever their fate on the chain.
    pub achieved: f64,
    /// The 99th percentile of the relay's delay beyond the requested one, in microseconds; `None` without a relay.
    pub relay_overhead_us: Option<f64>,
    /// Whether the generators of some load were the limit: then its figures say nothing about the nodes.
    #[serde(default)]
    pub generators_limit: bool,
}

impl NodeSeries {
    /// Returns the peak memory in MiB: the larger of the samples' maximum and the kernel's own peak.
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

    /// Makes an empty series.
    pub fn new(name: &str) -> LoadSeries {
        let [p50, p90, p99] = ["ms"; 3].map(Series::new);
        LoadSeries { name: name.to_owned(), per_second: Series::new("1/s"), p50, p90, p99, total: None }
    }

    /// Adds a slice of the run, by its end: the rate, and the latency unless nothing was due.
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
    /// Whether all criteria passed.
    pub fn passed(&self) -> bool {
        self.criteria.iter().all(|criterion| criterion.passed)
    }

    /// Reads a JSON report.
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
        report.with_context(|| format!("{} is not a report that `slipnet run` wrote", path.display()))
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
            ensure!(series.points.is_sorted_by_key(|(at_ms, _)| *at_ms), "a series is not in time order");
        }
        Ok(report)
    }

    fn all_series(&self) -> impl Iterator<Item = &Series> {
        let nodes = self.nodes.iter().flat_map(NodeSeries::all);
        nodes
            .chain(self.load.iter().flat_map(LoadSeries::all))
            .chain(self.catch_up.iter().map(|curve| &curve.behind))
    }

    /// Writes `report.json`, `report.md` and `report.html` into a directory, which it creates.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(&self, dir: &Path) -> Result<()> {
        fs::create_dir_all(dir).with_context(|| format!("cannot create the directory {}", dir.display()))?;
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
