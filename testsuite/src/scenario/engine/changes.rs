//! [`Changes`]: the owner's transactions that change the validators, sent while the clock continues.
//!
//! Each change waits for its batch. The clock does not wait for the change: a stalled chain makes no batches, and the
//! clock may bring the event that lets the chain continue. All changes come from one account with consecutive nonces,
//! so they are sent one after another.

use std::{
    collections::VecDeque,
    os::unix::fs::PermissionsExt,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};
use futures::future::BoxFuture;
use tokio::task::JoinSet;

use super::{
    LOOK, Stage,
    act::{command, text},
    free::stays_free,
    nodes::first_that_answers,
};
use crate::{
    rpc::Rpc,
    scenario::{names::NodeIndex, plan::plan},
};

/// The file of the owner's key, in the devnet's directory.
const OWNER_KEY: &str = "owner.key";
/// The fee recipient of a validator that is added.
const FEES: &str = "0x00000000000000000000000000000000000000fe";
/// The time that changes get after the clock's end: enough for a change sent at the very end to fail by its own
/// deadline.
const SETTLE: Duration = Duration::from_secs(75);

/// The pending changes. Dropping them ends their commands.
#[derive(Default)]
pub(super) struct Changes {
    /// Changes that wait for the previous one, with their names.
    waiting: VecDeque<(String, BoxFuture<'static, Result<()>>)>,
    /// The name of the change that was sent.
    under_way: Option<String>,
    /// The task of that change.
    sent: JoinSet<Result<()>>,
}

impl Changes {
    /// Sends a change, once those before it are settled.
    fn push(&mut self, name: String, change: BoxFuture<'static, Result<()>>) {
        self.waiting.push_back((name, change));
        self.send_next();
    }

    fn send_next(&mut self) {
        if self.under_way.is_none()
            && let Some((name, change)) = self.waiting.pop_front()
        {
            self.under_way = Some(name);
            self.sent.spawn(change);
        }
    }

    /// Returns the changes settled since the last call, by name.
    fn take_settled(&mut self) -> Vec<(String, Result<()>)> {
        let mut settled = Vec::new();
        while let Some(end) = self.sent.try_join_next() {
            let done = end.unwrap_or_else(|panicked| Err(panicked.into()));
            settled.extend(self.under_way.take().map(|name| (name, done)));
            self.send_next();
        }
        settled
    }

    /// Cancels all changes, and returns their names.
    fn give_up(&mut self) -> Vec<String> {
        let given_up = std::mem::take(self);
        given_up.under_way.into_iter().chain(given_up.waiting.into_iter().map(|(name, _)| name)).collect()
    }

    fn is_empty(&self) -> bool {
        self.under_way.is_none() && self.waiting.is_empty()
    }
}

impl Stage<'_> {
    /// Makes the owner `add` or `remove` a validator. The clock continues meanwhile.
    ///
    /// # Errors
    /// If the change cannot be sent at all. Its result is reported later.
    pub(super) fn change_validators(&mut self, change: &str, place: NodeIndex) -> Result<()> {
        let key_file = self.devnet.dir().join(OWNER_KEY);
        std::fs::write(&key_file, self.devnet.owner().key_hex()).context("cannot write the owner's key")?;
        std::fs::set_permissions(&key_file, PermissionsExt::from_mode(0o600)).context("the owner's key")?;
        let id = self.key(place)?;
        let mut arguments =
            ["validators", change, &id, "--key-file", text(&key_file)?].map(str::to_owned).to_vec();
        if change == "add" {
            arguments.extend(["--fee-recipient", FEES].map(str::to_owned));
        }
        // The transaction goes to a node that is not part of the change.
        let takers = self.takers(place)?;
        let send = async move {
            let taker = first_that_answers(&takers).await;
            let taker = takers.iter().find(|(place, _)| Some(*place) == taker);
            let (_, rpc) = taker.context("no node answers, so the transaction cannot be sent")?;
            arguments.extend(["--rpc".to_owned(), rpc.url().to_owned()]);
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            command(&arguments).await
        };
        let name = format!("{change} validator {}", self.names.name(place));
        self.changes.push(name, Box::pin(send));
        Ok(())
    }

    /// Returns nodes that could accept a change of `place`. The command polls the same node for the receipt, and the
    /// clock continues. So those come first that no event keeps from the chain before the change has its batch.
    fn takers(&self, place: NodeIndex) -> Result<Vec<(NodeIndex, Rpc)>> {
        let (events, at_ms) = (plan(self.scenario), self.elapsed_ms());
        let sources = self.sources(Some(place))?;
        Ok(first_those(sources, |taker| stays_free(self.scenario, &self.names, &events, at_ms, taker)))
    }

    /// Records the settled changes; a failed change is a finding.
    pub(super) fn note_changes(&mut self) {
        for (name, done) in self.changes.take_settled() {
            self.note_failure(done.context(name));
        }
    }

    /// Waits until each change is settled, or its time after the clock is over.
    pub(super) async fn wait_changes(&mut self) -> Result<()> {
        let deadline = Instant::now() + SETTLE;
        while !self.changes.is_empty() {
            self.note_ended()?;
            self.note_changes();
            if Instant::now() >= deadline {
                for name in self.changes.give_up() {
                    let seconds = SETTLE.as_secs();
                    self.note_failure(Err(anyhow!(
                        "{name}: it did not end within {seconds} s after the clock"
                    )));
                }
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }
}

/// Sorts the nodes that stay before the others, keeping the order.
fn first_those(mut nodes: Vec<(NodeIndex, Rpc)>, stays: impl Fn(NodeIndex) -> bool) -> Vec<(NodeIndex, Rpc)> {
    nodes.sort_by_key(|(place, _)| !stays(*place));
    nodes
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tokio::sync::oneshot;

    use super::*;
    use crate::scenario::{model::Scenario, names::Names};

    /// Goal: a change goes to a node that stays up until the change has its batch, not to one that the next event takes
    /// down.
    #[test]
    fn who_stays_takes_a_change_before_who_is_killed_next() {
        let text = "name: a\ndescription: b\nduration: 10m\ncriteria: [equal_roots]\n\
                    topology: { groups: [{ name: next, part: candidate }] }\nfaults:\n\
                    - { at: 20s, what: { add_validator: next } }\n\
                    - { at: 20s, for: 9s, what: { kill: { nodes: [validator-0] } } }\n\
                    - { at: 70s, for: 9s, what: { pause: { nodes: [validator-2] } } }\n";
        let scenario = Scenario::parse(text, Path::new("a.yaml")).unwrap_or_else(|error| panic!("{error}"));
        let (names, events) = (Names::of(&scenario), plan(&scenario));
        let at = |at_ms: u64| {
            let nodes =
                (0..4).map(|place| (NodeIndex(place), Rpc::new("http://127.0.0.1:1").unwrap())).collect();
            let found =
                first_those(nodes, |taker| stays_free(&scenario, &names, &events, at_ms, taker)).into_iter();
            found.map(|(place, _)| place.0).collect::<Vec<_>>()
        };
        assert_eq!(at(20_000), [1, 3, 0, 2]);
        assert_eq!(at(200_000), [0, 1, 2, 3]);
    }

    async fn settled(changes: &mut Changes) -> Vec<(String, Result<()>)> {
        loop {
            let settled = changes.take_settled();
            if !settled.is_empty() {
                return settled;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Goal: requesting a change does not block. The next one is sent when the first is settled, and failures are
    /// reported by name.
    #[tokio::test]
    async fn changes_are_sent_one_after_another() {
        let mut changes = Changes::default();
        let (batch, comes) = oneshot::channel::<()>();
        let (begins, begun) = oneshot::channel::<()>();
        changes.push("add validator a".to_owned(), Box::pin(async move { anyhow::Ok(comes.await?) }));
        let second = async move {
            let _ = begins.send(());
            Err::<(), _>(anyhow!("it reverted"))
        };
        changes.push("remove validator b".to_owned(), Box::pin(second));
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(changes.take_settled().is_empty() && !changes.is_empty());
        batch.send(()).unwrap();
        let first = settled(&mut changes).await;
        assert!(matches!(&first[..], [(name, Ok(()))] if name == "add validator a"), "{first:?}");
        begun.await.unwrap();
        let last = settled(&mut changes).await;
        assert!(matches!(&last[..], [(name, Err(_))] if name == "remove validator b"), "{last:?}");
        assert!(changes.is_empty());
    }

    /// Goal: if no more batches come, all requested changes are reported and cancelled.
    #[tokio::test]
    async fn changes_that_never_end_are_given_up_by_name() {
        let mut changes = Changes::default();
        let (alive, gone) = oneshot::channel::<()>();
        let never = async move {
            let _alive = alive;
            std::future::pending::<Result<()>>().await
        };
        changes.push("add validator a".to_owned(), Box::pin(never));
        changes.push("add validator b".to_owned(), Box::pin(async { anyhow::Ok(()) }));
        assert_eq!(changes.give_up(), ["add validator a", "add validator b"]);
        assert!(changes.is_empty());
        assert!(gone.await.is_err(), "its task is dropped");
    }
}
