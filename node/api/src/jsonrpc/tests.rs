//! Bodies and their answers, over a chain with only its genesis.

use std::{
    fs::File,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
};

use serde_json::{Value, json};
use slipstream_consensus::{Disk, Journal, PoolConfig, SystemDisk};
use slipstream_fair::Quota;
use slipstream_rpc::{
    SubscriberSocket, Subscriptions, Tallies,
    fixture::{ZEROS, commit_bomb, context, context_of, raw, raw_at},
};

use super::{
    bodies::{CHEAP_BODIES_MAX, CHEAP_REQUESTS_MAX},
    *,
};

fn server() -> JsonRpc {
    JsonRpc::new(context(), Arc::new(Metrics::new().unwrap()))
}

/// The place of a cheap body.
fn short(server: &JsonRpc) -> BodyPlace<'_> {
    BodyPlace::new(&server.over_http, Weight::Short, Box::new(|_| Ok(None)))
}

async fn answer(server: &JsonRpc, body: &str) -> Value {
    let answer = server.handle(Origin::Trusted, || {}, body.as_bytes()).await;
    answer.map_or(Value::Null, |bytes| serde_json::from_slice(&bytes).unwrap())
}

fn call(id: Value, method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
}

#[tokio::test]
async fn arrays_up_to_a_thousand() {
    let server = server();
    let many = |count: u64| {
        Value::from_iter((0..count).map(|id| call(id.into(), "eth_chainId", json!([])))).to_string()
    };
    let answers = answer(&server, &many(1_000)).await;
    let answers = answers.as_array().unwrap();
    assert!(answers.iter().map(|answer| answer["id"].as_u64().unwrap()).eq(0..1_000));
    assert!(answers.iter().all(|answer| answer["result"] == "0x1cbd"));
    let refused = answer(&server, &many(1_001)).await;
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&Value::Null, &json!(-32600)));
    assert!(refused["error"]["message"].as_str().unwrap().starts_with("batch too large: 1001 requests"));
    let empty = answer(&server, "[]").await;
    assert_eq!(empty["error"], json!({ "code": -32600, "message": "empty batch" }));
}

/// Goal: an array whose answers exceed the limit gets those that fit, and an error for each of the others.
#[tokio::test]
async fn answers_of_an_array_are_bounded_in_bytes() {
    let server = server();
    // Each returns a mebibyte of zeros, twice as long in hexadecimal.
    let data = json!({ "to": ZEROS, "data": format!("0x{:064x}", 1 << 20) });
    let calls = Value::from_iter((0..100).map(|id| call(id.into(), "eth_call", json!([data]))));
    let answers = answer(&server, &calls.to_string()).await;
    let answers = answers.as_array().unwrap();
    assert!(answers.iter().map(|answer| answer["id"].as_u64().unwrap()).eq(0..100));
    let fit = answers.iter().take_while(|answer| answer.get("result").is_some()).count();
    assert_eq!(fit, ARRAY_ANSWER_BYTES_MAX.div_ceil(2 << 20));
    assert!(answers[fit..].iter().all(|answer| answer["error"]["code"] == TOO_LARGE_CODE));
    assert_eq!(server.outgoing.grow(Origin::Trusted).len(), 0);
}

#[tokio::test]
async fn notifications_have_no_answer() {
    let server = server();
    let mut silent = call(Value::Null, "eth_chainId", json!([]));
    silent.as_object_mut().unwrap().remove("id");
    assert!(server.handle(Origin::Trusted, || {}, silent.to_string().as_bytes()).await.is_none());
    assert!(
        server.handle(Origin::Trusted, || {}, json!([silent, silent]).to_string().as_bytes()).await.is_none()
    );
    assert_eq!(
        server.metrics.rpc_requests.with_label_values(&["eth_chainId", "ok"]).get(),
        3,
        "they are done"
    );
    let mixed = json!([
        silent,
        call(json!(-7), "eth_chainId", json!([])),
        silent,
        1,
        call(Value::Null, "eth_none", json!([]))
    ]);
    let answers = answer(&server, &mixed.to_string()).await;
    assert_eq!(answers.as_array().unwrap().len(), 3);
    assert_eq!(answers[0], json!({ "jsonrpc": "2.0", "id": -7, "result": "0x1cbd" }));
    assert_eq!((&answers[1]["id"], &answers[1]["error"]["code"]), (&Value::Null, &json!(-32600)));
    let text = "the method eth_none does not exist/is not available";
    assert_eq!(answers[2]["error"], json!({ "code": -32601, "message": text }));
}

#[tokio::test]
async fn single_requests_and_what_is_none() {
    let server = server();
    for id in [json!(-1), json!(1.5), json!("x"), Value::Null, json!(u64::MAX)] {
        let answer = answer(&server, &call(id.clone(), "eth_chainId", json!([])).to_string()).await;
        assert_eq!(answer, json!({ "jsonrpc": "2.0", "id": id, "result": "0x1cbd" }));
    }
    for (body, code) in
        [("{", -32700), ("", -32700), ("[1,", -32700), ("1", -32600), ("{}", -32600), ("{} {}", -32700)]
    {
        let answer = answer(&server, body).await;
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&Value::Null, &json!(code)), "{body}");
    }
    let parse = server.handle(Origin::Trusted, || {}, b"\xff").await.unwrap();
    assert!(std::str::from_utf8(&parse).unwrap().contains("-32700"));
    let wrong = answer(&server, &call(json!(1), "eth_chainId", json!("bar")).to_string()).await;
    assert_eq!(wrong["error"], json!({ "code": -32602, "message": "non-array args" }));
}

/// Goal: when time runs out, a client gets an error for each remaining request, and none of those starts.
#[tokio::test]
async fn time_is_bounded() {
    let server = server();
    let text = call(json!(1), "eth_chainId", json!([])).to_string();
    let (caller, standing) = (Origin::Trusted.into(), short(&server));
    let asking = RequestContext { caller: &caller, deadline: Instant::now(), standing: &standing };
    let grown = server.work(RequestBody::read(text.as_bytes()).ok().unwrap(), asking, async { Ok(()) }).await;
    let answer: Value = serde_json::from_slice(&grown.finish().unwrap()).unwrap();
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(1), &json!(-32002)));
}

fn host(number: u8) -> Origin {
    Origin::V4(std::net::Ipv4Addr::new(192, 0, 2, number))
}

/// Goal: a poll whose answer found no room reports the same again.
#[tokio::test]
async fn a_poll_without_room_loses_nothing() {
    let server = server();
    let filter =
        answer(&server, &call(json!(1), "eth_newPendingTransactionFilter", json!([])).to_string()).await;
    let poll = call(json!(1), "eth_getFilterChanges", json!([filter["result"]])).to_string();
    let sent = answer(&server, &call(json!(1), "eth_sendRawTransaction", json!([raw()])).to_string()).await;
    assert!(sent["result"].is_string(), "{sent}");
    let (caller, standing) = (Origin::Trusted.into(), short(&server));
    let asking =
        RequestContext { caller: &caller, deadline: Instant::now() + ANSWER_TIME_MAX, standing: &standing };
    let mut held = server.outgoing.grow(Origin::Trusted);
    assert!(held.push(&[&"x".repeat(OUTGOING_BYTES_MAX)]));
    // An array whose answer is already long.
    let mut full = Answer::new(server.outgoing.grow(Origin::Trusted), false);
    full.text.push_short(&"x".repeat(64 << 10));
    server.answer(RequestBody::read(poll.as_bytes()).ok().unwrap(), asking, &mut full).await;
    let refused = full.counts().finish().unwrap();
    assert!(
        std::str::from_utf8(&refused)
            .unwrap()
            .contains("slow clients are still reading too many long answers")
    );
    drop(held);
    // Nobody receives what a notification polls.
    let silent = json!({ "jsonrpc": "2.0", "method": "eth_getFilterChanges", "params": [filter["result"]] });
    assert!(server.handle(host(1), || {}, silent.to_string().as_bytes()).await.is_none());
    assert_eq!(answer(&server, &poll).await["result"], json!([sent["result"]]));
    assert_eq!(answer(&server, &poll).await["result"], json!([]));
}

/// Goal: a poll next to a transaction that cannot be made durable reports the same again.
#[tokio::test]
async fn a_poll_beside_a_lost_transaction_loses_nothing() {
    let server = server();
    let filter =
        answer(&server, &call(json!(1), "eth_newPendingTransactionFilter", json!([])).to_string()).await;
    let poll = call(json!(1), "eth_getFilterChanges", json!([filter["result"]]));
    let send = call(json!(2), SENDING, json!([raw()]));
    let sent = answer(&server, &send.to_string()).await;
    let both = json!([poll, send]).to_string();
    let (caller, standing) = (Origin::Trusted.into(), short(&server));
    let asking =
        RequestContext { caller: &caller, deadline: Instant::now() + ANSWER_TIME_MAX, standing: &standing };
    for is_durable in [false, true] {
        let synced = async move { if is_durable { Ok(()) } else { Err("no space".to_owned()) } };
        let answered = server.work(RequestBody::read(both.as_bytes()).ok().unwrap(), asking, synced).await;
        let answered: Value = serde_json::from_slice(&answered.finish().unwrap()).unwrap();
        match is_durable {
            false => assert_eq!(answered[0]["error"]["code"], INTERNAL_ERROR_CODE),
            true => assert_eq!(answered[0]["result"], json!([sent["result"]])),
        }
    }
    assert_eq!(answer(&server, &poll.to_string()).await["result"], json!([]));
}

/// Goal: an array of sends, good and bad, longer than a run and mixed with other calls, is answered like single calls.
#[tokio::test]
async fn arrays_of_transactions_are_answered_as_single_ones() {
    let send = |params: Value| call(json!(0), SENDING, params);
    let good = |nonce| send(json!([raw_at(nonce)]));
    let mut calls: Vec<Value> = (1..=RUN_MAX as u64 + 6).map(good).collect();
    calls.extend([
        good(3),
        call(json!(0), "eth_chainId", json!([])),
        send(json!(["0x"])),
        good(71),
        send(json!([])),
        send(json!([raw_at(72), "more"])),
        good(72),
        send(json!({ "raw": raw_at(73) })),
        call(json!(0), "eth_nonsense", json!([])),
        good(73),
    ]);
    calls.insert(2, json!({ "jsonrpc": "2.0", "method": SENDING, "params": [raw_at(3)] }));
    for (id, call) in calls.iter_mut().enumerate().filter(|(_, call)| !call["id"].is_null()) {
        call["id"] = id.into();
    }
    let (together, one_by_one) = (server(), server());
    let array = answer(&together, &Value::from(calls.clone()).to_string()).await;
    let mut single = Vec::new();
    for call in &calls {
        if let Some(answer) = one_by_one.handle(Origin::Trusted, || {}, call.to_string().as_bytes()).await {
            single.push(serde_json::from_slice::<Value>(&answer).unwrap());
        }
    }
    assert_eq!(array, Value::from(single));
    let taken = array.as_array().unwrap().iter().filter(|answer| answer["result"].is_string()).count();
    // All good ones except the two of nonce 3, which a notification sent, and the chain's id.
    assert_eq!(taken, RUN_MAX + 6 - 1 + 3 + 1, "{array}");
}

/// Goal: the weight of a body is known before any of it starts, and a caller without a place for that weight is
/// refused.
#[tokio::test]
async fn bodies_are_weighed_before_they_begin() {
    let server = server();
    let one = |method: &str| call(json!(1), method, json!([]));
    let many = |count| Value::from(vec![one("eth_chainId"); count]);
    for (body, expected) in [
        (one("eth_chainId"), Weight::Short),
        (one(SENDING), Weight::Short),
        (many(CHEAP_REQUESTS_MAX), Weight::Short),
        (many(CHEAP_REQUESTS_MAX + 1), Weight::Long),
        (one("eth_call"), Weight::Probation),
        (json!([one("eth_getLogs")]), Weight::Probation),
        (json!([one("eth_call"), one("eth_chainId")]), Weight::Long),
        (one("trace_block"), Weight::Long),
        (one(SENDING_SYNC), Weight::Waits),
        (json!([one("eth_call"), one(SENDING_SYNC)]), Weight::Waits),
    ] {
        let (text, mut found) = (body.to_string(), None);
        let weigh = |weight| {
            found = Some(weight);
            Err(NoPlace)
        };
        let begins = || panic!("it begins");
        let refused = server.handle_weighed(host(1), weigh, begins, text.as_bytes()).await;
        assert!(refused.is_err() && found == Some(expected), "{text}: {found:?}");
    }
}

/// An endless call.
fn endless() -> String {
    call(json!(1), "eth_call", json!([{ "data": "0x5b5f56" }])).to_string()
}

/// The answer to one call on probation; `long` holds the places for long calls.
async fn on_probation(server: &JsonRpc, origin: Origin, body: &str, long: &Quota) -> Value {
    let (few, mut weight) = (Quota::new(1, 0), None);
    let weigh = |weighed| {
        weight = Some(weighed);
        let mut place = few.share(origin);
        Ok(place.grow_to(1).then(|| Probation::new(place, long.share(origin))))
    };
    let answered = server.handle_weighed(origin, weigh, || {}, body.as_bytes()).await.unwrap();
    assert_eq!((weight, few.free()), (Some(Weight::Probation), 1));
    serde_json::from_slice(&answered.unwrap()).unwrap()
}

/// Goal: an endless call on probation is refused once it is long, unless a place for long calls is free. With a place
/// it gets its full time. Then its caller is known for long calls, and is no longer on probation.
#[tokio::test]
async fn endless_calls_on_probation_are_refused_or_have_their_time() {
    let (server, long) = (server(), Quota::new(1, 0));
    let answer = on_probation(&server, host(1), &endless(), &long).await;
    let code = answer["error"]["code"].as_i64().unwrap();
    assert_ne!(code, i64::from(LIMIT_EXCEEDED_CODE), "it has burnt its gas, or had its time: {answer}");
    let mut taken = long.share(host(2));
    assert!(taken.grow_to(1));
    let answer = on_probation(&server, host(3), &endless(), &long).await;
    assert_eq!(answer["error"]["code"], LIMIT_EXCEEDED_CODE, "{answer}");
    assert!(
        answer["error"]["message"].as_str().unwrap().contains("already answering too many long calls"),
        "{answer}"
    );
    assert_eq!(server.metrics.api_refused.with_label_values(&["call"]).get(), 1);
    for (number, expected) in [(1, Weight::Long), (3, Weight::Long), (4, Weight::Probation)] {
        let mut weight = None;
        let weigh = |weighed| {
            weight = Some(weighed);
            Err(NoPlace)
        };
        let _ = server.handle_weighed(host(number), weigh, || {}, endless().as_bytes()).await;
        assert_eq!(weight, Some(expected), "{number}");
    }
}

/// Goal: endless bodies of many addresses, more than there are threads of any kind, let short calls on probation pass,
/// from known and new addresses.
#[tokio::test]
async fn endless_bodies_of_many_addresses_make_no_short_call_wait() {
    let (server, long) = (Arc::new(server()), Quota::new(200, 0));
    let body = format!("[{}]", vec![endless(); 100].join(","));
    let flood: Vec<_> = (1..=150)
        .map(|number| {
            let (server, body) = (server.clone(), body.clone());
            tokio::spawn(async move { server.handle(host(number), || {}, body.as_bytes()).await })
        })
        .collect();
    // Until none of them gets a thread any more.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let short = call(json!(2), "eth_getBlockByNumber", json!(["latest", true])).to_string();
    for number in [200, 200, 201, 202, 200] {
        let begun = Instant::now();
        let answer = on_probation(&server, host(number), &short, &long).await;
        assert!(answer["result"].is_object(), "{answer}");
        // The flood has 25 s.
        assert!(begun.elapsed() < Duration::from_secs(15), "{number}: {:?}", begun.elapsed());
    }
    assert!(flood.iter().all(|body| !body.is_finished()));
    flood.iter().for_each(tokio::task::JoinHandle::abort);
}

/// Goal: however many endless calls one address makes, a call of another address finds a thread.
#[tokio::test]
async fn one_address_does_not_take_all_threads() {
    let server = Arc::new(server());
    let flood: Vec<_> = (0..40)
        .map(|_| {
            let server = server.clone();
            tokio::spawn(async move { server.handle(host(1), || {}, endless().as_bytes()).await })
        })
        .collect();
    tokio::task::yield_now().await;
    let honest = call(json!(2), "eth_call", json!([{ "to": ZEROS, "data": "0x" }])).to_string();
    let answered = server.handle(host(2), || {}, honest.as_bytes()).await.unwrap();
    assert!(std::str::from_utf8(&answered).unwrap().contains("result"));
    assert!(flood.iter().any(|body| !body.is_finished()));
    flood.iter().for_each(tokio::task::JoinHandle::abort);
}

/// Goal: however many sockets request much, few of their messages run at once, and a call over HTTP finds a thread.
#[tokio::test]
async fn sockets_leave_threads_to_http() {
    let (context, metrics) = (context(), Arc::new(Metrics::new().unwrap()));
    let feed = context.feed.clone();
    let tallies = Tallies {
        subscriptions: metrics.ws_subscriptions.clone(),
        notifications: metrics.ws_notifications.clone(),
    };
    let server = Arc::new(JsonRpc::new(context, metrics));
    let flood: Vec<_> = (1..=100)
        .map(|number| {
            let subscriptions = Subscriptions::new(host(number), feed.clone(), tallies.clone());
            let listening = Some(SubscriberSocket::new(subscriptions, 0));
            let caller = Caller { origin: host(number), listening, probation: None };
            let server = server.clone();
            tokio::spawn(async move { server.handle(caller, || {}, endless().as_bytes()).await })
        })
        .collect();
    tokio::task::yield_now().await;
    assert_eq!(server.over_sockets.costly.as_ref().unwrap().free(), 0);
    let honest = call(json!(2), "eth_call", json!([{ "to": ZEROS, "data": "0x" }])).to_string();
    let answered = server.handle(host(200), || {}, honest.as_bytes()).await.unwrap();
    assert!(std::str::from_utf8(&answered).unwrap().contains("result"));
    flood.iter().for_each(tokio::task::JoinHandle::abort);
}

/// Goal: the refusal of an answer that found no room is delayed. So an immediate retry does not make the node build the
/// answer again and again.
#[tokio::test]
async fn who_found_no_room_waits() {
    let server = server();
    let mut held = server.outgoing.grow(Origin::Trusted);
    assert!(held.push(&[&"x".repeat(OUTGOING_BYTES_MAX)]));
    let data = json!({ "to": ZEROS, "data": format!("0x{:064x}", 1 << 16) });
    let asked = call(json!(1), "eth_call", json!([data])).to_string();
    let begun = Instant::now();
    let refused = answer(&server, &asked).await;
    assert_eq!(refused["error"]["code"], LIMIT_EXCEEDED_CODE, "{refused}");
    assert!(begun.elapsed() >= NO_ROOM_PAUSE);
    drop(held);
    assert!(answer(&server, &asked).await["result"].is_string());
}

/// Goal: JSON nested as deep as a body is long is refused or ignored, and nothing overflows.
#[tokio::test]
async fn deep_nesting_is_harmless() {
    let server = server();
    let deep = format!("{}{}", "[".repeat(500_000), "]".repeat(500_000));
    let objects = format!("{}1{}", r#"{"a":"#.repeat(300_000), "}".repeat(300_000));
    for body in [
        deep.clone(),
        "[".repeat(1 << 20),
        r#"{"a":"#.repeat(300_000),
        format!(r#"{{"jsonrpc":"2.0","id":{deep},"method":"eth_chainId"}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":{objects}}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"eth_call","params":[{objects}]}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"eth_getLogs","params":[{{"topics":{deep}}}]}}"#),
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"eth_getLogs","params":{deep}}}"#),
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"eth_call","params":[{{"to":"{ZEROS}","blobs":{deep}}}]}}"#
        ),
    ] {
        let shown: String = body.chars().take(80).collect();
        let refused = answer(&server, &body).await;
        let one = refused.as_array().map_or(&refused, |all| &all[0]);
        assert!(one["error"]["code"].is_i64() || one["result"] == "0x", "{shown}: {refused}");
    }
}

/// A disk that counts its syncs, and blocks them while it is held.
#[derive(Debug, Default)]
struct SlowDisk {
    syncs: AtomicUsize,
    is_held: AtomicBool,
}

impl Disk for SlowDisk {
    fn sync(&self, file: &File) -> std::io::Result<()> {
        self.syncs.fetch_add(1, SeqCst);
        while self.is_held.load(SeqCst) {
            std::thread::park_timeout(Duration::from_millis(1));
        }
        SystemDisk.sync(file)
    }
}

/// Goal: bodies that send transactions wait for a slow disk without a place. Cheap requests are answered meanwhile, and
/// all that wait share two syncs. No transaction is acknowledged before its sync.
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_the_disk_has_no_place() {
    const SENT: u64 = 4 * CHEAP_BODIES_MAX as u64;
    let (dir, disk) = (tempfile::tempdir().unwrap(), Arc::new(SlowDisk::default()));
    let journal = Journal::open_on(disk.clone(), &dir.path().join("journal"), 1 << 20).unwrap();
    let context = context_of(PoolConfig::default(), Some(journal));
    let pool = context.pool.clone();
    let server = Arc::new(JsonRpc::new(context, Arc::new(Metrics::new().unwrap())));
    let before = disk.syncs.load(SeqCst);
    disk.is_held.store(true, SeqCst);
    let sent: Vec<_> = (1..=SENT)
        .map(|nonce| {
            let (server, body) =
                (server.clone(), call(json!(nonce), SENDING, json!([raw_at(nonce)])).to_string());
            tokio::spawn(async move { answer(&server, &body).await })
        })
        .collect();
    let is_taken = || pool.status().pending + pool.status().queued == SENT as usize;
    while !is_taken() || server.over_http.cheap.free() < CHEAP_BODIES_MAX {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let number = answer(&server, &call(json!(1), "eth_blockNumber", json!([])).to_string()).await;
    assert_eq!(number["result"], "0x0");
    assert!(sent.iter().all(|one| !one.is_finished()), "nothing is on the disk");
    disk.is_held.store(false, SeqCst);
    for one in sent {
        let answer = one.await.unwrap();
        assert!(answer["result"].is_string(), "{answer}");
    }
    assert_eq!(disk.syncs.load(SeqCst) - before, 2, "for {SENT} transactions");
}

/// Goal: bodies that turn out to read a large batch leave their cheap places and wait among the long calls; cheap
/// requests are answered meanwhile. A caller without a place for long calls is refused.
#[tokio::test(flavor = "multi_thread")]
async fn who_reads_a_large_batch_leaves_the_cheap_places() {
    let context = context();
    commit_bomb(&context.store, 6);
    let server = Arc::new(JsonRpc::new(context, Arc::new(Metrics::new().unwrap())));
    let header = call(json!(1), "eth_getHeaderByNumber", json!(["0x1"])).to_string();
    let occupied = server.table.occupy_large();
    let long = Arc::new(AtomicUsize::new(0));
    let readers: Vec<_> = (0..2 * CHEAP_BODIES_MAX)
        .map(|index| {
            let (server, header, long) = (server.clone(), header.clone(), long.clone());
            let weigh = move |weight| {
                long.fetch_add(usize::from(weight == Weight::Long), SeqCst);
                Ok(None)
            };
            tokio::spawn(async move {
                let origin = host(u8::try_from(index).unwrap());
                server.handle_weighed(origin, weigh, || {}, header.as_bytes()).await.unwrap()
            })
        })
        .collect();
    while long.load(SeqCst) < readers.len() || server.over_http.cheap.free() < CHEAP_BODIES_MAX {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let number = answer(&server, &call(json!(1), "eth_blockNumber", json!([])).to_string()).await;
    assert_eq!(number["result"], "0x1");
    let weigh = |weight| if weight == Weight::Long { Err(NoPlace) } else { Ok(None) };
    let refused = server.handle_weighed(host(200), weigh, || {}, header.as_bytes()).await.unwrap().unwrap();
    let refused: Value = serde_json::from_slice(&refused).unwrap();
    assert_eq!(refused["error"]["code"], LIMIT_EXCEEDED_CODE, "{refused}");
    assert!(readers.iter().all(|one| !one.is_finished()));
    drop(occupied);
    for one in readers {
        let answer: Value = serde_json::from_slice(&one.await.unwrap().unwrap()).unwrap();
        assert_eq!(answer["result"]["number"], "0x1", "{answer}");
    }
}

/// Goal: transactions that cannot be made durable are refused, in the form of the request.
#[test]
fn nothing_is_acknowledged_that_is_not_on_the_disk() {
    let send = |id: u64| call(id.into(), SENDING, json!(["0x"]));
    let read = |value: Value| {
        let text = value.to_string();
        let asked = RequestBody::read(text.as_bytes()).ok().unwrap();
        let is_array = matches!(asked, RequestBody::Array(_));
        asked.ids_of_sending().map(|ids| unacknowledged(&ids, is_array, "no space"))
    };
    assert!(read(call(json!(1), "eth_chainId", json!([]))).is_none());
    let one: Value = serde_json::from_str(&read(send(7)).unwrap()).unwrap();
    assert_eq!((&one["id"], &one["error"]["code"]), (&json!(7), &json!(-32603)));
    let many = json!([send(1), call(json!(2), "eth_chainId", json!([])), send(3)]);
    let many: Value = serde_json::from_str(&read(many).unwrap()).unwrap();
    assert!(many.as_array().unwrap().iter().map(|one| one["id"].as_u64().unwrap()).eq([1, 2, 3]));
    let silent = json!([{ "jsonrpc": "2.0", "method": SENDING, "params": ["0x"] }]);
    assert_eq!(read(silent).unwrap(), "");
}
