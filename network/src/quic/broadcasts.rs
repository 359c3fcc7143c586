//! Sends and receives the broadcasts of one connection.

use std::sync::{Arc, atomic::Ordering};

use bytes::Bytes;
use quinn::{RecvStream, WriteError};
use tokio::{
    task::JoinSet,
    time::{Instant, timeout, timeout_at},
};
use tokio_util::task::TaskTracker;
use tracing::debug;

use super::{
    endpoint::BROADCAST_STREAMS_MAX,
    frames::{FrameError, Sender, code, read_broadcast_head},
    link::{Goodbye, close},
    serve::Session,
};
use crate::{PeerRejection, meter::Verdict};

/// Maximum number of broadcasts of a connection that are written but perhaps not received yet, however many streams the peer grants.
const SETTLING_MAX: usize = BROADCAST_STREAMS_MAX as usize;

/// Why a broadcast was not accepted.
enum BroadcastFailure {
    Frame(FrameError),
    TooMany,
    NoRoom,
    Flood,
}

impl From<FrameError> for BroadcastFailure {
    fn from(error: FrameError) -> BroadcastFailure {
        match error {
            FrameError::NoRoom => BroadcastFailure::NoRoom,
            other => BroadcastFailure::Frame(other),
        }
    }
}

impl Session {
    /// Sends broadcasts one after another. Each counts until the peer has it; several wait for that concurrently.
    pub(super) async fn send_broadcasts(self: Arc<Self>, tracker: TaskTracker) {
        let mut settling = JoinSet::new();
        loop {
            while settling.try_join_next().is_some() {}
            if settling.len() >= SETTLING_MAX {
                settling.join_next().await;
            }
            let (payload, held) = self.link.outbox.pop().await;
            let deadline = Instant::now() + self.transfer_timeout;
            if let Some(sender) = self.send_broadcast(payload, deadline).await {
                let session = self.clone();
                settling.spawn(tracker.track_future(async move {
                    match session.settles(&sender, deadline).await {
                        true => sender.complete(),
                        false => session.left_untaken(Some(sender)),
                    }
                    drop(held);
                }));
            }
        }
    }

    /// Opens a stream and writes a broadcast to it. Returns `None` if the peer does not want the broadcast, or does not
    /// receive it.
    async fn send_broadcast(&self, payload: Bytes, deadline: Instant) -> Option<Sender> {
        let mut opened = None;
        let sending = async {
            let stream = self.link.connection.open_uni().await.map_err(WriteError::from)?;
            opened.insert(Sender::new(stream, self.link.sent.clone())).broadcast(payload).await
        };
        let sent = tokio::select! {
            biased;
            sent = timeout_at(deadline, sending) => sent.ok(),
            () = self.link.sent.stalls() => None,
        };
        match sent {
            Some(Ok(())) => return opened,
            Some(Err(error)) => {
                debug!(peer = %self.link.peer, %error, "cannot deliver a broadcast to the peer")
            }
            None => self.left_untaken(opened),
        }
        None
    }

    /// Handles a broadcast that the peer did not receive. A stranger's connection is closed, and its party is barred.
    /// Otherwise the stranger could make this node hold the same amount again, even under another key. A configured
    /// peer is presumed to have a bad link.
    fn left_untaken(&self, sender: Option<Sender>) {
        self.count_rejection(PeerRejection::BroadcastUntaken, 1);
        if let Some(sender) = sender {
            sender.abandon(code::TOO_SLOW);
        }
        if !self.shares.is_configured {
            self.link.outbox.bar(Instant::now());
            close(&self.link.connection, Goodbye::Shutdown, "the peer did not take broadcasts in time");
        }
    }

    /// Receives broadcasts one after another, as fast as the peer may send them.
    pub(super) async fn receive_broadcasts(self: Arc<Self>) {
        while let Ok(mut stream) = self.link.connection.accept_uni().await {
            let taken = tokio::select! {
                biased;
                taken = timeout(self.transfer_timeout, self.take_broadcast(&mut stream)) => taken.ok(),
                () = self.link.received.stalls() => None,
            };
            let (code, reason) = match taken {
                Some(Ok(())) => continue,
                Some(Err(BroadcastFailure::Flood)) => return self.end_flood(),
                Some(Err(BroadcastFailure::TooMany)) => (code::CANCELLED, PeerRejection::BroadcastTooMany),
                Some(Err(BroadcastFailure::NoRoom)) => (code::TOO_SLOW, PeerRejection::BroadcastNoRoom),
                None => {
                    self.stood_still(PeerRejection::BroadcastNoRoom);
                    let _ = stream.stop(code::TOO_SLOW);
                    continue;
                }
                Some(Err(BroadcastFailure::Frame(error))) => {
                    debug!(peer = %self.link.peer, %error, "gave up reading a broadcast from the peer");
                    let _ = stream.stop(code::MALFORMED);
                    continue;
                }
            };
            self.count_rejection(reason, 1);
            // An error means that the stream has already ended.
            let _ = stream.stop(code);
        }
    }

    async fn take_broadcast(&self, stream: &mut RecvStream) -> Result<(), BroadcastFailure> {
        let length = read_broadcast_head(stream).await?;
        let verdict = self.shares.meter.lock().judge(length, Instant::now());
        match verdict {
            Verdict::Take => {}
            // A configured peer is presumed broken rather than hostile: it only loses the excess.
            Verdict::Flood if !self.shares.is_configured => return Err(BroadcastFailure::Flood),
            Verdict::Drop | Verdict::Flood => return Err(BroadcastFailure::TooMany),
        }
        let (payload, held) = self.read_counted(stream, length).await?;
        let dropped = self.shares.inbox.push(payload);
        drop(held);
        self.count_rejection(PeerRejection::BroadcastOvertaken, dropped);
        Ok(())
    }

    fn end_flood(&self) {
        self.count_rejection(PeerRejection::Flooded, 1);
        self.has_flooded.store(true, Ordering::Release);
        close(&self.link.connection, Goodbye::Banned, "banned: a flood of broadcasts");
    }

    pub(super) async fn deliver_broadcasts(self: Arc<Self>) {
        loop {
            let (payload, _turn) = self.shares.inbox.pop().await;
            self.link.used_now();
            self.handler.message(self.link.peer, payload).await;
        }
    }
}
