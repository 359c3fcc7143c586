//! Open-loop load with trustworthy figures. Transactions and reads leave at their scheduled times, whatever the nodes
//! do, and every latency counts from the scheduled time. A stalled node therefore shows in the percentiles instead of
//! slowing the load down.
//!
//! ```text
//!  setup: fund, deploy, mint ──▶ plan (from the seed) ──▶ generators: processes that sign, prove, send and read
//!                                   │                        │ lanes: nonce book, batches ──▶ nodes
//!                                   │                        │ hashes                           │ heads, batches
//!                                   ▼                        ▼                                  ▼
//!                                auditor: receipts and balances  ◀──────  commits: due time × batch × head of each node
//!                                                └──────────▶ LoadSummary ◀──────┘
//! ```
//!
//! Generators are separate processes, so that each has its own runtime, apart from the one that watches the nodes.
//! Before each run they prove their capacity: all of them send at the same time to a sink that answers at once. A run
//! that asks for more than 80 % of that, or in which the generators themselves were late, says so:
//! [`LoadSummary::limited_by`].
//!
//! Invariants:
//! * A transaction's latency at a node is the time at which that node first showed its batch, minus the time at which
//!   it was due.
//! * Every committed transaction's receipt is read, and every balance of the load's accounts is compared to the last unit.
//! * A refused transaction never holds up its account: the nonce book plugs its nonce.
//!
//! The load trusts that all nodes show the same batch under the same number. Comparing state roots is left to others.

mod access_lists;
mod audit;
mod auditor;
mod awaited;
mod command;
mod commits;
#[cfg(test)]
mod fake_node;
mod feed;
mod fleet;
mod lane;
mod nonce;
mod percentiles;
mod plan;
mod protocol;
mod question;
mod read;
mod receipt;
mod saturation;
mod schedule;
mod setup;
mod sink;
mod stock;
mod stretches;
mod summary;
mod track;
mod traffic;
mod worker;
mod workload;

use std::{
    fmt,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

pub(crate) use access_lists::numbers as access_lists_in;
pub use audit::{Audit, AuditFigures, BalanceKey, Difference, Unit};
pub use command::LoadCommand;
pub use commits::Point;
pub use feed::HeadNews;
pub use percentiles::{Latencies, Percentiles};
pub use protocol::ReadWay;
pub use saturation::{Cause, Found, Rule, Search, Step};
pub use schedule::{RATE_MAX, Rate, SECONDS_MAX, Schedule, ScheduleError};
pub use setup::{Call, Chain};
pub use stretches::ReadPoint;
pub use summary::{Limit, LoadSummary, Reads};
pub use worker::run as run_worker;
pub use workload::{Mix, MixError, Workload};

use crate::{
    accounts::{self, Account},
    manifest::{Manifest, ManifestNode, Role},
    progress::Progress,
    rpc::Rpc,
};

/// The most transactions of one run. All of them are signed in advance and kept, about 300 bytes each.
pub const TRANSACTIONS_MAX: u64 = 2_000_000;
/// The most reads per second at each node: its eight readers cannot wait for more answers.
pub const READS_MAX: u32 = 20_000;
/// The most connections of one run: each is a socket at a node.
const CONNECTIONS_MAX: usize = 4_096;
/// Cores per generator by default: most of a machine is for the nodes.
const CORES_PER_GENERATOR: usize = 4;
/// The most generators by default.
const GENERATORS_DEFAULT_MAX: usize = 4;

/// Three minutes of ten batches a second. Most runs are thus audited after their end, and a long one leaves a few
/// seconds of work.
const AUDIT_BEHIND: u64 = 2_000;

/// What a load sends and reads, how fast and where.
#[derive(Clone)]
pub struct LoadOptions {
    /// The kinds of transactions.
    pub workload: Mix,
    /// The rate of transactions.
    pub rate: Rate,
    /// The duration, at most [`SECONDS_MAX`].
    pub duration: Duration,
    /// The sending accounts; at least two.
    pub accounts: Vec<Account>,
    /// The nodes that get transactions, in turn. Commits are read from the first that answers when the load, or a step
    /// of a search, begins.
    pub submit: Vec<Rpc>,
    /// Other nodes whose latency is measured, by name.
    pub followers: Vec<(String, Rpc)>,
    /// Connections of all generators; each has at most one batch in flight.
    pub connections: usize,
    /// The number of generator processes.
    pub generators: usize,
    /// Reads per second at each node, half over HTTP and half over WebSocket; at most [`READS_MAX`]. If it is not 0,
    /// the heads are subscribed to as well.
    pub reads_per_second: u32,
    /// A directory of `NUMBER.rlp.gz`, for [`Workload::AccessLists`].
    pub access_lists: Option<PathBuf>,
    /// How many batches behind the head receipts are audited while the load goes on. If the nodes prune, it must be
    /// less than they keep.
    pub audit_behind: u64,
    /// The seed of random choices, together with the accounts' nonces.
    pub seed: u64,
}

impl LoadOptions {
    /// Returns the options that send to a devnet's validators. Every node but the first validator is a follower.
    ///
    /// # Errors
    /// If a key or address of the manifest is invalid.
    pub fn for_manifest(manifest: &Manifest, accounts: usize) -> Result<LoadOptions> {
        let rpc = |node: &ManifestNode| Rpc::new(&node.api);
        let submit = manifest.of_role(Role::Validator).map(rpc).collect::<Result<Vec<_>>>()?;
        let others = manifest.of_role(Role::Validator).skip(1).chain(manifest.of_role(Role::Fullnode));
        let followers = others.map(|node| Ok((node.name.clone(), rpc(node)?))).collect::<Result<Vec<_>>>()?;
        Ok(LoadOptions {
            accounts: manifest.accounts(accounts)?,
            submit,
            followers,
            seed: manifest.seed.as_ref().map_or(1, |seed| accounts::number(seed, "load")),
            ..LoadOptions::default()
        })
    }

    fn check(&self) -> Result<()> {
        ensure!(self.accounts.len() > 1, "a load needs at least two accounts");
        ensure!(!self.submit.is_empty(), "a load needs the API of at least one node");
        ensure!(
            (1..=fleet::WORKERS_MAX).contains(&self.generators),
            "a load has 1 to {} generators, not {}",
            fleet::WORKERS_MAX,
            self.generators
        );
        ensure!(
            (1..=CONNECTIONS_MAX).contains(&self.connections),
            "a load has 1 to {CONNECTIONS_MAX} connections, not {}",
            self.connections
        );
        ensure!(
            self.reads_per_second <= READS_MAX,
            "{} reads per second are too many for one node: at most {READS_MAX}",
            self.reads_per_second
        );
        ensure!(
            !self.workload.has(Workload::AccessLists) || self.access_lists.is_some(),
            "the workload access-lists replays a directory of NUMBER.rlp.gz files: name it with --access-lists"
        );
        Ok(())
    }

    /// Returns the number of generators, and of connections of each. There are no more lanes than accounts.
    fn lanes(&self) -> (usize, usize) {
        let generators = self.generators.min(self.accounts.len()).max(1);
        let connections = self.connections.div_ceil(generators).min(self.accounts.len() / generators).max(1);
        (generators, connections)
    }
}

impl Default for LoadOptions {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            workload: Workload::Transfers.into(),
            rate: Rate::constant(500),
            duration: Duration::from_secs(10),
            accounts: Vec::new(),
            submit: Vec::new(),
            followers: Vec::new(),
            connections: 4,
            generators: (cores / CORES_PER_GENERATOR).clamp(1, GENERATORS_DEFAULT_MAX),
            reads_per_second: 0,
            access_lists: None,
            audit_behind: AUDIT_BEHIND,
            seed: 1,
        }
    }
}

/// Prepares the chain, sends the load, and waits until every transaction is committed or lost.
///
/// # Errors
/// If the options are out of bounds, the chain cannot be prepared, a generator fails, or all nodes fall silent.
/// Transactions that are refused, fail or are lost are no error: the summary counts them.
pub async fn run(options: &LoadOptions, progress: Progress) -> Result<LoadSummary> {
    options.check()?;
    Schedule::new(options.rate, options.duration, TRANSACTIONS_MAX)?;
    let begin = Instant::now();
    let mut ready = traffic::Ready::prepare(options, progress).await?;
    let prepared = begin.elapsed();
    let mut summary = ready.run(options.rate, options.duration, progress).await?;
    summary.prepared_ms += prepared.as_millis() as u64;
    Ok(summary)
}

/// The options of a search for a chain's limit.
#[derive(Clone, Copy, Debug)]
pub struct SaturationOptions {
    /// When a step counts as sustained.
    pub rule: Rule,
    /// The first rate, in transactions per second.
    pub start: u32,
    /// The duration of each step.
    pub step: Duration,
    /// No step begins that would end later than this. The search then reports what it has sustained so far.
    pub until: Option<Instant>,
}

/// The result of a search for a chain's limit.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Saturation {
    /// The highest sustained rate, if any.
    pub found: Found,
    /// When a step counted as sustained.
    pub rule: Rule,
    /// All steps, in order.
    pub steps: Vec<LoadSummary>,
}

/// Searches for the highest rate that a chain sustains, in steps of constant rate. Ignores the rate and duration in
/// `options`.
///
/// # Errors
/// As [`run`].
pub async fn saturate(
    options: &LoadOptions,
    search: SaturationOptions,
    progress: Progress,
) -> Result<Saturation> {
    options.check()?;
    let seconds = search.step.as_secs().max(1);
    ensure!(search.step >= Duration::from_secs(1), "a step of a search takes at least a second");
    let rate_max = u32::try_from(TRANSACTIONS_MAX / seconds).unwrap_or(RATE_MAX).clamp(1, RATE_MAX);
    let mut ready = traffic::Ready::prepare(options, progress).await?;
    let mut steps = Vec::new();
    let mut core = Search::new(search.rule, search.start, rate_max);
    while let Some(rate) = core.poll_rate() {
        if search.until.is_some_and(|until| Instant::now() + search.step > until) {
            core.end();
            break;
        }
        let summary = ready.run(Rate::constant(rate), search.step, progress).await?;
        core.handle_step(summary.step(rate));
        steps.push(summary);
    }
    let found = core.found().unwrap_or(Found::AtLeast { rate: 0 });
    Ok(Saturation { found, rule: search.rule, steps })
}

impl Saturation {
    /// Returns each step as the search saw it, and the first condition that it violates.
    pub fn judged(&self) -> impl Iterator<Item = (&LoadSummary, Step, Option<Cause>)> {
        self.steps.iter().map(|summary| {
            // A step's rate is constant.
            let step = summary.step(summary.offered_per_second.round() as u32);
            (summary, step, self.rule.missed(&step))
        })
    }
}

impl fmt::Display for Saturation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.steps {
            let p99 =
                step.commit_ms.map_or_else(|| "none".to_owned(), |latency| format!("{:.0} ms", latency.p99));
            let (rate, achieved) = (&step.rate, step.achieved_per_second);
            writeln!(f, "{rate:>16}  committed {achieved:>10.1} tx/s  p99 {p99}")?;
        }
        let Rule { committed_share_min, p99_ms_max } = self.rule;
        let share = committed_share_min * 100.0;
        writeln!(
            f,
            "a step is sustained if {share:.0} % are committed in time, p99 is at most {p99_ms_max:.0} ms, nothing is given up and no backlog grows"
        )?;
        match self.found {
            Found::Sustained { rate, failed, cause } => {
                writeln!(f, "sustained: {rate} tx/s; {failed} tx/s fails because of {cause:?}")
            }
            Found::Nothing { lowest, cause } => writeln!(f, "not even {lowest} tx/s is sustained: {cause:?}"),
            Found::AtLeast { rate } => {
                writeln!(
                    f,
                    "sustained: at least {rate} tx/s; the generators or the time were the limit beyond that"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(accounts: u32, generators: usize, connections: usize) -> LoadOptions {
        let accounts = Account::derive_many("load", accounts);
        let submit = vec![Rpc::new("127.0.0.1:1").unwrap()];
        LoadOptions { accounts, submit, generators, connections, ..LoadOptions::default() }
    }

    #[test]
    fn there_are_never_more_lanes_than_accounts() {
        assert_eq!(options(200, 2, 4).lanes(), (2, 2));
        assert_eq!(options(200, 3, 4).lanes(), (3, 2));
        assert_eq!(options(2, 4, 100).lanes(), (2, 1));
        assert_eq!(options(5, 2, 100).lanes(), (2, 2));
    }

    #[test]
    fn options_out_of_bounds_are_refused_with_what_to_do() {
        let error = |options: LoadOptions| options.check().unwrap_err().to_string();
        options(2, 1, 1).check().unwrap();
        assert!(error(options(1, 1, 1)).contains("two accounts"));
        assert!(error(options(2, 65, 1)).contains("1 to 64"));
        assert!(error(options(2, 1, 0)).contains("1 to 4096"));
        assert!(
            error(LoadOptions { reads_per_second: READS_MAX + 1, ..options(2, 1, 1) }).contains("at most")
        );
        let lists = LoadOptions { workload: Workload::AccessLists.into(), ..options(2, 1, 1) };
        assert!(error(lists).contains("--access-lists"));
    }
}
