//! The chains that are measured: validators with a fullnode, or geth.

use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use slipnet::{
    accounts::{Account, DEFAULT_SEED},
    cpu,
    devnet::{Devnet, DevnetOptions, Node, Process, binary},
    load::Chain,
    rpc::{Rpc, quantity},
};

use super::generator::ACCOUNTS;
use crate::harness::node::io_counter;

const START_DEADLINE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);
/// What each account of a chain that begins without them gets: 10,000 ether.
const FUNDS_WEI: &str = "0x21e19e0c9bab2400000";

/// A running chain; it ends when this is dropped.
pub(super) struct Subject {
    pub(super) chain: Chain,
    pub(super) accounts: Vec<Account>,
    pub(super) processes: Processes,
}

/// What it consists of.
pub(super) enum Processes {
    Geth(Process),
    Devnet(Box<Devnet>),
}

/// What each process did so far, in the order of the devnet's nodes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spent {
    pub(super) cpu_s: f64,
    /// Handed to the disk.
    pub(super) bytes_written: f64,
    /// Syncs of the store's log.
    pub(super) syncs: f64,
}

impl Spent {
    pub(super) fn since(&self, before: &Spent) -> Spent {
        Spent {
            cpu_s: self.cpu_s - before.cpu_s,
            bytes_written: self.bytes_written - before.bytes_written,
            syncs: self.syncs - before.syncs,
        }
    }

    /// Of some processes; at least one.
    pub(super) fn mean(all: impl Iterator<Item = Spent>) -> Spent {
        let all: Vec<Spent> = all.collect();
        let mean = |of: fn(&Spent) -> f64| all.iter().map(of).sum::<f64>() / all.len() as f64;
        Spent {
            cpu_s: mean(|spent| spent.cpu_s),
            bytes_written: mean(|spent| spent.bytes_written),
            syncs: mean(|spent| spent.syncs),
        }
    }
}

impl Subject {
    /// Validators and fullnodes with what `init` writes.
    pub(super) async fn devnet(validators: u32, fullnodes: u32, dir: &Path) -> Result<Subject> {
        let options = DevnetOptions {
            validators,
            fullnodes,
            accounts: ACCOUNTS as u32,
            block_cache_mib: None,
            dir: Some(dir.to_owned()),
            ..DevnetOptions::default()
        };
        let devnet = Devnet::start(options).await?;
        let chain = Chain::connect(devnet.proposer().rpc().clone()).await?;
        let accounts = devnet.accounts().to_vec();
        Ok(Subject { chain, accounts, processes: Processes::Devnet(Box::new(devnet)) })
    }

    /// geth alone, which makes a block as soon as there is a transaction. `None` if it is not installed.
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
            ensure!(Instant::now() < until, "geth does not answer; its log is {}", log.display());
            tokio::time::sleep(POLL).await;
        }
        let accounts = Account::derive_many(DEFAULT_SEED, ACCOUNTS as u32);
        fund(&rpc, &accounts).await?;
        let chain = Chain::connect(rpc).await?;
        Ok(Some(Subject { chain, accounts, processes: Processes::Geth(process) }))
    }

    /// The chain's genesis, for nodes that join.
    pub(super) fn genesis(&self) -> Result<PathBuf> {
        match &self.processes {
            Processes::Devnet(devnet) => Ok(devnet.genesis_file()),
            Processes::Geth(_) => bail!("nobody joins geth"),
        }
    }

    /// The devnet's nodes, validators first; none of geth.
    pub(super) fn nodes(&self) -> &[Node] {
        match &self.processes {
            Processes::Devnet(devnet) => devnet.nodes(),
            Processes::Geth(_) => &[],
        }
    }

    /// The validator that is the primary now.
    pub(super) async fn primary(&self) -> Result<usize> {
        let node = self.nodes().first().context("geth has no primary")?;
        let status = node.status().await?.consensus.context("a validator's status")?;
        Ok(status["primary"].as_u64().context("the primary")? as usize)
    }

    /// The same chain, taken through the API of that node.
    pub(super) async fn through(&self, node: usize) -> Result<Chain> {
        Chain::connect(self.nodes()[node].rpc().clone()).await
    }

    /// What each node did since its start.
    pub(super) async fn spent(&self) -> Result<Vec<Spent>> {
        let mut spent = Vec::new();
        for node in self.nodes() {
            let pid = node.pid().context("a node ended")?;
            let syncs = node.rpc().metric("slipstream_storage_syncs_total").await?;
            spent.push(Spent {
                cpu_s: cpu::of_process(pid)?,
                bytes_written: io_counter(pid, "write_bytes")? as f64,
                syncs,
            });
        }
        Ok(spent)
    }

    /// Ends it.
    pub(super) async fn stop(self) -> Result<()> {
        match self.processes {
            Processes::Devnet(devnet) => devnet.stop().await,
            Processes::Geth(process) => {
                drop(process);
                Ok(())
            }
        }
    }
}

/// geth, where `./x tools` puts it.
fn geth() -> Result<Option<PathBuf>> {
    let node = binary()?;
    let target = node.ancestors().nth(2).context("the directory of builds")?;
    let program = target.join("tools/geth");
    Ok(program.is_file().then_some(program))
}

/// Gives each account funds of the developer's account, which geth holds the key of.
async fn fund(rpc: &Rpc, accounts: &[Account]) -> Result<()> {
    let own: Vec<Value> = rpc.call("eth_accounts", json!([])).await?;
    let Some(owner) = own.first() else { bail!("geth holds no account") };
    let first = quantity(&rpc.call("eth_getTransactionCount", json!([owner, "latest"])).await?)?;
    let call = |(nonce, account): (u64, &Account)| {
        let nonce = format!("{nonce:#x}");
        json!([{ "from": owner, "to": account.address, "value": FUNDS_WEI, "nonce": nonce }])
    };
    let params: Vec<Value> = (first..).zip(accounts).map(call).collect();
    let _: Vec<Value> = rpc.batch_all("eth_sendTransaction", &params).await?;
    let last = json!([accounts.last().context("accounts")?.address, "latest"]);
    let until = Instant::now() + START_DEADLINE;
    while rpc.call::<Value>("eth_getBalance", last.clone()).await? == json!("0x0") {
        ensure!(Instant::now() < until, "geth does not commit what funds the accounts");
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}
