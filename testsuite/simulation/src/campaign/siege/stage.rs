//! [`Stage`]: the nodes of a siege, and a chain that is not empty.
//!
//! ```text
//!  validator ◀── victim ◀── follower         the victim: a fullnode, default configuration
//!                  ▲  ▲
//!          wallet, reader, attackers, joiners
//! ```

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use alloy_primitives::{Address, B256, Bytes, TxKind, U256, keccak256};
use anyhow::{Context, Result, bail};
use rand::RngCore;
use serde_json::{Value, json};
use slipnet::{
    accounts::{Account, DEFAULT_SEED, node_key},
    devnet::{Devnet, DevnetOptions, Node, SyncMode},
    rpc::{Rpc, quantity},
    signer::{Envelope, Fees, Request, Signed, sign},
};
use slipstream_types::validators_contract;

use super::{attack::Target, honest::Wallet};

/// Genesis accounts: the wallet's come first, then the attackers'.
pub(super) const WALLET_ACCOUNTS: usize = 64;
const ATTACKER_ACCOUNTS: usize = 320;
const HEAD_DEADLINE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(50);
/// The time between a victim's start and its measurement.
const SETTLE: Duration = Duration::from_millis(700);
/// Bytes of call data of a heavy transaction, and its gas: at most 40 a byte by EIP-7623, and some more.
pub(super) const HEAVY_BYTES: usize = 120_000;
pub(super) const HEAVY_GAS: u64 = 5_000_000;
/// Heavy transactions in one body, below the node's limit of 5 MiB.
const HEAVY_PER_BODY: usize = 6;
/// Gas of a transaction that writes 2,048 logs by [`LOG_LOOP`].
const LOG_GAS: u64 = 2_000_000;
/// Init code that writes an empty log 2,048 times: PUSH2 n; JUMPDEST; LOG0(0, 0); n - 1; DUP1; JUMPI; STOP.
const LOG_LOOP: [u8; 18] = [
    0x61, 0x08, 0x00, 0x5b, 0x60, 0x00, 0x60, 0x00, 0xa0, 0x60, 0x01, 0x90, 0x03, 0x80, 0x60, 0x03, 0x57,
    0x00,
];

/// The addresses of the follower and of joining nodes: to the victim they are strangers, like the attackers, each with
/// its own network.
const FOLLOWS_FROM: Ipv4Addr = Ipv4Addr::new(127, 34, 0, 1);
const JOINS_FROM: Ipv4Addr = Ipv4Addr::new(127, 33, 0, 1);

const VALIDATOR: usize = 0;
const VICTIM: usize = 1;
const FOLLOWER: usize = 2;

/// The size of the chain before the first attack.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ballast {
    /// Transactions with [`HEAVY_BYTES`] of random call data: 140 fill the longest range answer.
    pub(super) heavy: usize,
    /// Transactions with 2,048 logs.
    pub(super) logs: usize,
    /// The chain's length in batches: a joining node restores a snapshot only if one exists and the node is far enough
    /// behind.
    pub(super) batches: u64,
    /// Epochs that have ended, at most as many as batches: more than 64 do not fit into one answer.
    pub(super) epochs: u64,
}

/// The nodes, and the facts about their chain.
pub(super) struct Stage {
    devnet: Devnet,
    pub(super) money: SigningParameters,
    heavy_batch: u64,
    joiners: usize,
    files: PathBuf,
}

/// The chain's parameters for signing.
#[derive(Clone, Copy, Debug)]
pub(super) struct SigningParameters {
    pub(super) chain_id: u64,
    pub(super) base_fee_wei: u64,
}

impl SigningParameters {
    /// Signs a call with at most one wei, which pays up to twice the base fee and this tip.
    pub(super) fn sign(&self, account: &Account, nonce: u64, tip_wei: u128, call: Call) -> Signed {
        let max_fee_wei = 2 * u128::from(self.base_fee_wei) + tip_wei;
        let request = Request {
            chain_id: self.chain_id,
            nonce,
            to: call.to,
            value: U256::from(1u8).min(call.value),
            gas_limit: call.gas_limit,
            fees: Fees { max_fee_wei, tip_wei },
            input: call.input,
            envelope: Envelope::DynamicFee,
        };
        sign(account, request)
    }
}

/// The target and the effect of a transaction.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) to: TxKind,
    pub(super) value: U256,
    pub(super) gas_limit: u64,
    pub(super) input: Bytes,
}

impl Call {
    /// Returns a transfer of one wei.
    pub(super) fn transfer(to: Address) -> Call {
        Call { to: to.into(), value: U256::from(1u8), gas_limit: 21_000, input: Bytes::new() }
    }
}

impl Stage {
    /// Starts the nodes and fills the chain; its files are in `dir`.
    pub(super) async fn open(dir: &Path, ballast: Ballast) -> Result<Stage> {
        let accounts = u32::try_from(WALLET_ACCOUNTS + ATTACKER_ACCOUNTS).context("a constant")?;
        let mut devnet = Devnet::start(DevnetOptions {
            validators: 1,
            fullnodes: 1,
            accounts,
            block_cache_mib: None,
            dir: Some(dir.join("devnet")),
            ..DevnetOptions::default()
        })
        .await?;
        let victim = devnet.nodes()[VICTIM].peer_address();
        devnet.add_fullnode_from(FOLLOWS_FROM, "follower", SyncMode::Auto, &[victim]).await?;
        let money = money(devnet.proposer().rpc()).await?;
        let mut stage = Stage { devnet, money, heavy_batch: 0, joiners: 0, files: dir.to_owned() };
        stage.heavy_batch = stage.fill(ballast).await?;
        Ok(stage)
    }

    pub(super) fn validator(&self) -> &Node {
        &self.devnet.nodes()[VALIDATOR]
    }

    pub(super) fn victim(&self) -> &Node {
        &self.devnet.nodes()[VICTIM]
    }

    pub(super) fn follower(&self) -> &Node {
        &self.devnet.nodes()[FOLLOWER]
    }

    /// Returns the nodes that run all the time.
    pub(super) fn residents(&self) -> &[Node] {
        &self.devnet.nodes()[..=FOLLOWER]
    }

    pub(super) fn files(&self) -> &Path {
        &self.files
    }

    pub(super) fn wallet_accounts(&self) -> Vec<Account> {
        self.devnet.accounts()[..WALLET_ACCOUNTS].to_vec()
    }

    /// Restarts the victim, so that the next attack meets a fresh process. Its follower restarts too, because a node
    /// dials a peer with short-lived connections more and more rarely. Waits until both follow, with the wallet paused.
    /// Nodes that joined are killed: they share an address, and the next one needs that address's connection slots at a
    /// peer.
    pub(super) async fn renew(&mut self, wallet: &Wallet) -> Result<()> {
        wallet.pause().await;
        for index in FOLLOWER + 1..self.devnet.nodes().len() {
            let joiner = self.devnet.node_mut(index);
            joiner.kill();
            // Data that cannot be removed goes with the campaign's directory.
            let _ = std::fs::remove_dir_all(joiner.dir().join("data"));
        }
        for node in [FOLLOWER, VICTIM] {
            let node = self.devnet.node_mut(node);
            if node.check_alive().is_ok() {
                // A node that does not stop in time is killed; the harm of an attack to it was measured before.
                let _ = node.stop().await;
            }
            node.kill();
        }
        let deadline = Instant::now() + HEAD_DEADLINE;
        for node in [VICTIM, FOLLOWER] {
            let node = self.devnet.node_mut(node);
            node.start()?;
            node.wait_ready(deadline).await?;
        }
        wallet.resume();
        // A new batch must have come over the new connections.
        let head = self.head().await? + 1;
        for node in [VICTIM, FOLLOWER] {
            self.devnet.node_mut(node).wait_head(head, deadline).await?;
        }
        tokio::time::sleep(SETTLE).await;
        Ok(())
    }

    /// Returns how the victim's process ended, if it did.
    pub(super) fn victim_ended(&mut self) -> Option<String> {
        self.devnet.node_mut(VICTIM).check_alive().err().map(|error| format!("{error:#}"))
    }

    /// Starts a fullnode with an empty disk and these peers, with a waypoint if one is given; returns its index.
    pub(super) async fn add_joiner(
        &mut self,
        mode: SyncMode,
        peers: &[String],
        waypoint: Option<&str>,
    ) -> Result<usize> {
        self.joiners += 1;
        let name = format!("joiner-{}", self.joiners);
        self.devnet.add_fullnode_trusting(JOINS_FROM, &name, mode, peers, waypoint).await
    }

    /// Returns a waypoint of the validator.
    pub(super) async fn waypoint(&self) -> Result<String> {
        let status = self.validator().rpc().page("/v1/status").await?;
        Ok(status["waypoint"].as_str().context("the validator's status has no waypoint")?.to_owned())
    }

    pub(super) fn node(&self, index: usize) -> &Node {
        &self.devnet.nodes()[index]
    }

    /// Returns the validator's last batch.
    pub(super) async fn head(&self) -> Result<u64> {
        self.validator().rpc().head().await
    }

    /// Returns the facts for the attackers.
    pub(super) async fn target(&self) -> Result<Target> {
        let api: SocketAddr = self.victim().rpc().url().trim_start_matches("http://").parse()?;
        let keys = self.devnet.accounts()[WALLET_ACCOUNTS..].iter().map(Account::key_hex).collect();
        Ok(Target {
            api,
            peer: self.victim().peer_address(),
            upstream: self.validator().peer_address(),
            joiner: node_key(DEFAULT_SEED, u32::try_from(self.devnet.nodes().len())?).public().to_string(),
            neighbour: JOINS_FROM.into(),
            chain_id: self.money.chain_id,
            base_fee_wei: self.money.base_fee_wei,
            accounts: keys,
            heavy_batch: self.heavy_batch,
            head: self.head().await?,
            liars: None,
        })
    }

    pub(super) async fn close(self) -> Result<()> {
        self.devnet.stop().await
    }

    /// Keeps the files, and returns their directory.
    pub(super) fn keep(&mut self) -> PathBuf {
        self.devnet.keep_directory()
    }

    /// Fills the chain with transactions, and waits until its head has passed a snapshot; returns a batch with many of
    /// them.
    async fn fill(&mut self, ballast: Ballast) -> Result<u64> {
        let rpc = self.validator().rpc().clone();
        let accounts = &self.devnet.accounts()[WALLET_ACCOUNTS..];
        let mut noise = vec![0; HEAVY_BYTES];
        let (mut sent, mut nonces) = (Vec::new(), vec![0; accounts.len()]);
        let mut make = |index: usize, call: Call| {
            let place = index % accounts.len();
            nonces[place] += 1;
            self.money.sign(&accounts[place], nonces[place] - 1, 1, call)
        };
        for index in 0..ballast.heavy {
            rand::rng().fill_bytes(&mut noise);
            let input = Bytes::copy_from_slice(&noise);
            let call = Call { gas_limit: HEAVY_GAS, input, ..Call::transfer(Address::repeat_byte(0xee)) };
            sent.push(make(index, call));
        }
        for index in 0..ballast.logs {
            let (to, value) = (TxKind::Create, U256::ZERO);
            let call = Call { to, value, gas_limit: LOG_GAS, input: Bytes::from_static(&LOG_LOOP) };
            sent.push(make(ballast.heavy + index, call));
        }
        for part in sent.chunks(HEAVY_PER_BODY) {
            let params: Vec<_> = part.iter().map(|signed| json!([signed.raw])).collect();
            let _: Vec<B256> = rpc.batch_all("eth_sendRawTransaction", &params).await?;
        }
        let mut batch = 0;
        for signed in &sent {
            batch = mined(&rpc, signed.hash).await?;
        }
        let heavy = sent.get(ballast.heavy / 2).filter(|_| ballast.heavy > 0);
        let heavy = match heavy {
            Some(signed) => mined(&rpc, signed.hash).await?,
            None => batch,
        };
        // Empty batches come once a second; transactions make batches come faster. The first transactions end an epoch
        // each, with unchanged validators.
        let deadline = Instant::now() + HEAD_DEADLINE;
        let owner = self.devnet.owner();
        for nonce in 0.. {
            if nonce >= ballast.epochs && rpc.head().await? >= ballast.batches {
                break;
            }
            let signed = if nonce < ballast.epochs {
                self.money.sign(&owner, nonce, 1, no_failures())
            } else {
                make(0, Call::transfer(Address::repeat_byte(0xee)))
            };
            let _: B256 = rpc.call("eth_sendRawTransaction", json!([signed.raw])).await?;
            mined(&rpc, signed.hash).await?;
            let batches = ballast.batches;
            anyhow::ensure!(Instant::now() < deadline, "the chain did not reach batch {batches} in time");
        }
        Ok(heavy)
    }
}

/// Returns the owner's call that ends an epoch and changes nothing: it sets the tolerated failures to zero.
fn no_failures() -> Call {
    let selector = &keccak256("setFailures(uint256,uint256)")[..4];
    let input = [selector, &[0; 64]].concat().into();
    let (to, value) = (validators_contract::ADDRESS.into(), U256::ZERO);
    Call { to, value, gas_limit: 200_000, input }
}

async fn money(rpc: &Rpc) -> Result<SigningParameters> {
    let chain_id = quantity(&rpc.call("eth_chainId", json!([])).await?)?;
    let block: Value = rpc.call("eth_getBlockByNumber", json!(["latest", false])).await?;
    Ok(SigningParameters { chain_id, base_fee_wei: quantity(&block["baseFeePerGas"])? })
}

/// Waits for a transaction, and returns its batch.
async fn mined(rpc: &Rpc, hash: B256) -> Result<u64> {
    let deadline = Instant::now() + HEAD_DEADLINE;
    loop {
        let receipt: Value = rpc.call("eth_getTransactionReceipt", json!([hash])).await?;
        if !receipt.is_null() {
            return quantity(&receipt["blockNumber"]);
        }
        if Instant::now() > deadline {
            bail!("transaction {hash} of the siege's ballast was not committed in time");
        }
        tokio::time::sleep(POLL / 2).await;
    }
}
