//! The cost of past states for commits: the same batches on copies of one store that keep all states, those of the
//! default window, or none.

use anyhow::Result;
use slipstream_storage::StateHistory;

use super::copies::{Copies, Kept, figures, seconds};
use crate::{
    Figure,
    harness::{kept::WorkDir, ratios},
    size::short,
    state::{Choice, Cost, Way, measure as commit},
};
use slipnet::progress::Progress;

const UPDATES: usize = 10_000;
const BATCHES: usize = 10;
const KEPT: [Kept; 3] =
    [("none", StateHistory::Batches(0)), ("window", StateHistory::Batches(256)), ("all", StateHistory::All)];

pub(super) fn measure(
    sizes: &[u64],
    rounds: usize,
    place: &WorkDir,
    progress: Progress,
) -> Result<Vec<Figure>> {
    let mut all_figures = Vec::new();
    for (index, keys) in sizes.iter().enumerate() {
        let costs = of_size(*keys, rounds, place, progress)?;
        let size = short(*keys);
        let [none, window, all] = [0, 1, 2].map(|place: usize| seconds(&costs[place]));
        for ((name, _), costs) in KEPT.iter().zip(&costs) {
            all_figures.extend(figures(name, &size, costs));
        }
        all_figures.push(Figure::new(format!("commit_cost_window.{size}"), "ratio", ratios(&window, &none)));
        all_figures.push(Figure::new(format!("commit_cost.{size}"), "ratio", ratios(&all, &none)));
        if index + 1 == sizes.len() {
            all_figures.push(Figure::new("commit_cost", "ratio", ratios(&all, &none)));
        }
    }
    Ok(all_figures)
}

/// Returns the costs in the order of [`KEPT`].
fn of_size(keys: u64, rounds: usize, place: &WorkDir, progress: Progress) -> Result<[Vec<Cost>; KEPT.len()]> {
    let mut copies = Copies::of(keys, &KEPT, (rounds + 1) * BATCHES, place, progress)?;
    let mut costs = <[Vec<Cost>; KEPT.len()]>::default();
    for round in 0..=rounds {
        progress.step(&format!("committing to {} keys, round {round} of {rounds}", short(keys)));
        let batches = copies.workload.round(BATCHES, UPDATES, Choice::Uniform)?;
        for turn in 0..KEPT.len() {
            let place = (turn + round) % KEPT.len();
            let cost = commit(&mut copies.stores[place].by(Way::Given), &batches)?;
            // The first round warms up.
            if round > 0 {
                costs[place].push(cost);
            }
        }
    }
    copies.close();
    Ok(costs)
}
