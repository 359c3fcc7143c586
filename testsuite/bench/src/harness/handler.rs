//! [`Answering`]: a network's handler made of one function.

use std::{future::ready, sync::Arc};

use slipstream_network::{BoxFuture, Handler, Payload, PeerId, Protocol, Refusal};
use slipstream_sync::SyncServer;

type Answer = BoxFuture<'static, Result<Payload, Refusal>>;

/// Answers each request by a function, and ignores messages.
pub(crate) struct Answering<F>(pub(crate) F);

impl<F: Fn(PeerId, Vec<u8>) -> Answer + Send + Sync + 'static> Handler for Answering<F> {
    fn request<'a>(
        &'a self,
        peer: PeerId,
        _protocol: Protocol,
        payload: Vec<u8>,
    ) -> BoxFuture<'a, Result<Payload, Refusal>> {
        (self.0)(peer, payload)
    }

    fn message<'a>(&'a self, _peer: PeerId, _payload: Vec<u8>) -> BoxFuture<'a, ()> {
        Box::pin(ready(()))
    }
}

/// Returns a handler that refuses every request.
pub(crate) fn refusing() -> Arc<impl Handler> {
    let refuse = || Err(Refusal::not_kept("this node serves no requests"));
    Arc::new(Answering(move |_, _| -> Answer { Box::pin(ready(refuse())) }))
}

/// Returns a handler that serves a ledger.
pub(crate) fn serving(server: SyncServer) -> Arc<impl Handler> {
    let server = Arc::new(server);
    Arc::new(Answering(move |peer, payload| -> Answer {
        let server = server.clone();
        Box::pin(async move { server.handle(peer, payload).await })
    }))
}
