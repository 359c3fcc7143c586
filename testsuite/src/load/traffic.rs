//! One run on a prepared chain: generators start, prove, send and read; nodes are watched; the audit is closed.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use tokio::{sync::mpsc, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::{
    LoadOptions,
    auditor::{Auditor, Known},
    feed::{HeadAnnouncements, HeadFeed},
    fleet::{self, Fleet},
    plan::{Plan, PlanOptions, Targets},
    protocol::{Job, ReadJob, Tally, instant_of, monotonic_ns},
    schedule::Rate,
    setup::{self, Chain},
    summary::{LoadSummary, SummaryInput},
    track::{self, Contents, ContentsReader, HeadWatch, Heads},
};
use crate::{accounts::Account, progress::Progress, rpc::Rpc};

/// How long without a new commit before the missing transactions count as lost.
const DRAIN_PATIENCE: Duration = Duration::from_secs(20);
/// The time between the last message to the generators and the first transaction.
const LEAD: Duration = Duration::from_millis(100);
/// The time within which the last due transactions have left and their generators have reported it.
const SENT_GRACE: Duration = Duration::from_millis(250);
/// An odd constant without a pattern, which spreads the nonces over the seeds.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// A chain with the mix's contracts, and accounts with the funds to send.
pub(super) struct Ready {
    /// The first of the submitting nodes is the one whose commits count.
    options: LoadOptions,
    chain: Chain,
    targets: Targets,
}

impl Ready {
    /// Funds the accounts, and deploys and mints what the mix needs.
    pub(super) async fn prepare(options: &LoadOptions, progress: Progress) -> Result<Ready> {
        let mut options = options.clone();
        progress.step(&format!("preparing {} accounts for {}", options.accounts.len(), options.workload));
        let chain = connect(&mut options, progress).await?;
        let LoadOptions { accounts, workload, access_lists, .. } = &options;
        chain.fund(accounts).await?;
        let targets = setup::prepare(&chain, workload, accounts, access_lists.clone()).await?;
        Ok(Ready { options, chain, targets })
    }

    /// Returns the node whose commits count, and its followers.
    fn nodes(&self) -> Vec<(String, Rpc)> {
        let first = self.chain.rpc();
        let others = self.options.followers.iter().filter(|(_, rpc)| rpc.url() != first.url()).cloned();
        std::iter::once((first.url().to_owned(), first.clone())).chain(others).collect()
    }

    /// Sends at a rate for a duration, and waits until everything is committed or lost.
    pub(super) async fn run(
        &mut self,
        rate: Rate,
        duration: Duration,
        progress: Progress,
    ) -> Result<LoadSummary> {
        let prepares = Instant::now();
        // The node whose commits counted may have gone down: a search runs many times.
        self.chain = connect(&mut self.options, progress).await?;
        let options = &self.options;
        let nonces = self.chain.nonces(&options.accounts).await?;
        let plan_options = self.plan_options(rate, duration, &nonces);
        let senders = options.accounts.iter().map(|account| account.address).collect();
        let plan = Arc::new(Plan::new(plan_options.clone(), senders)?);
        let (workers, connections) = options.lanes();
        progress.step(&format!("{workers} generators sign {} transactions", plan.len()));
        let mut fleet = self.start_fleet(&plan_options, &nonces).await?;
        let hashes = Arc::new(fleet.hashes(&plan, connections)?);
        progress.step("proving what the generators can send");
        let capacity_per_second = fleet.prove().await?;
        let auditor = self.auditor(&nonces).await?;

        progress.step(&format!("sending {rate} for {:.1} s", duration.as_secs_f64()));
        let first_batch = self.chain.head().await? + 1;
        let begin_ns = monotonic_ns() + LEAD.as_nanos() as u64;
        let stop = CancellationToken::new();
        let _stop_at_end = stop.clone().drop_guard();
        let nodes = self.nodes();
        let interval = track::interval(nodes.len());
        let begin = instant_of(begin_ns);
        let feeds = match options.reads_per_second {
            0 => Vec::new(),
            _ => nodes.iter().cloned().map(|node| HeadFeed::start(node, begin, stop.clone())).collect(),
        };
        let watch = |node| HeadWatch::start(node, first_batch, begin, interval, stop.clone());
        let (full, batches) = mpsc::unbounded_channel();
        // A `JoinSet`, so that the audit is aborted if this function ends early.
        let mut audit = JoinSet::new();
        let (audited, known_hashes, behind) = (plan.clone(), hashes.clone(), options.audit_behind);
        audit.spawn(async move { auditor.follow(&audited, &known_hashes, (batches, behind)).await });
        let mut sending = Sending {
            contents: ContentsReader::start(
                options.submit.clone(),
                first_batch,
                hashes.clone(),
                full,
                stop.clone(),
            ),
            heads: nodes.into_iter().map(watch).collect(),
            feeds,
            begin,
            end: duration,
            backlog: None,
            sent_in_time: None,
        };
        fleet.begin(begin_ns).await?;
        let tally = sending.watch(&mut fleet, plan.len(), progress).await?;
        let outcome = fleet.finish().await?;
        stop.cancel();
        let backlog = sending.backlog.unwrap_or(0);
        let sent_in_time = sending.sent_in_time.unwrap_or(tally.sent);
        let (contents, heads, told) = sending.results().await?;
        let watched = Instant::now().saturating_duration_since(begin);

        progress.step("auditing receipts and balances");
        let auditor = audit.join_next().await.context("the audit was not started")?;
        let auditor = auditor.context("the audit panicked")??;
        let mut hashes = Arc::unwrap_or_clone(hashes);
        hashes.extend(outcome.replaced.iter().map(|(index, hash)| (*hash, *index)));
        let plugs: HashSet<_> = outcome.plugs.iter().copied().collect();
        let known = Known { plan: &plan, hashes: &hashes, plugs: &plugs };
        let audit = auditor.close(&known, contents.head(), (tally.accepted, &outcome.in_doubt)).await?;
        Ok(LoadSummary::new(SummaryInput {
            workload: options.workload.to_string(),
            rate: rate.to_string(),
            prepared: begin.saturating_duration_since(prepares),
            plan: &plan,
            hashes: &hashes,
            capacity_per_second,
            generators: workers,
            outcome: &outcome,
            contents: &contents,
            heads: &heads,
            told: &told,
            resolution: interval,
            backlog,
            sent_in_time,
            begin,
            watched,
            audit,
        }))
    }

    /// Returns the options of the plan. A second run on the same chain has other nonces, and so other transactions and
    /// other new addresses.
    fn plan_options(&self, rate: Rate, duration: Duration, nonces: &[u64]) -> PlanOptions {
        let used = nonces.iter().fold(0u64, |sum, nonce| sum.wrapping_add(*nonce));
        PlanOptions {
            mix: self.options.workload.clone(),
            rate,
            duration_ms: duration.as_millis() as u64,
            seed: self.options.seed.wrapping_add(used.wrapping_mul(SPREAD)),
            targets: self.targets.clone(),
        }
    }

    /// Starts the generators. Each signs its part of the plan.
    async fn start_fleet(&self, plan: &PlanOptions, nonces: &[u64]) -> Result<Fleet> {
        let options = &self.options;
        let (workers, connections) = options.lanes();
        let keys: Vec<String> = options.accounts.iter().map(Account::key_hex).collect();
        Fleet::start(&fleet::program()?, workers, |worker| Job {
            worker,
            workers,
            connections,
            chain: self.chain.facts(),
            accounts: keys.clone(),
            nonces: nonces.to_vec(),
            plan: plan.clone(),
            submit: options.submit.iter().map(|rpc| rpc.url().to_owned()).collect(),
            sink: String::new(),
            reads: self.reads(),
            hashes_file: Default::default(),
        })
        .await
    }

    fn reads(&self) -> Option<ReadJob> {
        let nodes = self.nodes().into_iter().map(|(name, rpc)| (name, rpc.url().to_owned()));
        let per_second = self.options.reads_per_second;
        let contract = self.targets.contract();
        (per_second > 0).then(|| ReadJob { nodes: nodes.collect(), per_second, contract })
    }

    async fn auditor(&self, nonces: &[u64]) -> Result<Auditor> {
        // The first one is the node whose commits count.
        let followers = self.options.followers.iter().map(|(_, rpc)| rpc);
        let nodes = self.options.submit.iter().chain(followers).cloned().collect();
        let Targets { pair, lists, .. } = self.targets;
        let tokens = self.targets.tokens();
        let mut auditor = Auditor::open(nodes, &self.options.accounts, nonces, tokens, lists).await?;
        if let Some((pair, _)) = pair {
            auditor.open_contract(pair).await?;
        }
        Ok(auditor)
    }
}

/// Connects to the first node that answers, among those that accept transactions. Its commits count.
async fn connect(options: &mut LoadOptions, progress: Progress) -> Result<Chain> {
    let before = options.submit[0].url().to_owned();
    let chain = Chain::connect_first(&mut options.submit).await?;
    let now = chain.rpc().url();
    if now != before {
        progress.step(&format!("{before} does not answer: commits are read from {now}"));
    }
    Ok(chain)
}

/// The watchers of the nodes while the generators send.
struct Sending {
    contents: ContentsReader,
    heads: Vec<HeadWatch>,
    /// Empty if nothing is read.
    feeds: Vec<HeadFeed>,
    begin: Instant,
    /// When the last transaction is due, after the start.
    end: Duration,
    /// Transactions that were accepted but not committed at the end of the schedule.
    backlog: Option<u64>,
    /// Transactions that had been sent at the end of the schedule.
    sent_in_time: Option<u64>,
}

impl Sending {
    /// Shows progress until every accepted transaction is committed and shown by every node, or counts as lost.
    async fn watch(&mut self, fleet: &mut Fleet, total: usize, progress: Progress) -> Result<Tally> {
        let mut task = progress.task("sent", total as u64);
        let mut last_change = ((0, 0), Instant::now());
        loop {
            let tally = fleet.progress().await?;
            if self.contents.has_ended() {
                // Before the end this is an error, which the reader of the result sees.
                return Ok(tally);
            }
            let committed = self.contents.committed();
            let last = self.contents.last();
            let behind = self.heads.iter().filter(|head| !head.has(last)).count();
            if (committed, behind) != last_change.0 {
                last_change = ((committed, behind), Instant::now());
            }
            let elapsed = Instant::now().saturating_duration_since(self.begin);
            if elapsed >= self.end && self.backlog.is_none() {
                self.backlog = Some(tally.accepted.saturating_sub(committed));
            }
            if elapsed >= self.end + SENT_GRACE && self.sent_in_time.is_none() {
                self.sent_in_time = Some(tally.sent);
            }
            let lag = if behind > 0 { format!(", {behind} nodes behind") } else { String::new() };
            let seconds = elapsed.as_secs();
            task.update(tally.sent, &format!("committed {committed}{lag} after {seconds} s"));
            let is_complete = committed >= tally.accepted && behind == 0;
            let is_over = elapsed >= self.end && tally.is_settled;
            if is_over && (is_complete || last_change.1.elapsed() > DRAIN_PATIENCE) {
                return Ok(tally);
            }
        }
    }

    /// Returns the nodes' observations until their watch was stopped: the contents of batches, when each node showed
    /// which, and when it announced it.
    async fn results(self) -> Result<(Contents, Vec<Heads>, Vec<HeadAnnouncements>)> {
        let contents = self.contents.result().await?;
        let mut heads = Vec::new();
        for watch in self.heads {
            heads.push(watch.result().await?);
        }
        let mut told = Vec::new();
        for feed in self.feeds {
            told.push(feed.result().await?);
        }
        Ok((contents, heads, told))
    }
}
