//! [`Peer`]: peers in this process, over real QUIC, that serve a chain honestly or not.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Result;
use slipstream_network::{
    BoxFuture, Handler, Network, NetworkConfig, Payload, PeerAddress, PeerId, Protocol, Refusal,
};
use slipstream_storage::Store;
use slipstream_sync::{
    SyncServer,
    protocol::{REQUEST_BYTES_MAX, Request, answer_bytes_expected},
};
use slipstream_types::codec;

use slipnet::{accounts::node_key, scenario::fault::PeerLie};
use slipnet_simulation::lies::{Reach, tell};

/// When a late peer answers: just before the asker's deadline, by default 10 s.
const LATE: Duration = Duration::from_millis(9_500);
const SEED: &str = "slipnet-bench-peer";

/// How hostile peers answer range requests, in the order in which they get these lies. Their summaries are true, so that
/// nodes ask them.
const LIES: [PeerLie; 5] = [
    PeerLie::CorruptAnswers,
    PeerLie::StallingServers,
    PeerLie::ShortRanges,
    PeerLie::LateAnswers,
    PeerLie::ChangedHeaders,
];

/// The handler of one peer.
struct Peer {
    server: SyncServer,
    lie: Option<PeerLie>,
}

impl Peer {
    async fn answer(&self, peer: PeerId, payload: Vec<u8>) -> Result<Payload, Refusal> {
        let request = codec::decode("sync request", &payload, REQUEST_BYTES_MAX);
        let lie = request.ok().filter(|request| matches!(request, Request::Range(_))).zip(self.lie);
        match lie {
            Some((_, PeerLie::StallingServers)) => return std::future::pending().await,
            Some((_, PeerLie::LateAnswers)) => tokio::time::sleep(LATE).await,
            _ => {}
        }
        let answer = self.server.handle(peer, payload).await?;
        let Some((request, lie)) = lie else { return Ok(answer) };
        let told = changed(lie, &request, answer.into_vec());
        told.map(Payload::from).map_err(|error| Refusal::failed(error.to_string()))
    }
}

/// Tells the lie about the middle batch.
fn changed(lie: PeerLie, request: &Request, answer: Vec<u8>) -> Result<Vec<u8>> {
    let told = tell(lie, request, &answer, Reach::Drawn(&mut |batches| batches / 2))?;
    Ok(told.unwrap_or(answer))
}

impl Handler for Peer {
    fn request<'a>(
        &'a self,
        peer: PeerId,
        _protocol: Protocol,
        payload: Vec<u8>,
    ) -> BoxFuture<'a, Result<Payload, Refusal>> {
        Box::pin(self.answer(peer, payload))
    }

    fn answer_bytes_expected(&self, _peer: PeerId, _protocol: Protocol, payload: &[u8]) -> usize {
        answer_bytes_expected(payload)
    }

    fn message<'a>(&'a self, _peer: PeerId, _payload: Vec<u8>) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }
}

/// The peers of one chain; the first ones are hostile.
pub(crate) struct Peers {
    networks: Vec<Arc<Network>>,
}

impl Peers {
    /// Starts a peer over each store, each with its own server. Several may share a store.
    ///
    /// # Errors
    /// If a socket cannot be opened.
    pub(crate) async fn start(stores: impl IntoIterator<Item = Store>, hostile: usize) -> Result<Peers> {
        let mut peers = Peers { networks: Vec::new() };
        for (store, index) in stores.into_iter().zip(0u32..) {
            let lie = ((index as usize) < hostile).then(|| LIES[index as usize % LIES.len()]);
            let handler = Arc::new(Peer { server: SyncServer::new(store), lie });
            let listen = "127.0.0.1:0".parse().expect("a constant");
            let config = NetworkConfig { listen, ..NetworkConfig::default() };
            peers.networks.push(Network::start(&config, &node_key(SEED, index), handler).await?);
        }
        Ok(peers)
    }

    /// Returns each peer's address.
    pub(crate) fn listening(&self) -> Vec<SocketAddr> {
        self.networks.iter().map(|network| network.local_address()).collect()
    }

    /// Returns the entries for `network.peers`.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.addresses_at(&self.listening())
    }

    /// Returns the entries for `network.peers` of a node that reaches each of them at another address.
    pub(crate) fn addresses_at(&self, at: &[SocketAddr]) -> Vec<String> {
        let entry = |(address, index): (&SocketAddr, u32)| {
            PeerAddress { id: node_key(SEED, index).public(), address: *address }.to_string()
        };
        at.iter().zip(0..).map(entry).collect()
    }

    /// Ends all peers.
    pub(crate) async fn stop(self) {
        futures::future::join_all(self.networks.iter().map(|network| network.shutdown())).await;
    }
}

#[cfg(test)]
mod tests {
    use slipstream_storage::StorageConfig;
    use slipstream_sync::{
        Trust,
        protocol::{ANSWER_BYTES_MAX, Parts, Range, RangeRequest},
        verify,
    };

    use super::*;
    use crate::harness::{chain::Source, workload::Workload};
    use slipnet::progress::Progress;

    /// Goal: verification refuses each lie, and accepts answers that are only late.
    #[tokio::test]
    async fn lies_are_refused_and_slow_truths_are_not() {
        let store = Store::memory(&StorageConfig::default());
        let source = Source::make(&store, Workload::Transfers, 4, 50, Progress::Quiet).unwrap();
        let parts = Parts::BODY.with(Parts::DELTA);
        let first = slipstream_types::BatchNumber::new(1);
        let request = RangeRequest { first, batches_max: 4, bytes_max: 1 << 20, parts };
        let asked = Request::Range(request);
        let payload = codec::encode("request", &asked).unwrap();
        let asker = node_key(SEED, 9).public();
        let answer = SyncServer::new(store).handle(asker, payload).await.unwrap().into_vec();
        let trust = Trust::of_genesis(&source.genesis);
        for lie in LIES {
            let bytes = changed(lie, &asked, answer.clone()).unwrap();
            let range: Range = codec::decode("range", &bytes, ANSWER_BYTES_MAX).unwrap();
            let verified = verify::range(range, &request, 4, &trust);
            assert_eq!(
                verified.is_ok(),
                matches!(lie, PeerLie::StallingServers | PeerLie::LateAnswers),
                "{lie:?}: {verified:?}"
            );
        }
    }
}
