//! The measured chains: validators with a fullnode, or geth.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use parking_lot::Mutex;
use serde_json::{Value, json};
use slipnet::{
    accounts::{Account, DEFAULT_SEED},
    cpu,
    devnet::{Devnet, DevnetOptions, Node, Process, binary},
    load::Chain,
    rpc::{Rpc, quantity},
};

use slipstream_network::PeerAddress;

use super::generator::ACCOUNTS;
use crate::harness::{node::io_counter, relay::Relay};

const START_DEADLINE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);
/// The funds of each account on a chain whose genesis does not fund it: 10,000 ether.
const FUNDS_WEI: &str = "0x21e19e0c9bab2400000";

/// A running chain; it ends when it is dropped.
pub(super) struct Subject {
    pub(super) chain: Chain,
    pub(super) accounts: Vec<Account>,
    processes: Processes,
    /// The relays between its nodes.
    relays: Vec<Relay>,
}

/// The processes of a chain.
enum Processes {
    Geth(Process),
    Devnet(Box<Devnet>),
}

/// A node's resource use since its start.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResourceUse {
    pub(super) cpu_s: f64,
    /// Bytes handed to the disk.
    pub(super) bytes_written: f64,
    /// Bytes that the store wrote to its log and files, including compactions.
    pub(super) stored_bytes: f64,
    /// Syncs of the store's log.
    pub(super) syncs: f64,
    /// Bytes of sent datagrams, on connections that are still open.
    pub(super) bytes_sent: f64,
}

impl ResourceUse {
    pub(super) fn since(&self, before: &ResourceUse) -> ResourceUse {
        ResourceUse {
            cpu_s: self.cpu_s - before.cpu_s,
            bytes_written: self.bytes_written - before.bytes_written,
            stored_bytes: self.stored_bytes - before.stored_bytes,
            syncs: self.syncs - before.syncs,
            bytes_sent: self.bytes_sent - before.bytes_sent,
        }
    }

    /// Returns the mean over some nodes; NaN without any.
    pub(super) fn mean(all: &[ResourceUse]) -> ResourceUse {
        let mean = |of: fn(&ResourceUse) -> f64| all.iter().map(of).sum::<f64>() / all.len() as f64;
        ResourceUse {
            cpu_s: mean(|spent| spent.cpu_s),
            bytes_written: mean(|spent| spent.bytes_written),
            stored_bytes: mean(|spent| spent.stored_bytes),
            syncs: mean(|spent| spent.syncs),
            bytes_sent: mean(|spent| spent.bytes_sent),
        }
    }
}

/// The settings that differ between devnets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) validators: u32,
    pub(super) fullnodes: u32,
    /// Funded accounts of its genesis; the first [`ACCOUNTS`] send.
    pub(super) accounts: u32,
    /// The one-way latency between any two nodes; `None` if they connect directly.
    pub(super) one_way: Option<Duration>,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape { validators: 4, fullnodes: 1, accounts: ACCOUNTS as u32, one_way: None }
    }
}

impl Subject {
    /// Starts validators and fullnodes with the configuration that `init` writes. Nodes with latency choose no further
    /// peers, because connections to these would have no latency.
    pub(super) async fn devnet(shape: Shape, dir: &Path) -> Result<Subject> {
        let options = DevnetOptions {
            validators: shape.validators,
            fullnodes: shape.fullnodes,
            accounts: shape.accounts,
            block_cache_mib: None,
            outbound: shape.one_way.map(|_| 0),
            dir: Some(dir.to_owned()),
            ..DevnetOptions::default()
        };
        let relays = Mutex::new(BTreeMap::new());
        let route = |_, to: usize, peer: String| {
            let Some(one_way) = shape.one_way else { return Ok(peer) };
            let peer: PeerAddress = peer.parse()?;
            let mut relays = relays.lock();
            if let Entry::Vacant(place) = relays.entry(to) {
                place.insert(Relay::start(peer.address, one_way)?);
            }
            Ok(PeerAddress { address: relays[&to].address(), ..peer }.to_string())
        };
        let devnet = Devnet::start_routed(options, &route).await?;
        let chain = Chain::connect(devnet.proposer().rpc().clone()).await?;
        let accounts = devnet.accounts()[..ACCOUNTS].to_vec();
        let relays = relays.into_inner().into_values().collect();
        Ok(Subject { chain, accounts, processes: Processes::Devnet(Box::new(devnet)), relays })
    }

    /// Starts geth alone, which makes a block as soon as a transaction arrives. Returns `None` if it is not installed.
    pub(super) async fn geth(dir: &Path) -> Result<Option<Subject>> {
        let Some(program) = geth()? else { return Ok(None) };
        fs::create_dir_all(dir)?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
        let data = dir.join("data");
        let data = data.to_str().context("the directory's name is not valid UTF-8")?;
        let slots = "200000";
        #[rustfmt::skip]
        let arguments = [
            "--dev", "--datadir", data, "--http", "--http.port", &port, "--http.api", "eth,net,web3", "--ipcdisable",
            "--nodiscover", "--maxpeers", "0", "--verbosity", "2", "--dev.gaslimit", "1000000000",
            "--txpool.globalslots", slots, "--txpool.accountslots", slots, "--txpool.globalqueue", slots,
            "--txpool.accountqueue", slots,
        ];
        let log = dir.join("log");
        let mut process = Process::spawn(&program, &arguments, log.clone())?;
        let rpc = Rpc::new(&format!("http://127.0.0.1:{port}"))?;
        let until = Instant::now() + START_DEADLINE;
        while rpc.head().await.is_err() {
            process.check_alive()?;
            ensure!(Instant::now() < until, "geth did not answer in time; its log is {}", log.display());
            tokio::time::sleep(POLL).await;
        }
        let accounts = Account::derive_many(DEFAULT_SEED, ACCOUNTS as u32);
        fund(&rpc, &accounts).await?;
        let chain = Chain::connect(rpc).await?;
        Ok(Some(Subject { chain, accounts, processes: Processes::Geth(process), relays: Vec::new() }))
    }

    /// Returns the chain's genesis file, for nodes that join.
    pub(super) fn genesis(&self) -> Result<PathBuf> {
        match &self.processes {
            Processes::Devnet(devnet) => Ok(devnet.genesis_file()),
            Processes::Geth(_) => bail!("no node can join geth"),
        }
    }

    /// Returns the devnet's nodes, validators first; none for geth.
    pub(super) fn nodes(&self) -> &[Node] {
        match &self.processes {
            Processes::Devnet(devnet) => devnet.nodes(),
            Processes::Geth(_) => &[],
        }
    }

    /// Returns the index of the current primary.
    pub(super) async fn primary(&self) -> Result<usize> {
        let node = self.nodes().first().context("geth has no primary")?;
        let status = node.status().await?.consensus.context("the node's status lacks `consensus`")?;
        Ok(status["primary"].as_u64().context("the status names no primary")? as usize)
    }

    /// Returns the same chain through the API of another node.
    pub(super) async fn through(&self, node: usize) -> Result<Chain> {
        Chain::connect(self.nodes()[node].rpc().clone()).await
    }

    /// Returns each node's resource use since its start.
    pub(super) async fn spent(&self) -> Result<Vec<ResourceUse>> {
        let mut spent = Vec::new();
        for node in self.nodes() {
            let pid = node.pid().context("a node ended")?;
            let rpc = node.rpc();
            spent.push(ResourceUse {
                cpu_s: cpu::of_process(pid)?,
                bytes_written: io_counter(pid, "write_bytes")? as f64,
                stored_bytes: rpc.metric("slipstream_storage_written_bytes_total").await?,
                syncs: rpc.metric("slipstream_storage_syncs_total").await?,
                bytes_sent: rpc.metric("slipstream_network_open_sent_bytes").await?,
            });
        }
        Ok(spent)
    }

    /// Stops the chain.
    pub(super) async fn stop(self) -> Result<()> {
        ensure!(self.relays.iter().all(|relay| relay.dropped() == 0), "a relay dropped datagrams");
        match self.processes {
            Processes::Devnet(devnet) => devnet.stop().await,
            Processes::Geth(process) => {
                drop(process);
                Ok(())
            }
        }
    }
}

/// Returns geth, as `./x tools` installs it.
fn geth() -> Result<Option<PathBuf>> {
    let node = binary()?;
    let target = node.ancestors().nth(2).context("cannot find the build directory")?;
    let program = target.join("tools/geth");
    Ok(program.is_file().then_some(program))
}

/// Funds each account from the developer's account, whose key geth holds.
async fn fund(rpc: &Rpc, accounts: &[Account]) -> Result<()> {
    let own: Vec<Value> = rpc.call("eth_accounts", json!([])).await?;
    let Some(owner) = own.first() else { bail!("geth has no account") };
    let first = quantity(&rpc.call("eth_getTransactionCount", json!([owner, "latest"])).await?)?;
    let call = |(nonce, account): (u64, &Account)| {
        let nonce = format!("{nonce:#x}");
        json!([{ "from": owner, "to": account.address, "value": FUNDS_WEI, "nonce": nonce }])
    };
    let params: Vec<Value> = (first..).zip(accounts).map(call).collect();
    let _: Vec<Value> = rpc.batch_all("eth_sendTransaction", &params).await?;
    let last = json!([accounts.last().context("there is no account to fund")?.address, "latest"]);
    let until = Instant::now() + START_DEADLINE;
    while rpc.call::<Value>("eth_getBalance", last.clone()).await? == json!("0x0") {
        ensure!(Instant::now() < until, "geth did not fund the accounts in time");
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}
