//! [`Links`]: the relays between all nodes of a devnet.

use std::{
    collections::BTreeMap,
    fmt,
    net::{Ipv4Addr, SocketAddr},
    num::NonZeroU64,
};

use anyhow::{Context, Result};
use parking_lot::Mutex;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};

use super::{Region, Relay, RelayStats, Shape};
use crate::accounts;

const KIB: NonZeroU64 = NonZeroU64::new(1 << 10).expect("1,024 is above 0");

/// The loss and bandwidth limit of links, in each direction.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// The share of lost datagrams, from 0 to 1.
    pub loss: f64,
    /// The bandwidth in KiB per second; unlimited if `None`.
    pub kib_per_second: Option<NonZeroU64>,
}

impl Limits {
    /// Whether there are no limits.
    pub fn is_none(self) -> bool {
        self == Limits::default()
    }

    /// Returns the link with these limits.
    pub fn of(self, link: Shape) -> Shape {
        let Limits { loss, kib_per_second } = self;
        let bandwidth_bytes_per_second = kib_per_second.map(|kib| kib.saturating_mul(KIB));
        Shape { loss, bandwidth_bytes_per_second, ..link }
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} % lost", self.loss * 100.0)?;
        match self.kib_per_second {
            Some(kib) => write!(f, ", {kib} KiB/s at most"),
            None => Ok(()),
        }
    }
}

/// The links between nodes.
#[derive(Clone, PartialEq, Debug)]
pub enum Terrain {
    /// The same link between every two nodes.
    Plain(Shape),
    /// Links by region. The nodes are assigned to these regions in turn, validators first, and all links have these
    /// limits.
    Regions(Vec<Region>, Limits),
}

impl Terrain {
    /// Returns the link between two nodes, by their indices in the devnet.
    pub fn shape(&self, from: usize, to: usize) -> Shape {
        match self {
            Terrain::Plain(shape) => *shape,
            Terrain::Regions(regions, limits) => {
                let [from, to] = [from, to].map(|index| Region::of_node(regions, index));
                limits.of(from.zip(to).map_or_else(Shape::default, |(from, to)| from.link(to)))
            }
        }
    }
}

/// One relay per pair of a dialling and a dialled node, created as [`crate::devnet::Devnet::start_routed`] requests:
///
/// ```no_run
/// # async fn example() -> anyhow::Result<()> {
/// use slipnet::{devnet::{Devnet, DevnetOptions}, relay::{Limits, Links, Region, Terrain}};
///
/// let links = Links::new("slipnet", Terrain::Regions(vec![Region::Eu, Region::Us], Limits::default()));
/// let options = DevnetOptions { outbound: Some(0), ..DevnetOptions::default() };
/// let devnet = Devnet::start_routed(options, &|from, to, peer| links.lay(from, to, &peer)).await?;
/// links.isolate(0, true);
/// # devnet.stop().await
/// # }
/// ```
///
/// Nodes must choose no peers by themselves (`outbound: Some(0)`): announced addresses would bypass the relays.
pub struct Links {
    seed: String,
    terrain: Terrain,
    relays: Mutex<BTreeMap<(usize, usize), Relay>>,
}

impl Links {
    /// Makes the links of a devnet, whose seed determines the losses and jitter of each.
    pub fn new(seed: &str, terrain: Terrain) -> Links {
        raise_open_files();
        Links { seed: seed.to_owned(), terrain, relays: Mutex::new(BTreeMap::new()) }
    }

    /// Starts the relay by which one node dials another, and returns its `network.peers` entry.
    ///
    /// # Errors
    /// If the peer is not `KEY@IP:PORT`, or no relay can be started.
    pub fn lay(&self, from: usize, to: usize, peer: &str) -> Result<String> {
        let (key, target) = peer.rsplit_once('@').with_context(|| format!("{peer} is not KEY@IP:PORT"))?;
        let target: SocketAddr = target.parse().with_context(|| format!("{peer} is not KEY@IP:PORT"))?;
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let seed = accounts::number(&self.seed, &format!("link {from} {to}"));
        let relay = Relay::start_seeded(listen, target, self.terrain.shape(from, to), seed)?;
        let through = format!("{key}@{}", relay.address());
        self.relays.lock().insert((from, to), relay);
        Ok(through)
    }

    /// Returns the `network.peers` entry of the relay by which one node dials another; `None` if there is no relay.
    pub fn through(&self, from: usize, to: usize, peer: &str) -> Option<String> {
        let (key, _) = peer.rsplit_once('@')?;
        self.relays.lock().get(&(from, to)).map(|relay| format!("{key}@{}", relay.address()))
    }

    /// Changes the links between two nodes in both dialling directions.
    ///
    /// # Errors
    /// If the shape is impossible.
    pub fn reshape(&self, one: usize, other: usize, shape: Shape) -> Result<()> {
        shape.check()?;
        let relays = self.relays.lock();
        [(one, other), (other, one)]
            .iter()
            .filter_map(|pair| relays.get(pair))
            .try_for_each(|relay| relay.reshape(shape))
    }

    /// Restores the original shape of the links between two nodes.
    ///
    /// # Errors
    /// If that shape is impossible; the shape of an existing link never is.
    pub fn restore(&self, one: usize, other: usize) -> Result<()> {
        self.reshape(one, other, self.terrain.shape(one, other))
    }

    /// Cuts or heals the links between two nodes in both dialling directions.
    pub fn cut(&self, one: usize, other: usize, is_cut: bool) {
        let relays = self.relays.lock();
        [(one, other), (other, one)]
            .iter()
            .filter_map(|pair| relays.get(pair))
            .for_each(|relay| relay.cut(is_cut));
    }

    /// Cuts a node off from all others, or connects it again.
    pub fn isolate(&self, node: usize, is_cut: bool) {
        let relays = self.relays.lock();
        let touching = relays.iter().filter(|((from, to), _)| *from == node || *to == node);
        touching.for_each(|(_, relay)| relay.cut(is_cut));
    }

    /// Returns the statistics of all links together, including their overhead.
    pub fn stats(&self) -> RelayStats {
        RelayStats::of(self.relays.lock().values())
    }
}

/// Raises the limit of open files. Forty nodes have a thousand links with two sockets each: more than the 1,024 files
/// that a shell allows by default.
pub(super) fn raise_open_files() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        // If that is refused, a relay that lacks a file reports it.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::net::UdpSocket;

    use super::*;

    /// Goal: a peer's entry leads through its relay with the key unchanged; cutting and isolating affect all links of a
    /// pair or a node.
    #[tokio::test]
    async fn links_are_laid_and_cut() {
        let terrain = Terrain::Plain(Shape::default());
        let links = Links::new("a", terrain);
        let target = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let peer = format!("key@{}", target.local_addr().unwrap());
        let through = links.lay(0, 1, &peer).unwrap();
        let address = through.strip_prefix("key@").unwrap();
        assert_ne!(through, peer);
        assert_eq!(links.through(0, 1, &peer).as_ref(), Some(&through));
        assert_eq!(links.through(1, 0, &peer), None);
        let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        client.send_to(b"1", address).await.unwrap();
        let mut buffer = [0; 10];
        assert_eq!(target.recv(&mut buffer).await.unwrap(), 1);
        for cut in [
            |links: &Links, is_cut| links.cut(1, 0, is_cut),
            |links: &Links, is_cut| links.isolate(1, is_cut),
        ] {
            let before = links.stats().cut;
            cut(&links, true);
            client.send_to(b"2", address).await.unwrap();
            while links.stats().cut == before {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            cut(&links, false);
        }
        links.isolate(7, true);
        client.send_to(b"3", address).await.unwrap();
        assert_eq!(target.recv(&mut buffer).await.unwrap(), 1);
        assert_eq!(links.stats().datagrams, 2);
        let error = links.lay(0, 1, "127.0.0.1:1").unwrap_err().to_string();
        assert!(error.contains("is not KEY@IP:PORT"), "{error}");
    }

    #[test]
    fn regions_decide_the_shape() {
        let terrain = Terrain::Regions(vec![Region::Eu, Region::Us], Limits::default());
        assert_eq!(terrain.shape(0, 3), Region::Eu.link(Region::Us));
        assert_eq!(terrain.shape(0, 2), Region::Eu.link(Region::Eu));
    }

    /// Goal: limits do not change the regions' delay, and also apply without regions.
    #[test]
    fn limits_are_beside_the_delay() {
        let limits = Limits { loss: 0.01, kib_per_second: NonZeroU64::new(512) };
        let far = Terrain::Regions(vec![Region::Eu, Region::Us], limits).shape(0, 1);
        assert_eq!(Shape { loss: 0.0, bandwidth_bytes_per_second: None, ..far }, Region::Eu.link(Region::Us));
        let near = Terrain::Regions(Vec::new(), limits).shape(0, 1);
        for shape in [far, near] {
            assert_eq!(shape.bandwidth_bytes_per_second.map(NonZeroU64::get), Some(524_288));
            assert_eq!(shape.loss, 0.01);
            shape.check().unwrap();
        }
        assert!(near.delay.is_zero() && !limits.is_none() && Limits::default().is_none());
        assert_eq!(limits.to_string(), "1.00 % lost, 512 KiB/s at most");
    }
}
