//! [`Peer`]: peers in this process, over real QUIC, that serve a chain honestly or not.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Result;
use slipstream_network::{
    BoxFuture, Handler, Network, NetworkConfig, Payload, PeerAddress, PeerId, Protocol, Refusal,
};
use slipstream_storage::Store;
use slipstream_sync::{
    SyncServer,
    protocol::{ANSWER_BYTES_MAX, REQUEST_BYTES_MAX, Range, RangeBatch, Request, answer_bytes_expected},
};
use slipstream_types::{Blob, CodecError, bounded::BoundedVec, codec};

use slipnet::accounts::node_key;

/// When a dripping peer answers: just before the asker's deadline, by default 10 s.
const DRIP: Duration = Duration::from_millis(9_500);
const SEED: &str = "slipnet-bench-peer";

/// How a hostile peer answers range requests. Its summaries are true, so that nodes ask it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, strum::VariantArray)]
pub(super) enum Lie {
    /// Changes a byte of a body or delta.
    Corrupt,
    /// Never answers a request.
    Stall,
    /// Leaves out the second half of the batches.
    Short,
    /// Answers truthfully, half a second before the deadline.
    Drip,
    /// Changes a header, so that its proof no longer covers it.
    Forge,
}

impl Lie {
    /// All lies, in the order in which hostile peers get them.
    pub(super) const ALL: &'static [Lie] = <Lie as strum::VariantArray>::VARIANTS;
}

/// The handler of one peer.
pub(super) struct Peer {
    server: SyncServer,
    lie: Option<Lie>,
}

impl Peer {
    #[cfg(test)]
    pub(super) fn honest(server: SyncServer) -> Peer {
        Peer { server, lie: None }
    }

    async fn answer(&self, peer: PeerId, payload: Vec<u8>) -> Result<Payload, Refusal> {
        let request = codec::decode("sync request", &payload, REQUEST_BYTES_MAX);
        let is_range = matches!(request, Ok(Request::Range(_)));
        let lie = self.lie.filter(|_| is_range);
        match lie {
            Some(Lie::Stall) => return std::future::pending().await,
            Some(Lie::Drip) => tokio::time::sleep(DRIP).await,
            _ => {}
        }
        let answer = self.server.handle(peer, payload).await?;
        match lie {
            Some(lie) => changed(lie, &answer.into_bytes())
                .map(Payload::from)
                .map_err(|error| Refusal::failed(error.to_string())),
            None => Ok(answer),
        }
    }
}

fn changed(lie: Lie, answer: &[u8]) -> Result<Vec<u8>, CodecError> {
    let mut range: Range = codec::decode("range", answer, ANSWER_BYTES_MAX)?;
    let mut batches = range.batches.to_vec();
    let middle = batches.len() / 2;
    match lie {
        Lie::Corrupt => corrupt(&mut batches[middle])?,
        Lie::Short => batches.truncate(middle),
        Lie::Forge => batches[middle].header.gas_used ^= 1,
        Lie::Stall | Lie::Drip => {}
    }
    range.batches = BoundedVec::new(batches)?;
    codec::encode("range", &range)
}

fn corrupt(batch: &mut RangeBatch) -> Result<(), CodecError> {
    for part in [&mut batch.body, &mut batch.delta] {
        if let Some(blob) = part.take() {
            let mut bytes = blob.into_bytes();
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
            *part = Some(Blob::from_bytes(bytes)?);
        }
    }
    Ok(())
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
            let lie = ((index as usize) < hostile).then(|| Lie::ALL[index as usize % Lie::ALL.len()]);
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
        protocol::{Parts, RangeRequest},
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
        let payload = codec::encode("request", &Request::Range(request)).unwrap();
        let asker = node_key(SEED, 9).public();
        let answer = SyncServer::new(store).handle(asker, payload).await.unwrap().into_vec();
        let trust = Trust::of_genesis(&source.genesis);
        for &lie in Lie::ALL {
            let bytes = changed(lie, &answer).unwrap();
            let range: Range = codec::decode("range", &bytes, ANSWER_BYTES_MAX).unwrap();
            let verified = verify::range(range, &request, 4, &trust);
            assert_eq!(verified.is_ok(), matches!(lie, Lie::Stall | Lie::Drip), "{lie:?}: {verified:?}");
        }
    }
}
