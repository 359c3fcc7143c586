//! `slipnet bench replay`: the cost of a node that follows by executing. Real processes follow real chains. The state
//! is far larger than their caches, or all in memory. Hints and predictions come in each kind, or not at all.
//!
//! The state is filled once per directory. A chain of each traffic is made on a clone of it and served by a node. Each
//! follower begins on its own clone, so that it learns everything (programs of predictors, caches) during the run.

mod chain;
mod floor;
mod follow;
mod propose;
mod report;
mod traffic;
mod world;

use std::{collections::BTreeMap, path::Path};

use alloy_primitives::B256;
use anyhow::{Context, Result, ensure};
use slipstream_executor::HintsMode;

use self::{
    chain::Chain,
    floor::Floor,
    follow::{Followed, Memory, Row, follow},
    propose::{Proposed, propose},
    traffic::{Traffic, listed_slot},
    world::{Size, World},
};
use super::{
    BenchOptions, Report,
    harness::{
        kept::{WorkDir, clone_store, remove},
        node::{NodeOptions, NodeProcess, database},
    },
    hints::access_lists,
    mainnet,
};
use slipnet::{accounts::node_key, progress::Progress};

const SERVER_SEED: &str = "slipnet-replay-server";

/// The rows of a traffic that its figures compare; they come first.
const AIMED: usize = 7;

/// A proposer makes one in this many of a chain's batches again.
const PROPOSED_OF: usize = 2;

struct Plan {
    is_quick: bool,
    runs: usize,
    size: Size,
    batches: usize,
    /// Prefixes of the names to measure: `erc20.cold`, `amm.warm.keys_off`, or `erc20` for all of it. By default a full
    /// run measures only the rows of the aims, seven of ERC-20: a follower takes half a minute to open 50 million rows.
    only: Vec<String>,
}

impl Plan {
    fn new(quick: bool, only: &[String]) -> Plan {
        let (runs, batches, size) = match quick {
            true => (1, 60, Size { rows: 1_000_000, senders: 5_000 }),
            false => (3, 400, Size { rows: 50_000_000, senders: 200_000 }),
        };
        Plan { is_quick: quick, runs, size, batches, only: only.to_vec() }
    }

    fn names(&self, name: &str) -> bool {
        self.only.iter().any(|beginning| name.starts_with(beginning.as_str()))
    }

    /// Returns the rows for the proposer.
    fn proposing(&self, traffic: Traffic) -> Vec<Row> {
        let row = |memory, predict| Row { memory, hints: "keys", predict };
        let mut rows = match traffic {
            Traffic::Erc20 => {
                vec![row(Memory::Cold, "off"), row(Memory::Cold, "full"), row(Memory::Warm, "off")]
            }
            _ => Vec::new(),
        };
        let is_named = |row: &Row| {
            let name = format!("{}.proposer.{}", traffic.name(), row.name());
            self.only.is_empty() || self.names(&name)
        };
        rows.retain(is_named);
        rows
    }

    /// Returns the rows of a traffic; the common ones come first.
    fn rows(&self, traffic: Traffic) -> Vec<Row> {
        let row = |memory, hints, predict| Row { memory, hints, predict };
        let mut rows: Vec<Row> = vec![
            row(Memory::Cold, "off", "off"),
            row(Memory::Cold, "keys", "off"),
            row(Memory::Cold, "values", "off"),
            row(Memory::Cold, "off", "full"),
            row(Memory::Warm, "off", "off"),
            row(Memory::Warm, "keys", "off"),
            row(Memory::Warm, "conflicts", "off"),
        ];
        if traffic == Traffic::Erc20 {
            rows.extend(["keys", "conflicts", "values"].map(|hints| row(Memory::Cold, hints, "full")));
            rows.extend(
                ["off", "keys", "conflicts", "values"].map(|hints| row(Memory::Cold, hints, "accounts")),
            );
            rows.push(row(Memory::Cold, "conflicts", "off"));
            rows.push(row(Memory::Warm, "values", "off"));
            rows.push(row(Memory::Warm, "off", "full"));
        }
        let is_named = |row: &Row| {
            let name = format!("{}.{}", traffic.name(), row.name());
            match self.only.is_empty() {
                true => self.is_quick || traffic == Traffic::Erc20,
                false => self.names(&name),
            }
        };
        if self.only.is_empty() {
            rows.truncate(AIMED);
        }
        rows.retain(is_named);
        rows
    }
}

/// The measurements of one traffic.
#[derive(Default)]
struct Samples {
    rows: BTreeMap<Row, Vec<Followed>>,
    /// The proposer's runs. It makes hints in each of these rows.
    proposed: BTreeMap<Row, Vec<Proposed>>,
    floors: Vec<Floor>,
    /// Distinct keys that the chain reads.
    keys: usize,
    transactions: u64,
    batches: u64,
    /// Bytes of hints without values, and with them.
    hint_bytes: [u64; 2],
}

pub(super) fn run(options: &BenchOptions, progress: Progress) -> Result<Report> {
    let plan = Plan::new(options.quick, &options.only);
    let data = mainnet::data_dir(options.data.as_deref())?;
    let lists: Vec<Vec<B256>> =
        access_lists(&data)?.iter().map(|keys| keys.iter().map(listed_slot).collect()).collect();
    let mut listed = lists.concat();
    listed.sort_unstable();
    listed.dedup();
    let place = WorkDir::of(options)?;
    let world = World::new(plan.size, listed);
    let base = world.base(place.dir(), progress)?;
    let bench = Bench { plan: &plan, world: &world, base: &base, lists: &lists, progress };
    let mut samples = Vec::new();
    for &traffic in Traffic::ALL {
        if !plan.rows(traffic).is_empty() || !plan.proposing(traffic).is_empty() {
            samples.push((traffic, tokio::runtime::Handle::current().block_on(bench.measure(traffic))?));
        }
    }
    ensure!(!samples.is_empty(), "--only names no row that this bench measures");
    Ok(report::report(&plan, world.rows(), &samples))
}

struct Bench<'a> {
    plan: &'a Plan,
    world: &'a World,
    base: &'a Path,
    lists: &'a [Vec<B256>],
    progress: Progress,
}

impl Bench<'_> {
    async fn measure(&self, traffic: Traffic) -> Result<Samples> {
        let rows = self.plan.rows(traffic);
        let proposing = self.plan.proposing(traffic);
        let plain = self.serve(traffic, HintsMode::Keys).await?;
        let with_values = match rows.iter().any(|row| row.hints == "values") {
            true => Some(self.serve(traffic, HintsMode::Values).await?),
            false => None,
        };
        let chain = &plain.chain;
        let keys = chain.keys()?;
        let hint_bytes = [Some(&plain), with_values.as_ref()];
        let mut samples = Samples {
            keys: keys.len(),
            transactions: chain.transactions,
            batches: chain.batches(),
            hint_bytes: hint_bytes.map(|source| source.map_or(0, |source| source.chain.hint_bytes)),
            ..Samples::default()
        };
        let dir = self.base.with_file_name("follower");
        for run in 0..self.plan.runs {
            if !rows.is_empty() {
                self.progress.step(&format!("{}, reading its {} keys", traffic.name(), keys.len()));
                let floor = || floor::read(self.base, &keys, self.world.rows(), &dir);
                samples.floors.push(tokio::task::block_in_place(floor)?);
            }
            // The order rotates from run to run.
            let mut rows = rows.clone();
            let len = rows.len().max(1);
            rows.rotate_left(run % len);
            for row in rows {
                let source = with_values.as_ref().filter(|_| row.hints == "values").unwrap_or(&plain);
                let name = format!("{}.{}", traffic.name(), row.name());
                self.progress.step(&format!("{name}, run {} of {}", run + 1, self.plan.runs));
                let followed = self.follow(source, &row, &dir).await;
                let followed =
                    followed.with_context(|| format!("{name}; its log is in {}", dir.display()))?;
                let tps = samples.transactions as f64 / followed.seconds;
                let stalled = 100.0 * followed.stall_share();
                self.progress.step(&format!("{name}: {tps:.0} transactions/s, {stalled:.0} % stalled"));
                samples.rows.entry(row).or_default().push(followed);
            }
            for row in &proposing {
                let name = format!("{}.proposer.{}", traffic.name(), row.name());
                self.progress.step(&format!("{name}, run {} of {}", run + 1, self.plan.runs));
                let proposed = self.propose(traffic, &plain, row, &dir).await;
                let proposed =
                    proposed.with_context(|| format!("{name}; its log is in {}", dir.display()))?;
                self.progress.step(&format!("{name}: {:.0} transactions/s", proposed.tps()));
                samples.proposed.entry(*row).or_default().push(proposed);
            }
        }
        for source in [Some(plain), with_values].into_iter().flatten() {
            source.server.stop().await?;
        }
        Ok(samples)
    }

    /// Returns a chain, and a node that serves it and executes nothing.
    async fn serve(&self, traffic: Traffic, hints: HintsMode) -> Result<Source> {
        let content = (self.lists, self.plan.batches);
        let make = || Chain::make(self.world, self.base, traffic, content, hints, self.progress);
        let chain = tokio::task::block_in_place(make)?;
        let storage = "  tree_memory_mib: 64\n".into();
        let options = NodeOptions { mode: "auto", storage, ..NodeOptions::default() };
        let key = node_key(SERVER_SEED, 0);
        let server = NodeProcess::start(&chain.dir, &chain.genesis, &key, &options).await?;
        Ok(Source { chain, server })
    }

    /// Measures a validator that makes the batches of a traffic again, on a fresh clone of the base.
    async fn propose(&self, traffic: Traffic, source: &Source, row: &Row, dir: &Path) -> Result<Proposed> {
        remove(dir)?;
        clone_store(self.base, &database(dir))?;
        let batches = self.plan.batches / PROPOSED_OF;
        let batches = tokio::task::block_in_place(|| traffic.batches(self.world, self.lists, batches))?;
        let transactions: Vec<&[u8]> = batches.iter().flatten().map(|it| &it.raw[..]).collect();
        let proposed = propose(self.world, &source.chain.genesis, &transactions, row, dir).await?;
        remove(dir)?;
        rustix::fs::sync();
        Ok(proposed)
    }

    /// Measures one follower, on a fresh clone of the base.
    async fn follow(&self, source: &Source, row: &Row, dir: &Path) -> Result<Followed> {
        remove(dir)?;
        clone_store(self.base, &database(dir))?;
        let followed = follow(&source.chain, &source.server, row, self.world.rows(), dir).await?;
        remove(dir)?;
        rustix::fs::sync();
        Ok(followed)
    }
}

/// A chain, and its server.
struct Source {
    chain: Chain,
    server: NodeProcess,
}
