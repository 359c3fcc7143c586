//! `slipnet operate`: runs a node in a container, and applies a scenario's events to it, by the clock that all
//! containers share.
//!
//! ```text
//!  --do 30s..34s,kill ─▶ Order ─┐                        ┌─▶ Operated: the process `slipstream run`, or a liar; its disk, its clock
//!  --start ─────────▶ StartClock ┴─▶ OperateOptions::run ─┴─▶ Companions: attackers, and peers that lie, beside it
//! ```
//!
//! It is the node's parent process, and so needs no rights in the cluster. A restarted container continues at the
//! clock's current time: lasting orders apply, and orders that began earlier are not repeated.
//!
//! Invariants:
//! * The node ends with this program, however that ends.
//! * If the node ends by itself, this program ends with an error, as the node's own container would. A node with a full
//!   disk may end.
//! * A failed or missed order ends neither the node nor the later orders: the rest of the scenario still counts. The
//!   failure is printed at once, and reported to the judge when the last order is over. This program ends with an error
//!   when it is asked to end.

mod companion;
mod failures;
mod judge;
mod old;
mod order;
mod process;
mod programs;
mod rewritten;
mod state;
mod taken;
mod waypoint;

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Result, anyhow, bail, ensure};
use clap::Args;
use serde_json::Value;

pub(crate) use self::order::check_copies;
pub use self::order::{Order, What};
use self::{
    companion::{Companions, Victim},
    failures::Failures,
    judge::Judge,
    process::Operated,
    programs::Programs,
    taken::Taken,
};
use crate::{
    accounts::DEFAULT_SEED, devnet::binary, leftovers::RunDir, output, rpc::Rpc, scenario::assault::Assault,
    signals::interrupted, time::StartClock,
};

/// The most orders of one node: its command line stays below the system's limit.
pub(crate) const ORDERS_MAX: usize = 4_096;
/// How long a node may take to say whether it is the primary: other orders wait for it.
const PRIMARY_DEADLINE: Duration = Duration::from_secs(2);
/// The time limit for tasks beside the node to end when this program is asked to end.
const END_WITHIN: Duration = Duration::from_secs(5);

/// The arguments of `slipnet operate`.
#[derive(Args, Clone, Debug)]
pub struct OperateOptions {
    /// The node's configuration.
    #[arg(long)]
    pub config: PathBuf,
    /// An order, as 30s..34s,kill or 30s..,restart: join, kill, pause, restart, wipe, full-disk, upgrade=NAME,
    /// bit-flip=N, slow-disk-ms=N, clock-jump-ms=N, export-snapshot, add-validator=KEY:0xADDRESS, remove-validator=KEY,
    /// old-data, lie=LIE, lying-peers=ATTACK:N or attack=ATTACK. A trailing `,primary` means: only if the node is the
    /// primary when the order begins.
    #[arg(long = "do")]
    pub orders: Vec<Order>,
    /// The program that the node runs until an order upgrades it: NAME is `slipstream-NAME` beside this program, and
    /// `current` is `slipstream`.
    #[arg(long, value_name = "NAME")]
    pub program: Option<String>,
    /// The time from which --do counts, in seconds since 1970, so that all containers share one clock; the present if
    /// not given.
    #[arg(long)]
    pub start: Option<u64>,
    /// The chain's seed: the keys of the validators contract's owner and of attackers' accounts are derived from it.
    #[arg(long, default_value = DEFAULT_SEED)]
    pub seed: String,
    /// A directory that all nodes share, for the archive of exported snapshots; beside the node's data if not given.
    #[arg(long, value_name = "DIR")]
    pub shared: Option<PathBuf>,
    /// An attack of the siege whose servers come first in the node's peers, from its first start on.
    #[arg(long, value_name = "ATTACK", requires = "among_api")]
    pub among: Option<String>,
    /// The API of a validator, for --among.
    #[arg(long, value_name = "URL", requires = "among")]
    pub among_api: Option<String>,
    /// The API of the node that gives the waypoint at which this node's trust starts, instead of the genesis, on its
    /// first start.
    #[arg(long, value_name = "URL")]
    pub waypoint_from: Option<String>,
    /// The number of accounts used by loads, before the attackers' own.
    #[arg(long, default_value_t = 0)]
    pub skip_accounts: u32,
    /// Reports to the `slipnet judge` at this HOST:PORT whether the orders were carried out, as those of --name. The
    /// secret is in SLIPNET_JUDGE_SECRET.
    #[arg(long, requires = "name", value_name = "HOST:PORT")]
    pub judge: Option<String>,
    /// The node's name in the scenario.
    #[arg(long, requires = "judge", value_name = "NAME")]
    pub name: Option<String>,
}

/// All orders, and which of them apply to this node.
struct Orders<'a> {
    all: &'a [Order],
    /// Whether each order applies to this node: orders to the primary apply to none until they begin.
    mine: Vec<bool>,
    /// Whether each order was carried out before this program began.
    given: Vec<bool>,
    taken: Taken,
    /// How long the node may take to say whether it is the primary.
    patience: Duration,
}

impl OperateOptions {
    /// Runs the node until this program is asked to end.
    ///
    /// # Errors
    /// If there are too many orders, or copies of data at a time, or the node cannot be started or ends by itself; at
    /// the end, if an order could not be carried out.
    pub async fn run(&self) -> Result<()> {
        let count = self.orders.len();
        ensure!(count <= ORDERS_MAX, "{count} orders are too many: at most {ORDERS_MAX}");
        check_copies(&self.orders)?;
        self.run_until(binary()?, interrupted()).await
    }

    async fn run_until(&self, program: PathBuf, interrupted: impl Future<Output = ()>) -> Result<()> {
        let judge = Judge::of(self).map(Arc::new);
        let ended = self.perform(program, interrupted, judge.clone()).await;
        if let (Err(error), Some(judge)) = (&ended, judge) {
            judge.tell(Some(format!("{error:#}"))).await;
        }
        ended
    }

    async fn perform(
        &self,
        program: PathBuf,
        interrupted: impl Future<Output = ()>,
        mut judge: Option<Arc<Judge>>,
    ) -> Result<()> {
        let clock = StartClock::new(self.start);
        let failures = Arc::<Failures>::default();
        let programs = Programs::of(self, program)?;
        let mut node = Operated::new(self, failures.clone())?;
        let taken = Taken::beside(node.data(), self.start);
        let mut orders = Orders::new(&self.orders, taken, PRIMARY_DEADLINE)?;
        let rpc = Rpc::new(node.api())?;
        let mut companions = Companions::of(Victim::new(self, rpc.clone())?, failures.clone());
        tokio::pin!(interrupted);
        // Without a common start, the clock starts now, and nothing began before.
        let mut passed = self.start.and_then(|_| clock.passed());
        orders.note_late(passed, &failures);
        let mut among: Option<(Assault, RunDir)> = None;
        loop {
            let state = state::state(orders.mine(), passed);
            let program = programs.at(orders.mine(), passed)?;
            if let (false, None, Some(attack), Some(api)) =
                (state.is_down, &among, &self.among, &self.among_api)
            {
                let (assault, dir) = tokio::select! {
                    () = &mut interrupted => break,
                    started = companions.among(attack, api) => started?,
                };
                node.dial_first(&assault.servers)?;
                among = Some((assault, dir));
            }
            if state.is_held() || node.puts_back(&state) {
                companions.lose_victim();
            }
            node.become_as(state, &program).await?;
            if node.lacks_waypoint(&state) {
                tokio::select! {
                    () = &mut interrupted => break,
                    asked = node.ask_waypoint() => asked?,
                }
                node.become_as(state, &program).await?;
            }
            companions.become_as(orders.attackers(passed), state.is_held());
            // This includes orders to the primary, which apply to no node until they begin.
            let next = state::next(self.orders.iter(), passed);
            if next.is_none()
                && let Some(judge) = judge.take()
            {
                note_gone(&mut among, &failures);
                let failures = failures.clone();
                tokio::spawn(async move { judge.tell_outcome(&failures).await });
            }
            tokio::select! {
                () = &mut interrupted => break,
                ended = node.ended() => bail!("the node ended by itself: {}", ended?),
                () = wait(&clock, next) => {}
            }
            let before = passed;
            // At least the moment itself, because the clock may be slightly before it.
            passed = clock.passed().max(next);
            for (place, order) in self.orders.iter().enumerate() {
                if !order.begins_within(before, passed) || !orders.take(place, &rpc, &failures).await {
                    continue;
                }
                output::note(&format!("order {order}"));
                if let Some(judge) = judge.as_deref().filter(|_| order.is_told())
                    && let Err(error) = judge.tell_taken(order).await
                {
                    failures.note(format_args!("telling the judge of the order {order}"), &error);
                }
                if order.what.ends_node() {
                    companions.lose_victim();
                }
                match node.obey(&order.what).await {
                    Ok(()) => orders.keep_given(place, &failures),
                    Err(error) => failures.note(format_args!("order {order}"), &error),
                }
            }
        }
        companions.become_as(BTreeMap::new(), false);
        failures.settle(END_WITHIN).await;
        note_gone(&mut among, &failures);
        node.stop().await.and_then(|()| failures.end())
    }
}

impl<'a> Orders<'a> {
    fn new(all: &'a [Order], taken: Taken, patience: Duration) -> Result<Orders<'a>> {
        let given = taken.recall(all)?;
        let mine = all.iter().zip(&given).map(|(order, was_taken)| !order.to_primary || *was_taken);
        Ok(Orders { all, mine: mine.collect(), given, taken, patience })
    }

    /// Records the orders that are missed. Orders to the primary do not count: they may have been another node's.
    fn note_late(&self, passed: Option<Duration>, failures: &Failures) {
        let missed = |(order, was_given): &(&Order, &bool)| {
            !**was_given && !order.to_primary && order.is_missed_at(passed)
        };
        for (order, _) in self.all.iter().zip(&self.given).filter(missed) {
            failures.note(format_args!("order {order}"), &anyhow!("this program began after its time"));
        }
        let late = self.all.iter().filter(|order| order.begins_within(None, passed)).count();
        if late > 0 {
            output::note(&format!(
                "{late} of the orders began before this program: what lasts holds, and what is done once is not done by it"
            ));
        }
    }

    fn mine(&self) -> impl Iterator<Item = &'a Order> {
        self.all.iter().zip(&self.mine).filter(|(_, is_mine)| **is_mine).map(|(order, _)| order)
    }

    /// Returns the orders that currently have programs beside the node, by index.
    fn attackers(&self, passed: Option<Duration>) -> BTreeMap<usize, What> {
        let all = self.all.iter().zip(&self.mine).enumerate();
        let now = all.filter(|(_, (order, is_mine))| {
            **is_mine && order.what.has_attackers() && order.holds_at(passed)
        });
        now.map(|(place, (order, _))| (place, order.what.clone())).collect()
    }

    /// Whether an order that begins now applies to this node. The node is asked only once whether it is primary: later
    /// another node may be, which would carry it out too. An order that cannot be recorded is carried out all the same.
    async fn take(&mut self, place: usize, rpc: &Rpc, failures: &Failures) -> bool {
        let order = &self.all[place];
        if order.to_primary {
            let status = tokio::time::timeout(self.patience, rpc.page("/v1/status")).await;
            let status = status.ok().and_then(Result::ok);
            self.mine[place] = status.is_some_and(|status| orders_batches(&status["consensus"]));
            if self.mine[place] {
                self.keep(place, failures);
            }
        }
        self.mine[place]
    }

    /// Records that an order was carried out. An order to the primary is already recorded by [`Orders::take`].
    fn keep_given(&self, place: usize, failures: &Failures) {
        if !self.all[place].to_primary {
            self.keep(place, failures);
        }
    }

    fn keep(&self, place: usize, failures: &Failures) {
        let order = &self.all[place];
        if let Err(error) = self.taken.keep(order) {
            failures.note(format_args!("keeping the order {order} over a restart"), &error);
        }
    }
}

/// Whether a validator with this consensus status orders batches. During a view change it does not yet: until the view
/// begins, the others may follow the previous primary.
fn orders_batches(consensus: &Value) -> bool {
    consensus["is_primary"] == true && consensus["changing"] != true
}

/// Records attackers among a node's peers that ended by themselves.
fn note_gone(among: &mut Option<(Assault, RunDir)>, failures: &Failures) {
    if let Some(Err(error)) = among.as_mut().map(|(assault, _)| assault.check()) {
        failures.note("the attack among its peers", &error);
    }
}

/// Waits until a moment; forever if there is none.
async fn wait(clock: &StartClock, moment: Option<Duration>) {
    match moment {
        Some(moment) => clock.wait_until(moment).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
