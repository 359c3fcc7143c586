//! [`Supplier`]: one archive, as a peer.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use parking_lot::Mutex;
use slipstream_archive::{Archive, ArchiveError, ArchivedSnapshot, Location, Settings};
use slipstream_network::{NetworkError, PeerChanges, PeerId, Protocol, Refusal, RequestLimits};
use slipstream_storage::{Store, Trust};
use slipstream_types::{BatchNumber, Genesis};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::answer::answer;

/// How often an archive is checked for a newer snapshot, while one could be of use.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// The shorter interval after an archive was unreachable. An archive with a wrong manifest keeps the usual interval,
/// because a manifest may be long.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// Maximum number of snapshots of one archive that are offered: a restore continues with one while the next one is
/// already there. Bounds the lists in memory.
const SNAPSHOTS_MAX: usize = 2;

pub(super) struct Supplier {
    id: PeerId,
    location: Location,
    settings: Settings,
    /// Set once the archive could be opened: a directory may appear after the node started.
    archive: OnceLock<Archive>,
    store: Store,
    trust: Trust,
    state: Mutex<State>,
    /// Reports that the archive has or lacks something to offer.
    changes: PeerChanges,
}

#[derive(Default)]
struct State {
    /// The archive's snapshots, newest first.
    snapshots: Vec<Arc<ArchivedSnapshot>>,
    /// The last reported failure, so that each failure is reported only once.
    failure: Option<String>,
}

impl Supplier {
    pub(super) fn new(
        id: PeerId,
        location: &Location,
        settings: &Settings,
        store: &Store,
        genesis: &Genesis,
        changes: PeerChanges,
    ) -> Supplier {
        Supplier {
            id,
            location: location.clone(),
            settings: settings.clone(),
            archive: OnceLock::new(),
            store: store.clone(),
            trust: Trust { waypoint: None, genesis: Some(genesis.clone()) },
            state: Mutex::default(),
            changes,
        }
    }

    fn archive(&self) -> Result<&Archive, ArchiveError> {
        match self.archive.get() {
            Some(archive) => Ok(archive),
            None => {
                let opened = Archive::open(&self.location, &self.settings)?;
                Ok(self.archive.get_or_init(|| opened))
            }
        }
    }

    /// Whether the archive has something to offer.
    pub(super) fn is_here(&self) -> bool {
        !self.state.lock().snapshots.is_empty()
    }

    /// Logs the URL of a banned archive.
    pub(super) fn tell_ban(&self, reason: &str) {
        tracing::warn!(archive = %self.location, peer = %self.id.short(), reason, "the archive is banned");
    }

    /// Checks for newer snapshots until `shutdown`.
    pub(super) async fn look(&self, shutdown: &CancellationToken) {
        loop {
            let pause = tokio::select! {
                () = shutdown.cancelled() => return,
                looked = self.look_once() => self.note(looked),
            };
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = sleep(pause) => {}
            }
        }
    }

    /// Keeps the snapshots that are ahead of the head, and loads the newest of those that are new.
    async fn look_once(&self) -> Result<(), ArchiveError> {
        let head = self.head();
        self.state.lock().snapshots.retain(|snapshot| number(snapshot) > head);
        self.changes.report();
        let archive = self.archive()?;
        let entries = archive.snapshots().await?;
        let held = self.state.lock().snapshots.iter().map(|snapshot| number(snapshot)).max();
        let beyond = held.unwrap_or(head).max(head);
        // A damaged snapshot must not hide older ones.
        let mut looked = Ok(());
        for entry in entries.iter().filter(|entry| entry.number() > beyond).take(SNAPSHOTS_MAX) {
            match archive.snapshot(Some(entry.number()), &self.trust).await {
                Ok(snapshot) => {
                    self.keep(snapshot);
                    break;
                }
                Err(error) if looked.is_ok() => looked = Err(error),
                Err(_) => {}
            }
        }
        looked
    }

    fn keep(&self, snapshot: ArchivedSnapshot) {
        let batch = number(&snapshot);
        tracing::info!(archive = %self.location, peer = %self.id.short(), %batch, "the archive has a snapshot ahead of this node's head");
        let mut state = self.state.lock();
        state.snapshots.insert(0, Arc::new(snapshot));
        state.snapshots.truncate(SNAPSHOTS_MAX);
        drop(state);
        self.changes.report();
    }

    /// Logs a new failure once, and returns the pause before the next check.
    fn note(&self, looked: Result<(), ArchiveError>) -> Duration {
        let pause = match &looked {
            Err(ArchiveError::Store { .. } | ArchiveError::Open { .. }) => LOOK_AGAIN,
            _ => LOOK_EVERY,
        };
        let failure = looked.err().map(|error| error.to_string());
        let mut state = self.state.lock();
        if let Some(failure) = failure.as_ref().filter(|failure| state.failure.as_ref() != Some(failure)) {
            tracing::warn!(failure, "an archive offers nothing; this node keeps checking it");
        }
        state.failure = failure;
        pause
    }

    pub(super) async fn request(
        &self,
        protocol: Protocol,
        payload: Vec<u8>,
        limits: RequestLimits,
    ) -> Result<Vec<u8>, NetworkError> {
        let peer = self.id;
        let refused = |refusal| NetworkError::Refused { peer, refusal };
        if protocol != Protocol::SYNC {
            return Err(refused(Refusal::not_kept("an archive has only snapshots")));
        }
        let snapshots = self.state.lock().snapshots.clone();
        let answered = timeout(limits.deadline, answer(&snapshots, &payload));
        let answer =
            answered.await.map_err(|_| NetworkError::Deadline { peer, deadline: limits.deadline })?;
        let bytes = answer.map_err(refused)?;
        if bytes.len() > limits.response_bytes_max {
            let (bytes, bytes_max) = (bytes.len(), limits.response_bytes_max);
            return Err(NetworkError::TooLong { peer, bytes, bytes_max });
        }
        Ok(bytes)
    }

    fn head(&self) -> BatchNumber {
        self.store.head().map_or(BatchNumber::GENESIS, |head| head.header.number)
    }
}

fn number(snapshot: &ArchivedSnapshot) -> BatchNumber {
    snapshot.lineage().info().number
}
