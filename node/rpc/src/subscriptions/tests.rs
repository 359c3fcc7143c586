//! Tests of the news of subscriptions, over chains of crafted batches and without a socket.

use std::net::Ipv4Addr;

use alloy_primitives::B256;
use prometheus::{IntCounterVec, IntGaugeVec, Opts};
use serde_json::{Value, json};
use slipstream_executor::Transaction;
use slipstream_fair::Origin;
use slipstream_types::BatchNumber;

use super::{watch::BEHIND_MAX, *};
use crate::{
    Lane,
    batches::{BatchParts, Reader},
    fixture::{context, long_raw_at, raw_at},
    logs::tests::{commit, log},
    tests::loose,
};

const MUCH: usize = 1 << 20;

/// A socket without a connection.
struct Socket {
    context: Arc<RpcContext>,
    subscriptions: Arc<Subscriptions>,
    tallies: Tallies,
    bodies: u64,
}

fn tallies() -> Tallies {
    Tallies {
        subscriptions: IntGaugeVec::new(Opts::new("subscriptions", "help"), &["kind"]).unwrap(),
        notifications: IntCounterVec::new(Opts::new("notifications", "help"), &["kind"]).unwrap(),
    }
}

impl Socket {
    fn new() -> Socket {
        Socket::of(&Arc::new(context()))
    }

    fn of(context: &Arc<RpcContext>) -> Socket {
        let (context, tallies) = (context.clone(), tallies());
        let owner = Origin::V4(Ipv4Addr::new(192, 0, 2, 1));
        let subscriptions = Subscriptions::new(owner, context.feed.clone(), tallies.clone());
        Socket { context, subscriptions, tallies, bodies: 0 }
    }

    /// Subscribes, and leaves open whether the answer is sent.
    fn made(&mut self, params: Value) -> Result<PendingSubscription, (i32, String)> {
        self.bodies += 1;
        let listening = SubscriberSocket::new(self.subscriptions.clone(), self.bodies);
        let (leash, text) = (loose(), params.to_string());
        let asker = CallContext {
            origin: Origin::Trusted,
            leash: &leash,
            lane: Lane::Reads,
            listening: Some(&listening),
        };
        match subscribe(&self.context, &Params::new(Some(&text)), &asker) {
            (Ok(id), Some(Effect::Subscription(begun))) => {
                assert_eq!(id, U128::from(begun.id()));
                Ok(begun)
            }
            (Err(error), None) => Err((error.code(), error.message().to_owned())),
            _ => panic!("{text}"),
        }
    }

    fn subscribe(&mut self, params: Value) -> u128 {
        let begun = self.made(params).unwrap();
        let id = begun.id();
        begun.told();
        self.subscriptions.activate(self.bodies);
        id
    }

    fn commit(&self, transactions: &[Vec<slipstream_types::Log>]) {
        commit(&self.context.store, transactions);
        self.context.feed.advance(&self.context);
    }

    fn send(&self, nonce: u64) -> Transaction {
        let transaction = Transaction::decode(&raw_at(nonce), &self.context.chain).unwrap();
        self.context.pool.add(transaction.clone()).unwrap();
        self.context.feed.advance(&self.context);
        transaction
    }

    /// The news that needs no thread.
    fn kept(&self) -> Vec<(u128, Value)> {
        told(&self.subscriptions.step(MUCH).unwrap())
    }

    /// All news, in steps of at most `bytes_max` bytes, and how many of the steps needed a thread.
    fn told_by(&self, bytes_max: usize) -> (Vec<(u128, Value)>, usize) {
        let (mut all, mut worked) = (Vec::new(), 0);
        loop {
            let step = self.subscriptions.step(bytes_max).unwrap();
            all.extend(told(&step));
            if step.needs.is_some() {
                let step = self.subscriptions.work(&self.context, &loose(), bytes_max).unwrap();
                all.extend(told(&step));
                worked += 1;
            } else if !step.is_full {
                return (all, worked);
            }
        }
    }

    fn told(&self) -> Vec<(u128, Value)> {
        self.told_by(MUCH).0
    }
}

fn told(step: &NewsStep) -> Vec<(u128, Value)> {
    let read = |notice: &Notice| {
        let message: Value = serde_json::from_str(&notice.text()).unwrap();
        assert_eq!((&message["jsonrpc"], &message["method"]), (&json!("2.0"), &json!("eth_subscription")));
        assert_eq!(message["params"]["subscription"], json!(U128::from(notice.id)));
        (notice.id, message["params"]["result"].clone())
    };
    step.notices.iter().map(read).collect()
}

fn numbers(told: &[(u128, Value)], field: &str) -> Vec<u64> {
    let number = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap();
    told.iter().map(|(_, result)| number(result[field].as_str().unwrap())).collect()
}

/// Goal: each batch produces one head, in order and without a gap, one by one or many at once. The head is the block's
/// header.
#[test]
fn every_batch_gives_one_head_in_order() {
    let mut socket = Socket::new();
    socket.commit(&[]);
    let id = socket.subscribe(json!(["newHeads"]));
    assert!(socket.told().is_empty(), "what was there before is not news");
    socket.commit(&[vec![log(1, &[2], 3)]]);
    let first = socket.kept();
    assert_eq!((first[0].0, numbers(&first, "number")), (id, vec![2]));
    let batch =
        socket.context.batches.get(BatchNumber::new(2), BatchParts::Both, Reader::NODE).unwrap().unwrap();
    let block = crate::blocks::to_block(&socket.context.chain, &batch, false, &loose()).unwrap();
    let block = serde_json::to_value(block).unwrap();
    let head = first[0].1.as_object().unwrap();
    assert!(head.len() > 15 && head.iter().all(|(field, value)| block[field] == *value), "{head:?}");
    assert!(["transactions", "uncles", "size", "withdrawals"].iter().all(|field| head.get(*field).is_none()));

    // More batches at once than are kept: the first heads are rebuilt on a thread.
    for _ in 3..=303 {
        commit(&socket.context.store, &[]);
    }
    socket.context.feed.advance(&socket.context);
    let (rest, worked) = socket.told_by(64 << 10);
    assert_eq!(numbers(&rest, "number"), (3..=303).collect::<Vec<_>>());
    let empty = json!(alloy_consensus::EMPTY_ROOT_HASH);
    assert!(rest.iter().all(|(_, head)| head["transactionsRoot"] == empty), "they have no transactions");
    assert!(worked > 0);
    assert!(socket.told().is_empty());
}

/// Goal: a reader that falls behind is notified, even when its queue is full, and until then it gets everything.
#[test]
fn who_falls_behind_is_told() {
    let mut socket = Socket::new();
    socket.subscribe(json!(["newHeads"]));
    for _ in 0..BEHIND_MAX {
        commit(&socket.context.store, &[]);
    }
    socket.commit(&[]);
    let step = socket.subscriptions.step(0).unwrap();
    assert!(step.is_full && step.notices.is_empty() && step.needs.is_none());
    socket.commit(&[]);
    let lost = socket.subscriptions.step(0).err().unwrap();
    assert!(matches!(lost, SubscriptionError::Behind(1_025)), "{lost}");
    assert!(lost.to_string().starts_with("you are 1025 batches behind"), "{lost}");
}

/// Goal: the logs are those that eth_getLogs finds in the new batches, each once and in order, however little room
/// there is.
#[test]
fn logs_are_told_once_and_in_parts() {
    let mut socket = Socket::new();
    let many: Vec<_> = (0..700).map(|number| log(1 + (number % 2) as u8, &[5], 10)).collect();
    socket.commit(std::slice::from_ref(&many));
    let id = socket.subscribe(json!(["logs", { "address": alloy_primitives::Address::repeat_byte(1) }]));
    let all = socket.subscribe(json!(["logs"]));
    let none = socket.subscribe(json!(["logs", { "topics": [B256::repeat_byte(9)] }]));
    socket.commit(&[vec![log(2, &[5], 1)]]);
    socket.commit(&[many.clone(), many]);
    socket.commit(&[]);
    let (told, worked) = socket.told_by(1);
    let of = |id: u128| told.iter().filter(|one| one.0 == id).cloned().collect::<Vec<_>>();
    assert_eq!(numbers(&of(id), "logIndex"), (0..1_400).step_by(2).collect::<Vec<_>>());
    assert!(of(id).iter().all(|(_, log)| log["blockNumber"] == "0x3" && log["removed"] == false));
    assert_eq!(numbers(&of(all), "logIndex"), std::iter::once(0).chain(0..1_400).collect::<Vec<_>>());
    assert!(of(none).is_empty() && worked > 5, "{worked}");
    assert_eq!(socket.tallies.notifications.with_label_values(&["logs"]).get(), told.len() as u64);
}

/// Goal: logs that one subscriber searched for are cached for others with the same criteria. A batch that cannot match
/// needs no search.
#[test]
fn what_was_searched_is_shared() {
    let (mut first, filter) =
        (Socket::new(), json!(["logs", { "topics": [[B256::repeat_byte(5), B256::repeat_byte(6)]] }]));
    let mut second = Socket::of(&first.context);
    first.subscribe(filter);
    second.subscribe(json!(["logs", { "topics": [[B256::repeat_byte(6), B256::repeat_byte(5)]] }]));
    first.commit(&[vec![log(1, &[5], 1), log(1, &[7], 1), log(1, &[6], 1)]]);
    let (told, worked) = first.told_by(MUCH);
    assert_eq!((told.len(), worked), (2, 1));
    let kept = second.kept();
    assert!(kept.iter().map(|one| &one.1).eq(told.iter().map(|one| &one.1)));
    first.commit(&[vec![log(1, &[7], 1)]]);
    assert_eq!(first.told_by(MUCH), (vec![], 0));
}

/// Goal: block numbers in a filter apply to future batches, and a filter with an impossible range is refused.
#[test]
fn ranges_of_logs() {
    let mut socket = Socket::new();
    let range = json!({ "fromBlock": "0x2", "toBlock": "0x3", "includeRemoved": true });
    let ranged = socket.subscribe(json!(["logs", range]));
    (1..=5).for_each(|_| socket.commit(&[vec![log(1, &[], 1)]]));
    let told = socket.told();
    assert!(told.iter().all(|one| one.0 == ranged));
    assert_eq!(numbers(&told, "blockNumber"), [2, 3]);
    let topics: Vec<_> =
        (0..1_001_u64).map(|topic| B256::from(alloy_primitives::U256::from(topic))).collect();
    for (filter, text) in [
        (json!({ "blockHash": B256::ZERO }), "a subscription takes no blockHash"),
        (json!({ "fromBlock": "0x7", "toBlock": "0x6" }), "invalid block range params"),
        (json!({ "fromBlock": "pending" }), "pending logs are not supported"),
        (json!({ "address": B256::ZERO }), "invalid argument 1"),
        (json!({ "topics": [[], [], [], [], []] }), "exceed max topics"),
        (json!({ "topics": [topics] }), "exceed max addresses or topics"),
    ] {
        let (_, refused) = socket.made(json!(["logs", filter])).err().unwrap();
        assert!(refused.starts_with(text), "{refused}");
    }
}

/// Goal: transactions that reach the pool are sent by hash or in full, formatted once for all, even after they left the
/// pool.
#[test]
fn pending_transactions() {
    let mut first = Socket::new();
    let mut second = Socket::of(&first.context);
    let hashes = first.subscribe(json!(["newPendingTransactions"]));
    let whole = first.subscribe(json!(["newPendingTransactions", true]));
    second.subscribe(json!(["newPendingTransactions", true]));
    second.subscribe(json!(["newPendingTransactions", false]));
    let sent = first.send(1);
    first.context.pool.reject([&sent.hash]);
    assert!(first.context.pool.get(&sent.hash).is_none());
    let (told, worked) = first.told_by(MUCH);
    assert_eq!(worked, 0, "whoever tells has written it");
    let of = |id: u128| &told.iter().find(|one| one.0 == id).unwrap().1;
    assert_eq!(of(hashes), &json!(sent.hash));
    assert_eq!((&of(whole)["hash"], &of(whole)["from"]), (&json!(sent.hash), &json!(sent.sender)));
    assert_eq!(of(whole)["blockNumber"], Value::Null);
    assert_eq!(second.kept().len(), 2, "nothing is written again");
    assert!(first.told().is_empty() && second.told().is_empty());
}

/// Goal: sockets send transactions and start to listen while another thread holds the pool's lock: a low-priority
/// thread neither waits for it nor holds it.
#[test]
fn sockets_do_not_touch_the_pool() {
    let mut socket = Socket::new();
    socket.subscribe(json!(["newPendingTransactions"]));
    socket.subscribe(json!(["newPendingTransactions", true]));
    let sent = socket.send(1);
    let pool = socket.context.pool.clone();
    let (mut waiting, mut heard) = (Some(socket), None);
    // The pool draws the hashes while it holds its lock.
    pool.reject(std::iter::from_fn(|| {
        let mut socket = waiting.take()?;
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let news = socket.kept();
            socket.subscribe(json!(["newPendingTransactions"]));
            tell.send((socket, news)).unwrap();
        });
        heard = told.recv_timeout(std::time::Duration::from_secs(120)).ok();
        None
    }));
    let (socket, news) = heard.expect("nothing was told while the lock was held");
    let hashes = news.iter().map(|(_, news)| news.get("hash").unwrap_or(news).clone());
    assert_eq!(hashes.collect::<Vec<_>>(), [json!(sent.hash), json!(sent.hash)]);
    assert!(socket.told().is_empty(), "what was there before is not news");
}

/// Goal: a subscriber whose position has left the ring is notified, however little room it has for news.
#[test]
fn who_misses_transactions_is_told() {
    let mut socket = Socket::new();
    socket.subscribe(json!(["newPendingTransactions"]));
    socket.send(1);
    socket.context.feed.pending.lose(u64::MAX / 2);
    let lost = socket.subscriptions.step(MUCH).err().unwrap();
    assert!(matches!(lost, SubscriptionError::Arrivals), "{lost}");
}

/// Goal: transactions so long that the pool keeps few of them in full disconnect only listeners for full transactions,
/// not those for hashes.
#[test]
fn long_transactions_close_no_listener_of_hashes() {
    let mut socket = Socket::new();
    let mut other = Socket::of(&socket.context);
    socket.subscribe(json!(["newPendingTransactions"]));
    other.subscribe(json!(["newPendingTransactions", true]));
    let add = |nonce| {
        let transaction = Transaction::decode(&long_raw_at(nonce), &socket.context.chain).unwrap();
        socket.context.pool.add(transaction.clone()).unwrap();
        json!(transaction.hash)
    };
    let sent: Vec<Value> = (1..=60).map(add).collect();
    assert!(socket.context.pool.arrived_whole_since(0, 60).is_none(), "some are gone");
    socket.context.feed.advance(&socket.context);
    let hashes = |told: Vec<(u128, Value)>| told.into_iter().map(|(_, hash)| hash).collect::<Vec<_>>();
    assert_eq!(hashes(socket.told()), sent);
    assert!(matches!(other.subscriptions.step(MUCH).err(), Some(SubscriptionError::Arrivals)));
    let next = socket.send(61);
    assert_eq!(hashes(socket.told()), [json!(next.hash)]);
}

/// Goal: however many transactions wait, and however long they are, a step exceeds its limit by at most one, cached or
/// not.
#[test]
fn whole_transactions_come_as_there_is_room() {
    let mut first = Socket::new();
    let mut second = Socket::of(&first.context);
    first.subscribe(json!(["newPendingTransactions", true]));
    second.subscribe(json!(["newPendingTransactions", true]));
    let sent: Vec<_> = (1..5).map(|nonce| json!(first.send(nonce).hash)).collect();
    let step = first.subscriptions.work(&first.context, &loose(), 1).unwrap();
    assert_eq!((step.notices.len(), step.is_full), (1, true));
    let rest = first.told();
    assert!(told(&step).iter().chain(&rest).map(|one| &one.1["hash"]).eq(&sent));
    let step = second.subscriptions.step(1).unwrap();
    assert_eq!((step.notices.len(), step.is_full), (1, true));
    assert_eq!(second.kept().len(), sent.len() - 1);
}

#[test]
fn progress_is_told_when_it_changes() {
    let mut socket = Socket::new();
    socket.subscribe(json!(["syncing"]));
    socket.commit(&[]);
    let told = socket.told();
    assert_eq!(told.len(), 1);
    assert!(told[0].1 == json!(false) || told[0].1["syncing"] == true, "{told:?}");
    socket.commit(&[]);
    assert!(socket.told().is_empty());
}

/// Goal: news of a subscription follows its answer in the queue, and a subscription whose answer was lost never starts.
#[test]
fn an_answer_comes_before_what_it_began() {
    let mut socket = Socket::new();
    let (first, lost) =
        (socket.made(json!(["newHeads"])).unwrap(), socket.made(json!(["newHeads"])).unwrap());
    let gauge = socket.tallies.subscriptions.with_label_values(&["newHeads"]);
    assert_eq!(gauge.get(), 2);
    drop(lost);
    assert_eq!(gauge.get(), 1);
    socket.commit(&[]);
    assert!(socket.told().is_empty());
    first.told();
    socket.subscriptions.activate(2);
    assert!(socket.told().is_empty(), "that was another body");
    socket.subscriptions.activate(1);
    assert_eq!(numbers(&socket.told(), "number"), [1], "and nothing is missed");
}

/// Goal: the subscriptions of a socket, and the criteria of all sockets, are bounded; a subscription that ends frees
/// its place.
#[test]
fn subscriptions_are_bounded() {
    let mut socket = Socket::new();
    let of_kind = |socket: &mut Socket, kind: &str| {
        let made = std::iter::from_fn(|| socket.made(json!([kind])).ok());
        let told = made.map(|begun| {
            let id = begun.id();
            begun.told();
            id
        });
        told.collect::<Vec<_>>()
    };
    assert_eq!(of_kind(&mut socket, "newHeads").len(), 8);
    let ids = of_kind(&mut socket, "logs");
    assert_eq!(ids.len(), 256 - 8);
    for kind in ["logs", "syncing", "newHeads"] {
        let (code, text) = socket.made(json!([kind])).err().unwrap();
        assert!(
            code == -32005 && text.starts_with("too many subscriptions: one connection may have 256"),
            "{text}"
        );
    }
    assert!(socket.subscriptions.remove_all(&ids[..1]));
    socket.subscribe(json!(["syncing"]));
    socket.subscriptions.remove_all(&ids);

    let addresses: Vec<_> = (0..1_000_u32).map(|number| format!("0x{number:040x}")).collect();
    let wide = json!(["logs", { "address": addresses }]);
    let begun: Vec<_> = std::iter::from_fn(|| socket.made(wide.clone()).ok()).take(1_000).collect();
    assert!((30..256).contains(&begun.len()), "a third of what strangers have: {}", begun.len());
    let (code, text) = socket.made(wide.clone()).err().unwrap();
    assert!(code == -32005 && text.starts_with("too many subscriptions on this node"), "{code} {text}");
    let no_filter = json!(["logs", { "address": "x".repeat(68_000) }]);
    let (code, text) = socket.made(no_filter).err().unwrap();
    assert_eq!(code, -32005, "it is not even read: {text}");
    drop(begun);
    assert!(socket.made(wide).is_ok());
}

/// Goal: a node without bodies refuses a subscription to logs at once, instead of disconnecting the socket at the first
/// transaction.
#[test]
fn who_keeps_no_receipts_tells_of_no_logs() {
    let keeps = crate::Keeps { bodies: false, places: false };
    let mut socket = Socket::of(&Arc::new(RpcContext { keeps, ..context() }));
    let (code, text) = socket.made(json!(["logs", {}])).err().unwrap();
    assert!(code == 4444 && text.contains("`sync.history`"), "{code} {text}");
    for kind in ["newHeads", "newPendingTransactions", "syncing"] {
        assert!(socket.made(json!([kind])).is_ok(), "{kind}");
    }
}

/// Goal: names, and the errors that clients match.
#[test]
fn names_and_errors() {
    let mut socket = Socket::new();
    for (params, code, text) in [
        (json!(["newBlocks"]), -32601, "no \"newBlocks\" subscription in eth namespace"),
        (json!([]), -32602, "expected subscription name as first argument"),
        (json!({}), -32602, "non-array args"),
        (json!(["newHeads", {}]), -32602, "too many arguments, want at most 1"),
        (
            json!(["newPendingTransactions", 1]),
            -32602,
            "invalid argument 1: invalid type: integer `1`, expected a boolean",
        ),
    ] {
        assert_eq!(socket.made(params).err().unwrap(), (code, text.to_owned()));
    }
    let (leash, context) = (loose(), context());
    let over_http =
        CallContext { origin: Origin::Trusted, leash: &leash, lane: Lane::Reads, listening: None };
    let (refused, _) = subscribe(&context, &Params::new(Some(r#"["newHeads"]"#)), &over_http);
    let refused = refused.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (-32001, "notifications not supported"));

    let id = socket.subscribe(json!(["newHeads"]));
    let listening = SubscriberSocket::new(socket.subscriptions.clone(), 0);
    let asker = CallContext { listening: Some(&listening), ..over_http };
    let end = |text: String| unsubscribe(&context, &Params::new(Some(&json!([text]).to_string())), &asker);
    assert!(end(format!("0x{id:x}")).unwrap());
    for unknown in [format!("0x{id:x}"), "7".into(), String::new()] {
        let refused = end(unknown).unwrap_err();
        assert_eq!((refused.code(), refused.message()), (-32000, "subscription not found"));
    }
}

impl Subscriptions {
    fn remove_all(self: &Arc<Self>, ids: &[u128]) -> bool {
        let listening = SubscriberSocket::new(self.clone(), 0);
        ids.iter().fold(true, |all, id| all & listening.end(*id))
    }
}
