//! The cost of the past to commits: the same batches on copies of one store that keep all states, those of the default window, and
//! none.

use anyhow::Result;
use slipstream_storage::{StateHistory, StorageConfig};

use crate::{
    Figure,
    harness::{
        kept::{Place, clone_store},
        ratios,
    },
    size::short,
    state::{Choice, Cost, Ours, SizeDir, Way, config, measure as commit, tree_memory_mib},
};
use slipnet::progress::Progress;

const UPDATES: usize = 10_000;
const BATCHES: usize = 10;
/// The states to keep, and their name in figures.
const KEPT: [(&str, StateHistory); 3] =
    [("none", StateHistory::Batches(0)), ("window", StateHistory::Batches(256)), ("all", StateHistory::All)];

pub(super) fn measure(
    sizes: &[u64],
    rounds: usize,
    place: &Place,
    progress: Progress,
) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (index, keys) in sizes.iter().enumerate() {
        let costs = of_size(*keys, rounds, place, progress)?;
        let size = short(*keys);
        let seconds =
            |costs: &[Cost]| costs.iter().map(|cost| 1.0 / cost.updates_per_s()).collect::<Vec<_>>();
        let [none, window, all] = [0, 1, 2].map(|place| seconds(&costs[place]));
        for ((name, _), costs) in KEPT.iter().zip(&costs) {
            let name = |figure: &str| format!("{figure}.{name}.{size}");
            let of = |figure: fn(&Cost) -> f64| costs.iter().map(figure).collect();
            figures.push(Figure::new(name("updates_per_s"), "1/s", of(Cost::updates_per_s)));
            figures.push(Figure::new(name("cpu_per_update"), "us", of(Cost::cpu_us_per_update)));
            figures.push(Figure::new(name("bytes_per_update"), "bytes", of(Cost::bytes_per_update)));
        }
        figures.push(Figure::new(format!("commit_cost_window.{size}"), "ratio", ratios(&window, &none)));
        figures.push(Figure::new(format!("commit_cost.{size}"), "ratio", ratios(&all, &none)));
        if index + 1 == sizes.len() {
            figures.push(Figure::new("commit_cost", "ratio", ratios(&all, &none)));
        }
    }
    Ok(figures)
}

/// In the order of [`KEPT`].
fn of_size(keys: u64, rounds: usize, place: &Place, progress: Progress) -> Result<[Vec<Cost>; KEPT.len()]> {
    let size_dir = SizeDir::open(place.dir(), keys)?;
    let store = size_dir.filled_store(progress)?;
    let copies = tempfile::tempdir_in(place.dir())?;
    let mut stores = Vec::new();
    for (name, state_history) in KEPT {
        let dir = copies.path().join(name);
        progress.step(&format!("opening a copy of {} keys that keeps {name}", short(keys)));
        clone_store(&store, &dir)?;
        let tree_memory_mib = tree_memory_mib(keys);
        stores.push(Ours::open(&StorageConfig { state_history, tree_memory_mib, ..config(true) }, &dir)?);
    }
    let mut workload = size_dir.take(((rounds + 1) * BATCHES) as u64)?;
    let mut costs = <[Vec<Cost>; KEPT.len()]>::default();
    for round in 0..=rounds {
        progress.step(&format!("committing to {} keys, round {round} of {rounds}", short(keys)));
        let batches = workload.round(BATCHES, UPDATES, Choice::Uniform)?;
        for turn in 0..stores.len() {
            let place = (turn + round) % stores.len();
            let cost = commit(&mut stores[place].by(Way::Given), &batches)?;
            // The first round warms up.
            if round > 0 {
                costs[place].push(cost);
            }
        }
    }
    stores.iter().for_each(|ours| ours.store().close());
    Ok(costs)
}
