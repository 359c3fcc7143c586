//! `slipnet bench sweep`: the gain from hints and predictors over a cold replay. The sweeps vary the number of reading
//! threads, the readahead, the cache's share of the state, and the disk's latency. They follow the papers on hints and
//! predictors: Ira's (threads, cache), and the thesis on Erigon's (threads, readahead, disks).

mod plot;

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Result;
use rayon::{ThreadPool, ThreadPoolBuilder};
use slipstream_executor::{ExecutionState, PrefetchBackend, PrefetchLimits, Prefetcher, predict_batch};
use slipstream_predict::{PredictMode, Predictors};

use self::plot::Plot;
use super::{
    BenchOptions, Figure, Report,
    harness::ratios,
    hints::{CACHED_DATA_MIB, Case, ColdState, Modelled, Size, replay_ahead},
    predictors::programs,
};
use slipnet::progress::Progress;

const THREADS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
const READAHEADS: [usize; 5] = [1, 2, 4, 8, 16];
/// MiB of cache for rows: from nothing up to all blocks that are read.
const CACHES: [u64; 6] = [0, 16, 32, 64, 128, 256];
/// Microseconds per read: a good disk, a poor one, one over a network, a rotating one.
const DEVICES: [u64; 4] = [100, 500, 1_000, 5_000];
/// A node's default, for the values that are held constant.
const THREADS_DEFAULT: usize = 16;
const READAHEAD_DEFAULT: usize = 8;
/// One block in this many is replayed on modelled devices, because cold replays there take very long.
const MODELLED_OF: usize = 3;

/// A way to replay blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, strum::VariantArray, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
enum Way {
    /// Execution reads every key when it needs it.
    Cold,
    /// The block maker's hints name its reads.
    Hints,
    /// The predictors' programs name its reads.
    #[strum(serialize = "predictors")]
    Full,
}

impl Way {
    const ALL: &'static [Way] = <Way as strum::VariantArray>::VARIANTS;

    fn name(self) -> &'static str {
        self.into()
    }
}

/// The measurements of one sweep: the seconds of each way at each point, run by run.
struct Sweep {
    name: &'static str,
    axis: &'static str,
    points: Vec<Point>,
}

struct Point {
    at: f64,
    seconds: [Vec<f64>; Way::ALL.len()],
}

/// The prefetcher, the threads of the predictors, and the readahead in blocks.
struct Helpers {
    prefetcher: Prefetcher,
    pool: ThreadPool,
    readahead: usize,
}

impl Helpers {
    fn new(threads: usize, readahead: usize, backend: Option<PrefetchBackend>) -> Result<Helpers> {
        let limits =
            PrefetchLimits { threads, backend, readahead_batches: readahead, ..PrefetchLimits::default() };
        Ok(Helpers {
            prefetcher: Prefetcher::new(limits)?,
            pool: ThreadPoolBuilder::new().num_threads(threads).build()?,
            readahead,
        })
    }

    /// Returns the seconds of replaying blocks in one way.
    fn replay<R>(&self, blocks: &[(&Case, R)], way: Way, programs: &Predictors) -> Result<f64>
    where
        R: ExecutionState + Clone + 'static,
    {
        let begin = Instant::now();
        let ahead = |hints: &(dyn Fn(&Case, &R) -> Result<slipstream_types::Hints> + Sync)| {
            replay_ahead(&self.prefetcher, self.readahead, blocks, hints)
        };
        match way {
            Way::Cold => blocks.iter().try_for_each(|(case, state)| case.check(state))?,
            Way::Hints => ahead(&|case, _| case.hints())?,
            Way::Full => ahead(&|case, state| {
                let block = &case.block;
                let foretell = || {
                    predict_batch(
                        programs,
                        &block.transactions,
                        &block.env,
                        block.gas_used,
                        state,
                        PredictMode::Full,
                    )
                };
                Ok(self.pool.install(foretell).hints)
            })?,
        }
        Ok(begin.elapsed().as_secs_f64())
    }
}

pub(super) fn run(options: &BenchOptions, progress: Progress) -> Result<Report> {
    let size = Size::of(options);
    let mut sweeps = Vec::new();
    {
        let state = ColdState::open(options, &size, CACHED_DATA_MIB, progress)?;
        progress.step("analysing contracts");
        let programs = programs(&state.cases);
        sweeps.push(threads(&state, &programs, size.runs, progress)?);
        sweeps.push(readahead(&state, &programs, size.runs, progress)?);
        sweeps.push(devices(&state.cases, &programs, progress)?);
    }
    sweeps.push(caches(options, &size, progress)?);
    let figures = sweeps.iter().flat_map(Sweep::figures).collect();
    if let Some(json) = &options.json {
        sweeps.iter().try_for_each(|sweep| sweep.plot(json))?;
    }
    let notes = vec![
        "the blocks of bench hints on its store; speedup: cold over the way at the same point of the same run".into(),
        format!(
            "threads: of point reads, and as many that foretell, at readahead {READAHEAD_DEFAULT}; readahead: blocks, the probe's back end; cache: MiB for \
             rows beside index and filters, after the blocks were replayed once in the same way; device: milliseconds of a modelled read, 16 at \
             once, one block in {MODELLED_OF}, once"
        ),
        "a plot of each sweep lies beside the file of --json".into(),
    ];
    Ok(Report { bench: "sweep", runs: size.runs, figures, notes })
}

/// Measures every way at one point, in an order that rotates from run to run.
fn measure(at: f64, runs: usize, mut seconds_of: impl FnMut(Way) -> Result<f64>) -> Result<Point> {
    let mut seconds: [Vec<f64>; Way::ALL.len()] = Default::default();
    for run in 0..runs {
        let mut ways: [usize; Way::ALL.len()] = std::array::from_fn(|way| way);
        ways.rotate_left(run % Way::ALL.len());
        for way in ways {
            seconds[way].push(seconds_of(Way::ALL[way])?);
        }
    }
    Ok(Point { at, seconds })
}

/// Measures on the store, whose cache is emptied before each replay.
fn on_disk(
    state: &ColdState,
    programs: &Predictors,
    (at, runs): (f64, usize),
    helpers: impl Fn() -> Result<Helpers>,
) -> Result<Point> {
    let blocks: Vec<_> = state.cases.iter().zip(state.worlds.iter().cloned()).collect();
    measure(at, runs, |way| {
        // Threads and their rings exist before a node's first batch.
        let helpers = helpers()?;
        state.store.drop_cached();
        helpers.replay(&blocks, way, programs)
    })
}

fn threads(state: &ColdState, programs: &Predictors, runs: usize, progress: Progress) -> Result<Sweep> {
    let point = |threads: &usize| {
        progress.step(&format!("{threads} threads"));
        let helpers = || Helpers::new(*threads, READAHEAD_DEFAULT, Some(PrefetchBackend::Threads));
        on_disk(state, programs, (*threads as f64, runs), helpers)
    };
    let points = THREADS.iter().map(point).collect::<Result<_>>()?;
    Ok(Sweep { name: "threads", axis: "threads that read", points })
}

fn readahead(state: &ColdState, programs: &Predictors, runs: usize, progress: Progress) -> Result<Sweep> {
    let point = |readahead: &usize| {
        progress.step(&format!("{readahead} blocks ahead"));
        let helpers = || Helpers::new(THREADS_DEFAULT, *readahead, None);
        on_disk(state, programs, (*readahead as f64, runs), helpers)
    };
    let points = READAHEADS.iter().map(point).collect::<Result<_>>()?;
    Ok(Sweep { name: "readahead", axis: "blocks read ahead", points })
}

fn caches(options: &BenchOptions, size: &Size, progress: Progress) -> Result<Sweep> {
    let point = |mib: &u64| {
        let state = ColdState::open(options, size, *mib, progress)?;
        let programs = programs(&state.cases);
        progress.step(&format!("{mib} MiB for rows"));
        let blocks: Vec<_> = state.cases.iter().zip(state.worlds.iter().cloned()).collect();
        let helpers = Helpers::new(THREADS_DEFAULT, READAHEAD_DEFAULT, None)?;
        measure(*mib as f64, size.runs, |way| {
            state.store.drop_cached();
            helpers.replay(&blocks, way, &programs)?;
            helpers.replay(&blocks, way, &programs)
        })
    };
    let points = CACHES.iter().map(point).collect::<Result<_>>()?;
    Ok(Sweep { name: "cache", axis: "MiB for rows", points })
}

fn devices(cases: &[Case], programs: &Predictors, progress: Progress) -> Result<Sweep> {
    let cases: Vec<_> = cases.iter().step_by(MODELLED_OF).collect();
    let states: Vec<_> = cases.iter().map(|case| Arc::new(case.block.state.clone())).collect();
    let point = |micros: &u64| {
        progress.step(&format!("a device of {micros} us a read"));
        let device = Modelled::new(Arc::default(), Duration::from_micros(*micros));
        let blocks: Vec<_> = cases
            .iter()
            .zip(&states)
            .map(|(case, state)| (*case, device.holding(Arc::clone(state))))
            .collect();
        measure(*micros as f64 / 1e3, 1, |way| {
            Helpers::new(THREADS_DEFAULT, READAHEAD_DEFAULT, None)?.replay(&blocks, way, programs)
        })
    };
    let points = DEVICES.iter().map(point).collect::<Result<_>>()?;
    Ok(Sweep { name: "device", axis: "ms a read", points })
}

impl Sweep {
    fn figures(&self) -> Vec<Figure> {
        let mut figures = Vec::new();
        for Point { at, seconds } in &self.points {
            let name = |what: &str, way: Way| format!("{what}.{}_{at}.{}", self.name, way.name());
            for (way, seconds) in Way::ALL.iter().zip(seconds) {
                let ms = seconds.iter().map(|seconds| 1e3 * seconds).collect();
                figures.push(Figure::new(name("ms", *way), "ms", ms));
            }
            let [cold, hints, full] = seconds;
            for (way, seconds) in [(Way::Hints, hints), (Way::Full, full)] {
                figures.push(Figure::new(name("speedup", way), "ratio", ratios(cold, seconds)));
            }
        }
        figures
    }

    /// Plots the medians of all ways, in a file beside another.
    fn plot(&self, beside: &Path) -> Result<()> {
        let median = |seconds: &[f64]| 1e3 * Figure::new("", "ms", seconds.to_vec()).value();
        let lines = Way::ALL.iter().enumerate().map(|(index, way)| {
            let points = self.points.iter().map(|point| (point.at, median(&point.seconds[index])));
            (way.name(), points.collect())
        });
        let plot = Plot { title: "ms to replay the blocks", axis: self.axis, lines: lines.collect() };
        plot.draw(&beside.with_extension(format!("{}.svg", self.name)))
    }
}
