//! The changes at a node, as listeners at `/v1/events` receive them.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
    time::Instant,
};

use serde_json::{Value, json};

use crate::chain::{BINARY, Chain, PATIENCE, Running};

/// Listens with extra header lines; returns the status code and the stream.
fn listen(node: &Running, headers: &str) -> (u16, BufReader<TcpStream>) {
    let mut stream = TcpStream::connect(&node.api).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET /v1/events HTTP/1.0\r\nHost: {}\r\n{headers}\r\n", node.api).unwrap();
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(reader.read_line(&mut head).unwrap() > 0, "{head}");
    }
    (head.split_whitespace().nth(1).unwrap().parse().unwrap(), reader)
}

/// The next event: its id, its name and its data.
fn next(stream: &mut BufReader<TcpStream>) -> (String, String, Value) {
    let (mut id, mut name, mut data) = (String::new(), String::new(), Value::Null);
    loop {
        let mut line = String::new();
        assert!(stream.read_line(&mut line).unwrap() > 0, "the stream ended");
        match line.trim_end().split_once(": ") {
            Some(("id", value)) => id = value.to_owned(),
            Some(("event", value)) => name = value.to_owned(),
            Some(("data", value)) => data = serde_json::from_str(value).unwrap(),
            _ if !data.is_null() => return (id, name, data),
            _ => {}
        }
    }
}

/// Goal: a listener receives each head and each snapshot, and one that returns with an id resumes after it. A page of
/// another site receives nothing. The places are few, and are released. A node that stops ends the streams at once.
#[test]
fn listeners_hear_what_changes() {
    let chain = Chain::new();
    chain.configure(
        "consensus: { empty_batch_interval_ms: 100 }\nstorage: { snapshot_interval_batches: 10 }\n",
    );
    let node = Running::start(&chain);
    let (status, mut stream) = listen(&node, "");
    assert_eq!(status, 200);
    let mut heads = Vec::new();
    let mut names = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    while heads.len() < 30 || !names.contains(&"snapshot".to_owned()) {
        let (id, name, data) = next(&mut stream);
        assert_eq!(data["event"], *name);
        if name == "head" {
            heads.push((id, data["number"].as_u64().unwrap(), data["digest"].clone()));
        }
        names.push(name);
        assert!(Instant::now() < deadline, "{names:?}");
    }
    assert!(heads.is_sorted_by(|one, other| one.1 < other.1), "{heads:?}");
    let block = node.rpc("eth_getBlockByNumber", json!([format!("{:#x}", heads[0].1), false]));
    assert_eq!(block["result"]["hash"], heads[0].2, "the head is the block");

    // After the third head comes the fourth.
    let (_, mut resumed) = listen(&node, &format!("Last-Event-ID: {}\r\n", heads[2].0));
    let head = loop {
        let (_, name, data) = next(&mut resumed);
        if name == "head" {
            break data;
        }
    };
    assert_eq!(head["number"], heads[3].1);
    // Nobody knows what was missed of another run.
    let (_, mut stranger) = listen(&node, "Last-Event-ID: 1-1\r\n");
    let (id, name, data) = next(&mut stranger);
    assert_eq!((&*id, &*name, data), ("", "lost", json!({ "event": "lost", "lost": null })));

    for origin in ["https://evil.example", "null", "http://127.0.0.1:1"] {
        assert_eq!(listen(&node, &format!("Origin: {origin}\r\n")).0, 403, "{origin}");
    }
    let (status, own) = listen(&node, &format!("Origin: http://{}\r\n", node.api));
    assert_eq!(status, 200);
    // Eight may listen.
    let more: Vec<_> = (0..4).map(|_| listen(&node, "")).collect();
    assert!(more.iter().all(|(status, _)| *status == 200));
    let (status, mut refused) = listen(&node, "");
    let mut text = String::new();
    refused.read_to_string(&mut text).unwrap();
    assert!(status == 503 && text.contains("too many listeners follow events"), "{status}: {text}");
    // A listener that leaves frees its place, and other requests are answered all the while.
    drop((own, more));
    let deadline = Instant::now() + PATIENCE;
    while listen(&node, "").0 != 200 {
        assert!(Instant::now() < deadline, "no place came back");
        crate::chain::wait();
    }
    assert_eq!(node.http("GET /health/live", ""), "ok\n");

    node.stop();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
}

/// Goal: `slipstream events` prints a line for each event, and waits for a node that stops.
#[test]
fn the_command_prints_a_line_for_each() {
    let chain = Chain::new();
    chain.configure("consensus: { empty_batch_interval_ms: 100 }\n");
    let node = Running::start(&chain);
    let mut command = Command::new(BINARY);
    command.args(["events", "--api", &format!("http://{}", node.api)]);
    let mut follower = Follower(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let lines = BufReader::new(follower.0.stdout.take().unwrap()).lines();
    for line in lines.map(Result::unwrap).filter(|line| line.contains(" head ")).take(3) {
        let [id, "head", data] = line.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let data: Value = serde_json::from_str(data).unwrap();
        assert!(id.contains('-') && data["number"].as_u64().unwrap() > 0, "{line}");
    }
    node.stop();
    let said = BufReader::new(follower.0.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut said = said.take(10);
    assert!(said.any(|line| line.contains("asking for it again") || line.contains("nothing listens")));
}

/// A process that is killed when the test ends.
struct Follower(Child);

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
