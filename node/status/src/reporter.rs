//! [`HealthReporter`]: decides what the log reports of a node's health, and when.

use std::{collections::VecDeque, time::Duration};

use slipstream_consensus::Silence;
use tokio::time::Instant;

use crate::{
    document::NodeStatus,
    health::{HEARD_WITHIN_MS, Health, Reason, State},
};

/// Interval of the routine line.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// How long a change of state must last before it is reported.
const CHANGED_FOR: Duration = Duration::from_secs(1);
/// Maximum number of changes of state that are reported within [`CHANGES_WITHIN`]: enough for a start. Further ones
/// show in the routine line.
const CHANGES_MAX: usize = 4;
const CHANGES_WITHIN: Duration = Duration::from_secs(60);
/// How long an alert must be over, or replaced by another one, before its end is reported. A flapping connection is
/// back sooner: it is dialled again after 10 s at the latest.
const SETTLED_FOR: Duration = Duration::from_secs(15);
/// How long a validator's silence must last before it is reported: a start without a record takes less.
const SILENT_FOR: Duration = Duration::from_secs(5);

/// A line of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Line {
    /// A routine line about the node's progress.
    Calm,
    /// An alert begins, for this reason.
    Begins(Reason),
    /// An alert is over.
    Ends(Reason),
}

/// Decides what is reported, and remembers what was reported last.
#[derive(Debug, Default)]
pub(crate) struct HealthReporter {
    next_line: Option<Instant>,
    told: Option<State>,
    changed: Option<(State, Instant)>,
    /// When the last changes were reported, oldest first.
    changes: VecDeque<Instant>,
    alert: Option<Reason>,
    unsettled: Option<(Option<Reason>, Instant)>,
    /// The last reported silence, and the one that may be reported next.
    silence: Option<Silence>,
    unsettled_silence: Option<(Option<Silence>, Instant)>,
}

impl HealthReporter {
    /// Writes the lines that are due.
    pub(crate) fn tell(&mut self, status: &NodeStatus, now: Instant) {
        for line in self.lines(&status.health, now) {
            write(line, status);
        }
        if let Some(silence) = self.silence(status.health.silence.as_ref().map(|it| it.silence), now) {
            match silence {
                Some(silence) => tracing::warn!(
                    silence = silence.name(),
                    way_out = silence.way_out(),
                    "this validator signs nothing: {silence}"
                ),
                None => tracing::info!("this validator votes"),
            }
        }
    }

    fn lines(&mut self, health: &Health, now: Instant) -> Vec<Line> {
        let mut lines: Vec<Line> = self.alert(health, now).into_iter().collect();
        let is_changed = self.is_changed(health.state, now);
        let is_due = *self.next_line.get_or_insert(now + LINE_EVERY) <= now;
        if is_due || is_changed {
            lines.push(Line::Calm);
        }
        if !lines.is_empty() {
            self.next_line = Some(now + LINE_EVERY);
        }
        // The start of an alert says all that the routine line would.
        if lines.iter().any(|line| matches!(line, Line::Begins(_))) {
            lines.retain(|line| *line != Line::Calm);
        }
        lines
    }

    fn alert(&mut self, health: &Health, now: Instant) -> Option<Line> {
        let seen = health.blocker.as_ref().filter(|blocker| blocker.alert).map(|blocker| blocker.reason);
        if seen == self.alert {
            self.unsettled = None;
            return None;
        }
        let since = match self.unsettled {
            Some((unsettled, since)) if unsettled == seen => since,
            _ => now,
        };
        self.unsettled = Some((seen, since));
        if self.alert.is_some() && now.saturating_duration_since(since) < SETTLED_FOR {
            return None;
        }
        self.unsettled = None;
        let before = std::mem::replace(&mut self.alert, seen);
        seen.map(Line::Begins).or(before.map(Line::Ends))
    }

    /// The change of silence to report. A silence that continues, such as until a lost vote is decided, is compared by
    /// its kind.
    fn silence(&mut self, seen: Option<Silence>, now: Instant) -> Option<Option<Silence>> {
        let kind = |silence: Option<Silence>| silence.map(Silence::name);
        if kind(seen) == kind(self.silence) {
            self.unsettled_silence = None;
            return None;
        }
        let since = match self.unsettled_silence {
            Some((unsettled, since)) if kind(unsettled) == kind(seen) => since,
            _ => now,
        };
        self.unsettled_silence = Some((seen, since));
        if now.saturating_duration_since(since) < SILENT_FOR {
            return None;
        }
        (self.silence, self.unsettled_silence) = (seen, None);
        Some(seen)
    }

    fn is_changed(&mut self, state: State, now: Instant) -> bool {
        if self.told == Some(state) {
            self.changed = None;
            return false;
        }
        let since = match self.changed {
            Some((changed, since)) if changed == state => since,
            _ => now,
        };
        self.changed = Some((state, since));
        let passed = |since: Instant| now.saturating_duration_since(since);
        self.changes.retain(|at| passed(*at) < CHANGES_WITHIN);
        let is_told = passed(since) >= CHANGED_FOR && self.changes.len() < CHANGES_MAX;
        if is_told {
            (self.told, self.changed) = (Some(state), None);
            self.changes.push_back(now);
        }
        is_told
    }
}

/// Writes one event, with the same fields each time for log collectors.
macro_rules! event {
    ($level:ident, $status:ident, $message:expr $(, $field:ident = $value:expr)*) => {{
        let NodeStatus { health, progress, process, disk, consensus, rules, .. } = $status;
        tracing::$level!(
            $($field = $value,)*
            head = health.head.get(),
            age_s = health.head_age_seconds.map(rounded),
            behind = health.behind_batches,
            peers = health.peers_connected,
            configured = health.peers_configured,
            batches_per_s = rounded(health.batches_per_second),
            // A validator's batches come from consensus, which does not count transactions here.
            transactions_per_s = Some(health.transactions_per_second).filter(|rate| *rate > 0.0).map(rounded),
            eta_s = health.eta_seconds.map(rounded),
            // At the head, every batch completes the work.
            percent = Some(progress.percent).filter(|_| health.state != State::AtHead).map(rounded),
            view = consensus.as_ref().map(|own| own.view),
            primary = consensus.as_ref().map(|own| own.member(own.primary)),
            silent = consensus.as_ref().and_then(|own| own.silent(HEARD_WITHIN_MS)),
            memory_mib = process.memory_bytes >> 20,
            disk_free_mib = disk.as_ref().map(|disk| disk.free_bytes >> 20),
            inodes_free = disk.as_ref().and_then(|disk| disk.free_inodes),
            next_fork = rules.next.as_deref(),
            next_fork_begins = rules.next_begins.as_deref(),
            silence = health.silence.as_ref().map(|it| it.silence.name()),
            blocker = health.blocker.as_ref().map(|blocker| blocker.text.as_str()),
            "{}",
            $message
        )
    }};
}

fn write(line: Line, status: &NodeStatus) {
    match line {
        Line::Calm => event!(info, status, status.health.state),
        Line::Begins(reason) => event!(warn, status, "not ready", reason = reason.name()),
        Line::Ends(reason) => event!(warn, status, over(reason), over = reason.name()),
    }
}

fn over(reason: Reason) -> &'static str {
    match reason {
        Reason::NoPeers => "peers are back",
        Reason::Behind | Reason::Stalled => "this node makes progress again",
        Reason::Halted => "the chain makes batches again",
        Reason::NoBatch => "the chain has its first batch",
    }
}

/// Rounds to one decimal digit.
fn rounded(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use slipstream_types::BatchNumber;

    use super::*;
    use crate::{
        fixture,
        health::{Blocker, SilenceStatus},
    };

    fn health(state: State, alert: Option<Reason>) -> Health {
        Health {
            ready: alert.is_none(),
            state,
            silence: None,
            blocker: alert.map(|reason| Blocker { reason, text: String::new(), alert: true, retry_ms: None }),
            syncing: false,
            head: BatchNumber::new(7),
            head_age_seconds: Some(0.5),
            behind_batches: 0,
            peers_connected: 3,
            peers_configured: 3,
            batches_per_second: 1.0,
            transactions_per_second: 0.0,
            eta_seconds: Some(0.0),
        }
    }

    /// Judges the function's result once a second, and returns the lines with their seconds.
    fn told(seconds: u64, at: impl Fn(u64) -> Health) -> Vec<(u64, Line)> {
        let (start, mut teller) = (Instant::now(), HealthReporter::default());
        let look = |second| {
            let lines = teller.lines(&at(second), start + Duration::from_secs(second));
            lines.into_iter().map(|line| (second, line)).collect::<Vec<_>>()
        };
        (0..seconds).flat_map(look).collect()
    }

    /// Goal: a healthy node writes one line in ten seconds.
    #[test]
    fn a_healthy_node_writes_one_line_in_ten_seconds() {
        let told = told(3_600, |_| health(State::AtHead, None));
        assert_eq!(told.len(), 360, "{told:?}");
        assert!(told.iter().all(|(second, line)| second % 10 == 1 && *line == Line::Calm));
    }

    /// Goal: a change that lasts is reported once it has lasted, and one that flickers is not.
    #[test]
    fn a_change_of_state_is_told_once_it_lasts() {
        let lines = told(10, |second| match second {
            0 => health(State::WaitingForPeers, None),
            1..4 => health(State::CatchingUp, None),
            _ => health(State::AtHead, None),
        });
        assert_eq!(lines, [(2, Line::Calm), (5, Line::Calm)]);
        let flickers = [State::AtHead, State::CatchingUp];
        let lines = told(100, |second| health(flickers[(second % 2) as usize], None));
        assert_eq!(lines.len(), 9, "{lines:?}");
        let lines = told(600, |second| health(flickers[(second / 5 % 2) as usize], None));
        assert!(lines.len() <= 60 + 10 * CHANGES_MAX, "{}", lines.len());
    }

    /// Goal: an alert is reported when it begins and when it ends, and only then, even if it flickers.
    #[test]
    fn an_alert_is_told_when_it_begins_and_when_it_ends() {
        let only_alerts = |lines: Vec<(u64, Line)>| -> Vec<_> {
            lines.into_iter().filter(|(_, line)| *line != Line::Calm).collect()
        };
        let halted = Some(Reason::Halted);
        let lines = told(100, |second| health(State::AtHead, halted.filter(|_| (20..60).contains(&second))));
        assert_eq!(
            only_alerts(lines),
            [(20, Line::Begins(Reason::Halted)), (75, Line::Ends(Reason::Halted))]
        );
        // The routine line comes in between and includes the blocker.
        let lines =
            told(100, |second| health(State::AtHead, halted.filter(|_| second >= 20 && second % 3 > 0)));
        assert_eq!(only_alerts(lines), [(20, Line::Begins(Reason::Halted))]);
        let lines = told(60, |second| {
            health(State::AtHead, Some(if second < 30 { Reason::Halted } else { Reason::NoPeers }))
        });
        assert_eq!(
            only_alerts(lines),
            [(0, Line::Begins(Reason::Halted)), (45, Line::Begins(Reason::NoPeers))]
        );
    }

    /// Goal: a lasting silence is reported when it begins, when it changes, and when it ends; a short one is not.
    #[test]
    fn a_silence_is_told_once_it_lasts() {
        let (start, mut teller) = (Instant::now(), HealthReporter::default());
        let lost = |until| Some(Silence::LostVotes { until: BatchNumber::new(until) });
        let mut told = Vec::new();
        for second in 0..100 {
            let silence = match second {
                0..3 => Some(Silence::Listening),
                10..30 => lost(second),
                30..60 => Some(Silence::CatchingUp),
                _ => None,
            };
            let line = teller.silence(silence, start + Duration::from_secs(second));
            told.extend(line.map(|line| (second, line.map(Silence::name))));
        }
        assert_eq!(told, [(15, Some("lost_votes")), (35, Some("catching_up")), (65, None)]);
    }

    /// Goal: JSON, metrics and people use one name for each silence, and the remedy goes with it.
    #[test]
    fn a_silence_has_one_name() {
        let (epoch, until) = (slipstream_types::Epoch(3), BatchNumber::new(9));
        let all = [
            Silence::NotInSet { epoch },
            Silence::CatchingUp,
            Silence::Listening,
            Silence::LostVotes { until },
            Silence::LostLedger { epoch },
        ];
        for (silence, name) in all.into_iter().zip(Silence::NAMES) {
            let told = SilenceStatus::from(silence);
            let json = serde_json::to_value(&told).unwrap();
            assert_eq!((json["state"].as_str(), silence.name()), (Some(name), name));
            assert!(json["way_out"].as_str().is_some_and(|way_out| !way_out.is_empty()));
            assert_eq!(serde_json::from_value::<SilenceStatus>(json).unwrap(), told);
        }
    }

    /// Goal: the line names a few of the validators that do not vote, and is short while all do.
    #[test]
    fn silent_validators_are_named() {
        let own = |peers: Vec<serde_json::Value>| {
            let mut own = fixture::consensus();
            own["peers"] = peers.into();
            fixture::status(json!({ "consensus": own })).consensus.unwrap()
        };
        let peer = |index: u16, name: Option<&str>, heard: Option<u64>| json!({ "index": index, "key": fixture::key(30), "name": name, "heard_ms_ago": heard });
        let silent = |own: slipstream_consensus::ConsensusStatus| own.silent(HEARD_WITHIN_MS);
        assert_eq!(silent(own(vec![peer(0, None, Some(HEARD_WITHIN_MS))])), None);
        let mut lost = peer(1, None, Some(5));
        let said = json!({ "view": 0, "changing": false, "complains": false, "decided": 6, "ordered": 6, "said_ms_ago": 5,
            "silence": { "state": "lost_votes", "until": 9 } });
        lost.as_object_mut().unwrap().extend(said.as_object().unwrap().clone());
        let some =
            own(vec![peer(0, None, Some(1)), lost, peer(2, Some("two"), Some(11_000)), peer(3, None, None)]);
        let expected = "validators that do not vote: lost votes 1; not heard 2 (two) for 11 s, 3";
        assert_eq!(silent(some).unwrap(), expected);
        let many = own((2..13).map(|index| peer(index, None, None)).collect());
        let expected = "validators that do not vote: not heard 2, 3, 4, 5, 6, 7, 8, 9 and 3 more";
        assert_eq!(silent(many).unwrap(), expected);
    }
}
