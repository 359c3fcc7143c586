//! Consecutive batches, on the store and on modelled devices.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Result;
use slipstream_executor::{PrefetchLimits, Prefetcher};
use slipstream_storage::{MemoryState, Store};
use slipstream_types::StateKey;

use super::{
    cold::World,
    device::{self, Modelled},
    meter::Cost,
    replay::read_all,
    trace::Trace,
};
use crate::{Aim, Figure, Report, harness::ratios};

/// The ways to replay on the store.
const NAMES: [&str; 4] = ["cold", "no_cache", "hot", "io_only"];
const COLD: usize = 0;
const AHEAD: usize = 1;
const HOT: usize = 2;
const IO_ONLY: usize = 3;
/// The times of a read, with their names.
const READS: [(&str, Duration); 3] = [
    ("0.2ms", Duration::from_micros(200)),
    ("0.5ms", Duration::from_micros(500)),
    ("1ms", Duration::from_millis(1)),
];

/// Replays on the store: cold, with reading ahead, and with reading ahead and the hot cache. The floor of the last way
/// is many threads that only read the keys that no cache can have.
pub(super) fn measure(
    store: &Store,
    world: &World,
    trace: &Trace,
    runs: usize,
    report: &mut Report,
) -> Result<()> {
    let mut costs: [Vec<Cost>; NAMES.len()] = Default::default();
    // A node's prefetcher lives as long as the node, so only the first run pays for its probe.
    let prefetcher = Prefetcher::new(PrefetchLimits::default())?;
    let fresh: Vec<StateKey> = trace.fresh().concat();
    for run in 0..runs {
        let mut variants: [usize; NAMES.len()] = std::array::from_fn(|variant| variant);
        variants.rotate_left(run % NAMES.len());
        for variant in variants {
            // A node's cache is warm before a batch arrives.
            let hot = (variant == HOT).then(|| trace.warmed_up());
            store.drop_cached();
            let (cost, done) = Cost::of(store, || match variant {
                COLD => trace.replay_cold(world),
                IO_ONLY => read_all(world, &fresh, &[]),
                _ => trace.replay_ahead(&prefetcher, world, hot),
            });
            done?;
            costs[variant].push(cost);
        }
    }
    let seconds = |costs: &[Cost]| costs.iter().map(|cost| cost.seconds).collect::<Vec<_>>();
    let [cold, ahead, hot, io_only] = [COLD, AHEAD, HOT, IO_ONLY].map(|variant| seconds(&costs[variant]));
    report
        .figures
        .push(Figure::new("speedup.consecutive", "ratio", ratios(&cold, &hot)).aim(Aim::AtLeast(8.0)));
    report.figures.push(Figure::new("speedup.consecutive.no_cache", "ratio", ratios(&cold, &ahead)));
    report.figures.push(Figure::new("speedup.consecutive.io_only", "ratio", ratios(&cold, &io_only)));
    let keys = trace.keys() as f64;
    for (name, costs) in NAMES.into_iter().zip(&costs) {
        let of = |value: fn(&Cost) -> f64| costs.iter().map(value).collect::<Vec<_>>();
        let per_key = |values: Vec<f64>| values.into_iter().map(|value| value / keys).collect::<Vec<_>>();
        report.figures.extend([
            Figure::new(format!("ms.consecutive.{name}"), "ms", of(|cost| 1e3 * cost.seconds)),
            Figure::new(
                format!("reads_per_key.consecutive.{name}"),
                "ratio",
                per_key(of(|it| it.disk_reads as f64)),
            ),
            Figure::new(format!("cpu_us_per_key.consecutive.{name}"), "us", per_key(of(|it| 1e6 * it.cpu_s))),
        ]);
    }
    report.notes.push(format!(
        "consecutive: access lists of mainnet blocks, {keys} keys, {:.0} % of which a batch before touched; a key costs the CPU of the \
         isolated blocks; hot: with a node's hot cache; io_only: the other keys read by 16 threads, and nothing else; the probe chose \
         {:?}",
        100.0 * (1.0 - fresh.len() as f64 / keys),
        prefetcher.backend()
    ));
    Ok(())
}

/// Replays the same batches with slower reads. Only the device is modelled: 16 concurrent reads.
pub(super) fn modelled(trace: &Trace, report: &mut Report) -> Result<()> {
    let mut state = MemoryState::default();
    for (key, value) in trace.rows() {
        state.insert(key, value);
    }
    let state = Arc::new(state);
    for (name, read) in READS {
        let device = Modelled::new(state.clone(), read);
        let start = Instant::now();
        trace.replay_cold(&device)?;
        let cold = start.elapsed().as_secs_f64();
        for (kind, is_hot) in [("", true), (".no_cache", false)] {
            let prefetcher = Prefetcher::new(PrefetchLimits::default())?;
            let hot = is_hot.then(|| trace.warmed_up());
            let start = Instant::now();
            trace.replay_ahead(&prefetcher, &device, hot)?;
            let speedup = vec![cold / start.elapsed().as_secs_f64()];
            let figure = Figure::new(format!("speedup.modelled_{name}{kind}"), "ratio", speedup);
            let is_aimed_at = name == "1ms" && is_hot;
            report.figures.push(if is_aimed_at { figure.aim(Aim::AtLeast(25.0)) } else { figure });
        }
    }
    report.notes.push(format!(
        "modelled_*: the consecutive batches on a modelled device that takes so long for a read and works on {} at once",
        device::PARALLEL
    ));
    Ok(())
}
