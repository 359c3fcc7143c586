//! [`PeerChanges`]: reports to the users of a transport that its connected peers changed, so that no user polls.

use std::time::Duration;

use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

/// Reports changes of a transport's connected peers. Clones report the same changes.
///
/// A transport reports after each change, and after each ban and each lifted ban. A report may also come without a
/// change, so a user compares [`Transport::peers`](crate::Transport::peers) with the peers that it knows.
#[derive(Clone, Debug, Default)]
pub struct PeerChanges(watch::Sender<()>);

impl PeerChanges {
    /// Wakes everyone who watches.
    pub fn report(&self) {
        self.0.send_replace(());
    }

    /// Begins to watch. A caller that reads the peers after this call misses no change.
    pub fn watch(&self) -> PeerWatch {
        PeerWatch { changes: self.0.subscribe(), due: None }
    }
}

/// Delay between a change and its report. Two nodes that dial each other end one of their two connections, and a full
/// node ends a new one. A request that was sent before that would be lost with the connection. The delay also bounds
/// how often a peer that comes and goes wakes the transport's users.
const SETTLE: Duration = Duration::from_millis(25);

/// Waits for changes of a transport's connected peers.
#[derive(Debug)]
pub struct PeerWatch {
    changes: watch::Receiver<()>,
    /// When the change that this watch has seen is reported.
    due: Option<Instant>,
}

impl PeerWatch {
    /// Resolves once the peers may have changed since the watch began, or since this last resolved, and have settled.
    /// Dropping the future loses no change.
    pub async fn changed(&mut self) {
        let due = match self.due {
            Some(due) => due,
            None => {
                if self.changes.changed().await.is_err() {
                    // The transport is gone, and changes no more.
                    std::future::pending::<()>().await;
                }
                *self.due.insert(Instant::now() + SETTLE)
            }
        };
        sleep_until(due).await;
        self.due = None;
        self.changes.mark_unchanged();
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    async fn has_changed(watch: &mut PeerWatch) -> bool {
        timeout(2 * SETTLE, watch.changed()).await.is_ok()
    }

    /// Goal: no change is lost, neither between a check and the wait nor during an abandoned wait. Several changes
    /// count as one.
    #[tokio::test(start_paused = true)]
    async fn no_change_is_lost() {
        let changes = PeerChanges::default();
        let mut watch = changes.watch();
        assert!(!has_changed(&mut watch).await, "nothing has changed yet");
        changes.report();
        changes.clone().report();
        drop(watch.changed());
        assert!(timeout(SETTLE / 2, watch.changed()).await.is_err(), "the peers have not settled yet");
        changes.report();
        let begun = Instant::now();
        assert!(has_changed(&mut watch).await);
        assert!(begun.elapsed() < SETTLE, "an abandoned wait starts no new one");
        assert!(!has_changed(&mut watch).await, "all were seen");
        drop(changes);
        assert!(!has_changed(&mut watch).await, "a transport that is gone changes no more");
    }
}
