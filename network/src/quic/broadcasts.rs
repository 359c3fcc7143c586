//! Broadcasts of one connection, both ways.

use std::sync::{Arc, atomic::Ordering};

use quinn::RecvStream;
use tokio::time::{Instant, timeout};
use tracing::debug;

use super::{
    frames::{FrameError, Sender, code, read_broadcast_head},
    link::{Goodbye, close},
    serve::Session,
};
use crate::{TurnedAway, meter::Verdict};

/// Why a broadcast was not taken.
enum Untaken {
    Frame(FrameError),
    TooMany,
    NoRoom,
    Flood,
}

impl From<FrameError> for Untaken {
    fn from(error: FrameError) -> Untaken {
        match error {
            FrameError::NoRoom => Untaken::NoRoom,
            other => Untaken::Frame(other),
        }
    }
}

impl Session {
    pub(super) async fn send_broadcasts(self: Arc<Self>) {
        loop {
            let payload = self.link.outbox.pop().await;
            let Ok(stream) = self.link.connection.open_uni().await else { return };
            let mut sender = Sender::new(stream, self.link.sent.clone());
            let sent = tokio::select! {
                biased;
                sent = timeout(self.transfer_timeout, sender.broadcast(payload)) => sent.ok(),
                () = self.link.sent.stalls() => None,
            };
            match sent {
                Some(Ok(())) => sender.complete(),
                Some(Err(error)) => {
                    debug!(peer = %self.link.peer, %error, "a broadcast did not reach the peer")
                }
                None => sender.abandon(code::TOO_SLOW),
            }
        }
    }

    /// Takes broadcasts one after another, as fast as the peer may send them.
    pub(super) async fn receive_broadcasts(self: Arc<Self>) {
        while let Ok(mut stream) = self.link.connection.accept_uni().await {
            let taken = tokio::select! {
                biased;
                taken = timeout(self.transfer_timeout, self.take_broadcast(&mut stream)) => taken.ok(),
                () = self.link.received.stalls() => None,
            };
            let (code, reason) = match taken {
                Some(Ok(())) => continue,
                Some(Err(Untaken::Flood)) => return self.end_flood(),
                Some(Err(Untaken::TooMany)) => (code::CANCELLED, TurnedAway::BroadcastTooMany),
                Some(Err(Untaken::NoRoom)) => (code::TOO_SLOW, TurnedAway::BroadcastNoRoom),
                None => {
                    self.stood_still(TurnedAway::BroadcastNoRoom);
                    let _ = stream.stop(code::TOO_SLOW);
                    continue;
                }
                Some(Err(Untaken::Frame(error))) => {
                    debug!(peer = %self.link.peer, %error, "gave up a broadcast of the peer");
                    let _ = stream.stop(code::MALFORMED);
                    continue;
                }
            };
            self.turned_away(reason, 1);
            // An error means that the stream has ended already.
            let _ = stream.stop(code);
        }
    }

    async fn take_broadcast(&self, stream: &mut RecvStream) -> Result<(), Untaken> {
        let length = read_broadcast_head(stream).await?;
        let verdict = self.shares.meter.lock().judge(length, Instant::now());
        match verdict {
            Verdict::Take => {}
            // A configured peer is presumed broken rather than hostile: it only loses the excess.
            Verdict::Flood if !self.shares.is_configured => return Err(Untaken::Flood),
            Verdict::Drop | Verdict::Flood => return Err(Untaken::TooMany),
        }
        let (payload, held) = self.read_counted(stream, length).await?;
        let dropped = self.shares.inbox.push(payload);
        drop(held);
        self.turned_away(TurnedAway::BroadcastOvertaken, dropped);
        Ok(())
    }

    fn end_flood(&self) {
        self.turned_away(TurnedAway::Flooded, 1);
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
