//! A bootstrap over the transport, beside the verified restore of the same rows from files: the cost of peers, links
//! and protocol.
//!
//! ```text
//!  filled store ─┬─▶ clones, each behind a server in this process ◀─ a relay each ─▶ slipstream, pinned to `snapshot`
//!                └─▶ chunks in files ─────────────────────────────────────────────▶ a child process that restores them
//! ```
//!
//! The follower and the restoring child have the same settings, and all take turns.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use rand::{SeedableRng, rngs::SmallRng, seq::SliceRandom};
use slipstream_storage::{StorageConfig, Store};
use slipstream_types::Path as StatePath;

use super::{
    MadeSnapshot,
    child::{CACHE_MIB, Measured, TREE_MIB, Task},
    in_child, source,
};
use crate::{
    Aim, Figure,
    harness::{
        ONE_WAY,
        follower::{CaughtUp, Goal, SurroundingCpu},
        kept::clone_store,
        node::NodeOptions,
        ratios,
        relay::Relay,
    },
    size::short,
    sync::Peers,
};
use slipnet::{cpu, progress::Progress};

/// Rounds of a full and of a quick run.
const FULL_ROUNDS: usize = 3;
const QUICK_ROUNDS: usize = 2;
/// The deadline of a bootstrap: this, and a second per [`DEADLINE_ROWS_PER_S`] rows. Far above the expected time.
const DEADLINE: Duration = Duration::from_secs(120);
const DEADLINE_ROWS_PER_S: u64 = 50_000;
/// The number of serving stores.
const PEERS: usize = 4;

/// The follower's peers, and the latency to them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Link {
    peers: usize,
    one_way: Duration,
}

impl Link {
    const ONE_NEAR: Link = Link { peers: 1, one_way: Duration::ZERO };
    const FOUR_NEAR: Link = Link { peers: PEERS, one_way: Duration::ZERO };
    const ONE_FAR: Link = Link { peers: 1, one_way: ONE_WAY };
    const FOUR_FAR: Link = Link { peers: PEERS, one_way: ONE_WAY };
    const ALL: [Link; 4] = [Link::ONE_NEAR, Link::FOUR_NEAR, Link::ONE_FAR, Link::FOUR_FAR];

    /// Returns the name in figures, with the round trip.
    fn label(self) -> String {
        let peers = if self.peers == 1 { "1_peer".to_owned() } else { format!("{}_peers", self.peers) };
        format!("{peers}.{}ms", 2 * self.one_way.as_millis())
    }
}

/// The contenders that take turns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Contender {
    Local,
    Network(Link),
}

/// All rounds of one size.
struct Samples {
    rows: u64,
    local: Vec<Measured>,
    /// The bootstraps over each of [`Link::ALL`].
    network: [Vec<CaughtUp>; Link::ALL.len()],
    /// Trains of datagrams that the relays dropped because of a full queue.
    dropped: u64,
}

/// Returns the number of rounds.
pub(super) fn rounds(is_quick: bool) -> usize {
    if is_quick { QUICK_ROUNDS } else { FULL_ROUNDS }
}

/// Measures one size; `standard` is the size of the aims, in rows. Works in `dir`, on the file system of the exported
/// snapshot.
pub(super) fn measure(
    made: &MadeSnapshot,
    dir: &Path,
    is_quick: bool,
    standard: u64,
    progress: Progress,
) -> Result<(Vec<Figure>, Vec<String>)> {
    let bench = NetworkBench::new(made, dir, progress)?;
    let samples = bench.run(rounds(is_quick))?;
    let figures = samples.figures(made.rows == standard);
    Ok((figures, samples.notes()))
}

struct NetworkBench<'a> {
    made: &'a MadeSnapshot,
    dir: &'a Path,
    genesis: PathBuf,
    goal: Goal,
    stores: Vec<Store>,
    progress: Progress,
}

impl NetworkBench<'_> {
    fn new<'a>(made: &'a MadeSnapshot, dir: &'a Path, progress: Progress) -> Result<NetworkBench<'a>> {
        let header = source::Target::read(&made.files)?.restore_target().header;
        let deadline = DEADLINE + Duration::from_secs(made.rows / DEADLINE_ROWS_PER_S);
        let goal = Goal { from: 0, head: header.number.get(), state_root: header.state_root, deadline };
        let genesis = dir.join("genesis.json");
        fs::write(&genesis, serde_json::to_string(&source::genesis())?)?;
        progress.step(&format!("cloning the store of {} rows for {PEERS} peers", short(made.rows)));
        let stores = (0..PEERS).map(|index| serving(&made.store, &dir.join(format!("peer-{index}"))));
        let stores = stores.collect::<Result<_>>()?;
        Ok(NetworkBench { made, dir, genesis, goal, stores, progress })
    }

    fn run(&self, rounds: usize) -> Result<Samples> {
        let rows = self.made.rows;
        let mut samples = Samples { rows, local: Vec::new(), network: Default::default(), dropped: 0 };
        let runtime = tokio::runtime::Handle::current();
        for round in 0..rounds {
            for contender in turns(round) {
                let name = match contender {
                    Contender::Local => "local restore".to_owned(),
                    Contender::Network(link) => format!("bootstrap from {}", link.label()),
                };
                let round = round + 1;
                self.progress.step(&format!("{name}, {} rows, round {round} of {rounds}", short(rows)));
                match contender {
                    Contender::Local => {
                        samples.local.push(in_child(Task::Restore, self.dir, &self.made.files)?);
                    }
                    Contender::Network(link) => {
                        let bootstrapped = runtime.block_on(self.bootstrap(link));
                        let (caught_up, dropped) = bootstrapped.with_context(|| name)?;
                        samples.dropped += dropped;
                        let place = Link::ALL.iter().position(|other| *other == link);
                        samples.network[place.expect("one of all links")].push(caught_up);
                    }
                }
            }
        }
        for store in &self.stores {
            store.close();
        }
        Ok(samples)
    }

    /// Bootstraps a fresh follower from fresh servers, which have empty caches.
    async fn bootstrap(&self, link: Link) -> Result<(CaughtUp, u64)> {
        let peers = Peers::start(self.stores.iter().take(link.peers).cloned(), 0).await?;
        let relays: Vec<Relay> = peers
            .listening()
            .into_iter()
            .map(|address| Relay::start(address, link.one_way))
            .collect::<Result<_>>()?;
        let addresses: Vec<_> = relays.iter().map(Relay::address).collect();
        let options = NodeOptions {
            mode: "snapshot",
            sync: "  history: false\n".to_owned(),
            storage: format!("  block_cache_mib: {CACHE_MIB}\n  tree_memory_mib: {TREE_MIB}\n"),
            peers: peers.addresses_at(&addresses),
            ..NodeOptions::default()
        };
        // The relays' threads and the servers run in this process.
        let around = || {
            let relay = relays.iter().map(Relay::cpu_s).sum();
            Ok(SurroundingCpu { server: cpu::of_this_process() - relay, relay })
        };
        let dir = self.dir.join("follower");
        fs::create_dir_all(&dir)?;
        let caught_up = self.goal.reach(&dir, &self.genesis, &options, around).await?;
        fs::remove_dir_all(&dir)?;
        peers.stop().await;
        rustix::fs::sync();
        Ok((caught_up, relays.iter().map(Relay::dropped).sum()))
    }
}

/// Clones and opens a closed store, with its snapshot ready to be served.
fn serving(from: &Path, dir: &Path) -> Result<Store> {
    clone_store(from, dir)?;
    let store =
        Store::open(&StorageConfig { snapshot_interval_batches: 0, ..StorageConfig::default() }, dir)?;
    let info = store.snapshots().into_iter().next().context("the clone has no snapshot")?;
    let snapshot = store.snapshot(info.number)?.context("the clone's snapshot is gone")?;
    // The first reader opens the checkpoint.
    snapshot.encoded_chunk(StatePath::MIN, StatePath::MAX, 1)?;
    Ok(store)
}

/// Returns the order of a round. It differs between rounds, so that no contender always follows the same one.
fn turns(round: usize) -> Vec<Contender> {
    let networks = Link::ALL.into_iter().map(Contender::Network);
    let mut turns: Vec<_> = [Contender::Local].into_iter().chain(networks).collect();
    turns.shuffle(&mut SmallRng::seed_from_u64(round as u64));
    turns
}

impl Samples {
    fn of(&self, link: Link) -> &[CaughtUp] {
        let place = Link::ALL.iter().position(|other| *other == link);
        &self.network[place.expect("one of all links")]
    }

    fn seconds(&self, link: Link) -> Vec<f64> {
        self.of(link).iter().map(|run| run.seconds).collect()
    }

    fn figures(&self, is_standard: bool) -> Vec<Figure> {
        let (size, rows) = (short(self.rows), self.rows as f64);
        let one_vs_four = match is_standard {
            true => "snapshot_one_vs_four".to_owned(),
            false => format!("snapshot_one_vs_four.{size}"),
        };
        let of_local = |value: &dyn Fn(&Measured) -> f64| self.local.iter().map(value).collect::<Vec<_>>();
        let local_seconds = of_local(&|run| run.seconds);
        let mut figures = vec![
            Figure::new(
                format!("snapshot_vs_local.{size}"),
                "ratio",
                ratios(&self.seconds(Link::FOUR_FAR), &local_seconds),
            )
            .aim(Aim::AtMost(1.5)),
            Figure::new(
                one_vs_four,
                "ratio",
                ratios(&self.seconds(Link::ONE_NEAR), &self.seconds(Link::FOUR_NEAR)),
            )
            .aim(Aim::AtMost(1.5)),
            Figure::new(format!("local_seconds.{size}"), "s", local_seconds.clone()),
            Figure::new(format!("local_rows_per_s.{size}"), "1/s", of_local(&|run| rows / run.seconds)),
            Figure::new(
                format!("local_rss_mib.{size}"),
                "MiB",
                of_local(&|run| run.peak_mib - CACHE_MIB as f64),
            ),
        ];
        for link in Link::ALL {
            let runs = self.of(link);
            let mut add = |name: &str, unit, samples| {
                figures.push(Figure::new(format!("{name}.{size}.{}", link.label()), unit, samples));
            };
            let of_runs = |value: &dyn Fn(&CaughtUp) -> f64| runs.iter().map(value).collect::<Vec<_>>();
            add("bootstrap_seconds", "s", self.seconds(link));
            add("bootstrap_rows_per_s", "1/s", of_runs(&|run| rows / run.seconds));
            add("bootstrap_vs_local", "ratio", ratios(&self.seconds(link), &local_seconds));
            add("bootstrap_rss_mib", "MiB", of_runs(&|run| run.peak_mib - CACHE_MIB as f64));
            add("bootstrap_cpu_us_per_row", "us", of_runs(&|run| 1e6 * run.cpu_s / rows));
            add("server_cpu_us_per_row", "us", of_runs(&|run| 1e6 * run.around.server / rows));
            add("relay_cpu_us_per_row", "us", of_runs(&|run| 1e6 * run.around.relay / rows));
            add("bytes_per_row", "bytes", of_runs(&|run| run.bytes as f64 / rows));
            add("connect_seconds", "s", of_runs(&|run| run.connect_seconds));
        }
        figures
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = vec![format!(
            "bootstrap: a fresh fullnode process pinned to sync.mode snapshot, from its first request for data to the snapshot's head, over a \
             relay for each peer (0ms: with no delay); its peers are servers in this process, a store each, caches empty. local: the restore \
             of the same rows from files. {} rows, {} rounds in turn. Both: fsync, a block cache of {CACHE_MIB} MiB, {TREE_MIB} MiB for the tree; memory is VmHWM \
             less the block cache. Servers and relays share the cores with the follower: their CPU is beside it",
            short(self.rows),
            self.local.len()
        )];
        if self.dropped > 0 {
            notes.push(format!(
                "the relays had no room for {} trains of datagrams: they were lost",
                self.dropped
            ));
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use slipstream_types::Genesis;

    use super::*;

    fn caught_up(seconds: f64) -> CaughtUp {
        CaughtUp {
            seconds,
            connect_seconds: 0.5,
            bytes: 1_000_000,
            cpu_s: 1.0,
            peak_mib: 100.0,
            ..CaughtUp::default()
        }
    }

    /// Goal: each figure that has an aim compares the right links; a figure of another size has another name.
    #[test]
    fn figures_compare_the_links_that_they_name() {
        // One peer near, four near, one far, four far.
        let network = [8.0, 4.0, 10.0, 6.0].map(|seconds| vec![caught_up(seconds)]);
        let local = vec![Measured { seconds: 3.0, peak_mib: 80.0, ..Measured::default() }];
        let samples = Samples { rows: 5_000_000, local, network, dropped: 0 };
        let value = |is_standard, name: &str| {
            let figures = samples.figures(is_standard);
            figures.iter().find(|figure| figure.name() == name).map(Figure::value)
        };
        assert_eq!(value(true, "snapshot_vs_local.5m"), Some(2.0));
        assert_eq!(value(true, "snapshot_one_vs_four"), Some(2.0));
        assert_eq!(value(false, "snapshot_one_vs_four"), None);
        assert_eq!(value(false, "snapshot_one_vs_four.5m"), Some(2.0));
        assert_eq!(value(true, "bootstrap_seconds.5m.1_peer.150ms"), Some(10.0));
        assert_eq!(value(true, "bootstrap_rss_mib.5m.4_peers.0ms"), Some(100.0 - CACHE_MIB as f64));
        assert_eq!(samples.notes().len(), 1);
    }

    /// Goal: every contender has one turn in each round, and rounds differ.
    #[test]
    fn everybody_has_a_turn() {
        for round in 0..FULL_ROUNDS {
            let turns = turns(round);
            assert_eq!(turns.len(), 1 + Link::ALL.len());
            assert!(turns.contains(&Contender::Local));
            assert!(Link::ALL.iter().all(|link| turns.contains(&Contender::Network(*link))));
        }
        assert_ne!(turns(0), turns(1));
    }

    /// Goal: a clone serves the filled store's snapshot, and a node accepts the chain's genesis file.
    #[test]
    fn a_clone_serves_the_snapshot_of_its_source() {
        let dir = tempfile::tempdir().unwrap();
        let (made, store) = MadeSnapshot::fill(dir.path(), 3_000, Progress::Quiet).unwrap();
        store.close();
        let header = source::Target::read(&made.files).unwrap().restore_target().header;
        let clone = serving(&made.store, &dir.path().join("clone")).unwrap();
        assert_eq!(clone.head().unwrap().header, header);
        let snapshots = clone.snapshots();
        assert_eq!((snapshots.len(), snapshots[0].state_root), (1, header.state_root));
        let genesis = source::genesis();
        genesis.check().unwrap();
        let read: Genesis = serde_json::from_str(&serde_json::to_string(&genesis).unwrap()).unwrap();
        assert_eq!(read.header().unwrap().digest(), genesis.header().unwrap().digest());
    }
}
