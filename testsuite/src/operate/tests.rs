//! Tests orders with a program that simulates a node.

mod node;

use std::{fs, path::Path};

use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use super::*;
use crate::{
    accounts::node_key,
    load::{Delivery, Ending, Source, TAKEN},
};

fn fake_node() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/operate/fake-node.sh")
}

fn options(dir: &TempDir, orders: &[&str]) -> OperateOptions {
    let config = dir.path().join("node.yaml");
    let peer = node_key("s", 0).public();
    let text = format!(
        "role: fullnode\ngenesis: genesis.json\ndata_dir: data\nnetwork:\n  peers: ['{peer}@127.0.0.1:1']\n"
    );
    fs::write(&config, text).unwrap();
    fs::create_dir_all(dir.path().join("data")).unwrap();
    fs::write(dir.path().join("data/row"), "a row").unwrap();
    let orders = orders.iter().map(|order| order.parse().unwrap()).collect();
    OperateOptions {
        config,
        orders,
        start: None,
        seed: "s".to_owned(),
        skip_accounts: 0,
        shared: None,
        among: None,
        among_api: None,
        waypoint_from: None,
        program: None,
        judge: None,
        name: None,
    }
}

fn operated(options: &OperateOptions) -> Operated {
    Operated::new(options, Arc::default()).unwrap()
}

/// Returns the program's log, each line up to its first blank.
fn log(dir: &TempDir) -> Vec<String> {
    let text = fs::read_to_string(dir.path().join("log")).unwrap_or_default();
    text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

fn now_seconds() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec;
    u64::try_from(now).unwrap()
}

/// Waits until something holds. The limit is far longer than that takes on a busy machine.
async fn until(holds: impl Fn() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait).await.expect("it never holds");
}

/// Waits until the program's log is exactly this.
async fn noted(dir: &TempDir, wanted: &[&str]) {
    until(|| log(dir) == wanted).await;
}

/// Returns the state in `/proc` of the process that started last; `None` if there is none, or it has gone.
fn state(dir: &TempDir) -> Option<char> {
    let text = fs::read_to_string(dir.path().join("log")).ok()?;
    let pid = text.lines().filter_map(|line| line.strip_prefix("start ")).next_back()?;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.trim_start().chars().next()
}

/// Goal: orders are carried out by the clock, and the end of the container stops the node in order.
#[tokio::test]
async fn orders_come_by_the_clock() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(&dir, &["100ms..,join", "200ms..,wipe"]);
    let done = until(|| !dir.path().join("data/row").exists() && state(&dir).is_some());
    options.run_until(fake_node(), done).await.unwrap();
    assert_eq!(log(&dir).last().map(String::as_str), Some("term"));
}

/// Goal: the container can be ended while the node, which has not started yet, waits for its waypoint or for a
/// validator.
#[tokio::test]
async fn a_wait_for_another_node_ends_when_it_is_told() {
    for is_waypoint in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        // It accepts the request, and never answers.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let options = match options(&dir, &[]) {
            options if is_waypoint => OperateOptions { waypoint_from: Some(url), ..options },
            options => {
                OperateOptions { among: Some("corrupt-answers".to_owned()), among_api: Some(url), ..options }
            }
        };
        fs::write(dir.path().join("node.key"), hex::encode([7_u8; 32])).unwrap();
        let text = fs::read_to_string(&options.config).unwrap() + "key_file: node.key\n";
        fs::write(&options.config, text).unwrap();
        let asked = async { drop(listener.accept().await.unwrap()) };
        // Far shorter than the wait for a waypoint.
        let run = tokio::time::timeout(Duration::from_secs(20), options.run_until(fake_node(), asked));
        run.await.expect("nobody was heard").unwrap();
        assert!(log(&dir).is_empty(), "the node started");
    }
}

/// Goal: a failed order stops neither the node nor the later orders. The end reports it.
#[tokio::test]
async fn an_order_that_fails_ends_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(&dir, &["0s..,wipe", "100ms..,join"]);
    let data = dir.path().join("data");
    fs::remove_dir_all(&data).unwrap();
    fs::write(&data, "no directory").unwrap();
    // The node is down until it joins, after the failure.
    let done = until(|| state(&dir).is_some());
    let error = options.run_until(fake_node(), done).await.unwrap_err().to_string();
    assert!(error.contains("order 0ms..,wipe failed: "), "{error}");
    assert_eq!(log(&dir).last().map(String::as_str), Some("term"));
}

/// Goal: an order upgrades a node from its first program to another, with a graceful stop in between. A container that
/// restarts after the upgrade continues with the new program.
#[tokio::test]
async fn a_node_is_upgraded() {
    let dir = tempfile::tempdir().unwrap();
    let options = OperateOptions {
        program: Some("before".to_owned()),
        start: Some(now_seconds() + 3),
        ..options(&dir, &["2s..,upgrade=current"])
    };
    for name in ["slipstream", "slipstream-before"] {
        std::os::unix::fs::symlink(fake_node(), dir.path().join(name)).unwrap();
    }
    let (program, ran) = (dir.path().join("slipstream"), || {
        let text = fs::read_to_string(dir.path().join("programs")).unwrap_or_default();
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    });
    let both = || ran() == ["slipstream-before", "slipstream"];
    options.run_until(program.clone(), until(both)).await.unwrap();
    assert_eq!(log(&dir), ["start", "term", "start", "term"]);
    options.run_until(program, until(|| ran().len() == 3)).await.unwrap();
    assert_eq!(ran()[2], "slipstream");
}

/// Goal: without a common start, an order at time zero is carried out too.
#[tokio::test]
async fn an_order_at_the_start_is_given() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(&dir, &["0s..,wipe"]);
    let done = until(|| !dir.path().join("data/row").exists() && state(&dir).is_some());
    options.run_until(fake_node(), done).await.unwrap();
    assert_eq!(log(&dir).last().map(String::as_str), Some("term"));
}

/// Goal: a container that restarts after an order does not repeat it, and continues lasting orders.
#[tokio::test]
async fn what_began_before_is_not_done_again() {
    let dir = tempfile::tempdir().unwrap();
    let options = OperateOptions { start: Some(1), ..options(&dir, &["1s..,wipe", "1s..2s,kill"]) };
    let given = Taken::beside(&dir.path().join("data"), options.start);
    options.orders.iter().for_each(|order| given.keep(order).unwrap());
    options.run_until(fake_node(), until(|| state(&dir).is_some())).await.unwrap();
    assert!(dir.path().join("data/row").exists());
    assert_eq!(log(&dir), ["start", "term"]);
}

/// Goal: an operator that begins after an order's time reports it as missed; an order that was carried out is known to
/// the next start.
#[tokio::test]
async fn an_order_whose_time_was_missed_has_failed() {
    let dir = tempfile::tempdir().unwrap();
    let late = OperateOptions { start: Some(1), ..options(&dir, &["1s..,wipe", "1s..2s,kill", "1s..,join"]) };
    let error = late.run_until(fake_node(), until(|| state(&dir).is_some())).await.unwrap_err().to_string();
    assert!(error.starts_with("orders failed 2 times, first: order 1000ms..,wipe failed: "), "{error}");
    assert!(dir.path().join("data/row").exists());
    // Far enough ahead that a machine that stalls for seconds does not miss it.
    let timely = OperateOptions { start: Some(now_seconds() + 5), ..options(&dir, &["0s..,wipe"]) };
    let done = until(|| !dir.path().join("data/row").exists() && state(&dir).is_some());
    timely.run_until(fake_node(), done).await.unwrap();
    let given = Taken::beside(&dir.path().join("data"), timely.start);
    until(|| given.recall(&timely.orders).unwrap() == [true]).await;
}

/// Goal: the judge learns of failures once the last order is over, and of a node that ended before that.
#[tokio::test]
async fn the_judge_hears_of_the_orders() {
    for (program, order, failed) in [
        (fake_node(), "0s..100ms,kill", None),
        (fake_node(), "0s..,wipe", Some("order 0ms..,wipe failed: ")),
        ("/bin/false".into(), "1h..,kill", Some("the node ended by itself: ")),
    ] {
        let (dir, listener) = (tempfile::tempdir().unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap());
        let (judge, name) = (listener.local_addr().unwrap().to_string(), "near".to_owned());
        let options = OperateOptions { judge: Some(judge), name: Some(name), ..options(&dir, &[order]) };
        if order.ends_with("wipe") {
            fs::remove_dir_all(dir.path().join("data")).unwrap();
            fs::write(dir.path().join("data"), "no directory").unwrap();
        }
        let (tell, told) = tokio::sync::oneshot::channel();
        let hears = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut text = Vec::new();
            stream.read_to_end(&mut text).await.unwrap();
            stream.write_all(TAKEN.as_bytes()).await.unwrap();
            let _ = tell.send(());
            text
        });
        let ended = options.run_until(program, async { told.await.unwrap() }).await;
        let Delivery { from, ending } = serde_json::from_slice(&hears.await.unwrap()).unwrap();
        assert_eq!(from, Source::Node("near".to_owned()));
        let Ending::Orders { failed: heard } = ending else { panic!("{order}: no orders") };
        assert_eq!(
            (heard.is_some(), ended.is_err()),
            (failed.is_some(), failed.is_some()),
            "{order}: {heard:?}"
        );
        assert!(failed.is_none_or(|part| heard.is_some_and(|heard| heard.contains(part))), "{order}");
    }
}

/// Goal: a container that restarts while an order to the primary lasts keeps its node down, although another node is
/// primary by then.
#[tokio::test]
async fn an_order_that_was_taken_lasts() {
    let dir = tempfile::tempdir().unwrap();
    let options = OperateOptions { start: Some(1), ..options(&dir, &["1s..,kill,primary"]) };
    let taken = Taken::beside(&dir.path().join("data"), options.start);
    taken.keep(&options.orders[0]).unwrap();
    // Far longer than the start of a node that nothing keeps down.
    options.run_until(fake_node(), tokio::time::sleep(Duration::from_millis(300))).await.unwrap();
    assert!(log(&dir).is_empty());
}

/// Goal: a container ends when its node ends by itself.
#[tokio::test]
async fn a_node_that_ends_ends_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(&dir, &["1h..,kill"]);
    let error = options.run_until("/bin/false".into(), std::future::pending()).await.unwrap_err();
    assert!(error.to_string().contains("the node ended by itself: exit status: 1"), "{error}");
}

/// Goal: an order to the primary applies to a node that claims to be primary. It does not apply to a node that does not
/// answer, or whose view has not begun.
#[tokio::test]
async fn the_primary_takes_its_orders() {
    let orders: Vec<Order> = vec!["1s..,kill,primary".parse().unwrap(), "1s..,pause".parse().unwrap()];
    // Far longer than an answer takes on a busy machine.
    let patience = Duration::from_secs(60);
    for (answer, takes) in [
        ("true", true),
        ("true,\"changing\":false", true),
        ("true,\"changing\":true", false),
        ("false", false),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let rpc = Rpc::new(&listener.local_addr().unwrap().to_string()).unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 4_096];
            assert!(stream.read(&mut request).await.unwrap() > 0);
            let body = format!("{{\"consensus\":{{\"is_primary\":{answer}}}}}");
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            stream.write_all((head + &body).as_bytes()).await.unwrap();
        });
        let dir = tempfile::tempdir().unwrap();
        let of = |start| {
            let taken = Taken::beside(&dir.path().join("data"), Some(start));
            Orders::new(&orders, taken, patience).unwrap()
        };
        let (mut taken, failures) = (of(7), Failures::default());
        assert_eq!(taken.mine().count(), 1);
        assert_eq!(taken.take(0, &rpc, &failures).await, takes);
        assert!(taken.take(1, &rpc, &failures).await, "it is to the node itself");
        assert_eq!(taken.mine().count(), 1 + usize::from(takes));
        assert_eq!(of(7).mine().count(), 1 + usize::from(takes), "as after a restart");
        // The server has gone.
        assert!(!of(8).take(0, &rpc, &failures).await);
        failures.end().unwrap();
    }
}
