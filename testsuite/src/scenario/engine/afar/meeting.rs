//! [`Meeting`]: one event of a scenario, and what it makes of which nodes. Pure.

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

/// Clocks of machines that keep time differ by less: what comes about by this much sooner than it should is no surprise.
pub(super) const SKEW_MS: u64 = 1_000;

/// One event, and whom it meets.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Meeting {
    pub(super) from_ms: u64,
    /// When what it does is over; its beginning, if it is done at once. None if it lasts.
    pub(super) until_ms: Option<u64>,
    /// All that it may meet.
    pub(super) whom: Vec<Place>,
    pub(super) cause: Cause,
    /// Whether another process runs afterwards.
    pub(super) restarts: bool,
    /// When the same event had started a process before this one. That may come as late as this one: it waits for a copy.
    pub(super) before_ms: Option<u64>,
    /// Whether the node does not run, or not as it should, meanwhile.
    pub(super) holds: bool,
    /// Whether links are slow meanwhile, and nothing else.
    pub(super) is_slow_link: bool,
    /// Whether it meets one of `whom` alone, whoever is the primary then.
    pub(super) is_drawn: bool,
    pub(super) is_join: bool,
    /// How the peers lie that it gives them, if it does nothing else.
    pub(super) liars: Option<String>,
    /// The order of which the node that takes it tells: it meets that one alone.
    pub(super) told: Option<String>,
}

impl Meeting {
    /// From when on it is over, whatever the clocks of machines.
    pub(super) fn over_ms(&self) -> Option<u64> {
        self.until_ms.map(|until| match &self.liars {
            None => until.saturating_add(SKEW_MS),
            // What a node thinks of liars that have left comes from their leaving.
            Some(_) => until.saturating_sub(SKEW_MS),
        })
    }

    pub(super) fn is_over(&self, now_ms: u64) -> bool {
        self.over_ms().is_some_and(|over_ms| over_ms <= now_ms)
    }

    /// Of when the processes of a node were first seen, the one that this started.
    pub(super) fn started(&self, seen: &[u64]) -> Option<u64> {
        let before = self.before_ms.and_then(|before_ms| first_since(seen, before_ms));
        let mut others = seen.iter().copied().filter(|seen_ms| Some(*seen_ms) != before);
        others.find(|seen_ms| is_since(*seen_ms, self.from_ms))
    }

    /// The same once nothing more will be seen: of two processes that an event starts within a moment the first may never be seen.
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

/// What an event makes of nodes. Data are copied at the beginning and put back at the end, with a start of the node at both times: until the
/// end it is honest.
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

/// What an event makes of nodes while it lasts; none if it does nothing that others could hold against one.
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

/// Whether another process runs after this harm.
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
