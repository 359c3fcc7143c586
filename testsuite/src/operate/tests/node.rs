//! Tests a node's condition, without a clock.

use rustix::process::{Pid, Signal, kill_process};
use slipstream_config::Overrides;

use super::*;
use crate::{
    leftovers::skip_mounts,
    operate::state::State,
    scenario::disk::{SmallDisk, fill},
};

/// Goal: each order has its effect, and lasting effects end.
#[tokio::test]
async fn a_node_is_what_its_orders_make_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut node = operated(&options(&dir, &[]));
    let (up, down) = (State::default(), State { is_down: true, ..State::default() });
    node.become_as(down, &fake_node()).await.unwrap();
    assert!(log(&dir).is_empty(), "who joins later does not run");
    node.become_as(up, &fake_node()).await.unwrap();
    noted(&dir, &["start"]).await;

    node.become_as(State { is_paused: true, ..up }, &fake_node()).await.unwrap();
    until(|| state(&dir) == Some('T')).await;
    node.become_as(up, &fake_node()).await.unwrap();
    until(|| state(&dir) != Some('T')).await;

    node.obey(&What::Kill).await.unwrap();
    node.become_as(down, &fake_node()).await.unwrap();
    node.become_as(up, &fake_node()).await.unwrap();
    noted(&dir, &["start", "start"]).await;
    node.obey(&What::Restart).await.unwrap();
    node.become_as(up, &fake_node()).await.unwrap();
    noted(&dir, &["start", "start", "term", "start"]).await;

    assert!(dir.path().join("data/row").exists());
    node.obey(&What::Wipe).await.unwrap();
    assert!(dir.path().join("data").exists() && !dir.path().join("data/row").exists());
    node.become_as(State { is_paused: true, ..up }, &fake_node()).await.unwrap();
    node.become_as(up, &fake_node()).await.unwrap();
    noted(&dir, &["start", "start", "term", "start", "start"]).await;
    node.stop().await.unwrap();
    assert_eq!(log(&dir).last().map(String::as_str), Some("term"));
}

/// Goal: a disk that is not the node's own is never filled. The node's own disk has no room while the order lasts, so
/// that the node may end; afterwards it runs again. A filler left by a killed program is removed.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_has_room_again() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(&dir, &["1s..2s,full-disk"]);
    let refused = Operated::new(&options, Arc::default()).err().unwrap().to_string();
    assert!(refused.contains("is no disk of its own"), "{refused}");
    let data = dir.path().join("data");
    let _disk = match SmallDisk::mount(&data, 1) {
        Ok(disk) => disk,
        Err(error) => return skip_mounts(&format!("{error:#}")),
    };
    fill(&data).unwrap();
    let mut node = operated(&options);
    fs::write(data.join("more"), [0; 4_096]).unwrap();
    fs::remove_file(data.join("more")).unwrap();
    node.become_as(State::default(), &fake_node()).await.unwrap();
    noted(&dir, &["start"]).await;
    node.become_as(State { is_full: true, ..State::default() }, &fake_node()).await.unwrap();
    assert!(fs::write(data.join("more"), [0; 4_096]).is_err());
    let log = fs::read_to_string(dir.path().join("log")).unwrap();
    let pid = log.trim().strip_prefix("start ").and_then(|pid| Pid::from_raw(pid.parse().ok()?)).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(1), node.ended()).await;
    assert!(ended.is_err(), "it may end");
    node.become_as(State { is_full: true, ..State::default() }, &fake_node()).await.unwrap();
    node.become_as(State::default(), &fake_node()).await.unwrap();
    noted(&dir, &["start", "start"]).await;
    fs::write(data.join("more"), [0; 4_096]).unwrap();
    node.stop().await.unwrap();
}

/// Goal: a state that could not be applied is a failure, and the node continues.
#[tokio::test]
async fn a_state_that_fails_ends_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let failures = Arc::<Failures>::default();
    let mut node = Operated::new(&options(&dir, &[]), failures.clone()).unwrap();
    node.become_as(State::default(), &fake_node()).await.unwrap();
    noted(&dir, &["start"]).await;
    // Its data is not on a separate disk.
    node.become_as(State { is_full: true, ..State::default() }, &fake_node()).await.unwrap();
    let error = failures.end().unwrap_err().to_string();
    assert!(error.contains("filling the node's disk, or freeing it, failed: "), "{error}");
    node.stop().await.unwrap();
    assert_eq!(log(&dir), ["start", "term"]);
}

/// Goal: a node dials attackers before its peers, and the rest of its configuration is unchanged.
#[test]
fn attackers_stand_before_the_peers() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(&dir, &["1s..,join"]);
    let mut node = operated(&options);
    let liar = format!("{}@127.64.0.1:9", node_key("s", 7).public());
    node.dial_first(std::slice::from_ref(&liar)).unwrap();
    let load = |path: &Path| slipstream_config::load(path, &Overrides::default()).unwrap().config;
    let (before, after) = (load(&options.config), load(&dir.path().join("among.yaml")));
    let peers: Vec<String> = after.network.peers.iter().map(ToString::to_string).collect();
    assert_eq!(peers, [liar, before.network.peers[0].to_string()]);
    assert_eq!((after.genesis, after.data_dir), (before.genesis, before.data_dir));
}

/// Goal: a node continues after the copy and has its old data once the order ends, even if its container restarted
/// meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn data_are_put_back() {
    let dir = tempfile::tempdir().unwrap();
    let options = OperateOptions { start: Some(now_seconds()), ..options(&dir, &["1s..2s,old-data"]) };
    let row = dir.path().join("data/row");
    let mut node = operated(&options);
    let keeps = State { keeps_data: true, ..State::default() };
    node.become_as(State::default(), &fake_node()).await.unwrap();
    noted(&dir, &["start"]).await;
    node.obey(&What::OldData).await.unwrap();
    node.become_as(keeps, &fake_node()).await.unwrap();
    noted(&dir, &["start", "term", "start"]).await;
    fs::write(&row, "another row").unwrap();
    node.stop().await.unwrap();
    let mut node = operated(&options);
    node.become_as(keeps, &fake_node()).await.unwrap();
    noted(&dir, &["start", "term", "start", "term", "start"]).await;
    assert_eq!(fs::read_to_string(&row).unwrap(), "another row");
    node.become_as(State::default(), &fake_node()).await.unwrap();
    noted(&dir, &["start", "term", "start", "term", "start", "term", "start"]).await;
    assert_eq!(fs::read_to_string(&row).unwrap(), "a row");
    node.stop().await.unwrap();
}
