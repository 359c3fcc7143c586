//! Devnets: they start, certify, and end without leaving anything behind.

use std::{
    io::{self, ErrorKind, PipeWriter, Write},
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use serde_json::{Value, json};
use slipnet::{
    devnet::{Devnet, DevnetOptions, exists},
    load::{self, LoadOptions, Rate, Workload},
    manifest::{Manifest, ManifestNode},
    progress::Progress,
    rpc::{Rpc, quantity},
};

use crate::common::{
    agree, agreed, deadline, gone, load_runs, ports, program, read, room, stands, until, until_blocking,
};

/// The time without a new head after which a chain counts as stopped: a batch that was decided when validators went
/// down comes sooner.
const STANDSTILL: Duration = Duration::from_secs(4);

/// Starts `slipnet up`, and returns the manifest that it printed.
fn up(arguments: &[&str]) -> (Child, Manifest) {
    up_with(arguments, Stdio::inherit())
}

fn up_with(arguments: &[&str], stderr: Stdio) -> (Child, Manifest) {
    up_by(program().args(["up", "--json"]).args(arguments).stderr(stderr))
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
    until("slipnet has ended", async || gone(manifest)).await;
}

/// Goal: `slipnet up` keeps its promises, from the ready manifest over committed and followed transfers to a clean end.
#[tokio::test(flavor = "multi_thread")]
async fn up_serves_load_and_ctrl_c_leaves_nothing() {
    let (mut child, manifest) = up(&["-v", "1", "-f", "1", "--accounts", "20"]);
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
    assert_eq!((report.audit.figures.receipts, report.audit.figures.receipts_failed), (200, 0));

    signal(&child, Signal::INT);
    assert!(child.wait().unwrap().success());
    wait_gone(&manifest).await;
    assert!(!manifest.genesis_file.exists(), "the temporary directory stayed");
}

/// Goal: the nodes end even if slipnet cannot clean up, and the next sweep removes their files.
#[tokio::test]
async fn kill_9_of_slipnet_ends_the_nodes() {
    // The directory is the test's own, because the commands of other tests also sweep.
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
    until("a head", async || {
        let answer = rpc.call::<Value>("eth_blockNumber", json!([])).await;
        let head = answer.ok().and_then(|head| quantity(&head).ok());
        let is_there = head.is_some_and(|head| head >= number);
        is_there.then_some(()).ok_or_else(|| format!("{} is at {head:?}, not at {number}", node.name))
    })
    .await;
}

/// Goal: the end of one node is reported and ends only that node; started by hand, it continues where it was. A resumed
/// devnet has its previous ports, and names whoever took one.
#[tokio::test(flavor = "multi_thread")]
async fn a_devnet_survives_its_nodes_and_keeps_its_ports() {
    let dir = tempfile::tempdir().unwrap();
    let said = dir.path().join("said");
    let devnet = dir.path().join("devnet");
    let arguments = ["-v", "1", "-f", "1", "--accounts", "2", "--dir", devnet.to_str().unwrap()];
    let stderr = || Stdio::from(std::fs::File::options().create(true).append(true).open(&said).unwrap());
    let (mut child, manifest) = up_with(&arguments, stderr());
    let [validator, fullnode] = &manifest.nodes[..] else { panic!("two nodes") };
    let all = || std::fs::read_to_string(&said).unwrap();

    kill_process(Pid::from_raw(fullnode.pid as i32).unwrap(), Signal::TERM).unwrap();
    let ended = "fullnode-0 ended: exit code 0. The other nodes keep running; it starts again with: ";
    let command = until("the end is told", async || {
        let text = all();
        let command = text.split_once(ended).and_then(|(_, rest)| rest.split_once('\n'));
        command.map(|(command, _)| command.to_owned()).ok_or(text)
    })
    .await;
    let command: Vec<_> = command.split_whitespace().collect();
    wait_head(validator, 2).await;
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
    assert!(all().contains("fullnode-0 was started by hand and keeps running"), "{}", all());
    let busy = program().arg("up").args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&busy.stderr).into_owned();
    assert_eq!(busy.status.code(), Some(1), "{text}");
    assert!(text.contains(&format!("is taken by slipstream (process {})", by_hand.id())), "{text}");
    signal(&by_hand, Signal::TERM);
    assert!(by_hand.wait().unwrap().success());

    let (mut child, resumed) = up_with(&arguments, stderr());
    assert_eq!(ports(&resumed), ports(&manifest));
    signal(&child, Signal::INT);
    assert!(child.wait().unwrap().success());
    wait_gone(&resumed).await;
}

/// Returns a pipe whose reading end is closed everywhere, including in a process that another test was starting: that
/// has all open files until it runs its program.
fn closed_pipe() -> PipeWriter {
    let (reader, mut writer) = io::pipe().unwrap();
    drop(reader);
    until_blocking("the reader has gone", || match writer.write(b".") {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => Err(format!("{written:?}")),
    });
    writer
}

/// Goal: if the reader closes the output, the command ends silently, with the exit code that shells show for it.
#[test]
fn a_closed_pipe_ends_slipnet_quietly() {
    for arguments in [&["--help"][..], &["up", "-v", "1", "-f", "0", "--accounts", "2"]] {
        let output = program().args(arguments).stdout(closed_pipe()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(141), "{arguments:?}: {text}");
        assert!(!text.contains("panicked") && !text.contains("pipe"), "{text}");
    }
}

/// Goal: four validators certify with three of them, stop with two, and continue when a third returns. The contracts of
/// both contract workloads run, and every receipt is a success.
#[tokio::test(flavor = "multi_thread")]
async fn four_validators_certify_with_three() {
    let _room = room().await;
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
        assert_eq!((report.committed, report.audit.figures.receipts_failed), (200, 0), "{report}");
    }

    // A validator that started after the chain has heard of the others by now, even if the chain continued meanwhile.
    for validator in devnet.nodes() {
        until(&format!("{} votes", validator.name()), async || {
            let consensus = validator.status().await.map_err(|error| error.to_string())?.consensus;
            let votes = consensus.as_ref().is_some_and(|consensus| consensus["silence"].is_null());
            if votes { Ok(()) } else { Err(format!("{consensus:?}")) }
        })
        .await;
    }

    devnet.node_mut(3).kill();
    let next = devnet.proposer().status().await.unwrap().head.number + 2;
    devnet.node_mut(0).wait_head(next, deadline()).await.expect("three of four are a quorum");

    devnet.node_mut(2).kill();
    // Two of four are no quorum.
    let stalled = stands(devnet.proposer(), STANDSTILL).await;

    devnet.node_mut(2).start().unwrap();
    devnet.node_mut(0).wait_head(stalled + 2, deadline()).await.expect("the third is back");
    devnet.node_mut(3).start().unwrap();
    agree(&mut devnet, 0..4, stalled + 2).await;
    devnet.stop().await.unwrap();
}

/// Goal: when the primary is killed under load, another takes over within seconds. Transactions that users gave to
/// other validators are executed, and the killed validator follows when it is back.
#[tokio::test(flavor = "multi_thread")]
async fn the_chain_goes_on_without_its_primary() {
    let _room = room().await;
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
    load_runs(&devnet, devnet.nodes()[1].rpc()).await;
    devnet.node_mut(0).kill();
    let report = load.await.unwrap().unwrap();
    assert_eq!((report.committed, report.audit.figures.receipts_failed), (400, 0), "{report}");
    let head = devnet.nodes()[1].status().await.unwrap().head.number;
    devnet.node_mut(0).start().unwrap();
    agree(&mut devnet, 0..4, head).await;
    let status = devnet.nodes()[1].status().await.unwrap().consensus.unwrap();
    assert!(status["view"].as_u64().unwrap() >= 1, "{status}");
    devnet.stop().await.unwrap();
}

/// Goal: with two of four validators gone, the chain stops, the others report it, and reads that need a quorum fail.
/// When one is back, the chain continues where it was, with one history, and three validators answer alike.
#[tokio::test(flavor = "multi_thread")]
async fn two_lost_of_four_stand_and_one_back_goes_on() {
    let _room = room().await;
    let options = DevnetOptions { validators: 4, accounts: 1, ..DevnetOptions::default() };
    let mut devnet = Devnet::start(options).await.unwrap();
    devnet.node_mut(2).wait_head(3, deadline()).await.unwrap();
    for lost in [0, 1] {
        devnet.node_mut(lost).kill();
    }
    let stood = stands(&devnet.nodes()[2], STANDSTILL).await;
    until("it says so", async || {
        let consensus = devnet.nodes()[2].status().await.unwrap().consensus.unwrap();
        let says_so = consensus["complains"] == true || consensus["changing"] == true;
        says_so.then_some(()).ok_or_else(|| consensus.to_string())
    })
    .await;
    let unread = read(&devnet, &["eth_chainId"]);
    let text = String::from_utf8_lossy(&unread.stderr).into_owned();
    assert_eq!(unread.status.code(), Some(75), "{text}");
    assert!(text.contains("validators answer, and a quorum needs 3"), "{text}");

    devnet.node_mut(1).start().unwrap();
    agree(&mut devnet, 1..4, stood + 3).await;
    assert_eq!(agreed(&devnet, &["eth_chainId"]).trim(), "0x1cbd");
    devnet.stop().await.unwrap();
}
