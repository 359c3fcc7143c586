//! Routes peers' messages to the node's services.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use slipstream_broadcast::Broadcaster;
use slipstream_consensus::Forwarder;
use slipstream_network::{BoxFuture, Handler, MESSAGE_BYTES_MAX, Payload, PeerId, Protocol, Refusal};
use slipstream_status::seat::Seat;
use slipstream_sync::{
    SyncServer,
    protocol::{REQUEST_BYTES_MAX, answer_bytes_expected},
};

/// The pause after which a peer should ask a starting node again.
const STARTING_PAUSE: Duration = Duration::from_secs(1);

/// Answers peers for the node's services. The network must run first, because a node that starts from a waypoint
/// fetches its genesis over the network. The services are therefore added later; until then peers are told to retry.
#[derive(Default)]
pub(crate) struct Router {
    services: OnceLock<Services>,
}

/// The services that answer.
pub(crate) struct Services {
    pub(crate) server: Arc<SyncServer>,
    pub(crate) broadcaster: Arc<Broadcaster>,
    pub(crate) forwarder: Arc<Forwarder>,
    pub(crate) seat: Arc<Seat>,
}

impl Router {
    /// Opens the services to peers. The second call has no effect.
    pub(crate) fn open(&self, services: Services) {
        let _ = self.services.set(services);
    }
}

impl Handler for Router {
    fn request<'a>(
        &'a self,
        peer: PeerId,
        protocol: Protocol,
        payload: Vec<u8>,
    ) -> BoxFuture<'a, Result<Payload, Refusal>> {
        Box::pin(async move {
            // A node whose services have not started yet is healthy, and peers must not count this as a failure.
            let starting = || Refusal::busy(STARTING_PAUSE, "this node is starting");
            let services = self.services.get().ok_or_else(starting)?;
            match protocol {
                Protocol::SYNC => services.server.handle(peer, payload).await,
                Protocol::TRANSACTIONS => services.forwarder.handle(peer, payload).await.map(Payload::from),
                Protocol::CONSENSUS => match services.seat.validator() {
                    Some(validator) => validator.handle(peer, payload).await.map(Payload::from),
                    None => Err(Refusal::not_kept("this node is not a validator")),
                },
                other => Err(Refusal::not_kept(format!("this node does not speak {other}"))),
            }
        })
    }

    fn request_bytes_max(&self, peer: PeerId, protocol: Protocol) -> usize {
        let validator = || self.services.get().and_then(|services| services.seat.validator());
        match protocol {
            Protocol::SYNC => REQUEST_BYTES_MAX,
            Protocol::TRANSACTIONS => Forwarder::request_bytes_max(),
            Protocol::CONSENSUS if validator().is_some_and(|it| it.takes_from(&peer)) => MESSAGE_BYTES_MAX,
            _ => 0,
        }
    }

    fn answer_bytes_expected(&self, _peer: PeerId, protocol: Protocol, payload: &[u8]) -> usize {
        match protocol {
            Protocol::SYNC => answer_bytes_expected(payload),
            Protocol::TRANSACTIONS => Forwarder::answer_bytes_max(),
            // Validators request little. The requester's own limit on the answer applies as well.
            _ => MESSAGE_BYTES_MAX,
        }
    }

    fn message<'a>(&'a self, peer: PeerId, payload: Vec<u8>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            if let Some(services) = self.services.get() {
                services.broadcaster.on_message(peer, payload);
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use slipstream_types::PublicKey;

    use super::*;

    /// Goal: a peer that asks a node that is still starting retries, and does not hold it against the node.
    #[tokio::test]
    async fn a_node_that_is_starting_is_busy() {
        let router = Router::default();
        let refused = router.request(PublicKey([1; 32]), Protocol::SYNC, Vec::new()).await.unwrap_err();
        assert_eq!(refused.retry_after(), Some(STARTING_PAUSE), "{refused}");
    }
}
