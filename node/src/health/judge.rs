//! [`Judge`]: what signs mean, with a memory of since when. Pure: time and signs come from outside.

use std::time::Duration;

use slipstream_sync::Phase;
use slipstream_types::BatchNumber;
use tokio::time::Instant;

use super::{Blocker, Health, Reason, State};

/// A node so many batches behind is catching up; fewer come and go with every batch at the head.
const BEHIND_BATCHES: u64 = 16;
/// Whoever was catching up is at the head again at so few: no state changes with every batch.
const AT_HEAD_BATCHES: u64 = 2;
/// So long without peers is no restart of one's only peer.
const NO_PEERS_AFTER: Duration = Duration::from_secs(5);
/// Behind the head, so long without anything that came is not a slow peer any more: three request deadlines.
const STALLED_AFTER: Duration = Duration::from_secs(30);

/// What is asked of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Whether it can do nothing alone: all but the validator of a chain that has no other.
    pub(crate) needs_peers: bool,
    /// How old its head may be: `sync.head_age_max_s`.
    pub(crate) head_age_max: Option<Duration>,
}

/// What a health is judged by.
#[derive(Clone, Debug, Default)]
pub(super) struct Signs {
    pub(super) head: BatchNumber,
    /// None before the first batch.
    pub(super) head_age: Option<Duration>,
    pub(super) phase: Phase,
    /// What sync waits for, while it does nothing.
    pub(super) waiting: Option<String>,
    /// The highest certified batch that any peer has ever shown, or the waypoint's.
    pub(super) target: BatchNumber,
    /// The batch of the operator's waypoint until the ledger has passed it.
    pub(super) waypoint: Option<BatchNumber>,
    /// Peers that told of their head lately.
    pub(super) heard: usize,
    /// The highest head among these.
    pub(super) newest: BatchNumber,
    /// Bytes and rows that came, ever.
    pub(super) received: (u64, u64),
    pub(super) connected: usize,
    pub(super) configured: usize,
    /// Why peers are missing: one of the configured ones with its reason, or what keeps all away.
    pub(super) missing: Option<String>,
    /// How far the batch is that this validator proposes.
    pub(super) votes: Option<String>,
    pub(super) batches_per_second: f64,
    pub(super) transactions_per_second: f64,
    pub(super) eta_seconds: Option<f64>,
}

/// Judges signs, in the order of time.
#[derive(Debug)]
pub(super) struct Judge {
    rules: Rules,
    started: Instant,
    /// When a peer was last heard of.
    heard_at: Option<Instant>,
    /// When the head last moved, since start.
    moved_at: Option<Instant>,
    /// When anything last came, or was worked on.
    busy_at: Instant,
    last: Option<(BatchNumber, (u64, u64))>,
    state: State,
}

impl Judge {
    pub(super) fn new(rules: Rules, now: Instant) -> Judge {
        Judge {
            rules,
            started: now,
            heard_at: None,
            moved_at: None,
            busy_at: now,
            last: None,
            state: State::WaitingForPeers,
        }
    }

    /// Judges the signs of now.
    pub(super) fn judge(&mut self, signs: &Signs, now: Instant) -> Health {
        self.remember(signs, now);
        let behind = signs.target.0.saturating_sub(signs.head.0);
        self.state = self.state(signs, behind);
        let blocker = self.blocker(signs, behind, now);
        let reason = blocker.as_ref().map(|blocker| blocker.reason);
        Health {
            ready: blocker.is_none(),
            state: self.state,
            syncing: match reason {
                Some(Reason::Behind | Reason::Stalled) => true,
                Some(Reason::NoPeers) => behind > 0 || self.heard_at.is_none() || self.is_old(signs, now),
                Some(Reason::Halted | Reason::NoBatch) | None => false,
            },
            blocker,
            head: signs.head,
            head_age_seconds: signs.head_age.map(|age| age.as_secs_f64()),
            behind_batches: behind,
            peers_connected: signs.connected,
            peers_configured: signs.configured,
            batches_per_second: signs.batches_per_second,
            transactions_per_second: signs.transactions_per_second,
            eta_seconds: match reason {
                Some(Reason::NoPeers | Reason::Stalled | Reason::Halted | Reason::NoBatch) => None,
                Some(Reason::Behind) => signs.eta_seconds,
                None if self.state == State::WaitingForPeers => None,
                None if behind == 0 => Some(0.0),
                None => signs.eta_seconds,
            },
        }
    }

    fn remember(&mut self, signs: &Signs, now: Instant) {
        if signs.heard > 0 {
            self.heard_at = Some(now);
        }
        let seen = (signs.head, signs.received);
        if self.last.is_some_and(|(head, _)| head != signs.head) {
            self.moved_at = Some(now);
        }
        if self.last != Some(seen) || signs.waiting.is_none() {
            self.busy_at = now;
        }
        self.last = Some(seen);
    }

    fn state(&self, signs: &Signs, behind: u64) -> State {
        let behind_max = match self.state {
            State::CatchingUp | State::Restoring => AT_HEAD_BATCHES,
            _ => BEHIND_BATCHES - 1,
        };
        match signs.phase {
            Phase::Snapshot | Phase::RangeDelta => State::Restoring,
            Phase::Stuck => State::Stuck,
            _ if self.rules.needs_peers && signs.heard == 0 => State::WaitingForPeers,
            _ if behind > behind_max => State::CatchingUp,
            _ => State::AtHead,
        }
    }

    /// Whether the head is too old. A head that moves here is new whatever its timestamp says: then a clock is wrong, or the chain's
    /// time catches up after a pause.
    fn is_old(&self, signs: &Signs, now: Instant) -> bool {
        let Some((most, age)) = self.rules.head_age_max.zip(signs.head_age) else { return false };
        age > most && self.moved_at.is_none_or(|at| now.saturating_duration_since(at) > most)
    }

    /// The first thing that is wrong: what comes after it may follow from it.
    fn blocker(&self, signs: &Signs, behind: u64, now: Instant) -> Option<Blocker> {
        let since = |at: Instant| now.saturating_duration_since(at);
        let unheard = since(self.heard_at.unwrap_or(self.started));
        let is_unheard = self.heard_at.is_none() || unheard >= NO_PEERS_AFTER;
        if self.rules.needs_peers && signs.heard == 0 && is_unheard {
            return Some(Blocker {
                reason: Reason::NoPeers,
                text: no_peers(signs),
                alert: unheard >= NO_PEERS_AFTER,
            });
        }
        let idle = since(self.busy_at);
        if behind > 0 && idle >= STALLED_AFTER {
            let why = signs.waiting.as_deref().unwrap_or("nothing comes");
            let text =
                format!("{}, and has got nothing for {} s: {why}", is_behind(signs, behind), idle.as_secs());
            return Some(Blocker { reason: Reason::Stalled, text, alert: true });
        }
        let is_old = self.is_old(signs, now);
        if let Some(waypoint) = signs.waypoint {
            let text = format!(
                "the ledger has not passed the waypoint at batch {waypoint} yet: {}",
                is_behind(signs, behind)
            );
            return Some(Blocker { reason: Reason::Behind, text, alert: false });
        }
        if behind >= BEHIND_BATCHES || (behind > 0 && is_old) {
            let why = signs.waiting.as_ref().map_or_else(String::new, |why| format!(": {why}"));
            let text = format!("{}{why}", is_behind(signs, behind));
            return Some(Blocker { reason: Reason::Behind, text, alert: false });
        }
        let up = since(self.started);
        let is_late = self.rules.head_age_max.is_some_and(|most| up > most);
        match signs.head_age {
            None if is_late => {
                let text = format!(
                    "the chain has no batch yet, {} s after this node started{}",
                    up.as_secs(),
                    votes(signs)
                );
                Some(Blocker { reason: Reason::NoBatch, text, alert: true })
            }
            Some(age) if is_old => {
                Some(Blocker { reason: Reason::Halted, text: halted(signs, age), alert: true })
            }
            _ => None,
        }
    }
}

fn is_behind(signs: &Signs, behind: u64) -> String {
    let batches = if behind == 1 { "batch" } else { "batches" };
    format!(
        "this node is {behind} {batches} behind: its head is {}, the newest certified batch {}",
        signs.head, signs.target
    )
}

fn halted(signs: &Signs, age: Duration) -> String {
    let newest = match signs.heard {
        0 => format!("its last one is {}", signs.head),
        1 => format!("the newest certified batch that its only peer has is {}", signs.newest),
        heard => format!("the newest certified batch that any of {heard} peers has is {}", signs.newest),
    };
    format!("the chain has made no batch for {} s: {newest}{}", age.as_secs(), votes(signs))
}

fn votes(signs: &Signs) -> String {
    signs.votes.as_ref().map_or_else(String::new, |votes| format!("; {votes}"))
}

fn no_peers(signs: &Signs) -> String {
    let missing = signs.missing.as_ref().map_or_else(String::new, |why| format!(" ({why})"));
    match (signs.connected, signs.configured) {
        (0, 0) => "no peer is connected, and network.peers names none".into(),
        (0, 1) => format!("no peer is connected: the configured one cannot be reached{missing}"),
        (0, configured) => {
            format!("no peer is connected: none of {configured} configured ones can be reached{missing}")
        }
        (1, _) => "the only connected peer does not tell of its head".into(),
        (connected, _) => format!("none of {connected} connected peers tells of its head"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules = Rules { needs_peers: true, head_age_max: Some(Duration::from_secs(30)) };

    /// A node with a virtual clock, which looks once a second.
    struct Rig {
        judge: Judge,
        start: Instant,
        second: u64,
        signs: Signs,
    }

    impl Rig {
        fn new(rules: Rules) -> Rig {
            let start = Instant::now();
            let signs = Signs { phase: Phase::WaitingForPeers, configured: 3, ..Signs::default() };
            Rig { judge: Judge::new(rules, start), start, second: 0, signs }
        }

        /// Three peers at the same head, which is a moment old.
        fn at_head(rules: Rules, head: u64) -> Rig {
            let mut rig = Rig::new(rules);
            rig.meet(head);
            rig.signs.head = BatchNumber(head);
            rig.signs.head_age = Some(Duration::from_millis(400));
            rig
        }

        fn meet(&mut self, head: u64) {
            let head = BatchNumber(head);
            let waiting = Some("no peer has a newer batch".to_owned());
            self.signs = Signs {
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

        /// Time passes and the head stays.
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

    /// Goal: a chain that stops is told from a node that lags, by name, and ends the readiness of every node that sees it.
    #[test]
    fn a_halted_chain_is_named() {
        let mut rig = Rig::at_head(RULES, 970);
        let health = rig.look();
        assert!(
            health.ready && health.state == State::AtHead && health.eta_seconds == Some(0.0),
            "{health:?}"
        );
        assert!(rig.wait(29).ready);
        let health = rig.wait(1);
        assert_eq!(reason(&health), Some(Reason::Halted));
        assert_eq!(
            text(&health),
            "the chain has made no batch for 30 s: the newest certified batch that any of 3 peers has is 970"
        );
        assert!(!health.ready && !health.syncing, "there is nothing to sync: {health:?}");
        assert_eq!((health.eta_seconds, health.head_age_seconds), (None, Some(30.4)));
        // It goes on.
        rig.meet(971);
        rig.signs.head = BatchNumber(971);
        rig.signs.head_age = Some(Duration::ZERO);
        assert!(rig.wait(1).ready);
    }

    #[test]
    fn a_proposer_says_what_its_batch_lacks() {
        let mut rig = Rig::at_head(RULES, 7);
        rig.signs.votes = Some("batch 8 has 1 of the 3 votes that it needs".into());
        let health = rig.wait(40);
        assert!(text(&health).ends_with("is 7; batch 8 has 1 of the 3 votes that it needs"), "{health:?}");
    }

    /// Goal: who is behind is syncing, says by how much, and is no alert while anything comes.
    #[test]
    fn a_node_behind_says_by_how_much_and_alerts_when_nothing_comes() {
        let mut rig = Rig::at_head(RULES, 958);
        rig.signs.target = BatchNumber(974);
        let expected = "this node is 16 batches behind: its head is 958, the newest certified batch 974";
        for second in 0..60 {
            rig.signs.received.0 += 1_000;
            (rig.signs.waiting, rig.signs.eta_seconds) = (None, Some(9.0));
            let health = rig.wait(1);
            assert_eq!((reason(&health), text(&health)), (Some(Reason::Behind), expected), "{second}");
            assert!(health.syncing && !health.blocker.as_ref().unwrap().alert);
            assert_eq!((health.state, health.eta_seconds), (State::CatchingUp, Some(9.0)));
        }
        rig.signs.waiting = Some("no connected peer serves batch 959 as the policy asks".into());
        rig.signs.phase = Phase::Stuck;
        assert_eq!(reason(&rig.wait(29)), Some(Reason::Behind));
        let health = rig.wait(1);
        assert_eq!(reason(&health), Some(Reason::Stalled));
        assert!(
            text(&health)
                .ends_with("nothing for 30 s: no connected peer serves batch 959 as the policy asks")
        );
        assert!(health.blocker.as_ref().unwrap().alert && health.syncing && health.eta_seconds.is_none());
    }

    /// Goal: a few batches behind is how following looks, unless they do not come.
    #[test]
    fn a_few_batches_behind_matter_once_the_head_is_old() {
        let mut rig = Rig::at_head(RULES, 958);
        rig.signs.target = BatchNumber(960);
        (rig.signs.waiting, rig.signs.phase) = (None, Phase::Replay);
        let health = rig.wait(30);
        assert_eq!(
            (reason(&health), health.syncing, health.state),
            (Some(Reason::Behind), true, State::AtHead)
        );
        assert!(rig.wait(0).behind_batches == 2);
    }

    /// Goal: before the waypoint is passed nothing vouches for the state, however near it is.
    #[test]
    fn a_node_before_its_waypoint_is_not_ready() {
        let mut rig = Rig::at_head(RULES, 958);
        (rig.signs.waypoint, rig.signs.target) = (Some(BatchNumber(960)), BatchNumber(960));
        let health = rig.look();
        assert!(!health.ready && health.syncing, "{health:?}");
        assert!(text(&health).starts_with("the ledger has not passed the waypoint at batch 960 yet"));
        rig.meet(960);
        (rig.signs.head, rig.signs.waypoint) = (BatchNumber(960), None);
        assert!(rig.look().ready);
    }

    /// Goal: a node alone says so within seconds, with the reason of one peer; a restart of its only peer is not worth it.
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
            "no peer is connected: none of 3 configured ones can be reached (192.0.2.7:7400: no answer within 5s)"
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
        assert_eq!(text(&rig.look()), "none of 2 connected peers tells of its head");
    }

    /// Goal: the only validator of a chain is fine alone, and noticed when it makes nothing.
    #[test]
    fn a_chain_of_one_needs_no_peers() {
        let rules = Rules { needs_peers: false, ..RULES };
        let mut rig = Rig::new(rules);
        assert!(rig.wait(30).ready, "the chain may still begin");
        let health = rig.wait(1);
        assert_eq!(text(&health), "the chain has no batch yet, 31 s after this node started");
        assert_eq!(
            (reason(&health), health.head_age_seconds, health.syncing),
            (Some(Reason::NoBatch), None, false)
        );
        rig.signs.head = BatchNumber(1);
        rig.signs.head_age = Some(Duration::ZERO);
        assert!(rig.wait(1).ready && rig.wait(29).ready);
        let health = rig.wait(2);
        assert!(
            text(&health).starts_with("the chain has made no batch for 3")
                && text(&health).ends_with("its last one is 1")
        );
    }

    /// Goal: a wrong clock, here or at the proposer, is no halted chain.
    #[test]
    fn a_head_that_moves_is_new_whatever_its_timestamp_says() {
        let mut rig = Rig::at_head(RULES, 1);
        rig.signs.head_age = Some(Duration::from_secs(600));
        assert_eq!(reason(&rig.look()), Some(Reason::Halted), "nothing moved since the start");
        for head in 2..60 {
            rig.signs.head = BatchNumber(head);
            rig.meet(head);
            assert!(rig.wait(1).ready);
        }
        assert!(!rig.wait(31).ready);
    }

    #[test]
    fn without_a_limit_the_head_may_be_of_any_age() {
        let mut rig = Rig::at_head(Rules { head_age_max: None, ..RULES }, 970);
        assert!(rig.wait(10_000).ready);
        let mut rig = Rig::new(Rules { needs_peers: false, head_age_max: None });
        assert!(rig.wait(10_000).ready);
    }

    /// Goal: at the head, batch after batch is one state; whoever catches up is at the head when it is there.
    #[test]
    fn following_at_the_head_is_one_state() {
        let mut rig = Rig::at_head(RULES, 100);
        for head in 100..160 {
            rig.signs.phase = if head % 2 == 0 { Phase::Replay } else { Phase::Idle };
            rig.signs.head = BatchNumber(head);
            rig.signs.target = BatchNumber(head + head % 16);
            assert_eq!(rig.look().state, State::AtHead);
        }
        let mut states = Vec::new();
        for behind in [16, 20, 10, 15, 16, 3, 2, 15, 1] {
            rig.signs.target = BatchNumber(rig.signs.head.0 + behind);
            states.push(rig.look().state == State::CatchingUp);
        }
        assert_eq!(states, [true, true, true, true, true, true, false, false, false]);
    }
}
