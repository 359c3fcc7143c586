//! Devnets: they start, certify, and end without leaving anything behind.

#![allow(clippy::unwrap_used)] // a panic is how a test fails

use std::{
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use serde_json::{Value, json};
use slipnet::{
    devnet::{Devnet, DevnetOptions, binary, exists},
    load::{self, LoadOptions, Rate, Workload},
    manifest::{Manifest, ManifestNode},
    progress::Progress,
    rpc::{Rpc, quantity},
};

/// `slipnet up`, and the manifest that it printed.
fn up(arguments: &[&str]) -> (Child, Manifest) {
    up_with(arguments, Stdio::inherit())
}

fn up_with(arguments: &[&str], stderr: Stdio) -> (Child, Manifest) {
    up_by(Command::new(env!("CARGO_BIN_EXE_slipnet")).args(["up", "--json"]).args(arguments).stderr(stderr))
}

fn up_by(command: &mut Command) -> (Child, Manifest) {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let stdout = child.stdout.take().unwrap();
    let mut values = serde_json::Deserializer::from_reader(stdout);
    let manifest =
        Manifest::deserialize(&mut values).expect("slipnet up prints its manifest; it said why not above");
    (child, manifest)
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

async fn wait_gone(manifest: &Manifest) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while manifest.nodes.iter().any(|node| exists(node.pid)) {
        assert!(Instant::now() < deadline, "a node outlived slipnet");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Goal: `slipnet up` keeps its promises, from the ready manifest over committed and followed transfers to a clean end.
#[tokio::test(flavor = "multi_thread")]
async fn up_serves_load_and_ctrl_c_leaves_nothing() {
    let begin = Instant::now();
    let (mut child, manifest) = up(&["-v", "1", "-f", "1", "--accounts", "20"]);
    assert!(begin.elapsed() < Duration::from_secs(15), "ready after {:?}", begin.elapsed());
    assert_eq!(manifest.nodes.len(), 2);
    assert!(manifest.nodes.iter().all(|node| exists(node.pid)));

    let options = LoadOptions {
        workload: Workload::Transfers.into(),
        rate: Rate::constant(100),
        duration: Duration::from_secs(2),
        ..LoadOptions::for_manifest(&manifest, 20).unwrap()
    };
    let report = load::run(&options, Progress::Quiet).await.unwrap();
    assert_eq!((report.sent, report.committed, report.followed), (200, 200, Some(200)), "{report}");
    assert_eq!((report.audit.receipts, report.audit.receipts_failed), (200, 0));

    signal(&child, Signal::INT);
    assert!(child.wait().unwrap().success());
    wait_gone(&manifest).await;
    assert!(!manifest.genesis_file.exists(), "the temporary directory stayed");
}

/// Goal: the nodes end even when slipnet cannot clean up, and their files go when somebody sweeps.
#[tokio::test]
async fn kill_9_of_slipnet_ends_the_nodes() {
    // Of its own: the commands of other tests sweep too.
    let temporary = tempfile::tempdir().unwrap();
    let slipnet = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_slipnet"));
        command.args(arguments).env("TMPDIR", temporary.path());
        command
    };
    let (mut child, manifest) =
        up_by(&mut slipnet(&["up", "--json", "-v", "1", "-f", "1", "--accounts", "2"]));
    let clean = || {
        let output = slipnet(&["clean", "--runs"]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let dir = manifest.genesis_file.parent().unwrap().display().to_string();
    assert!(!clean().contains(&dir) && manifest.genesis_file.exists(), "it runs");
    signal(&child, Signal::KILL);
    child.wait().unwrap();
    wait_gone(&manifest).await;
    assert!(manifest.genesis_file.exists());
    let said = clean();
    assert!(said.contains(&dir) && !manifest.genesis_file.exists(), "{said}");
    assert!(!clean().contains(&dir));
}

async fn wait_head(node: &ManifestNode, number: u64) {
    let rpc = Rpc::new(&node.api).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let answer = rpc.call::<Value>("eth_blockNumber", json!([])).await;
        let head = answer.ok().and_then(|head| quantity(&head).ok());
        if head.is_some_and(|head| head >= number) {
            return;
        }
        assert!(Instant::now() < deadline, "{} is at {head:?}, not at {number}", node.name);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Goal: the end of one node is told and ends only that node; started by hand it joins again where it was. A resumed devnet has the
/// ports of the first, and says who took one.
#[tokio::test(flavor = "multi_thread")]
async fn a_devnet_survives_its_nodes_and_keeps_its_ports() {
    let dir = tempfile::tempdir().unwrap();
    let said = dir.path().join("said");
    let devnet = dir.path().join("devnet");
    let arguments = ["-v", "1", "-f", "1", "--accounts", "2", "--dir", devnet.to_str().unwrap()];
    let stderr = || Stdio::from(std::fs::File::options().create(true).append(true).open(&said).unwrap());
    let (mut child, manifest) = up_with(&arguments, stderr());
    let [validator, fullnode] = &manifest.nodes[..] else { panic!("two nodes") };
    let says = |text: &str| std::fs::read_to_string(&said).unwrap().contains(text);

    kill_process(Pid::from_raw(fullnode.pid as i32).unwrap(), Signal::TERM).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while !says("fullnode-0 ended: exit code 0. The other nodes go on; it starts again with: ") {
        assert!(Instant::now() < deadline, "{}", std::fs::read_to_string(&said).unwrap());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    wait_head(validator, 2).await;
    let text = std::fs::read_to_string(&said).unwrap();
    let command: Vec<_> = text
        .split_once("starts again with: ")
        .unwrap()
        .1
        .lines()
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    let mut by_hand = Command::new(command[0])
        .args(&command[1..])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let head = Rpc::new(&validator.api).unwrap().call::<Value>("eth_blockNumber", json!([])).await;
    wait_head(fullnode, quantity(&head.unwrap()).unwrap() + 2).await;
    assert!(child.try_wait().unwrap().is_none(), "slipnet goes on");

    signal(&child, Signal::INT);
    assert!(child.wait().unwrap().success());
    assert!(says("fullnode-0 was started by hand and goes on"));
    let busy = Command::new(env!("CARGO_BIN_EXE_slipnet")).arg("up").args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&busy.stderr).into_owned();
    assert_eq!(busy.status.code(), Some(1), "{text}");
    assert!(text.contains(&format!("is taken by slipstream (process {})", by_hand.id())), "{text}");
    signal(&by_hand, Signal::TERM);
    assert!(by_hand.wait().unwrap().success());

    let (mut child, resumed) = up_with(&arguments, stderr());
    let ports = |manifest: &Manifest| -> Vec<_> {
        manifest.nodes.iter().map(|node| (node.api.clone(), node.network.clone())).collect()
    };
    assert_eq!(ports(&resumed), ports(&manifest));
    signal(&child, Signal::INT);
    assert!(child.wait().unwrap().success());
    wait_gone(&resumed).await;
}

/// Goal: a reader that stops reading ends the command, without a word and with the code that shells show for it.
#[test]
fn a_closed_pipe_ends_slipnet_quietly() {
    for arguments in [&["--help"][..], &["up", "-v", "1", "-f", "0", "--accounts", "2"]] {
        let closed = std::io::pipe().unwrap().1;
        let mut command = Command::new(env!("CARGO_BIN_EXE_slipnet"));
        let output = command.args(arguments).stdout(closed).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(141), "{arguments:?}: {text}");
        assert!(!text.contains("panicked") && !text.contains("pipe"), "{text}");
    }
}

/// Goal: four validators certify with three of them, stand with two, and go on when a third returns. The contracts of both contract
/// workloads run with every receipt a success.
#[tokio::test(flavor = "multi_thread")]
async fn four_validators_certify_with_three() {
    let options = DevnetOptions { validators: 4, accounts: 20, ..DevnetOptions::default() };
    let mut devnet = Devnet::start(options).await.unwrap();
    let manifest = devnet.manifest().await.unwrap();
    for workload in [Workload::Erc20, Workload::Amm] {
        let defaults = LoadOptions::for_manifest(&manifest, 20).unwrap();
        let options = LoadOptions {
            workload: workload.into(),
            rate: Rate::constant(100),
            duration: Duration::from_secs(2),
            ..defaults
        };
        let report = load::run(&options, Progress::Quiet).await.unwrap();
        assert_eq!((report.committed, report.audit.receipts_failed), (200, 0), "{report}");
    }

    let head = |devnet: &Devnet| {
        let rpc = devnet.proposer().rpc().clone();
        async move { quantity(&rpc.call::<Value>("eth_blockNumber", json!([])).await.unwrap()).unwrap() }
    };
    let soon = || Instant::now() + Duration::from_secs(20);
    devnet.node_mut(3).kill();
    let next = head(&devnet).await + 2;
    devnet.node_mut(0).wait_head(next, soon()).await.expect("three of four are a quorum");

    devnet.node_mut(2).kill();
    // A batch that was already voted for may still come.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let stalled = head(&devnet).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(head(&devnet).await, stalled, "two of four are no quorum");

    devnet.node_mut(2).start().unwrap();
    devnet.node_mut(0).wait_head(stalled + 2, soon()).await.expect("the third is back");
    devnet.node_mut(3).start().unwrap();
    let mut roots = Vec::new();
    for index in 0..4 {
        let node = devnet.node_mut(index);
        node.wait_head(stalled + 2, soon()).await.unwrap();
        roots.push(node.state_root(stalled + 2).await.unwrap());
    }
    assert!(roots.iter().all(|root| *root == roots[0]), "{roots:?}");
    devnet.stop().await.unwrap();
}

/// Goal: under load the primary is killed, and another one goes on within seconds. Transactions that users gave to others are
/// executed, and the killed one follows when it is back.
#[tokio::test(flavor = "multi_thread")]
async fn the_chain_goes_on_without_its_primary() {
    let options = DevnetOptions { validators: 4, accounts: 20, ..DevnetOptions::default() };
    let mut devnet = Devnet::start(options).await.unwrap();
    let manifest = devnet.manifest().await.unwrap();
    let submit = [1, 2, 3].map(|index| devnet.nodes()[index].rpc().clone()).to_vec();
    let options = LoadOptions {
        workload: Workload::Transfers.into(),
        rate: Rate::constant(50),
        duration: Duration::from_secs(8),
        submit,
        followers: vec![("validator-2".to_owned(), devnet.nodes()[2].rpc().clone())],
        ..LoadOptions::for_manifest(&manifest, 20).unwrap()
    };
    let load = tokio::spawn(async move { load::run(&options, Progress::Quiet).await });
    tokio::time::sleep(Duration::from_secs(3)).await;
    devnet.node_mut(0).kill();
    let report = load.await.unwrap().unwrap();
    assert_eq!((report.committed, report.audit.receipts_failed), (400, 0), "{report}");
    let soon = || Instant::now() + Duration::from_secs(20);
    let head = devnet.nodes()[1].status().await.unwrap().head.number;
    devnet.node_mut(0).start().unwrap();
    let mut roots = Vec::new();
    for index in 0..4 {
        let node = devnet.node_mut(index);
        node.wait_head(head, soon()).await.unwrap();
        roots.push(node.state_root(head).await.unwrap());
    }
    assert!(roots.iter().all(|root| *root == roots[0]), "{roots:?}");
    let status = devnet.nodes()[1].status().await.unwrap().consensus.unwrap();
    assert!(status["view"].as_u64().unwrap() >= 1, "{status}");
    devnet.stop().await.unwrap();
}

/// `slipstream read` of the chain's number, by all validators of a devnet.
fn read(devnet: &Devnet) -> Output {
    let mut command = Command::new(binary().unwrap());
    command.arg("read").arg("--genesis").arg(devnet.genesis_file());
    for node in devnet.nodes() {
        command.arg("--validator").arg(node.rpc().url());
    }
    command.arg("eth_chainId").output().unwrap()
}

/// Goal: with two of four validators gone the chain stands and says so, and reads go unanswered. When one is back it goes on where
/// it was, with one history, and three answer alike.
#[tokio::test(flavor = "multi_thread")]
async fn two_lost_of_four_stand_and_one_back_goes_on() {
    let options = DevnetOptions { validators: 4, accounts: 1, ..DevnetOptions::default() };
    let mut devnet = Devnet::start(options).await.unwrap();
    devnet.node_mut(2).wait_head(3, Instant::now() + Duration::from_secs(20)).await.unwrap();
    for lost in [0, 1] {
        devnet.node_mut(lost).kill();
    }
    // A batch that was decided when they went is still committed.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let stood = devnet.nodes()[2].status().await.unwrap().head.number;
    tokio::time::sleep(Duration::from_secs(4)).await;
    let status = devnet.nodes()[2].status().await.unwrap();
    assert_eq!(status.head.number, stood, "two of four are no quorum");
    let consensus = status.consensus.unwrap();
    assert!(consensus["complains"] == true || consensus["changing"] == true, "{consensus}");
    let unread = read(&devnet);
    let text = String::from_utf8_lossy(&unread.stderr).into_owned();
    assert_eq!(unread.status.code(), Some(75), "{text}");
    assert!(text.contains("of the 3 validators that make a quorum answer"), "{text}");

    devnet.node_mut(1).start().unwrap();
    let mut roots = Vec::new();
    for index in 1..4 {
        let node = devnet.node_mut(index);
        node.wait_head(stood + 3, Instant::now() + Duration::from_secs(60)).await.unwrap();
        roots.push(node.state_root(stood + 1).await.unwrap());
    }
    assert!(roots.iter().all(|root| *root == roots[0]), "{roots:?}");
    let answer = read(&devnet);
    assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
    assert_eq!(String::from_utf8_lossy(&answer.stdout).trim(), "0x1cbd");
    devnet.stop().await.unwrap();
}
