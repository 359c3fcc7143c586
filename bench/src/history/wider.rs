//! The cost of a window that is wider than the held states. Every row that leaves the 256 newest batches is written once more,
//! sorted, beside the commits. It lies on the disk until the window is over.

use anyhow::Result;
use slipstream_storage::{StateHistory, StorageConfig};

use crate::{
    Figure,
    harness::{
        kept::{Place, clone_store},
        ratios,
    },
    ledger::files::wait_until_quiet,
    size::short,
    state::{Choice, Cost, Meter, Ours, SizeDir, Way, config, measure as commit, tree_memory_mib},
};
use slipnet::progress::Progress;

/// A busy chain's batch.
pub(super) const UPDATES: usize = 1_000;
/// Batches of a round: as many as are sealed at once, so that each round pays for one seal.
pub(super) const BATCHES: usize = 64;
/// Rounds before those that count: the batches that are held, and two seals behind them.
const FILL_ROUNDS: usize = 6;
/// The states to keep, and their name in figures: the held ones, and five minutes of batches of 100 ms.
const WINDOWS: [(&str, StateHistory); 2] =
    [("256", StateHistory::Batches(256)), ("3000", StateHistory::Batches(3_000))];

/// The costs of one window, round by round.
#[derive(Default)]
struct Costs {
    /// Until the last batch is committed.
    commits: Vec<Cost>,
    /// Until nothing is written any more.
    all: Vec<Cost>,
    /// The bytes of its history on the disk for each row that was changed since the beginning.
    kept_bytes: Vec<f64>,
}

/// Commits to copies of one store in turn.
pub(super) fn measure(keys: u64, rounds: usize, place: &Place, progress: Progress) -> Result<Vec<Figure>> {
    let size_dir = SizeDir::open(place.dir(), keys)?;
    let store = size_dir.filled_store(progress)?;
    let copies = tempfile::tempdir_in(place.dir())?;
    let mut stores = Vec::new();
    for (name, state_history) in WINDOWS {
        let dir = copies.path().join(name);
        clone_store(&store, &dir)?;
        let tree_memory_mib = tree_memory_mib(keys);
        stores.push(Ours::open(&StorageConfig { state_history, tree_memory_mib, ..config(true) }, &dir)?);
    }
    let mut workload = size_dir.take(((FILL_ROUNDS + rounds) * BATCHES) as u64)?;
    let mut costs = <[Costs; WINDOWS.len()]>::default();
    for round in 0..FILL_ROUNDS + rounds {
        progress.step(&format!("committing behind a window, round {round} of {}", FILL_ROUNDS + rounds));
        let batches = workload.round(BATCHES, UPDATES, Choice::Uniform)?;
        for turn in 0..stores.len() {
            let place = (turn + round) % stores.len();
            wait_until_quiet()?;
            let meter = Meter::start()?;
            let commits = commit(&mut stores[place].by(Way::Given), &batches)?;
            wait_until_quiet()?;
            let all = meter.stop(BATCHES * UPDATES)?;
            if round >= FILL_ROUNDS {
                let kept = history_bytes(&stores[place])? / ((round + 1) * BATCHES * UPDATES) as f64;
                costs[place].commits.push(commits);
                costs[place].all.push(all);
                costs[place].kept_bytes.push(kept);
            }
        }
    }
    stores.iter().for_each(|ours| ours.store().close());
    Ok(figures(keys, &costs))
}

fn figures(keys: u64, costs: &[Costs; WINDOWS.len()]) -> Vec<Figure> {
    let size = short(keys);
    let mut figures = Vec::new();
    for ((name, _), costs) in WINDOWS.iter().zip(costs) {
        let name = |figure: &str| format!("{figure}.window_{name}.{size}");
        let of = |costs: &[Cost], figure: fn(&Cost) -> f64| costs.iter().map(figure).collect();
        figures.push(Figure::new(name("updates_per_s"), "1/s", of(&costs.commits, Cost::updates_per_s)));
        figures.push(Figure::new(name("cpu_per_update"), "us", of(&costs.all, Cost::cpu_us_per_update)));
        figures.push(Figure::new(name("bytes_per_update"), "bytes", of(&costs.all, Cost::bytes_per_update)));
        figures.push(Figure::new(name("kept_per_update"), "bytes", costs.kept_bytes.clone()));
    }
    let [held, wide] = [0, 1].map(|window: usize| {
        costs[window].commits.iter().map(|cost| 1.0 / cost.updates_per_s()).collect::<Vec<_>>()
    });
    figures.push(Figure::new(format!("commit_cost_wide.{size}"), "ratio", ratios(&wide, &held)));
    figures
}

/// The bytes of the states of the past, in files and in memory.
fn history_bytes(ours: &Ours) -> Result<f64> {
    let stats = ours.store().stats()?;
    let history = stats.columns.iter().filter(|column| column.name.starts_with("history"));
    Ok(history.map(|column| column.bytes).sum::<u64>() as f64)
}
