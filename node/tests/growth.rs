//! The cost of a batch for a node, measured by counters, must not grow with unrelated things. These are the accounts of
//! the genesis, earlier batches and epochs, waiting transactions in the pool, and listeners.
//!
//! A single test, because the counters belong to the process. With `SLIPSTREAM_GROWTH=full` in its environment it uses
//! the sizes of a large chain, and takes minutes.

#![allow(clippy::unwrap_used)] // a panic is how a test fails

use std::{
    alloc::{GlobalAlloc, Layout, System},
    collections::BTreeMap,
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use alloy_primitives::{TxKind, hex};
use futures::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use slipstream_base::{Log, genesis_file, keys};
use slipstream_config::Overrides;
use slipstream_node::Node;
use slipstream_testkit::Wallet;
use slipstream_types::{
    Address, Bytes, ChainConfig, Genesis, U256, genesis::GenesisAccount, keccak256, validators_contract,
};
use tokio_tungstenite::{WebSocketStream, client_async, tungstenite::Message};

/// Counts the bytes that this process allocates, and never subtracts.
struct Counting;

static ALLOCATED_BYTES: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is delegated to the system's allocator.
#[allow(unsafe_code, reason = "an allocator that counts")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED_BYTES.fetch_add(layout.size() as u64, Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATED_BYTES.fetch_add(size as u64, Relaxed);
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The longest time that a node lets a caller wait for a receipt.
const PATIENCE_MS: u64 = 20_000;
/// Batches that are measured together, and the number of measurements: other activity in the process only adds, so the
/// least counts.
const WINDOW: u64 = 20;
const WINDOWS: usize = 3;
/// How often measurements are repeated if a batch seems to cost more: the node also measures its machine once, for some
/// seconds.
const ATTEMPTS: usize = 10;
/// How much more a batch may cost when unrelated things grow.
const GROWTH_MAX: f64 = 1.1;
const CHAIN_ID: u64 = 7_357;
/// Waiting transactions of one sender: a pool accepts few more. Waiting transactions may take a quarter of the pool.
const WAITING_OF_ONE: usize = 4_000;
const SUBSCRIPTIONS_OF_ONE: usize = 8;

/// The sizes of things that a batch does not involve.
struct Sizes {
    /// Accounts of a large genesis.
    accounts: u64,
    /// Batches that each end an epoch, and batches after them.
    epochs: u64,
    batches: u64,
    /// Transactions that wait for an earlier one, and subscriptions to logs that never occur.
    waiting: usize,
    subscriptions: usize,
}

const SHORT: Sizes =
    Sizes { accounts: 100_000, epochs: 300, batches: 1_500, waiting: 8_000, subscriptions: 400 };
const FULL: Sizes =
    Sizes { accounts: 500_000, epochs: 1_000, batches: 20_000, waiting: 24_000, subscriptions: 1_000 };

/// The sizes that the environment selects.
fn sizes() -> Sizes {
    match std::env::var("SLIPSTREAM_GROWTH").as_deref() {
        Ok("full") => FULL,
        Err(_) => SHORT,
        Ok(other) => panic!("SLIPSTREAM_GROWTH={other}: it may be `full`"),
    }
}

/// The wallets of the waiting transactions.
fn waiting_wallets() -> impl Iterator<Item = Wallet> {
    let count = u8::try_from(FULL.waiting / WAITING_OF_ONE).unwrap();
    (0..count).map(|index| Wallet::new(3 + index, CHAIN_ID, 21_000))
}

/// The cost of a batch of one transfer, averaged over a window.
#[derive(Clone, Copy, Debug)]
struct Cost {
    allocated_bytes: f64,
    keys_read: f64,
    blocks_read: f64,
    syncs: f64,
}

impl Cost {
    fn figures(self) -> [(&'static str, f64); 4] {
        [
            ("bytes allocated", self.allocated_bytes),
            ("keys read", self.keys_read),
            ("blocks read", self.blocks_read),
            ("syncs", self.syncs),
        ]
    }

    fn least(self, other: Cost) -> Cost {
        Cost {
            allocated_bytes: self.allocated_bytes.min(other.allocated_bytes),
            keys_read: self.keys_read.min(other.keys_read),
            blocks_read: self.blocks_read.min(other.blocks_read),
            syncs: self.syncs.min(other.syncs),
        }
    }

    /// Describes the first figure that has grown.
    fn growth(self, little: Cost) -> Option<String> {
        let pairs = self.figures().into_iter().zip(little.figures());
        // A single occurrence in a window is chance.
        let grown = |before: f64, found: f64| found > before * GROWTH_MAX + 2.0 / WINDOW as f64;
        let mut all = pairs.filter(|((_, found), (_, before))| grown(*before, *found));
        all.next().map(|((name, found), (_, before))| {
            format!("a batch costs {found} {name}, and {before} with little of it")
        })
    }
}

/// A chain of one validator in this process, which produces a batch only for a transaction, and at once.
struct Chain {
    node: Node,
    api: SocketAddr,
    sender: Wallet,
    owner: Wallet,
    _dir: tempfile::TempDir,
}

impl Chain {
    async fn start(accounts: u64) -> Chain {
        let dir = tempfile::tempdir().unwrap();
        let key = slipstream_testkit::key(7);
        let [sender, owner] = [1, 2].map(|seed| Wallet::new(seed, CHAIN_ID, 200_000));
        let rich =
            GenesisAccount { balance: U256::from(10).pow(U256::from(20)), ..GenesisAccount::default() };
        let others = (0..accounts).map(|index| Address::from_slice(&keccak256(index.to_be_bytes())[..20]));
        let waiting = waiting_wallets().map(|wallet| wallet.address());
        let all = others.chain(waiting).chain([sender.address(), owner.address()]);
        let genesis = Genesis {
            chain: ChainConfig::default(),
            timestamp_ms: 1_700_000_000_000,
            validators: slipstream_testkit::members(std::slice::from_ref(&key), Address::repeat_byte(9)),
            accounts: all.map(|address| (address, rich.clone())).collect::<BTreeMap<_, _>>(),
            ..Genesis::default()
        };
        let genesis = genesis.with_validators_contract(owner.address(), 0).unwrap();
        genesis_file::save(&dir.path().join("genesis.json"), &genesis).unwrap();
        keys::save(&dir.path().join("node.key"), &key).unwrap();
        let path = dir.path().join("node.yaml");
        let text = "role: validator\ngenesis: genesis.json\nnetwork: { listen: \"127.0.0.1:0\" }\napi: { listen: \"127.0.0.1:0\" }\n\
                    consensus: { batch_interval_ms: 0, empty_batch_interval_ms: 0 }\n";
        fs::write(&path, text).unwrap();
        let config = slipstream_config::load(&path, &Overrides::default()).unwrap().config;
        let log = Log::open(&config.log).unwrap();
        let node = Node::start(&config, log).await.unwrap();
        let api = node.api_address();
        Chain { node, api, sender, owner, _dir: dir }
    }

    fn http(&self, request: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(self.api).unwrap();
        let length = body.len();
        let head =
            format!("{request} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {length}");
        stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split_once("\r\n\r\n").unwrap().1.to_owned()
    }

    fn rpc(&self, method: &str, params: Value) -> Value {
        let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let answer: Value = serde_json::from_str(&self.http("POST /", &request.to_string())).unwrap();
        assert!(answer.get("error").is_none(), "{method}: {answer}");
        answer["result"].clone()
    }

    fn head(&self) -> u64 {
        let head = self.rpc("eth_blockNumber", json!([]));
        u64::from_str_radix(head.as_str().unwrap().trim_start_matches("0x"), 16).unwrap()
    }

    /// Sends a transaction, which gets its own batch.
    fn commit(&self, raw: Vec<u8>) {
        let receipt = self.rpc("eth_sendRawTransactionSync", json!([hex::encode_prefixed(raw), PATIENCE_MS]));
        assert_eq!(receipt["status"], "0x1", "{receipt}");
    }

    fn transfer(&mut self) {
        let raw = self.sender.sign(TxKind::Call(Address::repeat_byte(8)), 1, Bytes::new());
        self.commit(raw);
    }

    /// Commits a batch in which the owner again sets the failures to zero, which ends the epoch.
    fn end_epoch(&mut self) {
        let input = [&keccak256("setFailures(uint256,uint256)")[..4], &[0; 64]].concat();
        let raw = self.owner.sign(TxKind::Call(validators_contract::ADDRESS), 0, input.into());
        self.commit(raw);
    }

    fn metric(&self, name: &str) -> f64 {
        let metrics = self.http("GET /metrics", "");
        let line = metrics.lines().find_map(|line| line.strip_prefix(&format!("slipstream_{name} ")));
        line.unwrap_or_else(|| panic!("there is no {name}")).parse().unwrap()
    }

    fn counters(&self) -> [f64; 3] {
        ["storage_keys_read_total", "storage_blocks_read_total", "storage_syncs_total"]
            .map(|name| self.metric(name))
    }

    /// The cost of a batch of one transfer.
    fn cost(&mut self) -> Cost {
        let mut window = || {
            let (before, begun) = (self.counters(), ALLOCATED_BYTES.load(Relaxed));
            (0..WINDOW).for_each(|_| self.transfer());
            let (ended, after) = (ALLOCATED_BYTES.load(Relaxed), self.counters());
            let [keys_read, blocks_read, syncs] =
                std::array::from_fn(|index| (after[index] - before[index]) / WINDOW as f64);
            let allocated_bytes = (ended - begun) as f64 / WINDOW as f64;
            Cost { allocated_bytes, keys_read, blocks_read, syncs }
        };
        // The first batches fill caches.
        window();
        (0..WINDOWS).map(|_| window()).reduce(Cost::least).unwrap()
    }

    /// Asserts that a batch costs no more than with little of `what`.
    async fn assert_costs(&mut self, little: Cost, what: &str) {
        let mut found = tokio::task::block_in_place(|| self.cost());
        for _ in 0..ATTEMPTS {
            if found.growth(little).is_none() {
                break;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
            found = found.least(tokio::task::block_in_place(|| self.cost()));
        }
        assert_eq!(found.growth(little), None, "{what}");
    }

    /// Fills the pool with transactions whose nonces follow a missing one.
    fn fill_pool(&self, waiting: usize) {
        for mut wallet in waiting_wallets().take(waiting / WAITING_OF_ONE) {
            let _missing = wallet.sign(TxKind::Call(Address::ZERO), 0, Bytes::new());
            for _ in 0..WAITING_OF_ONE / 100 {
                let signed = (0..100).map(|id| {
                    let raw = wallet.sign(TxKind::Call(Address::ZERO), 0, Bytes::new());
                    let params = json!([hex::encode_prefixed(raw)]);
                    json!({ "jsonrpc": "2.0", "id": id, "method": "eth_sendRawTransaction", "params": params })
                });
                let answer = self.http("POST /", &Value::from_iter(signed).to_string());
                assert!(!answer.contains("error"), "{answer}");
            }
        }
        let status = self.rpc("txpool_status", json!([]));
        assert_eq!(status["queued"], json!(format!("{waiting:#x}")), "{status}");
    }

    /// Opens sockets that wait for logs which never occur.
    async fn listen(&self, subscriptions: usize) -> Vec<WebSocketStream<tokio::net::TcpStream>> {
        let mut sockets = Vec::new();
        for socket in 0..subscriptions / SUBSCRIPTIONS_OF_ONE {
            let stream = tokio::net::TcpStream::connect(self.api).await.unwrap();
            let (mut opened, _) = client_async(format!("ws://{}/ws", self.api), stream).await.unwrap();
            for id in 0..SUBSCRIPTIONS_OF_ONE {
                let address = Address::left_padding_from(&(socket * SUBSCRIPTIONS_OF_ONE + id).to_be_bytes());
                let params = json!(["logs", { "address": address }]);
                let request =
                    json!({ "jsonrpc": "2.0", "id": id, "method": "eth_subscribe", "params": params });
                opened.send(Message::text(request.to_string())).await.unwrap();
                // The node also sends pings.
                let answer = loop {
                    if let Message::Text(answer) = opened.next().await.unwrap().unwrap() {
                        break answer;
                    }
                };
                assert!(answer.contains("result"), "{answer}");
            }
            sockets.push(opened);
        }
        sockets
    }
}

/// Goal: a batch of one transfer costs the same with many accounts, epochs, batches, waiting transactions and
/// subscriptions as with few.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_costs_what_it_costs_on_a_small_chain() {
    let Sizes { accounts, epochs, batches, waiting, subscriptions } = sizes();
    let mut chain = Chain::start(0).await;
    let little = tokio::task::block_in_place(|| chain.cost());
    let sockets = chain.listen(subscriptions).await;
    let listeners = || tokio::task::block_in_place(|| chain.metric("ws_subscriptions{kind=\"logs\"}"));
    // A subscription counts once its answer is on its way, which is after the answer is made.
    let all = async {
        while listeners() != subscriptions as f64 {
            tokio::task::yield_now().await
        }
    };
    tokio::time::timeout(Duration::from_secs(20), all).await.expect("all subscriptions count");
    chain.assert_costs(little, "subscriptions").await;
    drop(sockets);
    tokio::task::block_in_place(|| {
        (0..epochs).for_each(|_| chain.end_epoch());
        assert_eq!(chain.metric("epoch"), epochs as f64);
        (chain.head()..batches).for_each(|_| chain.transfer());
    });
    chain.assert_costs(little, "batches and epochs").await;
    tokio::task::block_in_place(|| chain.fill_pool(waiting));
    chain.assert_costs(little, "waiting transactions").await;
    chain.node.stop().await.unwrap();
    let mut large = Chain::start(accounts).await;
    large.assert_costs(little, "accounts of the genesis").await;
    large.node.stop().await.unwrap();
}
