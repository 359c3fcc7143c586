//! One node on the wire: the network that ships, and behind it the mesh that ships, or flooding, which the mesh
//! replaced.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use anyhow::Result;
use parking_lot::Mutex;
use slipstream_broadcast::{
    BroadcastConfig, Broadcaster, Delivery, Head, Ledger, LedgerError, Outcome, Wants, Work, Workers,
};
use slipstream_network::{
    BoxFuture, Bytes, Handler, Network, NetworkConfig, NoNames, Payload, PeerAddress, PeerId, Priority,
    Protocol, Refusal, Transport,
};
use slipstream_types::{BatchNumber, PublicKey, SecretKey};
use tokio::{
    sync::watch,
    time::{Duration, Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    super::{chain::Chain, costs::Costs},
    wire::{Wire, address},
};

/// How new batches spread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Spreading {
    /// Nodes spread batches by the mesh.
    Mesh,
    /// As before the mesh: a node that has a batch sends all of it to every peer, once.
    Flood,
}

/// Returns the secret key of a node.
pub(super) fn key(chain: &Chain, node: usize) -> SecretKey {
    let of_fullnode = || SecretKey::from_seed([node as u8 + 100; 32]);
    chain.keys.get(node).cloned().unwrap_or_else(of_fullnode)
}

/// The batches that a node has.
pub(super) struct Held {
    chain: Arc<Chain>,
    head: watch::Sender<BatchNumber>,
    /// When each body arrived.
    got: Mutex<BTreeMap<BatchNumber, Instant>>,
    gave_up: Mutex<u64>,
}

impl Held {
    fn take(&self, number: BatchNumber) -> bool {
        let mut got = self.got.lock();
        if got.contains_key(&number) {
            return false;
        }
        got.insert(number, Instant::now());
        let mut head = BatchNumber::GENESIS;
        while got.contains_key(&head.next()) {
            head = head.next();
        }
        drop(got);
        self.head.send_if_modified(|known| std::mem::replace(known, head) != head);
        true
    }

    pub(super) fn at(&self, number: BatchNumber) -> Option<Instant> {
        self.got.lock().get(&number).copied()
    }

    pub(super) fn gave_up(&self) -> u64 {
        *self.gave_up.lock()
    }
}

impl Ledger for Held {
    fn watch(&self) -> watch::Receiver<BatchNumber> {
        self.head.subscribe()
    }

    fn head(&self) -> Result<Head, LedgerError> {
        Ok(self.chain.heads[self.head.borrow().get() as usize].clone())
    }

    fn expect(&self, _: BatchNumber, _: Instant) {}

    fn heard(&self, _: PeerId, _: BatchNumber) {}

    fn give_up(&self, _: BatchNumber) {
        *self.gave_up.lock() += 1;
    }

    fn deliver(&self, delivery: Delivery) {
        self.take(delivery.header.number);
    }
}

/// A processor that does one thing at a time, and takes the measured time for it.
pub(super) struct Processor {
    costs: Costs,
    free_at: Mutex<Instant>,
    busy: Mutex<Duration>,
}

impl Processor {
    /// Returns the processor's total busy time.
    pub(super) fn busy(&self) -> Duration {
        *self.busy.lock()
    }
}

impl Workers for Processor {
    fn run(&self, work: Work) -> BoxFuture<'static, Outcome> {
        let us = work.of_mesh().map_or(self.costs.encode_us, |job| self.costs.job_us(job));
        let takes = Duration::from_nanos((us * 1e3) as u64);
        let mut free_at = self.free_at.lock();
        *free_at = (*free_at).max(Instant::now()) + takes;
        *self.busy.lock() += takes;
        let ends = *free_at;
        Box::pin(async move {
            sleep_until(ends).await;
            work.run()
        })
    }
}

/// The receiver of a network's messages.
#[derive(Default)]
pub(super) struct Inlet {
    broadcaster: OnceLock<Arc<Broadcaster>>,
    flood: OnceLock<Flood>,
}

struct Flood {
    network: Arc<Network>,
    held: Arc<Held>,
}

impl Flood {
    /// Takes a batch: its number, then its body. Forwards a new batch to all peers except the sender.
    fn take(&self, from: Option<PeerId>, batch: Bytes) {
        let Some(number) = batch.first_chunk().map(|bytes| BatchNumber::new(u64::from_le_bytes(*bytes)))
        else {
            return;
        };
        if self.held.take(number) {
            let others = self.network.peers().into_iter().filter(|peer| Some(*peer) != from);
            others.for_each(|peer| self.network.send(peer, batch.clone(), Priority::Second));
        }
    }
}

impl Handler for Inlet {
    fn request<'a>(&'a self, _: PeerId, _: Protocol, _: Vec<u8>) -> BoxFuture<'a, Result<Payload, Refusal>> {
        Box::pin(async { Err(Refusal::not_kept("this node serves no requests")) })
    }

    fn message<'a>(&'a self, peer: PeerId, payload: Vec<u8>) -> BoxFuture<'a, ()> {
        if let Some(broadcaster) = self.broadcaster.get() {
            broadcaster.on_message(peer, payload);
        } else if let Some(flood) = self.flood.get() {
            flood.take(Some(peer), payload.into());
        }
        Box::pin(async {})
    }
}

/// A node of the fabric.
pub(super) struct Node {
    pub(super) network: Arc<Network>,
    pub(super) held: Arc<Held>,
    pub(super) processor: Arc<Processor>,
    pub(super) broadcaster: Option<Arc<Broadcaster>>,
    inlet: Arc<Inlet>,
}

impl Node {
    /// Starts a node at the genesis, and lets it dial its neighbours.
    pub(super) async fn start(
        index: usize,
        (chain, wire): (&Arc<Chain>, &Arc<Wire>),
        (spreading, config): (Spreading, &BroadcastConfig),
        costs: &Costs,
        stop: &CancellationToken,
    ) -> Result<Node> {
        let peer = |other: usize| PeerAddress {
            id: PublicKey(key(chain, other).public().0),
            address: address(other),
        };
        let peers = wire.topology().links[index].iter().map(|other| peer(*other).into()).collect();
        let network =
            NetworkConfig { listen: address(index), peers, outbound: 0, ..NetworkConfig::default() };
        let inlet = Arc::new(Inlet::default());
        let (secret, seed) = (key(chain, index), [index as u8; 32]);
        let network =
            Network::start_on(&network, &secret, inlet.clone(), wire.plug(index), Arc::new(NoNames), seed)
                .await?;
        let held = Arc::new(Held {
            chain: chain.clone(),
            head: watch::channel(BatchNumber::GENESIS).0,
            got: Mutex::default(),
            gave_up: Mutex::default(),
        });
        let processor = Arc::new(Processor {
            costs: costs.clone(),
            free_at: Mutex::new(Instant::now()),
            busy: Mutex::default(),
        });
        let mut broadcaster = None;
        if spreading == Spreading::Mesh {
            let wants = Wants { body: index >= chain.keys.len(), hints: false };
            let genesis = chain.heads[0].clone();
            let ours = Broadcaster::new(
                config.clone(),
                wants,
                genesis,
                network.clone(),
                (secret, seed),
                processor.clone(),
            );
            let _ = inlet.broadcaster.set(ours.clone());
            tokio::spawn(ours.clone().run(held.clone(), stop.clone()));
            broadcaster = Some(ours);
        } else {
            let _ = inlet.flood.set(Flood { network: network.clone(), held: held.clone() });
        }
        Ok(Node { network, held, processor, broadcaster, inlet })
    }

    /// Gives the node a batch from consensus.
    pub(super) fn decide(&self, number: usize, leads: bool) {
        let batch = &self.held.chain.batches[number - 1];
        if let Some(flood) = self.inlet.flood.get() {
            let bytes = [&(number as u64).to_le_bytes()[..], batch.body.as_bytes()].concat();
            flood.take(None, bytes.into());
        }
        if let Some(broadcaster) = &self.broadcaster {
            self.held.take(BatchNumber::new(number as u64));
            broadcaster.publish(slipstream_broadcast::NewBatch {
                leads,
                header: batch.header.clone(),
                certificate: batch.certificate.clone(),
                body: batch.body.clone(),
                hints: None,
            });
        }
    }
}
