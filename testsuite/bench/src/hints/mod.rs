//! `slipnet bench hints`: mainnet blocks replayed on a store that is larger than its cache, cold and with hints. The
//! floors are their cost in memory (CPU only) and the reads of their working set (I/O only).

mod ahead;
mod cold;
mod consecutive;
mod device;
mod filler;
mod meter;
mod replay;
mod report;
mod trace;

use std::collections::BTreeMap;

use alloy_primitives::Bytes;
use anyhow::{Result, ensure};
use slipstream_storage::{MemoryState, Store};
use slipstream_types::{Digest, StateKey, StateValue};

pub(super) use self::{
    ahead::replay_ahead, cold::World, meter::Cost, replay::Case, trace::load as access_lists,
};
use self::{filler::Rows, replay::Variant, trace::Trace};
use super::{BenchOptions, Report, mainnet};
use slipnet::progress::Progress;

/// Earlier blocks have empty accounts in the state (before EIP-161), which no delta can express.
const FIRST_BLOCK: u64 = 2_675_000;
/// The world of the trace. A block's world is the block's number.
const TRACE_WORLD: u64 = u64::MAX;

/// The size of the measurements.
pub(super) struct Size {
    pub(super) runs: usize,
    /// Rows beside those that blocks read.
    filler: u64,
    /// The number of consecutive batches.
    batches: usize,
    /// The number of these batches that are replayed on modelled devices.
    modelled_batches: usize,
}

const FULL: Size = Size { runs: 5, filler: 20_000_000, batches: 18, modelled_batches: 18 };
const QUICK: Size = Size { runs: 2, filler: 1_000_000, batches: 6, modelled_batches: 2 };

impl Size {
    /// The size of a run.
    pub(super) fn of(options: &BenchOptions) -> Size {
        if options.quick { QUICK } else { FULL }
    }
}

/// A filled store, and the blocks that are replayed on it.
pub(super) struct ColdState {
    /// A view of the store for each block; declared before the store, so that it drops first.
    pub(super) worlds: Vec<World>,
    pub(super) cases: Vec<Case>,
    pub(super) store: Store,
    /// Rows of the store.
    pub(super) rows: u64,
    trace: Option<Trace>,
    batches: Vec<Vec<StateKey>>,
    /// Removes the directory unless it is kept; dropped last.
    _temporary: Option<tempfile::TempDir>,
}

impl ColdState {
    /// Loads the blocks and fills the store, or opens that of an earlier run.
    pub(super) fn open(options: &BenchOptions, size: &Size, progress: Progress) -> Result<ColdState> {
        let data = mainnet::data_dir(options.data.as_deref())?;
        progress.step("loading blocks");
        let cases = load(&data)?;
        let is_kept = options.dir != std::path::Path::new(".");
        let temporary = (!is_kept).then(|| options.temporary_dir()).transpose()?;
        let dir = temporary.as_ref().map_or(options.dir.as_path(), |dir| dir.path()).to_owned();
        let batches = trace::load(&data)?;
        let trace = Trace::new(batches.clone(), size.batches);
        let (real, codes) = contents(&cases, trace.as_ref());
        let rows = Rows::new(real, size.filler, filler::NEIGHBOURS);
        let store = cold::open(&dir, &rows, &codes, progress)?;
        let worlds = worlds(&store, &cases)?;
        let rows = rows.len();
        Ok(ColdState { worlds, cases, store, rows, trace, batches, _temporary: temporary })
    }
}

pub(super) fn run(options: &BenchOptions, progress: Progress) -> Result<Report> {
    let size = Size::of(options);
    let state = ColdState::open(options, &size, progress)?;
    let ColdState { worlds, cases, store, rows, trace, batches, .. } = &state;
    let mut costs: BTreeMap<Variant, Vec<Vec<Cost>>> = BTreeMap::new();
    for run in 0..size.runs {
        progress.step(&format!("replaying {} blocks, round {} of {}", cases.len(), run + 1, size.runs));
        // The first variant rotates, so that the work that one variant leaves to the disk slows all others alike.
        let mut variants = Variant::ALL;
        variants.rotate_left(run % Variant::ALL.len());
        for variant in variants {
            costs.entry(variant).or_default().push(variant.measure(store, cases, worlds)?);
        }
    }
    let mut report = report::isolated(size.runs, cases, &costs, *rows)?;
    if let Some(trace) = trace {
        let cpu = report::cpu_per_key(cases, &costs);
        let modelled = Trace::new(batches.clone(), size.modelled_batches).unwrap_or_else(|| trace.clone());
        let world = World::new(store, TRACE_WORLD, MemoryState::default())?;
        progress.step("replaying consecutive batches");
        consecutive::measure(store, &world, &trace.clone().with_cpu(cpu), size.runs, &mut report)?;
        progress.step("replaying consecutive batches on modelled devices");
        consecutive::modelled(&modelled.with_cpu(cpu), &mut report)?;
    }
    Ok(report)
}

fn load(data: &std::path::Path) -> Result<Vec<Case>> {
    let blocks = mainnet::load(data, FIRST_BLOCK)?;
    ensure!(!blocks.is_empty(), "there are no blocks from {FIRST_BLOCK} on in {}", data.display());
    blocks.into_iter().map(Case::new).collect()
}

/// Returns all rows and all code that are read from a cold store.
fn contents(cases: &[Case], trace: Option<&Trace>) -> (Vec<(StateKey, StateValue)>, BTreeMap<Digest, Bytes>) {
    let (mut real, mut codes) = (Vec::<(StateKey, StateValue)>::new(), BTreeMap::new());
    for case in cases {
        let mask = cold::mask(case.block.env.number);
        real.extend(case.block.state.iter().map(|(key, value)| (cold::masked(&mask, key), *value)));
        codes.extend(case.block.state.all_codes().map(|(hash, code)| (*hash, code.clone())));
    }
    let mask = cold::mask(TRACE_WORLD);
    let rows = trace.map(Trace::rows).unwrap_or_default();
    real.extend(rows.into_iter().map(|(key, value)| (cold::masked(&mask, &key), value)));
    (real, codes)
}

fn worlds(store: &Store, cases: &[Case]) -> Result<Vec<World>> {
    cases.iter().map(|case| World::new(store, case.block.env.number, case.block.state.clone())).collect()
}
