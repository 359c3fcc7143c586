//! [`Round`]: one attack, from its start until all nodes are at the head again.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use slipnet::{
    devnet::{Node, SyncMode},
    progress::Progress,
    rpc::{BATCH_CALLS_MAX, Rpc},
};

use super::{
    Pace,
    attack::AttackInfo,
    attacker::Attackers,
    blame::{Blame, Party},
    honest::{Honest, User},
    meter::Meter,
    outcome::{Outcome, Waits},
    stage::Stage,
};

const POLL: Duration = Duration::from_millis(50);
/// How long an attack runs before a fullnode joins: attackers that take connection slots have them by then.
const HEAD_START: Duration = Duration::from_secs(1);

/// One attack and its circumstances.
pub(super) struct Round<'a> {
    pub(super) info: AttackInfo,
    pub(super) pace: &'a Pace,
    pub(super) program: &'a Path,
}

/// A fresh fullnode under attack.
struct Joiner {
    index: usize,
    meter: Meter,
    began: Instant,
    target: u64,
    took: Option<f64>,
}

impl Joiner {
    /// Starts a node whose peers are the listening attackers and the victim.
    async fn start(
        stage: &mut Stage,
        mode: SyncMode,
        by_waypoint: bool,
        servers: &[String],
    ) -> Result<Joiner> {
        let target = stage.head().await?;
        let waypoint = if by_waypoint { Some(stage.waypoint().await?) } else { None };
        let peers = [servers, &[stage.victim().peer_address()]].concat();
        let began = Instant::now();
        let index = stage.add_joiner(mode, &peers, waypoint.as_deref()).await?;
        let meter = Meter::start(stage.node(index).pid().context("the joining node does not run")?)?;
        Ok(Joiner { index, meter, began, target, took: None })
    }

    /// Notes the joiner's progress; returns whether to keep waiting for it.
    async fn is_joining(&mut self, stage: &Stage, patience: Duration) -> bool {
        if self.took.is_none() {
            self.meter.peak_mib();
            let has = stage.node(self.index).rpc().head().await.unwrap_or_default();
            let took = self.began.elapsed();
            self.took = (has >= self.target).then_some(took.as_secs_f64());
            return self.took.is_none() && took < patience;
        }
        false
    }
}

/// Returns the seconds that a fresh fullnode takes to the head without an attack; `None` if it is late.
pub(super) async fn join_quietly(stage: &mut Stage, pace: &Pace, progress: Progress) -> Result<Option<f64>> {
    progress.step("a fullnode joins without an attack");
    let mut joiner = Joiner::start(stage, SyncMode::Auto, false, &[]).await?;
    while joiner.is_joining(stage, pace.join).await {
        tokio::time::sleep(POLL).await;
    }
    Ok(joiner.took)
}

impl Round<'_> {
    /// Runs the attack for its duration, ends it, and waits for all nodes.
    ///
    /// # Errors
    /// If the attackers fail, or the stage fails for a reason other than the attack.
    pub(super) async fn run(&self, stage: &mut Stage, honest: &Honest) -> Result<Outcome> {
        stage.renew(&honest.wallet).await?;
        let target = stage.target().await?;
        let mut meter = Meter::start(stage.victim().pid().context("the victim does not run")?)?;
        let attackers = Attackers::start(self.program, self.info.name, &target, stage.files()).await?;
        let began = Instant::now();
        let cpu = (meter.cpu_s(), attackers.cpu_s());
        let mut joiner = match self.info.joins {
            Some(mode) => {
                tokio::time::sleep(HEAD_START).await;
                Some(Joiner::start(stage, mode, self.info.by_waypoint, &attackers.servers).await?)
            }
            None => None,
        };
        let blame = Blame::watch(parties(stage, joiner.as_ref()));
        self.watch(stage, joiner.as_mut(), &attackers, &mut meter, began).await;
        let window = (began, Instant::now());
        let took = began.elapsed().as_secs_f64();
        let cores = |now: f64, then: f64| (now - then).max(0.0) / took;
        let (victim_cores, attacker_cores) = (cores(meter.cpu_s(), cpu.0), cores(attackers.cpu_s(), cpu.1));
        let tally = attackers.end()?;
        ensure!(tally.0 > 0, "the attackers made no attempt");
        let catch_up_s = self.recover(stage, window.1).await;
        let ended = stage.victim_ended();
        let waits: Waits = User::ALL.map(|user| honest.waits(user, window));
        let machine = honest.machine(window);
        let blamed = blame.end();
        let memory_mib = meter.peak_mib().max(joiner.as_mut().map_or(0.0, |joiner| joiner.meter.peak_mib()));
        let join_s = joiner.as_ref().map(|joiner| joiner.took);
        if ended.is_some() {
            stage.renew(&honest.wallet).await.context("the victim does not restart")?;
        }
        let lost = self.lost(stage.follower().rpc(), honest.wallet.acknowledged(window)).await;
        Ok(Outcome {
            info: self.info,
            waits,
            machine,
            memory_mib,
            victim_cores,
            attacker_cores,
            catch_up_s,
            join_s,
            blamed,
            lost,
            ended,
            tally,
        })
    }

    /// Watches the attack for its duration, until a joining node is at the head or is late, and until the attackers
    /// have done something. A node that joins quickly may ask a liar only later, because it keeps asking every
    /// connected peer.
    async fn watch(
        &self,
        stage: &Stage,
        mut joiner: Option<&mut Joiner>,
        attackers: &Attackers,
        meter: &mut Meter,
        began: Instant,
    ) {
        loop {
            tokio::time::sleep(POLL).await;
            meter.peak_mib();
            let joins = match joiner.as_deref_mut() {
                Some(joiner) => joiner.is_joining(stage, self.pace.join).await,
                None => false,
            };
            let waits = joins || (attackers.tally().0 == 0 && began.elapsed() < self.pace.join);
            if began.elapsed() >= self.pace.attack && !waits {
                return;
            }
        }
    }

    /// Waits until victim and follower have the batch that was the validator's head when the attack ended; returns the
    /// time since `since`.
    async fn recover(&self, stage: &mut Stage, since: Instant) -> Option<f64> {
        let target = stage.head().await.ok()?;
        while since.elapsed() < self.pace.recover {
            if stage.victim_ended().is_some() {
                return None;
            }
            let (victim, follower) = tokio::join!(stage.victim().rpc().head(), stage.follower().rpc().head());
            if victim.is_ok_and(|head| head >= target) && follower.is_ok_and(|head| head >= target) {
                return Some(since.elapsed().as_secs_f64());
            }
            tokio::time::sleep(POLL).await;
        }
        None
    }

    /// Returns how many of these transfers still have no receipt on a node when their time is up.
    async fn lost(&self, follower: &Rpc, mut hashes: Vec<B256>) -> usize {
        let deadline = Instant::now() + self.pace.recover;
        loop {
            hashes = without_receipt(follower, hashes).await;
            if hashes.is_empty() || Instant::now() > deadline {
                return hashes.len();
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

/// Returns the transactions for which the node has no receipt, as far as the node answers.
async fn without_receipt(rpc: &Rpc, hashes: Vec<B256>) -> Vec<B256> {
    let mut missing = Vec::new();
    for part in hashes.chunks(BATCH_CALLS_MAX) {
        let params: Vec<_> = part.iter().map(|hash| json!([hash])).collect();
        match rpc.batch_all::<Value>("eth_getTransactionReceipt", &params).await {
            Ok(receipts) => {
                let absent = part.iter().zip(&receipts).filter(|(_, receipt)| receipt.is_null());
                missing.extend(absent.map(|(hash, _)| *hash));
            }
            Err(_) => missing.extend(part),
        }
    }
    missing
}

/// Returns the honest nodes, as parties.
fn parties(stage: &Stage, joiner: Option<&Joiner>) -> Vec<Party> {
    let party = |node: &Node| {
        let id = node.peer_address().split('@').next().unwrap_or_default().to_owned();
        Party { name: node.name().to_owned(), id, rpc: node.rpc().clone() }
    };
    let joiner = joiner.map(|joiner| stage.node(joiner.index));
    stage.residents().iter().chain(joiner).map(party).collect()
}
