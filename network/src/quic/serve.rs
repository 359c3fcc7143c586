//! The life of one connection: answers requests, passes broadcasts both ways, ends when the connection or the node does.
//!
//! ```text
//!  accept_bi ─▶ slot ─▶ task per request: read ─▶ handler ─▶ write
//!  accept_uni ─▶ read, in order ─▶ inbox (drops oldest) ─▶ handler
//!  outbox (drops oldest) ─▶ one stream after another
//! ```
//!
//! All of it hangs on one [`JoinSet`]: when that goes, everything goes.

use std::{sync::Arc, time::Duration};

use quinn::{ConnectionError, RecvStream, SendStream};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
    time::timeout,
};
use tokio_util::task::TaskTracker;
use tracing::{debug, error};

use super::{
    frames::{
        FrameError, Sender, code, read_broadcast_head, read_payload, read_request_head, response_frame,
    },
    link::Link,
};
use crate::{Handler, NetworkConfig, Protocol, Refusal, queue::DropOldestQueue};

/// Bytes behind one permit of the byte budget, whose permits are 32-bit numbers.
const PERMIT_BYTES: usize = 1_024;
/// When a peer that filled its budget is asked to come back.
const BUSY_PAUSE: Duration = Duration::from_millis(500);

/// What the tasks of one connection share.
struct Session {
    link: Arc<Link>,
    handler: Arc<dyn Handler>,
    transfer_timeout: Duration,
    /// Bytes of requests that were announced and are not handled yet, in units of [`PERMIT_BYTES`].
    budget: Arc<Semaphore>,
    /// Broadcasts that the handler has not taken yet. It stands between reading and handling so that a slow handler never
    /// leaves unread streams behind, which would take the connection's flow-control window away from requests.
    inbox: DropOldestQueue<Vec<u8>>,
}

/// Serves a connection until it ends, and says how it ended. Dropping the future aborts every task of it; the tracker
/// knows when they are gone.
pub(crate) async fn serve(
    link: Arc<Link>,
    handler: Arc<dyn Handler>,
    config: &NetworkConfig,
    tracker: &TaskTracker,
) -> ConnectionError {
    let session = Arc::new(Session {
        handler,
        transfer_timeout: config.transfer_timeout(),
        budget: Arc::new(Semaphore::new(config.request_bytes_in_flight_max / PERMIT_BYTES)),
        inbox: DropOldestQueue::new(config.broadcast_queue_items_max, config.broadcast_queue_bytes_max),
        link,
    });
    let mut tasks = JoinSet::new();
    tasks.spawn(tracker.track_future(session.clone().send_broadcasts()));
    tasks.spawn(tracker.track_future(session.clone().receive_broadcasts()));
    tasks.spawn(tracker.track_future(session.clone().deliver_broadcasts()));
    let slots = Arc::new(Semaphore::new(config.request_concurrency_max));
    let end = loop {
        tokio::select! {
            stream = session.link.connection.accept_bi() => match stream {
                Ok((send, receive)) => {
                    // Bounds the handlers that run: the stream limit alone would not, because an asker that gives up
                    // frees its stream while the handler goes on. Finished tasks are reaped below meanwhile.
                    let slot = tokio::select! {
                        slot = slots.clone().acquire_owned() => slot.expect("the semaphore is never closed"),
                        error = session.link.connection.closed() => break error,
                    };
                    tasks.spawn(tracker.track_future(session.clone().answer(send, receive, slot)));
                }
                Err(error) => break error,
            },
            Some(ended) = tasks.join_next() => if let Err(error) = ended {
                // Only a panic gets here: nothing aborts single tasks. It ends this connection, which is then made anew.
                error!(peer = %session.link.peer, %error, "a task of a connection failed; ending the connection");
                break ConnectionError::LocallyClosed;
            },
        }
    };
    tasks.shutdown().await;
    end
}

impl Session {
    async fn answer(self: Arc<Self>, send: SendStream, mut receive: RecvStream, _slot: OwnedSemaphorePermit) {
        let mut sender = Sender::new(send);
        let outcome = match timeout(self.transfer_timeout, self.read_request(&mut receive)).await {
            Err(_) => return self.give_up(sender, &mut receive, code::TOO_SLOW, "too slow"),
            Ok(Err(FrameError::TooLong { bytes, bytes_max })) => Err(Refusal::too_long(bytes, bytes_max)),
            Ok(Err(error)) => return self.give_up(sender, &mut receive, code::MALFORMED, &error.to_string()),
            Ok(Ok(None)) => {
                Err(Refusal::busy(BUSY_PAUSE, "earlier requests of this peer are not handled yet"))
            }
            Ok(Ok(Some((protocol, payload, held)))) => {
                let outcome = self.handler.request(self.link.peer, protocol, payload).await;
                drop(held);
                outcome
            }
        };
        let (status, payload) = response_frame(outcome);
        // The request may not have been read to its end; the asker must not go on sending it.
        let _ = receive.stop(code::CANCELLED);
        match timeout(self.transfer_timeout, sender.response(status, payload)).await {
            Ok(Ok(())) => sender.complete(),
            Ok(Err(error)) => debug!(peer = %self.link.peer, %error, "the asker did not take the response"),
            Err(_) => self.give_up(sender, &mut receive, code::TOO_SLOW, "too slow to take its response"),
        }
    }

    /// A request and its share of the byte budget, or `None` if the budget does not reach. Refused at once rather than
    /// made to wait: unread bytes would hold the flow-control window that the requests being read need.
    async fn read_request(
        &self,
        receive: &mut RecvStream,
    ) -> Result<Option<(Protocol, Vec<u8>, OwnedSemaphorePermit)>, FrameError> {
        let (protocol, length) = read_request_head(receive).await?;
        let bytes_max = self.handler.request_bytes_max(self.link.peer, protocol);
        if length > bytes_max {
            return Err(FrameError::TooLong { bytes: length, bytes_max });
        }
        let permits = u32::try_from(length.div_ceil(PERMIT_BYTES)).expect("a message's length fits 32 bits");
        let Ok(held) = self.budget.clone().try_acquire_many_owned(permits) else { return Ok(None) };
        Ok(Some((protocol, read_payload(receive, length).await?, held)))
    }

    fn give_up(&self, sender: Sender, receive: &mut RecvStream, code: quinn::VarInt, why: &str) {
        debug!(peer = %self.link.peer, why, "gave up a request of the peer");
        // An error means that the stream has ended already.
        let _ = receive.stop(code);
        sender.abandon(code);
    }

    async fn send_broadcasts(self: Arc<Self>) {
        loop {
            let payload = self.link.outbox.pop().await;
            let Ok(stream) = self.link.connection.open_uni().await else { return };
            let mut sender = Sender::new(stream);
            match timeout(self.transfer_timeout, sender.broadcast(payload)).await {
                Ok(Ok(())) => sender.complete(),
                Ok(Err(error)) => {
                    debug!(peer = %self.link.peer, %error, "a broadcast did not reach the peer")
                }
                Err(_) => sender.abandon(code::TOO_SLOW),
            }
        }
    }

    async fn receive_broadcasts(self: Arc<Self>) {
        while let Ok(mut stream) = self.link.connection.accept_uni().await {
            let (code, why) = match timeout(self.transfer_timeout, read_broadcast(&mut stream)).await {
                Ok(Ok(payload)) => {
                    let dropped = self.inbox.push(payload);
                    if dropped > 0 {
                        debug!(peer = %self.link.peer, dropped, "broadcasts came faster than they are handled");
                    }
                    continue;
                }
                Ok(Err(error)) => (code::MALFORMED, error.to_string()),
                Err(_) => (code::TOO_SLOW, "too slow".to_owned()),
            };
            debug!(peer = %self.link.peer, why, "gave up a broadcast of the peer");
            // An error means that the stream has ended already.
            let _ = stream.stop(code);
        }
    }

    async fn deliver_broadcasts(self: Arc<Self>) {
        loop {
            let payload = self.inbox.pop().await;
            self.handler.broadcast(self.link.peer, payload).await;
        }
    }
}

async fn read_broadcast(stream: &mut RecvStream) -> Result<Vec<u8>, FrameError> {
    let length = read_broadcast_head(stream).await?;
    read_payload(stream, length).await
}
