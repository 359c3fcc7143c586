//! [`Meeting`]: one event of a scenario, with the nodes that it affects and how. Pure.

use crate::scenario::{
    engine::{
        act::{ends, is_moment},
        blame::Cause,
    },
    export,
    model::Scenario,
    names::{Names, Place, may_validate},
    plan::{Action, Event, Harm, Who},
};

/// The largest difference between synchronised machine clocks. An effect that comes this much too early is no surprise.
pub(super) const SKEW_MS: u64 = 1_000;

/// One event, with the nodes that it affects.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Meeting {
    pub(super) from_ms: u64,
    /// When its effect is over; the beginning, if it takes effect at once. `None` if nothing ends it.
    pub(super) until_ms: Option<u64>,
    /// All nodes that it may affect.
    pub(super) whom: Vec<Place>,
    pub(super) cause: Cause,
    /// Whether a new process runs afterwards.
    pub(super) restarts: bool,
    /// When the same event started an earlier process. That process may come as late as this one, because it waits for
    /// a copy.
    pub(super) before_ms: Option<u64>,
    /// Whether the node is down or impaired during the event.
    pub(super) holds: bool,
    /// Whether it only makes links slow.
    pub(super) is_slow_link: bool,
    /// Whether it affects only one node of `whom`: the one that is primary at that time.
    pub(super) is_drawn: bool,
    pub(super) is_join: bool,
    /// The lie of the peers that it gives to nodes, if it does nothing else.
    pub(super) liars: Option<String>,
    /// The order, if the node that carries it out reports that: only that node is affected.
    pub(super) told: Option<String>,
}

impl Meeting {
    /// Returns when it is certainly over, despite the skew of clocks.
    pub(super) fn over_ms(&self) -> Option<u64> {
        self.until_ms.map(|until| match &self.liars {
            None => until.saturating_add(SKEW_MS),
            // The node's opinions of liars after their departure come from the departure.
            Some(_) => until.saturating_sub(SKEW_MS),
        })
    }

    pub(super) fn is_over(&self, now_ms: u64) -> bool {
        self.over_ms().is_some_and(|over_ms| over_ms <= now_ms)
    }

    /// Returns the start of the process that this event started, among the times at which the node's processes were
    /// first seen.
    pub(super) fn started(&self, seen: &[u64]) -> Option<u64> {
        let before = self.before_ms.and_then(|before_ms| first_since(seen, before_ms));
        let mut others = seen.iter().copied().filter(|seen_ms| Some(*seen_ms) != before);
        others.find(|seen_ms| is_since(*seen_ms, self.from_ms))
    }

    /// As [`Meeting::started`], once no more processes will be seen. If an event starts two processes in quick
    /// succession, the first may never be seen.
    pub(super) fn started_at_last(&self, seen: &[u64]) -> Option<u64> {
        self.started(seen).or_else(|| first_since(seen, self.from_ms))
    }
}

fn first_since(seen: &[u64], from_ms: u64) -> Option<u64> {
    seen.iter().copied().find(|seen_ms| is_since(*seen_ms, from_ms))
}

fn is_since(seen_ms: u64, from_ms: u64) -> bool {
    seen_ms.saturating_add(SKEW_MS) >= from_ms
}

/// Returns the effects of an event on nodes. For old data, the copy at the beginning and its return at the end each
/// restart the node; until the end it is honest.
pub(super) fn meetings(scenario: &Scenario, names: &Names, event: &Event) -> Vec<Meeting> {
    let all = meeting(scenario, names, event);
    match (all, &event.action) {
        (Some(whole), Action::Node { harm: Harm::OldState, .. }) => {
            let at = |at_ms: u64| Meeting {
                from_ms: at_ms,
                until_ms: Some(at_ms),
                restarts: true,
                holds: false,
                ..whole.clone()
            };
            let before_ms = Some(whole.from_ms);
            let put_back = event.until_ms.map(|until| Meeting { cause: Cause::Lies, before_ms, ..at(until) });
            [Meeting { told: None, ..at(whole.from_ms) }].into_iter().chain(put_back).collect()
        }
        (all, _) => all.into_iter().collect(),
    }
}

/// Returns the effect of an event on nodes while it lasts; `None` if it gives no cause for accusations.
fn meeting(scenario: &Scenario, names: &Names, event: &Event) -> Option<Meeting> {
    let all = Meeting {
        from_ms: event.at_ms,
        until_ms: event.until_ms,
        whom: Vec::new(),
        cause: Cause::Away,
        restarts: false,
        before_ms: None,
        holds: false,
        is_slow_link: false,
        is_drawn: false,
        is_join: false,
        liars: None,
        told: export::told_order(scenario, event),
    };
    let may_be_primary = || -> Vec<Place> {
        names.all().filter(|place| may_validate(&scenario.topology, names, *place)).collect()
    };
    match &event.action {
        Action::Join(place) => Some(Meeting {
            until_ms: Some(event.at_ms),
            whom: vec![*place],
            restarts: true,
            is_join: true,
            ..all
        }),
        Action::Links { pairs, shape } => {
            Some(Meeting { whom: ends(pairs), is_slow_link: shape.is_some(), ..all })
        }
        Action::Node { harm, who } => {
            let whom = match who {
                Who::Node(place) => vec![*place],
                Who::Primary => may_be_primary(),
            };
            let at_once = is_moment(harm, event.until_ms.is_some());
            Some(Meeting {
                until_ms: if at_once { Some(event.at_ms) } else { event.until_ms },
                whom,
                cause: Cause::of(harm),
                restarts: restarts(harm),
                holds: !at_once && !matches!(harm, Harm::SlowDisk(_) | Harm::ClockJump(_)),
                is_drawn: *who == Who::Primary,
                ..all
            })
        }
        Action::LyingPeers { lie, who: Who::Node(place), .. } => {
            Some(Meeting { whom: vec![*place], liars: Some(lie.name()), ..all })
        }
        Action::LyingPeers { lie, who: Who::Primary, .. } => {
            Some(Meeting { whom: may_be_primary(), liars: Some(lie.name()), is_drawn: true, ..all })
        }
        Action::Attack { .. }
        | Action::ExportSnapshot(_)
        | Action::AddValidator(_)
        | Action::RemoveValidator(_) => None,
    }
}

/// Whether a new process runs after this harm.
fn restarts(harm: &Harm) -> bool {
    match harm {
        Harm::Kill | Harm::Restart | Harm::Wipe | Harm::BitFlip(_) | Harm::Upgrade(_) | Harm::Liar(_) => true,
        Harm::Pause
        | Harm::FullDisk
        | Harm::SlowDisk(_)
        | Harm::ClockJump(_)
        | Harm::Twin(_)
        | Harm::OldState => false,
    }
}
