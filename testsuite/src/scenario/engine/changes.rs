//! [`Changes`]: the owner's transactions that change the validators, beside the clock.
//!
//! Each waits for the batch that holds it. A chain that stands has none, and the clock may bring what lets it go on: so it waits for no
//! change. All come from one account, and each has the next number of it: they are sent one after another.

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
    nodes::first_that_answers,
};
use crate::{
    rpc::Rpc,
    scenario::{export::stays_free, names::Place, plan::plan},
};

/// Where the owner's key is, below the devnet's directory.
const OWNER_KEY: &str = "owner.key";
/// Who gets the fees of a validator that is added.
const FEES: &str = "0x00000000000000000000000000000000000000fe";
/// Beyond the clock: what the last change takes if it is sent at the end, and then fails by its own deadline.
const SETTLE: Duration = Duration::from_secs(75);

/// Changes that were ordered and have not come to an end. Dropped, they end with their commands.
#[derive(Default)]
pub(super) struct Changes {
    /// Those that wait for the one before, with their names.
    waiting: VecDeque<(String, BoxFuture<'static, Result<()>>)>,
    /// The name of the one that was sent.
    under_way: Option<String>,
    /// That one.
    sent: JoinSet<Result<()>>,
}

impl Changes {
    /// Sends a change, once those before it have come to an end.
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

    /// The changes that have come to an end since the last call, by their names.
    fn take_settled(&mut self) -> Vec<(String, Result<()>)> {
        let mut settled = Vec::new();
        while let Some(end) = self.sent.try_join_next() {
            let done = end.unwrap_or_else(|panicked| Err(panicked.into()));
            settled.extend(self.under_way.take().map(|name| (name, done)));
            self.send_next();
        }
        settled
    }

    /// Ends all of them; their names.
    fn give_up(&mut self) -> Vec<String> {
        let given_up = std::mem::take(self);
        given_up.under_way.into_iter().chain(given_up.waiting.into_iter().map(|(name, _)| name)).collect()
    }

    fn is_empty(&self) -> bool {
        self.under_way.is_none() && self.waiting.is_empty()
    }
}

impl Stage<'_> {
    /// Has the owner `add` or `remove` a validator. The clock goes on meanwhile.
    ///
    /// # Errors
    /// If it cannot be sent at all. What comes of it is told later.
    pub(super) fn change_validators(&mut self, change: &str, place: Place) -> Result<()> {
        let key_file = self.devnet.dir().join(OWNER_KEY);
        std::fs::write(&key_file, self.devnet.owner().key_hex()).context("cannot write the owner's key")?;
        std::fs::set_permissions(&key_file, PermissionsExt::from_mode(0o600)).context("the owner's key")?;
        let id = self.key(place)?;
        let mut arguments =
            ["validators", change, &id, "--key-file", text(&key_file)?].map(str::to_owned).to_vec();
        if change == "add" {
            arguments.extend(["--fee-recipient", FEES].map(str::to_owned));
        }
        // A node that stays what it is takes the transaction.
        let takers = self.takers(place)?;
        let send = async move {
            let taker = first_that_answers(&takers).await;
            let taker = takers.iter().find(|(place, _)| Some(*place) == taker);
            let (_, rpc) = taker.context("no node answers that could take the transaction")?;
            arguments.extend(["--rpc".to_owned(), rpc.url().to_owned()]);
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            command(&arguments).await
        };
        let name = format!("{change} validator {}", self.names.name(place));
        self.changes.push(name, Box::pin(send));
        Ok(())
    }

    /// Nodes that could take a change about this one. First those that no event keeps from the chain before the change has its batch:
    /// whoever takes it is asked for its receipt, and the clock goes on.
    fn takers(&self, place: Place) -> Result<Vec<(Place, Rpc)>> {
        let (events, at_ms) = (plan(self.scenario), self.elapsed_ms());
        let sources = self.sources(Some(place))?;
        Ok(first_those(sources, |taker| stays_free(self.scenario, &self.names, &events, at_ms, taker)))
    }

    /// Takes note of changes that have come to an end: one that failed is a finding.
    pub(super) fn note_changes(&mut self) {
        for (name, done) in self.changes.take_settled() {
            self.note_failure(done.context(name));
        }
    }

    /// Waits until each change has come to an end, or has had its time beyond the clock.
    pub(super) async fn wait_changes(&mut self) -> Result<()> {
        let deadline = Instant::now() + SETTLE;
        while !self.changes.is_empty() {
            self.note_ended()?;
            self.note_changes();
            if Instant::now() >= deadline {
                for name in self.changes.give_up() {
                    let seconds = SETTLE.as_secs();
                    self.note_failure(Err(anyhow!("{name}: it did not end within {seconds} s of the clock")));
                }
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }
}

/// The nodes that stay, and then the others, each in their order.
fn first_those(mut nodes: Vec<(Place, Rpc)>, stays: impl Fn(Place) -> bool) -> Vec<(Place, Rpc)> {
    nodes.sort_by_key(|(place, _)| !stays(*place));
    nodes
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tokio::sync::oneshot;

    use super::*;
    use crate::scenario::{model::Scenario, names::Names};

    /// Goal: a change goes to a node that is there until the change has its batch, not to one that the next event takes down.
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
            let nodes = (0..4).map(|place| (Place(place), Rpc::new("http://127.0.0.1:1").unwrap())).collect();
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

    /// Goal: whoever orders a change waits for nothing; the next one is sent when the first has ended, and what failed is told by name.
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

    /// Goal: where no batch comes any more, all that was ordered is told, and nothing of it goes on.
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
