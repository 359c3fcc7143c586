//! The cost of a window that is wider than the held states. Every row that leaves the 256 newest batches is written
//! once more, sorted, beside the commits. It stays on disk until the window has passed it.

use anyhow::Result;
use slipstream_storage::StateHistory;

use super::copies::{self, Copies, Kept, seconds};
use crate::{
    Figure,
    harness::{files::wait_until_quiet, kept::Place, ratios},
    size::short,
    state::{Choice, Cost, Meter, Ours, Way, measure as commit},
};
use slipnet::progress::Progress;

/// The updates in a batch of a busy chain.
pub(super) const UPDATES: usize = 1_000;
/// Batches of a round: the number that is sealed at once, so that each round pays for one seal.
pub(super) const BATCHES: usize = 64;
/// Rounds before those that count: they make the held batches, and two seals below them.
const FILL_ROUNDS: usize = 6;
/// The held states, and five minutes of batches of 100 ms.
const WINDOWS: [Kept; 2] =
    [("window_256", StateHistory::Batches(256)), ("window_3000", StateHistory::Batches(3_000))];

/// The costs of one window, round by round.
#[derive(Default)]
struct Costs {
    /// The cost until the last batch is committed.
    commits: Vec<Cost>,
    /// The cost until all writes are done.
    all: Vec<Cost>,
    /// Bytes of history on disk per row that was changed since the beginning.
    kept_bytes: Vec<f64>,
}

/// Commits to copies of one store alternately.
pub(super) fn measure(keys: u64, rounds: usize, place: &Place, progress: Progress) -> Result<Vec<Figure>> {
    let mut copies = Copies::of(keys, &WINDOWS, (FILL_ROUNDS + rounds) * BATCHES, place, progress)?;
    let mut costs = <[Costs; WINDOWS.len()]>::default();
    for round in 0..FILL_ROUNDS + rounds {
        progress.step(&format!("committing behind a window, round {round} of {}", FILL_ROUNDS + rounds));
        let batches = copies.workload.round(BATCHES, UPDATES, Choice::Uniform)?;
        for turn in 0..WINDOWS.len() {
            let place = (turn + round) % WINDOWS.len();
            wait_until_quiet()?;
            let meter = Meter::start()?;
            let commits = commit(&mut copies.stores[place].by(Way::Given), &batches)?;
            wait_until_quiet()?;
            let all = meter.stop(BATCHES * UPDATES)?;
            if round >= FILL_ROUNDS {
                let kept = history_bytes(&copies.stores[place])? / ((round + 1) * BATCHES * UPDATES) as f64;
                costs[place].commits.push(commits);
                costs[place].all.push(all);
                costs[place].kept_bytes.push(kept);
            }
        }
    }
    copies.close();
    Ok(figures(keys, &costs))
}

fn figures(keys: u64, costs: &[Costs; WINDOWS.len()]) -> Vec<Figure> {
    let size = short(keys);
    let mut figures = Vec::new();
    for ((name, _), costs) in WINDOWS.iter().zip(costs) {
        figures.extend(copies::figures(name, &size, &costs.commits, &costs.all));
        let kept = format!("kept_per_update.{name}.{size}");
        figures.push(Figure::new(kept, "bytes", costs.kept_bytes.clone()));
    }
    let [held, wide] = [0, 1].map(|window: usize| seconds(&costs[window].commits));
    figures.push(Figure::new(format!("commit_cost_wide.{size}"), "ratio", ratios(&wide, &held)));
    figures
}

/// Returns the bytes of the past states, in files and in memory.
fn history_bytes(ours: &Ours) -> Result<f64> {
    let stats = ours.store().stats()?;
    let history = stats.columns.iter().filter(|column| column.name.starts_with("history"));
    Ok(history.map(|column| column.bytes).sum::<u64>() as f64)
}
