//! A node's web page in an operator's browser: Debian's Chromium.

use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use slipnet::devnet::{Devnet, DevnetOptions, Node, SyncMode};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout},
    time::timeout,
};

use super::programs::Client;
use crate::common::{PATIENCE, deadline, room, skip, until};

/// A browser with a page.
struct Browser {
    /// The process ends with the test.
    _script: Child,
    asks: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Browser {
    /// Starts a browser and waits until it runs. That may take a minute beside other tests, so start it before any node
    /// of the test.
    async fn start(client: &Client) -> Browser {
        let mut script = client.command("page.mjs", &["."]);
        script.kill_on_drop(true).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut script = script.spawn().unwrap();
        let (asks, answers) = (script.stdin.take().unwrap(), script.stdout.take().unwrap());
        let mut browser = Browser { _script: script, asks, answers: BufReader::new(answers).lines() };
        browser.step("ready").await;
        browser
    }

    /// Runs a step by name, with its input after the name.
    async fn step(&mut self, name: &str) -> Value {
        self.asks.write_all(format!("{name}\n").as_bytes()).await.unwrap();
        // The script gives up before this timeout, and says what it waited for.
        let line = timeout(4 * PATIENCE, self.answers.next_line()).await;
        let line = line.unwrap_or_else(|_| panic!("the step {name} does not end")).unwrap();
        serde_json::from_str(&line.unwrap_or_else(|| panic!("the step {name} failed"))).unwrap()
    }
}

/// Returns the script with its packages; `None` if the test should be skipped.
pub(crate) fn installed() -> Option<Client> {
    let chromium = std::process::Command::new("chromium").arg("--version").output();
    if !chromium.is_ok_and(|output| output.status.success()) {
        skip("there is no chromium: install Debian's package");
        return None;
    }
    Client::npm("page")
}

fn signal(node: &Node, signal: Signal) {
    let pid = i32::try_from(node.pid().unwrap()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// Goal: while a node waits, syncs, is killed and comes back, its page shows its activity. The batch number rises, and
/// the peer appears with its score. Everything fits a phone's width, and every text is readable in light and dark mode.
/// The page loads nothing from elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn the_page_shows_a_sync() {
    let Some(client) = installed() else { return };
    let options = DevnetOptions { validators: 1, batch_interval_ms: Some(50), ..DevnetOptions::default() };
    let mut browser = Browser::start(&client).await;
    let mut devnet = Devnet::start(options).await.unwrap();
    devnet.node_mut(0).wait_head(40, deadline()).await.unwrap();
    let peer = devnet.nodes()[0].peer_address();
    signal(&devnet.nodes()[0], Signal::STOP);
    let index =
        devnet.add_fullnode_behind("watched", SyncMode::Replay, std::slice::from_ref(&peer)).await.unwrap();
    let url = devnet.nodes()[index].rpc().url().to_owned();

    let opened = browser.step(&format!("open {url}")).await;
    assert!(
        opened["policy"].as_str().unwrap().starts_with("default-src 'none'; script-src 'self';"),
        "{opened}"
    );
    assert_eq!(opened["head"], "0", "{opened}");
    assert!(opened["state"].as_str().unwrap().ends_with(", not ready"), "{opened}");

    signal(&devnet.nodes()[0], Signal::CONT);
    let followed = browser.step("follow").await;
    check_followed(&followed, peer.split_once('@').unwrap().0);
    let looks = browser.step("look").await;
    check_looks(&looks, 50);
    // Screen readers present the cards as tables.
    for look in looks.as_array().unwrap() {
        assert!(look["tables"].as_array().unwrap().iter().any(|table| table == "Peers"), "{look}");
    }

    devnet.node_mut(index).kill();
    let gone = browser.step("gone").await;
    assert!(gone["link"].as_str().unwrap().contains(" old; asking again"), "{gone}");
    assert!(gone["head"].as_str().unwrap().parse::<u64>().unwrap() > 40, "{gone}");
    devnet.node_mut(index).start().unwrap();
    assert_eq!(browser.step("back").await, json!({ "errors": [], "origins": [url] }));
    devnet.stop().await.unwrap();
}

/// Goal: a validator's page shows the view, the votes of the open batch, the evidence, and when each other validator
/// was last heard. Silent validators stand out.
#[tokio::test(flavor = "multi_thread")]
async fn a_validators_page_shows_consensus() {
    let Some(client) = installed() else { return };
    let mut browser = Browser::start(&client).await;
    let _room = room().await;
    // The view ends neither by time nor by its batches during the test: the next primary might be one that is stopped.
    let extra = "consensus:\n  view_timeout_ms: 600000\n  rotate_after: 0\n".to_owned();
    let options = DevnetOptions { validators: 4, extra, ..DevnetOptions::default() };
    let devnet = Devnet::start(options).await.unwrap();
    let watched = &devnet.nodes()[0];
    until("each validator is heard", async || {
        let consensus = watched.status().await.unwrap().consensus.unwrap();
        let is_heard =
            consensus["peers"].as_array().unwrap().iter().all(|peer| peer["heard_ms_ago"].is_u64());
        is_heard.then_some(()).ok_or_else(|| consensus.to_string())
    })
    .await;
    // Two of four cannot decide: the next batch stays open, with the votes of the others.
    let stopped = [&devnet.nodes()[2], &devnet.nodes()[3]];
    stopped.into_iter().for_each(|node| signal(node, Signal::STOP));
    let ban = json!({ "id": "ab".repeat(32), "name": "liar", "by": "operator", "reason": "lied", "seconds_left": null, "until_ms": null });
    let found = json!({ "evidence": { "author": 2, "kind": "orders", "number": 6, "view": 2 }, "ban": ban });
    let shown = browser.step(&format!("validator {} {found}", watched.rpc().url())).await;

    let fact = |name: &str| shown["facts"][name].as_str().unwrap_or_else(|| panic!("{name}: {shown}"));
    assert!(
        fact("this node").starts_with("validator ") && fact("this node").contains(", counted from 0"),
        "{shown}"
    );
    assert!(fact("certified by").ends_with(": 3 of 4 validators certify a batch"), "{shown}");
    assert!(fact("view").contains(" of primary "), "{shown}");
    assert!(fact("votes").starts_with("batch ") && fact("votes").ends_with(", 3 decide"), "{shown}");
    assert_eq!(fact("evidence 1"), "validator 2 (validator-2) signed two orders for batch 6 in view 2");
    let banned = fact("banned 1");
    assert!(
        banned.starts_with("liar abab")
            && banned.ends_with(" until it is unbanned, by this node's operator: lied"),
        "{shown}"
    );
    let rows: Vec<Vec<String>> = serde_json::from_value(shown["rows"].clone()).unwrap();
    for (index, row) in rows.iter().enumerate() {
        assert!(row[0].starts_with(&format!("{index} ")), "{shown}");
    }
    assert_eq!(rows.iter().filter(|row| row[0].contains("primary")).count(), 1, "{shown}");
    assert_eq!(rows.iter().filter(|row| row[1] == "this node").count(), 1, "{shown}");
    assert_eq!(shown["errors"], json!([]));

    let silent = browser.step("silent").await;
    stopped.into_iter().for_each(|node| signal(node, Signal::CONT));
    let heard = silent["heard"].as_array().unwrap();
    assert!(heard[0].as_str().unwrap().ends_with(" s ago") && silent["errors"] == json!([]), "{silent}");
    devnet.stop().await.unwrap();
}

/// Checks the page's samples since its node's peer answered.
fn check_followed(followed: &Value, peer: &str) {
    let heads: Vec<u64> = serde_json::from_value(followed["heads"].clone()).unwrap();
    assert!(heads.is_sorted() && heads[0] == 0 && heads.len() > 5, "{heads:?}");
    let text = |path: &str| {
        followed.pointer(path).and_then(Value::as_str).unwrap_or_else(|| panic!("{path}: {followed}"))
    };
    let peers = followed["peers"].as_array().unwrap();
    assert_eq!(peers.len(), 1, "{followed}");
    assert!(
        text("/peers/0/0").starts_with("validator-0")
            && text("/peers/0/0").contains(&peer[..10])
            && text("/peers/0/0").contains("validator, configured"),
        "{followed}"
    );
    assert!(text("/peers/0/2").contains(" of 1000\n"), "{followed}");
    assert!(text("/peers/0/2").contains(" verified answers"), "{followed}");
    assert!(text("/peers/0/4").contains(" ms round trip"), "{followed}");
    for stage in ["fetch", "check", "execute", "commit"] {
        assert!(followed["stages"].as_array().unwrap().contains(&json!(stage)), "{stage}: {followed}");
    }
    assert!(
        text("/machine/memory").ends_with("MiB") && text("/machine/disk free").contains("iB"),
        "{followed}"
    );
    assert!(
        text("/caches/hints").contains(" reads; ") && text("/latency/age of the head").ends_with('s'),
        "{followed}"
    );
    let events = followed["events"].as_array().unwrap();
    let is_told =
        |event: &Value| [" connected", "at head"].iter().any(|word| event.to_string().contains(word));
    assert!(events.iter().any(is_told), "{followed}");
    assert!(followed["bar"].as_f64().unwrap() > 90.0, "{followed}");
}

/// Checks a page's look at each width, in light and dark mode, with more than `texts_min` texts.
pub(super) fn check_looks(looks: &Value, texts_min: u64) {
    let looks = looks.as_array().unwrap();
    assert_eq!(looks.len(), 6);
    for look in looks {
        assert!(look["overflow"] == 0 && look["wide"] == json!([]), "{look}");
        // WCAG AA for text of this size.
        assert!(
            look["contrast"].as_f64().unwrap() >= 4.5 && look["texts"].as_u64().unwrap() > texts_min,
            "{look}"
        );
        let is_dark = look["scheme"] == "dark";
        assert_eq!(look["background"], if is_dark { "rgb(15, 21, 27)" } else { "rgb(243, 245, 248)" });
    }
}
