//! Which signs are healthy, which raise an alert, and which reason takes precedence.

use super::*;

const RULES: Rules = Rules { head_age_max: Some(Duration::from_secs(30)), head_lag_max: Some(15) };

/// A node with a virtual clock, judged once a second.
struct Rig {
    judge: Judge,
    start: Instant,
    second: u64,
    signs: HealthSigns,
}

impl Rig {
    fn new(rules: Rules) -> Rig {
        let start = Instant::now();
        let signs = HealthSigns {
            phase: Phase::WaitingForPeers,
            needs_peers: true,
            configured: 3,
            ..HealthSigns::default()
        };
        Rig { judge: Judge::new(rules, start), start, second: 0, signs }
    }

    /// Three peers at the same head, which is recent.
    fn at_head(rules: Rules, head: u64) -> Rig {
        let mut rig = Rig::new(rules);
        rig.meet(head);
        rig.signs.head = BatchNumber::new(head);
        rig.signs.head_age = Some(Duration::from_millis(400));
        rig
    }

    fn meet(&mut self, head: u64) {
        let head = BatchNumber::new(head);
        let waiting = Some("no peer has a newer batch".to_owned());
        self.signs = HealthSigns {
            phase: Phase::Idle,
            waiting,
            target: head,
            newest: head,
            heard: 3,
            connected: 3,
            ..self.signs.clone()
        };
    }

    fn look(&mut self) -> Health {
        self.judge.judge(&self.signs, self.start + Duration::from_secs(self.second))
    }

    /// Lets time pass while the head stays.
    fn wait(&mut self, seconds: u64) -> Health {
        for _ in 0..seconds {
            self.second += 1;
            self.signs.head_age = self.signs.head_age.map(|age| age + Duration::from_secs(1));
            self.look();
        }
        self.look()
    }
}

fn reason(health: &Health) -> Option<Reason> {
    health.blocker.as_ref().map(|blocker| blocker.reason)
}

fn text(health: &Health) -> &str {
    health.blocker.as_ref().map_or("", |blocker| &blocker.text)
}

/// Goal: a halted chain differs by name from a lagging node, and ends the readiness of every node that sees it.
#[test]
fn a_halted_chain_is_named() {
    let mut rig = Rig::at_head(RULES, 970);
    let health = rig.look();
    assert!(health.ready && health.state == State::AtHead && health.eta_seconds == Some(0.0), "{health:?}");
    assert!(rig.wait(29).ready);
    let health = rig.wait(1);
    assert_eq!(reason(&health), Some(Reason::Halted));
    assert_eq!(
        text(&health),
        "the chain has made no batch for 30 s: the newest certified batch that any of 3 peers has is 970"
    );
    assert!(!health.ready && !health.syncing, "there is nothing to sync: {health:?}");
    assert_eq!((health.eta_seconds, health.head_age_seconds), (None, Some(30.4)));
    // The chain resumes.
    rig.meet(971);
    rig.signs.head = BatchNumber::new(971);
    rig.signs.head_age = Some(Duration::ZERO);
    assert!(rig.wait(1).ready);
}

/// Goal: a slow clock is reported like a fast one. The age is reported with its sign, and only a head that moves is
/// new.
#[test]
fn a_head_ahead_of_the_clock_is_told() {
    let mut rig = Rig::at_head(RULES, 970);
    (rig.signs.head_age, rig.signs.is_ahead) = (Some(Duration::from_secs(3_600)), true);
    rig.look();
    let health = rig.look();
    assert_eq!(health.head_age_seconds, Some(-3_600.0));
    // The head moves: the clock is wrong, and the head is new.
    for head in [971, 972] {
        rig.meet(head);
        rig.signs.head = BatchNumber::new(head);
        rig.wait(1);
    }
    assert!(rig.look().ready);
    let health = rig.wait(31);
    assert_eq!(reason(&health), Some(Reason::Halted));
    assert!(
        text(&health).contains("ahead of this machine's clock") && text(&health).contains("set the clock")
    );
}

/// Goal: a chain that has not begun says when it will, and raises no alert until then. A chain that is overdue without
/// a batch raises one.
#[test]
fn a_genesis_in_the_future_is_waited_for() {
    let mut rig = Rig::at_head(RULES, 0);
    (rig.signs.head_age, rig.signs.begins_in) = (None, Some(Duration::from_secs(3_540)));
    let health = rig.wait(40);
    assert_eq!(reason(&health), Some(Reason::NoBatch));
    assert!(
        text(&health).contains("begins in 59 min") && !health.blocker.as_ref().unwrap().alert,
        "{health:?}"
    );
    rig.signs.begins_in = Some(Duration::ZERO);
    assert!(text(&rig.look()).contains("no batch yet") && rig.look().blocker.unwrap().alert);
}

#[test]
fn a_proposer_says_what_its_batch_lacks() {
    let mut rig = Rig::at_head(RULES, 7);
    rig.signs.votes = Some("batch 8 has 1 of the 3 votes that it needs".into());
    let health = rig.wait(40);
    assert!(text(&health).ends_with("is 7; batch 8 has 1 of the 3 votes that it needs"), "{health:?}");
}

/// Goal: a node behind is syncing, reports its distance, and raises no alert while anything arrives.
#[test]
fn a_node_behind_says_by_how_much_and_alerts_when_nothing_comes() {
    let mut rig = Rig::at_head(RULES, 958);
    rig.signs.target = BatchNumber::new(974);
    let expected = "this node is 16 batches behind: its head is 958, the newest certified batch 974";
    for second in 0..60 {
        rig.signs.received.0 += 1_000;
        (rig.signs.waiting, rig.signs.eta_seconds) = (None, Some(9.0));
        let health = rig.wait(1);
        assert_eq!((reason(&health), text(&health)), (Some(Reason::Behind), expected), "{second}");
        assert!(health.syncing && !health.blocker.as_ref().unwrap().alert);
        assert_eq!((health.state, health.eta_seconds), (State::CatchingUp, Some(9.0)));
    }
    rig.signs.waiting = Some("no connected peer serves batch 959 in a way that the policy allows".into());
    rig.signs.phase = Phase::Stuck;
    assert_eq!(reason(&rig.wait(29)), Some(Reason::Behind));
    let health = rig.wait(1);
    assert_eq!(reason(&health), Some(Reason::Stalled));
    assert!(
        text(&health).ends_with(
            "nothing for 30 s: no connected peer serves batch 959 in a way that the policy allows"
        )
    );
    assert!(health.blocker.as_ref().unwrap().alert && health.syncing && health.eta_seconds.is_none());
}

/// Goal: a few batches behind are normal while following; they raise an alert if they stay.
#[test]
fn a_few_batches_behind_matter_once_the_head_is_old() {
    let mut rig = Rig::at_head(RULES, 958);
    rig.signs.target = BatchNumber::new(960);
    (rig.signs.waiting, rig.signs.phase) = (None, Phase::Replay);
    let health = rig.wait(30);
    assert_eq!((reason(&health), health.syncing, health.state), (Some(Reason::Behind), true, State::AtHead));
    assert!(rig.wait(0).behind_batches == 2);
}

/// Goal: a node is not ready until its waypoint is passed, however near that is: before then nothing vouches for the
/// state.
#[test]
fn a_node_before_its_waypoint_is_not_ready() {
    let mut rig = Rig::at_head(RULES, 958);
    (rig.signs.waypoint, rig.signs.target) = (Some(BatchNumber::new(960)), BatchNumber::new(960));
    let health = rig.look();
    assert!(!health.ready && health.syncing, "{health:?}");
    assert!(text(&health).starts_with("the ledger has not passed the waypoint at batch 960 yet"));
    rig.meet(960);
    (rig.signs.head, rig.signs.waypoint) = (BatchNumber::new(960), None);
    assert!(rig.look().ready);
}

/// Goal: a node without peers reports that within seconds, with the reason of one peer. A restart of its only peer is
/// too short for that.
#[test]
fn a_node_without_peers_says_so() {
    let mut rig = Rig::new(RULES);
    let first = rig.look();
    assert_eq!(reason(&first), Some(Reason::NoPeers));
    assert!(
        !first.blocker.as_ref().unwrap().alert && first.syncing,
        "nobody knows how far the chain is: {first:?}"
    );
    rig.signs.missing = Some("192.0.2.7:7400: no answer within 5s".into());
    let health = rig.wait(5);
    assert!(health.blocker.as_ref().unwrap().alert && health.state == State::WaitingForPeers);
    assert_eq!(
        text(&health),
        "no peer is connected: all 3 configured ones are unreachable (192.0.2.7:7400: no answer within 5s)"
    );

    let mut rig = Rig::at_head(RULES, 970);
    rig.look();
    (rig.signs.heard, rig.signs.connected) = (0, 0);
    let health = rig.wait(4);
    assert!(health.ready && health.eta_seconds.is_none(), "{health:?}");
    let health = rig.wait(1);
    assert_eq!((reason(&health), health.syncing), (Some(Reason::NoPeers), false), "its head is new");
    assert!(rig.wait(30).syncing, "its head is old, and nobody says whether the chain has more");
    rig.signs.connected = 2;
    assert_eq!(text(&rig.look()), "2 peers are connected, and none announces its head");
}

/// Goal: the only validator of a chain is healthy alone, and raises an alert when it produces nothing.
#[test]
fn a_chain_of_one_needs_no_peers() {
    let mut rig = Rig::new(RULES);
    rig.signs.needs_peers = false;
    assert!(rig.wait(30).ready, "the chain may still begin");
    let health = rig.wait(1);
    assert_eq!(text(&health), "the chain has no batch yet, 31 s after this node started");
    assert_eq!(
        (reason(&health), health.head_age_seconds, health.syncing),
        (Some(Reason::NoBatch), None, false)
    );
    rig.signs.head = BatchNumber::new(1);
    rig.signs.head_age = Some(Duration::ZERO);
    assert!(rig.wait(1).ready && rig.wait(29).ready);
    let health = rig.wait(2);
    assert!(
        text(&health).starts_with("the chain has made no batch for 3")
            && text(&health).ends_with("its last one is 1")
    );
}

/// Goal: a wrong clock, here or at the proposer, is not mistaken for a halted chain.
#[test]
fn a_head_that_moves_is_new_whatever_its_timestamp_says() {
    let mut rig = Rig::at_head(RULES, 1);
    rig.signs.head_age = Some(Duration::from_secs(600));
    assert_eq!(reason(&rig.look()), Some(Reason::Halted), "nothing moved since the start");
    for head in 2..60 {
        rig.signs.head = BatchNumber::new(head);
        rig.meet(head);
        assert_eq!(rig.wait(1).ready, head > 2, "{head}: one step is not enough");
    }
    assert!(!rig.wait(31).ready);
}

/// Goal: a node whose operator removed all its peers says that, and not that the configuration names none.
#[test]
fn removed_peers_are_told_from_missing_ones() {
    let mut rig = Rig::new(RULES);
    (rig.signs.configured, rig.signs.removed) = (0, 2);
    let health = rig.wait(6);
    assert_eq!(reason(&health), Some(Reason::NoPeers));
    assert!(text(&health).contains("the operator removed those of network.peers"), "{health:?}");
    rig.signs.removed = 0;
    assert!(text(&rig.look()).contains("network.peers names none"));
}

#[test]
fn without_a_limit_the_head_may_be_of_any_age() {
    let mut rig = Rig::at_head(Rules { head_age_max: None, ..RULES }, 970);
    assert!(rig.wait(10_000).ready);
    let mut rig = Rig::new(Rules { head_age_max: None, ..RULES });
    rig.signs.needs_peers = false;
    assert!(rig.wait(10_000).ready);
}

/// Goal: the operator sets how far behind a ready node may be, and an unready node becomes ready again well within that
/// limit. The state still describes what the node does.
#[test]
fn the_lag_that_ends_readiness_is_the_operators() {
    for (most, looks) in [
        (Some(63), &[(63, true), (64, false), (9, false), (8, true), (63, true)][..]),
        (Some(1), &[(1, true), (2, false), (1, false), (0, true)][..]),
        (None, &[(16, true), (1_000_000, true)][..]),
    ] {
        let mut rig = Rig::at_head(Rules { head_lag_max: most, ..RULES }, 100);
        (rig.signs.waiting, rig.signs.phase) = (None, Phase::Replay);
        for (behind, is_ready) in looks {
            rig.signs.target = rig.signs.head.after(*behind);
            let health = rig.look();
            assert_eq!(health.ready, *is_ready, "{most:?}, {behind}: {health:?}");
            assert_eq!(health.syncing, !*is_ready || *behind >= 16, "{most:?}, {behind}: {health:?}");
            assert!(*behind < 16 || health.state == State::CatchingUp, "{health:?}");
        }
    }
}

/// Goal: at the head, batch after batch is one state; a node that catches up is at the head once it arrives there.
#[test]
fn following_at_the_head_is_one_state() {
    let mut rig = Rig::at_head(RULES, 100);
    for head in 100..160 {
        rig.signs.phase = if head % 2 == 0 { Phase::Replay } else { Phase::Idle };
        rig.signs.head = BatchNumber::new(head);
        rig.signs.target = BatchNumber::new(head + head % 16);
        assert_eq!(rig.look().state, State::AtHead);
    }
    let mut states = Vec::new();
    for behind in [16, 20, 10, 15, 16, 3, 2, 15, 1] {
        rig.signs.target = rig.signs.head.after(behind);
        states.push(rig.look().state == State::CatchingUp);
    }
    assert_eq!(states, [true, true, true, true, true, true, false, false, false]);
}

/// Goal: a node that hovers around the limit becomes unready once, and ready again once it is at the head. A load
/// balancer must not see it flap.
#[test]
fn readiness_does_not_flap_about_the_bound() {
    let mut rig = Rig::at_head(RULES, 100);
    let mut ready = Vec::new();
    for behind in [1, 15, 16, 15, 17, 14, 3, 2, 15, 0] {
        rig.signs.target = rig.signs.head.after(behind);
        ready.push(rig.look().ready);
    }
    assert_eq!(ready, [true, true, false, false, false, false, false, true, true, true]);
}

/// Goal: a node whose head is about as old as allowed, and moves now and then, becomes unready once. It becomes ready
/// again with a much more recent head, or once its head keeps moving.
#[test]
fn readiness_does_not_flap_about_the_age() {
    let mut rig = Rig::at_head(RULES, 100);
    rig.signs.head_age = Some(Duration::from_secs(20));
    assert!(rig.wait(10).ready && !rig.wait(1).ready);
    let mut step = |pause, age| {
        rig.wait(pause);
        let head = rig.signs.head.next();
        (rig.signs.head, rig.signs.head_age) = (head, Some(Duration::from_secs(age)));
        (rig.signs.target, rig.signs.newest) = (head, head);
        rig.look().ready
    };
    for (pause, age, is_ready) in [
        (0, 28, false),
        (31, 29, false),
        (31, 4, false),
        // Near enough.
        (31, 3, true),
        // Too old again, and then the head keeps moving.
        (40, 28, false),
        (5, 31, true),
        (29, 31, true),
        (31, 28, false),
    ] {
        assert_eq!(step(pause, age), is_ready, "{pause} s, then {age} s old");
    }
}

/// Goal: the head at which syncing started stays fixed while the node syncs, and the next sync has another.
#[test]
fn syncing_has_a_beginning() {
    let mut rig = Rig::at_head(RULES, 970);
    assert!(!rig.look().syncing);
    assert_eq!(rig.judge.syncing_from, None);
    for (target, heads) in [(1_970, [970, 1_200, 1_900]), (4_000, [1_970, 2_500, 3_900])] {
        rig.meet(target);
        for head in heads {
            rig.signs.head = BatchNumber::new(head);
            assert!(rig.wait(1).syncing);
            assert_eq!(rig.judge.syncing_from, Some(BatchNumber::new(heads[0])), "at {head}");
        }
        rig.signs.head = BatchNumber::new(target);
        rig.signs.head_age = Some(Duration::ZERO);
        assert!(!rig.wait(1).syncing);
        assert_eq!(rig.judge.syncing_from, None);
    }
}

/// Goal: a validator that signs nothing is ready to serve and says why. If the chain halts, the reason includes that,
/// the remedy, and the other validators that do not vote.
#[test]
fn a_chain_that_stands_for_silence_says_so() {
    let mut rig = Rig::at_head(RULES, 7);
    let lost = Silence::LostVotes { until: BatchNumber::new(9) };
    rig.signs.silence = Some(lost);
    rig.signs.votes = Some("validators that do not vote: lost votes 2".to_owned());
    let health = rig.look();
    assert!(health.ready && health.silence.is_some_and(|it| it.silence == lost));
    let blocker = rig.wait(60).blocker.unwrap();
    assert_eq!(blocker.reason, Reason::Halted);
    for part in [lost.to_string().as_str(), lost.way_out(), "; validators that do not vote: lost votes 2"] {
        assert!(blocker.text.contains(part), "{}", blocker.text);
    }
}
