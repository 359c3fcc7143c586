//! The life of one connection: answers requests, forwards broadcasts both ways, and ends when the connection or the
//! node does.
//!
//! ```text
//!  accept_bi ─▶ slot ─▶ task per request: read ─▶ room for the answer ─▶ handler ─▶ write ─▶ requester has it
//!  accept_uni ─▶ meter ─▶ read, in order ─▶ inbox (drops oldest) ─▶ turn ─▶ handler
//!  outbox (drops oldest) ─▶ one stream after another
//! ```
//!
//! One [`JoinSet`] owns all of these tasks: dropping it ends them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use quinn::{ConnectionError, RecvStream};
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, timeout_at},
};
use tokio_util::task::TaskTracker;
use tracing::error;

use super::{
    frames::{FrameError, SHORT_BYTES, Sender, read_payload},
    link::Link,
    resources::Shares,
};
use crate::{Handler, NetworkConfig, PeerRejection, budget::Reservation};

/// The state that the tasks of one connection share.
pub(super) struct Session {
    pub(super) link: Arc<Link>,
    pub(super) handler: Arc<dyn Handler>,
    pub(super) transfer_timeout: Duration,
    pub(super) shares: Shares,
    /// Whether the peer floods. If so, its connection ends.
    pub(super) has_flooded: AtomicBool,
}

/// How a connection ended.
pub(super) struct SessionEnd {
    pub(super) error: ConnectionError,
    /// Whether it ended because the peer sent more broadcasts than any honest one does.
    pub(super) has_flooded: bool,
}

/// Serves a connection until it ends, and returns how it ended. Dropping the future aborts all its tasks; the tracker
/// knows when they are gone.
pub(super) async fn serve(
    link: Arc<Link>,
    handler: Arc<dyn Handler>,
    shares: Shares,
    config: &NetworkConfig,
    tracker: &TaskTracker,
) -> SessionEnd {
    let session = Arc::new(Session {
        link,
        handler,
        transfer_timeout: config.transfer_timeout(),
        shares,
        has_flooded: AtomicBool::new(false),
    });
    let mut tasks = JoinSet::new();
    tasks.spawn(tracker.track_future(session.clone().send_broadcasts(tracker.clone())));
    tasks.spawn(tracker.track_future(session.clone().receive_broadcasts()));
    tasks.spawn(tracker.track_future(session.clone().deliver_broadcasts()));
    let slots = Arc::new(Semaphore::new(config.request_concurrency_max));
    let error = loop {
        tokio::select! {
            biased;
            Some(ended) = tasks.join_next() => if let Err(error) = ended {
                // Only a panic leads here: single tasks are never aborted. The panic ends this connection, which is
                // then made again.
                error!(peer = %session.link.peer, %error, "a task of a connection failed; ending the connection");
                break ConnectionError::LocallyClosed;
            },
            stream = session.link.connection.accept_bi() => match stream {
                Ok((send, receive)) => {
                    // Bounds the handlers that run. The stream limit alone would not: a requester that gives up frees
                    // its stream while the handler continues. Finished tasks are reaped below meanwhile.
                    let slot = tokio::select! {
                        biased;
                        slot = slots.clone().acquire_owned() => slot.expect("the semaphore is never closed"),
                        error = session.link.connection.closed() => break error,
                    };
                    tasks.spawn(tracker.track_future(session.clone().answer(send, receive, slot)));
                }
                Err(error) => break error,
            },
        }
    };
    tasks.shutdown().await;
    SessionEnd { error, has_flooded: session.has_flooded.load(Ordering::Acquire) }
}

impl Session {
    /// Reads a message of the peer, and counts its bytes as they arrive: announced bytes take no room.
    ///
    /// # Errors
    /// Also if room for the message is missing, or if the peer is barred from long messages.
    pub(super) async fn read_counted(
        &self,
        receive: &mut RecvStream,
        length: usize,
    ) -> Result<(Vec<u8>, Reservation), FrameError> {
        let (share, mut held) = (&self.shares.requests, Reservation::default());
        if length > SHORT_BYTES && !share.barred(Instant::now()).is_zero() {
            return Err(FrameError::NoRoom);
        }
        let make_room = |bytes| share.resize(&mut held, bytes);
        let payload = read_payload(receive, length, &self.link.received, make_room).await?;
        Ok((payload, held))
    }

    /// Waits until the peer has received everything written to a stream. Returns false if it receives nothing, or is
    /// too slow.
    pub(super) async fn settles(&self, sender: &Sender, deadline: Instant) -> bool {
        // quinn holds the sent bytes until the peer acknowledges them. It sends only probes to a silent peer.
        let transmitted = || self.link.connection.stats().udp_tx.bytes;
        tokio::select! {
            biased;
            settled = timeout_at(deadline, sender.settled()) => settled.is_ok(),
            () = self.link.sent.stalls_by(transmitted) => false,
        }
    }

    /// Records a stalled message. For a while the sender's long messages are refused: otherwise it could at once make
    /// this node hold the same amount again. A configured peer is presumed to have a bad link.
    pub(super) fn stood_still(&self, reason: PeerRejection) {
        self.count_rejection(reason, 1);
        if !self.shares.is_configured {
            self.shares.requests.bar(Instant::now());
        }
    }

    pub(super) fn count_rejection(&self, reason: PeerRejection, count: usize) {
        self.shares.rejections.add(reason, count);
    }
}
