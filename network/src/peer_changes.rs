//! [`PeerChanges`]: tells the users of a transport that its connected peers changed, so that nobody polls them.

use tokio::sync::watch;

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

    /// Begins to watch. Whoever reads the peers only after this call misses no change.
    pub fn watch(&self) -> PeerWatch {
        PeerWatch(self.0.subscribe())
    }
}

/// Waits for changes of a transport's connected peers.
#[derive(Debug)]
pub struct PeerWatch(watch::Receiver<()>);

impl PeerWatch {
    /// Resolves once the peers may have changed since the watch began, or since this last resolved. Dropping the
    /// future loses no change.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            // The transport is gone, and changes no more.
            std::future::pending().await
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Duration, timeout};

    use super::*;

    async fn has_changed(watch: &mut PeerWatch) -> bool {
        timeout(Duration::from_millis(1), watch.changed()).await.is_ok()
    }

    /// Goal: a change between a look and the wait is not lost, nor one during an abandoned wait; several count as one.
    #[tokio::test(start_paused = true)]
    async fn no_change_is_lost() {
        let changes = PeerChanges::default();
        let mut watch = changes.watch();
        assert!(!has_changed(&mut watch).await, "nothing has changed yet");
        changes.report();
        changes.clone().report();
        drop(watch.changed());
        assert!(has_changed(&mut watch).await);
        assert!(!has_changed(&mut watch).await, "both were seen");
        drop(changes);
        assert!(!has_changed(&mut watch).await, "a transport that is gone changes no more");
    }
}
