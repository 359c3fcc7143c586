use std::time::Duration;

use ratatui::{Terminal, backend::TestBackend};
use serde_json::{Value, json};
use slipstream_status::fixture::{self, key};

use super::*;

/// The text that a terminal of this size shows.
fn drawn(view: &mut View, (columns, rows): (u16, u16)) -> String {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    let now = view.seen.as_ref().map_or_else(Instant::now, |(_, at)| *at + Duration::from_secs(7));
    terminal.draw(|frame| draw::draw(frame, view, now)).unwrap();
    let buffer = terminal.backend().buffer();
    let lines = buffer.content().chunks(columns.into());
    lines
        .map(|line| line.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned() + "\n")
        .collect()
}

fn view(changes: Value) -> View {
    let mut view = View::new("http://127.0.0.1:8545".into());
    view.see(Ok(Box::new(fixture::status(changes))), Instant::now());
    view
}

/// A node that catches up with two peers, one of them banned.
fn catching_up() -> Value {
    let peer = json!({
        "id": key(2), "head": 20_000, "heard_ms_ago": 350, "serves": { "replay_from": 1, "delta_from": 1 }, "mode": "delta",
        "mode_reason": "planned", "batches_replayed": 0, "batches_applied": 900, "verified_bytes": 734_003_200_u64,
        "bytes_per_second": 46_452_000, "tail_ms": 80, "score": 900,
        "reasons": [{ "what": "verified answers", "times": 40, "change": 120, "seconds_ago": 2 }], "failures": 0, "pause_ms": 0,
        "banned": false, "last_reason": null, "last_reason_seconds_ago": null,
    });
    let banned = json!({
        "id": key(3), "head": null, "heard_ms_ago": null, "serves": { "replay_from": null, "delta_from": null }, "mode": "nothing",
        "mode_reason": "banned", "batches_replayed": 0, "batches_applied": 0, "verified_bytes": 0, "bytes_per_second": 0, "tail_ms": 0,
        "score": 0, "reasons": [], "failures": 1, "pause_ms": 0, "banned": true,
        "last_reason": "a wrong proof \u{1b}[2J of batches 100 to 200", "last_reason_seconds_ago": null,
    });
    let blocker = json!({ "reason": "behind", "text": "7200 certified batches are ahead", "alert": false, "retry_ms": null });
    json!({
        "health": { "ready": false, "state": "catching_up", "blocker": blocker, "behind_batches": 7_200, "eta_seconds": 8.9 },
        "sync": {
            "phase": "delta", "reason": "delta 0.52 ms a batch", "bottleneck": "cpu", "batches_per_second": 812.4, "head": 12_800,
            "target": 20_000, "peers": [peer, banned], "hints": { "named": 100, "used": 90, "reads": 120, "values_wrong": 0 },
            "stages": [{ "stage": "fetch", "busy_percent": 780.2, "queue_bytes": 25_165_824, "bytes_per_second": 46_452_000.0,
                "busy_seconds": 80.5, "bytes": 734_003_200 }],
        },
        "mesh": { "codecs": { "reed_solomon": { "decoded": [10, 80, 8, 1, 1, 0, 0, 0, 0, 0, 0], "decoded_s": 1.1 } } },
    })
}

/// Goal: the screen of a node that catches up has everything an operator looks for, and no peer's text moves the
/// cursor.
#[test]
fn catching_up_shows_all_parts() {
    let text = drawn(&mut view(catching_up()), (100, 90));
    let first = key(2)[..10].to_owned();
    for part in [
        "not ready: 7200 certified batches are ahead",
        "catching up, not ready  batch 300  812 batches/s, about 8.9 s left",
        "64.0 %: 12800 of 20000 batches",
        "because       delta 0.52 ms a batch",
        "fetch     780 %   24.0 MiB    44.3 MiB/s    700 MiB in 1 min 21 s",
        &first,
        "delta       900   44.3 MiB/s   0.2 ms",
        "+120 verified answers (40 times, 2 s ago)",
        "banned: a wrong proof",
        "follows; it does not validate",
        "named 75 % of 120 reads; 10 % of the named unused",
        "reed_solomon  11 ms on average, 95 % within 25 ms, of 100",
        "database 1.0 GiB",
        "of batch 200, 100",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    assert!(!text.contains('\u{1b}'), "{text}");
}

/// Goal: a validator's screen lists the others, and when each was last heard.
#[test]
fn a_validator_shows_the_others() {
    let text = drawn(&mut view(json!({ "consensus": fixture::consensus() })), (160, 50));
    for part in [
        "validator 1, counted from 0, the primary, wants another primary",
        "5 of primary 1",
        "batch 8: 3 prepare it, 2 commit to it, 3 decide",
        "400 ms ago",
        "1 min 35 s ago",
        "not yet",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    // Names stand in place of keys; the keys follow below them.
    let mut own = fixture::consensus();
    (own["name"], own["peers"][0]["name"]) = (json!("here"), json!("validator-0"));
    let peers = json!([{ "id": key(2), "name": "a fullnode", "address": null, "bytes_sent": 0, "bytes_received": 0, "rtt_ms": 0.0,
        "connected_seconds": 1 }]);
    let shared =
        json!([{ "id": key(5), "name": "twice", "own": false, "addresses": [], "problem": "has two nodes" }]);
    let status = json!({ "name": "here", "consensus": own, "peers": peers, "shared_keys": shared });
    let named = drawn(&mut view(status), (160, 60));
    let (first, peer) = (key(10)[..10].to_owned(), key(2)[..10].to_owned());
    for part in [
        "Slipstream here, fullnode of chain",
        "twice has two nodes",
        "validator 1 (here), counted",
        "5 of primary 1 (here)",
        "0 validator-0 ",
        &first,
        "a fullnode ",
        &peer,
    ] {
        assert!(named.contains(part), "{part} is not in\n{named}");
    }
    // Two columns: the peers stand next to the progress.
    assert!(text.lines().any(|line| line.contains("─ Progress ─") && line.contains("─ Peers ─")), "{text}");
}

/// Goal: bans and removed peers are listed below the peers, up to a limit.
#[test]
fn bans_and_removed_peers_are_shown() {
    let ban = json!({ "id": key(3), "name": "liar", "by": "operator", "reason": "it lied", "seconds_left": null, "until_ms": null });
    let removed = json!([{ "peer": format!("{}@192.0.2.3:7400", key(4)), "name": "gone" }]);
    let text = drawn(
        &mut view(json!({ "bans": vec![ban; 9], "bans_count": 300, "removed_peers": removed })),
        (200, 120),
    );
    for (part, times) in [("banned        liar", 8), ("more bans     292: ", 1), ("removed       gone", 1)] {
        assert_eq!(text.matches(part).count(), times, "{part} in\n{text}");
    }
}

/// Goal: a small terminal shows the important parts, and keys reach the rest. A silent node is reported, and the values
/// on the screen are marked as old.
#[test]
fn keys_move_and_silence_is_told() {
    let mut view = view(catching_up());
    let press = |view: &mut View, code| view.press(KeyEvent::new(code, KeyModifiers::NONE));
    let first = drawn(&mut view, (80, 24));
    assert!(first.contains("catching up, not ready") && !first.contains("Disk and memory"), "{first}");
    assert!(press(&mut view, KeyCode::End));
    let last = drawn(&mut view, (80, 24));
    assert!(
        last.contains("catching up, not ready") && last.contains("snapshots     of batch 200, 100"),
        "{last}"
    );
    assert!(press(&mut view, KeyCode::PageDown) && press(&mut view, KeyCode::Down));
    assert_eq!(drawn(&mut view, (80, 24)), last, "there is nothing below the last line");
    for _ in 0..100 {
        press(&mut view, KeyCode::Up);
    }
    assert_eq!(drawn(&mut view, (80, 24)), first);

    view.see(Err("nobody listens".into()), Instant::now());
    let text = drawn(&mut view, (80, 24));
    assert!(text.contains("nobody listens; these values are 7.0 s old"), "{text}");
    assert!(text.contains("64.0 %"), "{text}");
    // At any size, however small.
    for size in [(1, 1), (3, 2), (20, 5), (149, 6)] {
        drawn(&mut view, size);
    }
    assert!(!press(&mut view, KeyCode::Char('q')));
    assert!(!view.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
}

/// Goal: the latest events are listed below the sections, newest first and with their age; a lost stream is reported.
#[test]
fn events_are_shown() {
    let mut view = view(json!({}));
    let at = view.seen.as_ref().unwrap().1;
    assert!(drawn(&mut view, (160, 90)).contains("no event since this command started"));
    for heard in [
        StreamNews::Closed("nobody listens".into()),
        StreamNews::Open,
        StreamNews::Event("peer a connected".into()),
        StreamNews::Event("snapshot of batch 200".into()),
    ] {
        view.events.hear(heard, at);
    }
    let text = drawn(&mut view, (160, 90));
    let place = |words: &str| text.find(words).unwrap_or_else(|| panic!("{words} is not in\n{text}"));
    assert!(place("7.0 s         snapshot of batch 200") < place("7.0 s         peer a connected"), "{text}");
    assert!(!text.contains("nobody listens"), "{text}");
    for number in 0..EVENTS_MAX {
        view.events.hear(StreamNews::Event(format!("snapshot of batch {number}")), at);
    }
    assert!(
        view.events.told.len() == EVENTS_MAX && !drawn(&mut view, (160, 90)).contains("peer a connected")
    );
    view.events.hear(StreamNews::Closed("nobody listens".into()), at);
    assert!(drawn(&mut view, (160, 90)).contains("no events: nobody listens; asking again"));
}

/// Goal: CPU use is measured between two readings of the same process.
#[test]
fn cpu_use_is_between_two_looks() {
    let (start, mut view) = (Instant::now(), View::new(String::new()));
    let mut look = |pid: u32, cpu_seconds: f64, second: u64| {
        let status = fixture::status(json!({ "process": { "pid": pid, "cpu_seconds": cpu_seconds } }));
        view.see(Ok(Box::new(status)), start + Duration::from_secs(second));
        view.cpu_percent
    };
    assert_eq!(look(7, 10.0, 0), None);
    assert_eq!(look(7, 13.0, 2), Some(150.0));
    assert_eq!(look(8, 1.0, 4), None);
}
