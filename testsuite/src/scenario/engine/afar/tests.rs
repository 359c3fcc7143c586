//! Tests a judge with simulated nodes.

use std::path::Path;

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
};

use super::*;
use crate::{
    load::{Ending, Rule},
    scenario::engine::curves::tests::{latency, summary},
};

const TEXT: &str = "\
name: a
description: b
duration: 5s
topology: { validators: 2 }
workload:
- { name: main, for: 2s, rate: { constant: 20 }, followers: [validator-0, validator-1] }
criteria:
- equal_roots
- nobody_honest_blamed
- head_age: { at_most: 1s }
- no_progress: { at_most: 2s }
- memory: { mib_max: 2 }
- epoch: { at_least: 0 }
- throughput: { phase: main, at_least: 2 }
- throughput: { phase: main, at_least: 3 }
";

fn scenario() -> Scenario {
    Scenario::parse(TEXT, Path::new("a.yaml")).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the answer of a node whose head is this batch.
fn answer(request: &str, head: u64) -> Value {
    let result = if request.starts_with("GET") {
        return json!({
            "role": "validator", "head": { "number": head }, "health": { "head_age_seconds": 0.1 },
            "process": { "started_ms": 7, "memory_bytes": 1 << 20 }, "epoch": { "number": 6 }, "sync": {},
        });
    } else if request.contains("eth_blockNumber") {
        json!(format!("{head:#x}"))
    } else {
        json!({ "stateRoot": format!("0x{}", "ab".repeat(32)) })
    };
    json!({ "jsonrpc": "2.0", "id": 0, "result": result })
}

async fn converse(mut stream: TcpStream, head: u64) {
    let (mut request, mut part) = (String::new(), [0; 4_096]);
    while !(request.contains("params") || request.starts_with("GET") && request.contains("\r\n\r\n")) {
        match stream.read(&mut part).await {
            Ok(0) | Err(_) => return,
            Ok(length) => request += &String::from_utf8_lossy(&part[..length]),
        }
    }
    let body = answer(&request, head).to_string();
    let head =
        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len());
    let _ = stream.write_all(head.as_bytes()).await;
}

/// Starts a node that makes ten batches per second, and returns its address.
async fn fake_node() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let begin = Instant::now();
        while let Ok((stream, _)) = listener.accept().await {
            let head = u64::try_from(begin.elapsed().as_millis() / 100).unwrap();
            tokio::spawn(converse(stream, head));
        }
    });
    format!("http://{address}")
}

/// Returns an address whose port nobody else gets while the socket is kept. A listener that names it may bind it.
fn kept_port() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// The verdicts on [`TEXT`], including `nothing_ended`.
const VERDICTS: [bool; 9] = [true, true, true, true, true, true, true, false, true];

fn verdicts(report: &RunReport) -> Vec<bool> {
    report.criteria.iter().map(|it| it.passed).collect()
}

/// Judges the scenario in a new directory; returns the error and the report.
async fn run_anew() -> (String, RunReport) {
    let dir = tempfile::tempdir().unwrap();
    let (file, (_kept, listen)) = (dir.path().join("a.yaml"), kept_port());
    std::fs::write(&file, TEXT).unwrap();
    let nodes = [("validator-0", fake_node().await), ("validator-1", fake_node().await)];
    let options = JudgeOptions {
        scenario: file,
        nodes: nodes.clone().map(|(name, url)| (name.to_owned(), url)).to_vec(),
        start: now_ms() / 1_000 + 2,
        listen,
        dir: dir.path().join("report"),
        markdown: false,
        access_lists: false,
    };
    let load = async {
        let mut summary = summary(&nodes[1].1);
        summary.reads[0].node.clone_from(&nodes[0].1);
        let ending = Ending::Run { begin_ms: 100, summary: Box::new(summary) };
        let delivery = crate::load::Delivery { from: Source::Phase("main".to_owned()), ending };
        delivery.send(&listen.to_string(), "", Duration::from_secs(60)).await
    };
    let (judged, sent) = tokio::join!(options.run(Progress::Quiet), load);
    sent.unwrap();
    let error = judged.unwrap_err().to_string();
    (error, RunReport::load(&dir.path().join("report/report.json")).unwrap())
}

/// Goal: nodes and a load seen from outside are judged as on one machine. Criteria that hold pass, others are named,
/// and the report has all.
#[tokio::test]
async fn a_scenario_is_judged_from_outside() {
    let (mut error, mut report) = run_anew().await;
    // A machine that stalled for seconds makes the judge late or the heads stand still, so the run is repeated.
    for _ in 0..2 {
        if verdicts(&report) != VERDICTS {
            (error, report) = run_anew().await;
        }
    }
    assert_eq!(error, "failed: throughput of main (2)", "{:?}", report.criteria);
    assert_eq!(verdicts(&report), VERDICTS, "{:?}", report.criteria);
    assert!(report.criteria[4].measured.ends_with(SAMPLED), "{}", report.criteria[4].measured);
    assert_eq!(report.criteria[8].name, "nothing_ended");
    let names: Vec<&str> = report.load.iter().map(|it| it.name.as_str()).collect();
    assert!(names.contains(&"follow main at validator-1") && names.contains(&"follow main at validator-0"));
    assert!(names.contains(&"read main at validator-0 by WebSocket"), "{names:?}");
    assert!(report.unjudged.is_empty() && report.seconds >= 5.0);
}

/// Goal: a missing or unknown node is an error before the judge waits for anything.
#[test]
fn each_node_has_an_address() {
    let (scenario, url) = (scenario(), "http://a:1".to_owned());
    let names = Names::of(&scenario);
    let refused = |nodes: &[&str]| {
        let options = JudgeOptions {
            scenario: PathBuf::new(),
            nodes: nodes.iter().map(|name| ((*name).to_owned(), url.clone())).collect(),
            start: 0,
            listen: ([127, 0, 0, 1], 0).into(),
            dir: PathBuf::new(),
            markdown: false,
            access_lists: false,
        };
        options.rpcs(&names).err().map(|error| error.to_string())
    };
    assert_eq!(refused(&["validator-0", "validator-1"]), None);
    assert!(refused(&["validator-0"]).unwrap().contains("--node validator-1=URL"));
    assert!(refused(&["validator-0", "validator-1", "near"]).unwrap().contains("no such node"));
    assert!(node("validator-0").unwrap_err().contains("NAME=URL"));
}

/// Goal: a node that restarts when the clock ends is waited for; one that stays silent is named.
#[tokio::test]
async fn who_begins_again_is_waited_for() {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let late = Rpc::new(&socket.local_addr().unwrap().to_string()).unwrap();
    let (_kept, gone) = kept_port();
    let gone = Rpc::new(&gone.to_string()).unwrap();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let listener = socket.listen(8).unwrap();
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(converse(stream, 7));
        }
    });
    let nodes = [("late", &late), ("gone", &gone)];
    let asked = || Vec::from(nodes.map(|(name, rpc)| Asked { place: Place(0), name, rpc }));
    let excused = |name: &str| name == "gone";
    let (there, silent) = audit::answering(asked(), (1, excused), Duration::from_secs(60)).await;
    assert_eq!((there.len(), there[0].name, silent), (1, "late", vec!["gone"]));
    let (_, silent) = audit::answering(asked(), (0, excused), Duration::from_millis(300)).await;
    assert_eq!(silent, ["gone"]);
}

/// Judges a scenario without a criterion that can be judged; returns the error.
async fn run_unjudged() -> String {
    let dir = tempfile::tempdir().unwrap();
    let (file, (_kept, listen)) = (dir.path().join("a.yaml"), kept_port());
    let text = "name: a\ndescription: b\nduration: 5s\ntopology: { validators: 1 }\n\
        workload: [{ name: main, for: 2s, rate: { constant: 20 }, mix: { access-lists: 1 }, access_lists: lists }]\n\
        criteria:\n- throughput: { phase: main, at_least: 1 }\n";
    std::fs::write(&file, text).unwrap();
    let options = JudgeOptions {
        scenario: file,
        nodes: vec![("validator-0".to_owned(), fake_node().await)],
        start: now_ms() / 1_000 + 2,
        listen,
        dir: dir.path().join("report"),
        markdown: false,
        access_lists: false,
    };
    options.run(Progress::Quiet).await.unwrap_err().to_string()
}

/// Goal: a judge that can judge nothing does not report success.
#[tokio::test]
async fn nothing_judged_is_no_success() {
    let mut error = run_unjudged().await;
    // A machine that stalled for a second makes the judge late, which is a finding, so the run is repeated.
    for _ in 0..2 {
        if error.contains("nothing_ended") {
            error = run_unjudged().await;
        }
    }
    assert!(error.contains("none of the scenario's criteria can be judged"), "{error}");
}

/// Goal: a node whose orders failed, or that does not report on them, is a finding. A node without orders is not waited
/// for.
#[test]
fn a_node_answers_for_its_orders() {
    let groups = "topology: { validators: 2, groups: [{ name: near }, { name: late, joins: 1s }] }\n\
        faults: [{ at: 1s, what: { restart: { nodes: [validator-1] } } }]";
    let text = TEXT.replace("topology: { validators: 2 }", groups);
    let scenario = Scenario::parse(&text, Path::new("a.yaml")).unwrap_or_else(|error| panic!("{error}"));
    let node = |name: &str| Source::Node(name.to_owned());
    let told: Vec<Source> = operated(&scenario, &Names::of(&scenario)).collect();
    assert_eq!(told, [node("validator-1"), node("late")]);
    assert_eq!(undone(&node("late"), Some(Ending::Orders { failed: None })), None);
    let failed = Some(Ending::Orders { failed: Some("no room".to_owned()) });
    assert_eq!(undone(&node("late"), failed).unwrap(), "the node late: no room");
    assert!(undone(&node("late"), None).unwrap().contains("it did not tell"));
}

/// Goal: a search is assembled from its steps, each at its time; a failed load says why.
#[test]
fn a_search_and_a_failure_come_to_what_they_are() {
    let scenario = scenario();
    let (names, phase) = (Names::of(&scenario), &scenario.workload[0]);
    let urls = BTreeMap::from([("http://far:1", "validator-1")]);
    let saturation = Box::new(crate::load::Saturation {
        found: crate::load::Found::AtLeast { rate: 2 },
        rule: Rule::default(),
        steps: vec![summary("http://far:1"), summary("http://far:1")],
    });
    let ending = Ending::Search { begins_ms: vec![500, 3_000], saturation };
    let end = phase_end(phase, &names, &urls, ending).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(end.spans, [(500, 2_500), (3_000, 5_000)]);
    assert_eq!(end.totals.committed_per_second, 2.0);
    assert_eq!(end.totals.commit_ms.map(|ms| ms.p50), Some(latency(30.0).p50));
    assert!(end.curves.iter().any(|it| it.name == "follow main at validator-1"));
    // The planned node was down when the load began: the node that was read instead follows itself.
    let mut read_elsewhere = summary("http://far:2");
    "http://far:1".clone_into(&mut read_elsewhere.commits_from);
    let elsewhere = Ending::Run { begin_ms: 500, summary: Box::new(read_elsewhere) };
    let end = phase_end(phase, &names, &urls, elsewhere).unwrap_or_else(|why| panic!("{why}"));
    let follows = |it: &crate::report::LoadSeries| it.name == "follow main at validator-1";
    assert!(end.curves.iter().any(follows), "{:?}", end.curves);
    // Times reported by a load cannot overflow.
    let far = Ending::Run { begin_ms: u64::MAX, summary: Box::new(summary("http://far:1")) };
    let end = phase_end(phase, &names, &urls, far).unwrap_or_else(|why| panic!("{why}"));
    assert_eq!(end.spans, [(u64::MAX, u64::MAX)]);
    let failed = phase_end(phase, &names, &urls, Ending::Failed("no node answers".to_owned()));
    assert_eq!(failed.err().as_deref(), Some("no node answers"));
}

/// Goal: the node that announces an order to lie is affected by its event, when that comes, and no other node is.
#[tokio::test]
async fn whoever_takes_an_order_is_met() {
    let text = "name: a\ndescription: b\nduration: 90s\ncriteria: [equal_roots]\ntopology: { validators: 2 }\n\
        faults:\n- { at: 60s, for: 20s, what: { lying_validator: { who: { nodes: [primary] }, lie: old_state } } }\n";
    let scenario = Scenario::parse(text, Path::new("a.yaml")).unwrap_or_else(|error| panic!("{error}"));
    let names = Names::of(&scenario);
    let mut judge = Judge::new((&scenario, false), &names, Vec::new(), Instant::now());
    let (orders, from) = (judge.story.orders(), Source::Node("validator-1".to_owned()));
    let order = orders.first().unwrap().clone();
    assert_eq!(order, "60000ms..80000ms,old-data,primary");
    let (listen, secret) = (([127, 0, 0, 1], 0).into(), String::new());
    let inbox = Inbox::open(listen, secret, [from.clone()].into_iter(), orders).await.unwrap();
    let delivery = crate::load::Delivery { from, ending: Ending::Taken { order } };
    delivery.send(&inbox.address().to_string(), "", Duration::from_secs(60)).await.unwrap();
    let missed = |judge: &Judge<'_>| not_taken_once(&judge.story.orders(), &judge.heard);
    assert!(missed(&judge)[0].starts_with("no validator took the order 60000ms..80000ms,old-data,primary"));
    judge.note_taken(&inbox);
    assert!(missed(&judge).is_empty());
    // Its data returns with the second of the two starts.
    let taker = BTreeSet::from(["validator-1".to_owned()]);
    assert_eq!(judge.takers, BTreeMap::from([(1, taker)]));
    judge.begin(1).unwrap();
    assert!(judge.takers.is_empty());
    // The view changed while the validators were asked.
    judge
        .heard
        .entry(judge.story.orders().pop_first().unwrap())
        .or_default()
        .insert("validator-0".to_owned());
    let twice =
        "validator-0 and validator-1 took the order 60000ms..80000ms,old-data,primary, which is for one";
    assert_eq!(missed(&judge), [twice]);
}
