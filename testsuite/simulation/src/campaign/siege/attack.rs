//! [`Attack`]: one way to harm a node, as a small type; and [`AttackContext`]: the tools of every attack.

use std::{
    future::Future,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use slipnet::{accounts::Account, devnet::SyncMode, rpc::Rpc};
use tokio::task::JoinSet;

use super::{bomb, calls, gossip, http, pool, quic, sockets, stage::SigningParameters, streams, sync_server};

/// The interface that an attack uses. Attacks of one surface run one after another, between two measurements of the quiet
/// node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, strum::VariantArray, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub(super) enum AttackSurface {
    /// Requests over JSON-RPC and HTTP.
    Http,
    /// Connections and requests between peers.
    Quic,
    /// Announcements of batches to the mesh.
    Gossip,
    /// A peer that others sync from.
    Server,
    /// Transactions for the victim's pool.
    Pool,
}

impl AttackSurface {
    /// All surfaces in the order of a campaign; transactions come last, because they may stay in the pool.
    pub(super) const ALL: &'static [AttackSurface] = <AttackSurface as strum::VariantArray>::VARIANTS;

    pub(super) fn name(self) -> &'static str {
        self.into()
    }
}

/// The static facts about an attack.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttackInfo {
    /// The name, as `--only` takes it.
    pub(super) name: &'static str,
    pub(super) surface: AttackSurface,
    /// One line of description.
    pub(super) about: &'static str,
    /// The sync mode of a fresh fullnode that joins during the attack, if one does. Its peers are the attackers that
    /// listen, if any, and the victim.
    pub(super) joins: Option<SyncMode>,
    /// Whether that fullnode has no genesis, and trusts a waypoint instead.
    pub(super) by_waypoint: bool,
    /// Whether a quick campaign includes this attack.
    pub(super) quick: bool,
}

impl AttackInfo {
    pub(super) const fn new(surface: AttackSurface, name: &'static str, about: &'static str) -> AttackInfo {
        AttackInfo { name, surface, about, joins: None, by_waypoint: false, quick: false }
    }

    pub(super) const fn quick(self) -> AttackInfo {
        AttackInfo { quick: true, ..self }
    }

    pub(super) const fn joined(self, mode: SyncMode) -> AttackInfo {
        AttackInfo { joins: Some(mode), ..self }
    }

    pub(super) const fn joined_by_waypoint(self) -> AttackInfo {
        AttackInfo { by_waypoint: true, ..self.joined(SyncMode::Auto) }
    }
}

/// One way to harm a node.
pub(super) trait Attack: Sync {
    fn info(&self) -> AttackInfo;

    /// Attacks until the future is dropped. Ends by itself only with an error of the attacker, not of the node.
    fn start(&self, field: AttackContext) -> BoxFuture<'static, Result<()>>;
}

/// An attack that is one function.
pub(super) struct FnAttack {
    pub(super) info: AttackInfo,
    pub(super) start: fn(AttackContext) -> BoxFuture<'static, Result<()>>,
}

impl Attack for FnAttack {
    fn info(&self) -> AttackInfo {
        self.info
    }

    fn start(&self, field: AttackContext) -> BoxFuture<'static, Result<()>> {
        (self.start)(field)
    }
}

/// Returns all attacks, surface by surface.
pub(super) fn all() -> Vec<&'static dyn Attack> {
    let liars: Vec<&'static dyn Attack> = sync_server::all().collect();
    let own = [http::ALL, calls::ALL, bomb::READING, sockets::ALL, quic::ALL, streams::ALL, gossip::ALL];
    [&own.concat()[..], &liars[..], pool::ALL, bomb::SENDING].concat()
}

/// Returns the attack of this name.
pub(super) fn named(name: &str) -> Result<&'static dyn Attack> {
    let known = || all().iter().map(|attack| attack.info().name).collect::<Vec<_>>().join(", ");
    let attack = all().into_iter().find(|attack| attack.info().name == name);
    attack.with_context(|| format!("there is no attack {name:?}; there are {}", known()))
}

/// The attackers' knowledge of the victim and its chain; all of it is public.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Target {
    /// The victim's HTTP address.
    pub(super) api: SocketAddr,
    /// The victim, as an entry of `network.peers`.
    pub(super) peer: String,
    /// The node that the victim follows; liars fetch the truth from it.
    pub(super) upstream: String,
    /// The public key of the node that joins next.
    pub(super) joiner: String,
    /// The address that the next node joins from, which no attacker has.
    pub(super) neighbour: IpAddr,
    pub(super) chain_id: u64,
    pub(super) base_fee_wei: u64,
    /// Secret keys of funded accounts that no honest wallet uses.
    pub(super) accounts: Vec<String>,
    /// A batch with a large body.
    pub(super) heavy_batch: u64,
    /// The last batch when the attack began.
    pub(super) head: u64,
    /// The lying servers of this process; `None` for the attack's own number of them.
    #[serde(default)]
    pub(super) liars: Option<Crowd>,
}

/// This process' liars among those of several processes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Crowd {
    pub(super) count: usize,
    /// The index of this process' first liar among all: each has its own address.
    pub(super) first: usize,
}

impl Target {
    /// Returns the victim's API, for attacker number `index`.
    pub(super) fn rpc(&self, index: usize) -> Result<Rpc> {
        Rpc::from_address(AttackContext::address(index), &self.api.to_string())
    }

    pub(super) fn money(&self) -> SigningParameters {
        SigningParameters { chain_id: self.chain_id, base_fee_wei: self.base_fee_wei }
    }

    /// Returns the first `count` of the funded accounts.
    pub(super) fn accounts(&self, count: usize) -> Result<Vec<Account>> {
        self.accounts.iter().take(count).map(|key| Account::from_hex(key)).collect()
    }
}

/// The attackers' counters, for the table: an attack that misses the node proves nothing.
#[derive(Default)]
pub(super) struct Tally {
    tried: AtomicU64,
    done: AtomicU64,
}

impl Tally {
    pub(super) fn tried(&self) {
        self.tried.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn done(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of attempts, and of those that succeeded for the attacker.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.tried.load(Ordering::Relaxed), self.done.load(Ordering::Relaxed))
    }
}

/// The tools of an attack. Cheap to clone.
#[derive(Clone)]
pub(super) struct AttackContext {
    pub(super) target: Arc<Target>,
    pub(super) tally: Arc<Tally>,
    /// Carries, once, the entries of `network.peers` of the attackers that listen.
    pub(super) ready: tokio::sync::mpsc::Sender<Vec<String>>,
}

impl AttackContext {
    /// Returns the address of attacker number `index`: each has its own network as far as 127.0.0.0/8 allows. The
    /// honest nodes have other addresses, below 127.63.0.0.
    pub(super) fn address(index: usize) -> IpAddr {
        let [_, _, high, low] = u32::try_from(index % 60_000).unwrap_or_default().to_be_bytes();
        IpAddr::V4(Ipv4Addr::new(127, 64 + high % 64, low, 1 + high))
    }

    /// Returns addresses that cycle through the 64 provider blocks (of 16 bits) for attackers, unlike
    /// [`AttackContext::address`].
    pub(super) fn elsewhere(index: usize) -> IpAddr {
        let [low, block] = [index / 64 % 256, index % 64].map(|part| u8::try_from(part).unwrap_or_default());
        IpAddr::V4(Ipv4Addr::new(127, 64 + block, low, 250))
    }

    /// Returns addresses in one network of 254, unlike [`AttackContext::address`].
    pub(super) fn neighbour(index: usize) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(127, 63, 0, u8::try_from(1 + index % 254).unwrap_or(1)))
    }

    /// Reports that the attack has begun, and which servers listen.
    pub(super) fn set(&self, servers: Vec<String>) {
        // The channel is full if the beginning was reported before.
        let _ = self.ready.try_send(servers);
    }

    /// Runs `attackers` attackers, each of which repeats its round with a pause after it. So the attack costs the node
    /// more than the attackers. A successful round counts as done.
    pub(super) async fn swarm<F, R>(self, attackers: usize, pause: Duration, round: F) -> Result<()>
    where
        F: Fn(AttackContext, usize) -> R + Clone + Send + 'static,
        R: Future<Output = Result<()>> + Send + 'static,
    {
        self.set(Vec::new());
        let mut tasks = JoinSet::new();
        for index in 0..attackers {
            let (field, round) = (self.clone(), round.clone());
            tasks.spawn(async move {
                loop {
                    field.tally.tried();
                    if round(field.clone(), index).await.is_ok() {
                        field.tally.done();
                    }
                    tokio::time::sleep(pause).await;
                }
            });
        }
        // A task ends only by a panic.
        tasks.join_next().await.map_or(Ok(()), |ended| ended.context("an attacker panicked"))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_every_surface_has_attacks() {
        let all = all();
        let names: BTreeSet<_> = all.iter().map(|attack| attack.info().name).collect();
        assert_eq!(names.len(), all.len());
        for &surface in AttackSurface::ALL {
            assert!(all.iter().any(|attack| attack.info().surface == surface), "{}", surface.name());
        }
        assert!(named("no-such").is_err_and(|error| error.to_string().contains(", ")));
    }

    /// Goal: a scenario may name exactly these attacks: its rules list their names without using this crate.
    #[test]
    fn scenarios_know_the_attacks() {
        let alone = all()
            .into_iter()
            .map(|attack| attack.info())
            .filter(|info| info.surface != AttackSurface::Server);
        let names: Vec<&str> = alone.map(|info| info.name).collect();
        assert_eq!(names, slipnet::scenario::ATTACKS, "testsuite/src/scenario/attacks.rs");
    }

    /// Goal: attackers never share an address with honest nodes, and each has its own.
    #[test]
    fn attackers_have_addresses_of_their_own() {
        let addresses: BTreeSet<_> = (0..2_000).map(AttackContext::address).collect();
        assert_eq!(addresses.len(), 2_000);
        assert!(addresses.iter().all(|address| address.is_loopback() && *address != Ipv4Addr::LOCALHOST));
        let blocks: BTreeSet<_> = (0..2_000).map(AttackContext::elsewhere).collect();
        assert_eq!((blocks.len(), blocks.intersection(&addresses).count()), (2_000, 0));
        let neighbours: BTreeSet<_> = (0..254).map(AttackContext::neighbour).collect();
        assert_eq!((neighbours.len(), neighbours.intersection(&addresses).count()), (254, 0));
    }
}
