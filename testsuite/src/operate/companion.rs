//! [`Companions`]: programs beside the node, in its network, while their orders last: attackers of the siege, and lying
//! peers.
//!
//! They run beside it because they use many loopback addresses. Their failures are recorded in [`Failures`], and the
//! node's other orders continue. As on one machine, an order whose node is held at its beginning gets no attackers, and
//! attackers may end if another order takes their victim down. Here they start in parallel with the clock: an order may
//! take the node down meanwhile, and they may then fail to start.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context, Error, Result, anyhow, bail};
use parking_lot::Mutex;
use slipstream_config::Overrides;
use slipstream_types::SecretKey;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{
    OperateOptions, What,
    failures::{Failures, Work},
};
use crate::{
    accounts::Account,
    leftovers::RunDir,
    output,
    rpc::Rpc,
    scenario::{
        assault::{self, Aim, Assault},
        lying_peers::{ADDRESS_FIRST, ADDRESSES},
        slipstream,
    },
};

/// The time limit for a restarted node to answer: it opens its store first.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(250);
/// The interval at which attackers are checked.
const LOOK: Duration = Duration::from_secs(1);

/// The attackers, shared between a companion's task and its owner.
type Attackers = Arc<Mutex<Crew>>;

/// The attackers of a companion.
#[derive(Default)]
struct Crew {
    /// `None` until they attack.
    assault: Option<Assault>,
    /// Whether another order took the node down, perhaps before they attacked.
    lost_victim: bool,
}

/// The node that is attacked, or lied to.
pub(super) struct Victim {
    config: PathBuf,
    rpc: Rpc,
    /// Its public key.
    id: String,
    /// The port on which it listens for peers.
    port: u16,
    /// A peer that it dials through its sidecar.
    upstream: Option<String>,
    seed: String,
    skip_accounts: u32,
}

impl Victim {
    /// Makes the victim from a node's configuration and its API's client; `None` if no order needs attackers.
    ///
    /// # Errors
    /// If the configuration or the key cannot be read.
    pub(super) fn new(options: &OperateOptions, rpc: Rpc) -> Result<Option<Victim>> {
        let OperateOptions { config, orders, seed, skip_accounts, among, .. } = options;
        if among.is_none() && !orders.iter().any(|order| order.what.has_attackers()) {
            return Ok(None);
        }
        let loaded = slipstream_config::load(config, &Overrides::default())?.config;
        let path = &loaded.key_file;
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let key = slipstream_types::digest::parse_hex(text.trim())
            .with_context(|| format!("{} is no key", path.display()))?;
        let mut peers = loaded.network.peers.iter().map(ToString::to_string);
        Ok(Some(Victim {
            config: config.clone(),
            rpc,
            id: SecretKey::from_seed(key).public().to_string(),
            port: loaded.network.listen.port(),
            upstream: peers.find(|peer| peer.contains("@127.")),
            seed: seed.clone(),
            skip_accounts: *skip_accounts,
        }))
    }

    /// Starts attackers once the node at `rpc`, their victim, answers.
    async fn assault(
        &self,
        (rpc, peer): (&Rpc, String),
        (name, tag): (&str, &str),
        liars: Option<(u32, usize)>,
    ) -> Result<(Assault, RunDir)> {
        let answers = async {
            while rpc.head().await.is_err() {
                tokio::time::sleep(POLL).await;
            }
        };
        if tokio::time::timeout(ANSWERS_WITHIN, answers).await.is_err() {
            bail!("{} did not answer within {} s", rpc.url(), ANSWERS_WITHIN.as_secs());
        }
        let accounts: Vec<Account> = match liars {
            Some(_) => Vec::new(),
            None => {
                let places = self.skip_accounts..self.skip_accounts.saturating_add(assault::ACCOUNTS);
                places.map(|index| Account::derive(&self.seed, index)).collect()
            }
        };
        let upstream = self.upstream()?;
        let aim = Aim { rpc, peer, upstream, joiner: self.id.clone(), accounts: &accounts, liars };
        let dir = RunDir::new("attack-")?;
        Ok((Assault::start(name, tag, aim, dir.path()).await?, dir))
    }

    /// Returns the node's `network.peers` entry.
    fn peer(&self) -> String {
        format!("{}@127.0.0.1:{}", self.id, self.port)
    }

    fn upstream(&self) -> Result<String> {
        let upstream = self.upstream.clone();
        upstream.context("the node dials no peer through its sidecar, by which liars hear the truth")
    }

    /// Starts the servers of an attack among the node's peers, once the validator with this API answers.
    async fn among(&self, attack: &str, api: &str) -> Result<(Assault, RunDir)> {
        // Attackers accept only addresses.
        let host = api.trim_start_matches("http://");
        let mut found =
            tokio::net::lookup_host(host).await.with_context(|| format!("no address of {host}"))?;
        let address = found.next().with_context(|| format!("no address of {host}"))?;
        let rpc = Rpc::new(&format!("http://{address}"))?;
        self.assault((&rpc, self.upstream()?), (attack, "among"), None).await
    }

    /// Carries out an order until it is stopped; `beginning` is dropped once it has begun.
    async fn accompany(
        &self,
        (place, what): (usize, &What),
        (stop, attackers): (&CancellationToken, &Attackers),
        beginning: Work,
    ) -> Result<()> {
        let (name, liars) = match what {
            What::LyingPeers(name, count) => (*name, Some(*count)),
            What::Attack(name) => (*name, None),
            _ => return Ok(()),
        };
        let tag = place.to_string();
        let crowd = liars.map(|count| (count, ADDRESS_FIRST + place * ADDRESSES));
        let excused = |error: Error| {
            if !attackers.lock().lost_victim {
                return Err(error);
            }
            output::note(&format!("{what} did not begin, as another order took the node: {error:#}"));
            Ok(())
        };
        let begun = tokio::select! {
            begun = self.assault((&self.rpc, self.peer()), (name, &tag), crowd) => begun,
            () = stop.cancelled() => Err(anyhow!("it had not begun when it was to end")),
        };
        let (mut assault, _dir) = match begun {
            Ok(begun) => begun,
            Err(error) => return excused(error),
        };
        let config = self.config.display().to_string();
        // The servers of an attack are not given to the node as peers.
        let servers = if liars.is_some() { assault.servers.clone() } else { Vec::new() };
        for server in &servers {
            if let Err(error) = slipstream(&["peers", "add", server, "--config", &config]).await {
                return excused(error);
            }
        }
        {
            let mut crew = attackers.lock();
            if crew.lost_victim && liars.is_none() {
                assault.lose_victim();
            }
            crew.assault = Some(assault);
        }
        drop(beginning);
        goes_on(attackers, stop).await;
        for server in &servers {
            let key = server.split('@').next().unwrap_or_default();
            // A node that is down, or whose data was wiped, has forgotten them: it dials them in vain, or not at all.
            if let Err(error) = slipstream(&["peers", "remove", key, "--config", &config]).await {
                output::note(&format!("{error:#}"));
            }
        }
        let assault = attackers.lock().assault.take();
        assault.map_or(Ok(()), Assault::end)
    }
}

/// Waits until attackers should end, or have ended.
async fn goes_on(attackers: &Attackers, stop: &CancellationToken) {
    let goes_on = || attackers.lock().assault.as_mut().is_some_and(|assault| assault.check().is_ok());
    while goes_on() {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}

/// The running companions, by order.
pub(super) struct Companions {
    victim: Option<Arc<Victim>>,
    failures: Arc<Failures>,
    /// `None` for an order that got no companion because the node was held.
    running: BTreeMap<usize, Option<Companion>>,
}

struct Companion {
    what: What,
    stop: CancellationToken,
    attackers: Attackers,
    task: JoinHandle<()>,
}

impl Companions {
    /// Makes an empty set. Without a victim, no companions start.
    pub(super) fn of(victim: Option<Victim>, failures: Arc<Failures>) -> Companions {
        Companions { victim: victim.map(Arc::new), failures, running: BTreeMap::new() }
    }

    /// Starts servers among the node's peers; they run while the result is kept.
    ///
    /// # Errors
    /// If they do not start.
    pub(super) async fn among(&self, attack: &str, api: &str) -> Result<(Assault, RunDir)> {
        let victim =
            self.victim.as_ref().context("nobody reads the configuration of a node without attackers")?;
        victim.among(attack, api).await.with_context(|| format!("the attack {attack} among its peers"))
    }

    /// Starts the wanted companions that do not run, unless the node is held, and asks the others to end.
    pub(super) fn become_as(&mut self, wanted: BTreeMap<usize, What>, is_held: bool) {
        let over = self.running.extract_if(.., |place, _| !wanted.contains_key(place));
        over.filter_map(|(_, companion)| companion).for_each(|companion| companion.end(&self.failures));
        let Some(victim) = &self.victim else { return };
        for (place, what) in wanted {
            let start = || {
                if is_held {
                    output::note(&format!("{what} is left out: another order holds the node"));
                    return None;
                }
                Some(Companion::start(victim.clone(), (place, what), self.failures.clone()))
            };
            self.running.entry(place).or_insert_with(start);
        }
    }

    /// Registers that another order takes the node down: attackers may end because of that, or fail to start. Lying
    /// peers do not end.
    pub(super) fn lose_victim(&mut self) {
        for companion in self.running.values().flatten() {
            let mut crew = companion.attackers.lock();
            crew.lost_victim = true;
            if let (What::Attack(_), Some(assault)) = (&companion.what, &mut crew.assault) {
                assault.lose_victim();
            }
        }
    }
}

impl Companion {
    fn start(victim: Arc<Victim>, (place, what): (usize, What), failures: Arc<Failures>) -> Companion {
        let (stop, attackers) = (CancellationToken::new(), Attackers::default());
        let (token, running) = (stop.clone(), attackers.clone());
        let (beginning, done) = (failures.work(), what.clone());
        let task = tokio::spawn(async move {
            if let Err(error) = victim.accompany((place, &done), (&token, &running), beginning).await {
                failures.note(&done, &error);
            }
        });
        Companion { what, stop, attackers, task }
    }

    /// Asks it to end; that counts as work until it has ended.
    fn end(self, failures: &Arc<Failures>) {
        let Companion { what, stop, task, .. } = self;
        let (failures, work) = (failures.clone(), failures.work());
        stop.cancel();
        tokio::spawn(async move {
            if let Err(panic) = task.await {
                failures.note(what, &panic.into());
            }
            drop(work);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(dir: &std::path::Path, order: &str) -> OperateOptions {
        let (config, key) = (dir.join("node.yaml"), dir.join("node.key"));
        std::fs::write(&key, hex::encode([7_u8; 32]) + "\n").unwrap();
        let [far, near] = [0, 1].map(|index| crate::accounts::node_key("s", index).public());
        let text = format!(
            "role: fullnode\ngenesis: genesis.json\ndata_dir: data\nkey_file: node.key\nnetwork:\n  listen: 0.0.0.0:7400\n  \
             peers: ['{far}@far:7400', '{near}@127.0.0.1:10001']\n"
        );
        std::fs::write(&config, text).unwrap();
        OperateOptions {
            config,
            orders: vec![order.parse().unwrap()],
            start: None,
            seed: "s".to_owned(),
            skip_accounts: 5,
            shared: None,
            among: None,
            among_api: None,
            waypoint_from: None,
            program: None,
            judge: None,
            name: None,
        }
    }

    /// Goal: attackers know the node by its key and its port, and reach true data through its sidecar.
    #[test]
    fn a_victim_is_known_by_its_configuration() {
        let dir = tempfile::tempdir().unwrap();
        let rpc = Rpc::new("127.0.0.1:1").unwrap();
        assert!(Victim::new(&options(dir.path(), "1s..2s,kill"), rpc.clone()).unwrap().is_none());
        let victim =
            Victim::new(&options(dir.path(), "1s..2s,attack=junk-transactions"), rpc).unwrap().unwrap();
        assert_eq!(victim.id, SecretKey::from_seed([7; 32]).public().to_string());
        assert_eq!(victim.port, 7_400);
        assert!(victim.upstream.unwrap().ends_with("@127.0.0.1:10001"));
    }

    /// Goal: a companion that waits for a silent node ends when asked to, and is not started twice. One that never
    /// began has failed, and the outcome waits for that.
    #[tokio::test]
    async fn companions_end_when_they_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let rpc = Rpc::new("127.0.0.1:1").unwrap();
        let options = options(dir.path(), "1s..2s,lying-peers=corrupt-answers:2");
        let failures = Arc::<Failures>::default();
        let mut companions = Companions::of(Victim::new(&options, rpc).unwrap(), failures.clone());
        let wanted = || BTreeMap::from([(0, options.orders[0].what.clone())]);
        companions.become_as(wanted(), false);
        let stop = companions.running[&0].as_ref().unwrap().stop.clone();
        companions.become_as(wanted(), true);
        assert_eq!((companions.running.len(), stop.is_cancelled()), (1, false));
        companions.become_as(BTreeMap::new(), false);
        assert!(companions.running.is_empty() && stop.is_cancelled());
        failures.settle(Duration::from_secs(60)).await;
        let error = failures.end().unwrap_err().to_string();
        assert!(
            error.contains("lying-peers=corrupt-answers:2 failed: it had not begun when it was to end"),
            "{error}"
        );
    }

    /// Goal: attackers and liars that had not begun when another order took the node down are no failure.
    #[tokio::test]
    async fn who_loses_the_node_need_not_begin() {
        for order in ["1s..2s,attack=junk-transactions", "1s..2s,lying-peers=corrupt-answers:2"] {
            let dir = tempfile::tempdir().unwrap();
            let options = options(dir.path(), order);
            let failures = Arc::<Failures>::default();
            let victim = Victim::new(&options, Rpc::new("127.0.0.1:1").unwrap()).unwrap();
            let mut companions = Companions::of(victim, failures.clone());
            companions.become_as(BTreeMap::from([(0, options.orders[0].what.clone())]), false);
            companions.lose_victim();
            assert!(companions.running[&0].is_some());
            companions.become_as(BTreeMap::new(), true);
            failures.settle(Duration::from_secs(60)).await;
            failures.end().unwrap_or_else(|error| panic!("{order}: {error}"));
        }
    }

    /// Goal: an attack on a held node is left out, even once the node runs again, and is no failure.
    #[tokio::test]
    async fn a_node_that_is_held_is_not_attacked() {
        let dir = tempfile::tempdir().unwrap();
        let options = options(dir.path(), "1s..2s,attack=junk-transactions");
        let failures = Arc::<Failures>::default();
        let victim = Victim::new(&options, Rpc::new("127.0.0.1:1").unwrap()).unwrap();
        let mut companions = Companions::of(victim, failures.clone());
        for is_held in [true, false] {
            companions.become_as(BTreeMap::from([(0, options.orders[0].what.clone())]), is_held);
            companions.lose_victim();
            assert!(companions.running[&0].is_none());
        }
        companions.become_as(BTreeMap::new(), false);
        failures.settle(Duration::from_secs(60)).await;
        failures.end().unwrap();
    }
}
