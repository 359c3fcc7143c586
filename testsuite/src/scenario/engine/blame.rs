//! [`Excuses`]: the charges that nodes may raise against each other because of a fault, and for how long. Pure: the
//! time comes from outside.
//!
//! ```text
//!  fault ─▶ Cause ─▶ Window (node, from, until) ─┐
//!  status ─▶ Charge (a pause's reason, a ban) ───┴─▶ excuses ─▶ blame, or none
//! ```
//!
//! Invariants: bans and proofs are excused only against a validator that a fault made lie. A node that was killed,
//! paused, slow or cut off may be called silent or behind, and nothing else.

use std::collections::BTreeMap;

use crate::scenario::plan::Harm;

/// How long after a fault's end a request from before that end may still fail: the sum of two defaults,
/// `sync.request_deadline_ms` and `network.idle_timeout_ms`. After the latter, a connection counts as lost.
pub(super) const GRACE_MS: u64 = 10_000 + 5_000;
/// A node that comes back is behind, and sends many requests at once. It is excused until it reaches the head, for at
/// most this time or, if that is longer, the time that the scenario allows. Nodes open their stores and catch up within
/// seconds here.
const CATCH_UP_MS_MAX: u64 = 60_000;
/// A node counts as at the head if it is at most this far behind: statuses are not read at the same moment.
const AT_HEAD_BATCHES: u64 = 2;

/// The charge against a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Charge {
    /// It did not answer, or not in time.
    Silent,
    /// It lacks data that others have, or has pruned it.
    Behind,
    /// It says that it could not answer.
    Failed,
    /// It sent wrong data: a ban, a proof, and every other reason.
    Wrong,
}

impl Charge {
    /// Derives the charge from a pause's reason, which `/v1/status` gives in the words of the network's errors.
    pub(super) fn of_pause(reason: &str) -> Charge {
        let says = |texts: &[&str]| texts.iter().any(|text| reason.contains(text));
        if says(&[
            "no connection to peer ",
            " did not answer within ",
            " ended before its answer was complete",
        ]) {
            Charge::Silent
        } else if says(&[" refused: not kept", " is far behind the head "]) {
            Charge::Behind
        } else if says(&[" refused: failed"]) {
            Charge::Failed
        } else {
            Charge::Wrong
        }
    }
}

/// The effect of a fault on a node, as others see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cause {
    /// It is down, slow or cut off for a while, and behind afterwards; or it joins.
    Away,
    /// As [`Cause::Away`], and its disk fails.
    BadDisk,
    /// As [`Cause::Away`], and the damage shows whenever a request reads it.
    Damaged,
    /// It rejects the chain's timestamps, and stays behind.
    WrongClock,
    /// It lies with its own key.
    Lies,
}

impl Cause {
    pub(super) fn of(harm: &Harm) -> Cause {
        match harm {
            Harm::Kill | Harm::Pause | Harm::Restart | Harm::Wipe | Harm::SlowDisk(_) | Harm::Upgrade(_) => {
                Cause::Away
            }
            Harm::FullDisk => Cause::BadDisk,
            Harm::BitFlip(_) => Cause::Damaged,
            Harm::ClockJump(_) => Cause::WrongClock,
            // It is honest until the old data returns.
            Harm::OldState => Cause::Away,
            Harm::Twin(_) | Harm::Liar(_) => Cause::Lies,
        }
    }

    /// Whether an affected node may face this charge.
    fn explains_charge(self, charge: Charge) -> bool {
        match self {
            Cause::Away => matches!(charge, Charge::Silent | Charge::Behind),
            Cause::BadDisk | Cause::Damaged => {
                matches!(charge, Charge::Silent | Charge::Behind | Charge::Failed)
            }
            Cause::WrongClock => charge == Charge::Behind,
            Cause::Lies => true,
        }
    }

    /// Whether the cause explains the charge for the rest of the run.
    fn lasts(self, charge: Charge) -> bool {
        self == Cause::Damaged && charge == Charge::Failed
    }

    /// Whether an affected node may make this charge against others. After a standstill all of its requests look late,
    /// and a node that is behind asks for pruned data.
    fn explains_accuser(self, charge: Charge) -> bool {
        matches!(charge, Charge::Silent | Charge::Behind) && self.explains_charge(charge)
    }
}

/// The time in which one fault affects one node.
#[derive(Debug)]
struct Window {
    event: usize,
    cause: Cause,
    from_ms: u64,
    /// The end of the fault; `None` while it lasts.
    until_ms: Option<u64>,
    /// When the node was at the head again.
    back_ms: Option<u64>,
}

impl Window {
    /// Returns the last moment that it explains; `None` while it lasts.
    fn last_ms(&self, catch_up_ms: u64) -> Option<u64> {
        let until = self.until_ms?;
        Some(self.back_ms.unwrap_or_else(|| until.saturating_add(catch_up_ms)).saturating_add(GRACE_MS))
    }

    fn meets(&self, charge: Charge, (since_ms, now_ms): (u64, u64), catch_up_ms: u64) -> bool {
        let is_over = self.last_ms(catch_up_ms).is_some_and(|last| last < since_ms);
        self.from_ms <= now_ms && (!is_over || self.cause.lasts(charge))
    }
}

/// All windows of a run, by node name. The plan limits them to 500 events.
#[derive(Debug, Default)]
pub(super) struct Excuses {
    windows: BTreeMap<String, Vec<Window>>,
    /// The highest head that any node showed.
    highest: u64,
    /// The longest catch-up time that the scenario allows.
    given_ms: u64,
}

impl Excuses {
    /// Sets the catch-up time that the scenario allows: the requests of a slow node are no blame meanwhile.
    pub(super) fn give(&mut self, catch_up_ms: u64) {
        self.given_ms = catch_up_ms;
    }

    fn catch_up_ms(&self) -> u64 {
        self.given_ms.max(CATCH_UP_MS_MAX)
    }

    /// Registers that an event begins to affect a node.
    pub(super) fn begin(&mut self, event: usize, name: &str, cause: Cause, at_ms: u64) {
        let window = Window { event, cause, from_ms: at_ms, until_ms: None, back_ms: None };
        self.windows.entry(name.to_owned()).or_default().push(window);
    }

    /// Registers that an event is over.
    pub(super) fn end(&mut self, event: usize, at_ms: u64) {
        let windows = self.windows.values_mut().flatten();
        for window in windows.filter(|window| window.event == event && window.until_ms.is_none()) {
            window.until_ms = Some(at_ms);
        }
    }

    /// Records a node's head, requested at `asked_ms`. The answer to a request from before a fault's end may date from
    /// before the fault.
    pub(super) fn saw_head(&mut self, name: &str, head: u64, asked_ms: u64) {
        self.highest = self.highest.max(head);
        if head.saturating_add(AT_HEAD_BATCHES) < self.highest {
            return;
        }
        let catch_up_ms = self.catch_up_ms();
        for window in self.windows.get_mut(name).into_iter().flatten() {
            if let (Some(until), None) = (window.until_ms, window.back_ms)
                && until <= asked_ms
            {
                window.back_ms = Some(asked_ms.min(until.saturating_add(catch_up_ms)));
            }
        }
    }

    /// Whether a fault explains a charge that one node raised against another between `since_ms` and `now_ms`.
    pub(super) fn excuses(
        &self,
        accuser: &str,
        accused: &str,
        charge: Charge,
        since_ms: u64,
        now_ms: u64,
    ) -> bool {
        let explains = |name: &str, rule: fn(Cause, Charge) -> bool| {
            let mut windows = self.windows.get(name).into_iter().flatten();
            windows.any(|window| {
                rule(window.cause, charge) && window.meets(charge, (since_ms, now_ms), self.catch_up_ms())
            })
        };
        explains(accused, Cause::explains_charge) || explains(accuser, Cause::explains_accuser)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use slipstream_network::{NetworkError, Refusal};
    use slipstream_types::SecretKey;

    use super::*;

    /// Goal: charges are recognised by the words of the network's own errors.
    #[test]
    fn charges_are_told_by_the_networks_words() {
        let peer = SecretKey::from_seed([7; 32]).public();
        let refused = |refusal| NetworkError::Refused { peer, refusal };
        for (error, charge) in [
            (NetworkError::UnknownPeer { peer }, Charge::Silent),
            (NetworkError::Deadline { peer, deadline: Duration::from_secs(10) }, Charge::Silent),
            (NetworkError::Closed { peer }, Charge::Silent),
            (refused(Refusal::not_kept("pruned")), Charge::Behind),
            (refused(Refusal::failed("this node's store failed")), Charge::Failed),
            (refused(Refusal::malformed("too long")), Charge::Wrong),
            (NetworkError::Malformed { peer, what: "no length" }, Charge::Wrong),
        ] {
            let reason = format!("batches 7 to 9: {error}");
            assert_eq!(Charge::of_pause(&reason), charge, "{reason}");
        }
        assert_eq!(Charge::of_pause("announcement: batch 3 is far behind the head 900"), Charge::Behind);
        assert_eq!(
            Charge::of_pause("it served batches of epoch 9, but its epoch ends do not lead there"),
            Charge::Wrong
        );
    }

    /// Goal: each fault excuses exactly the charges that it can cause, and a lie excuses only the liar.
    #[test]
    fn a_fault_excuses_what_it_can_cause() {
        // Whether silent, behind, failed and wrong are excused: as charges against the node, and as its charges against
        // others.
        for (harm, of_it, of_others) in [
            (Harm::Kill, [true, true, false, false], [true, true, false, false]),
            (Harm::Pause, [true, true, false, false], [true, true, false, false]),
            (Harm::SlowDisk(9), [true, true, false, false], [true, true, false, false]),
            (Harm::BitFlip(9), [true, true, true, false], [true, true, false, false]),
            (Harm::FullDisk, [true, true, true, false], [true, true, false, false]),
            (Harm::ClockJump(9), [false, true, false, false], [false, true, false, false]),
            (Harm::OldState, [true, true, false, false], [true, true, false, false]),
            (Harm::Twin(Vec::new()), [true; 4], [true, true, false, false]),
            (Harm::Liar("garbage"), [true; 4], [true, true, false, false]),
        ] {
            let mut excuses = Excuses::default();
            excuses.begin(0, "met", Cause::of(&harm), 1_000);
            let all = [Charge::Silent, Charge::Behind, Charge::Failed, Charge::Wrong];
            let found = all.map(|charge| excuses.excuses("other", "met", charge, 2_000, 2_500));
            assert_eq!(found, of_it, "of a node that met {harm:?}");
            let found = all.map(|charge| excuses.excuses("met", "other", charge, 2_000, 2_500));
            assert_eq!(found, of_others, "by a node that met {harm:?}");
            assert!(!excuses.excuses("other", "third", Charge::Silent, 2_000, 2_500));
        }
    }

    /// Goal: an excuse begins with its fault, and ends a grace period after the node is at the head again, or should
    /// be.
    #[test]
    fn an_excuse_has_a_beginning_and_an_end() {
        let mut excuses = Excuses::default();
        let is_excused = |excuses: &Excuses, since_ms: u64, now_ms: u64| {
            excuses.excuses("other", "met", Charge::Silent, since_ms, now_ms)
        };
        excuses.saw_head("other", 100, 500);
        excuses.begin(4, "met", Cause::Away, 1_000);
        assert!(!is_excused(&excuses, 0, 999) && is_excused(&excuses, 0, 1_000));
        assert!(is_excused(&excuses, 900_000, 900_001), "it lasts until something ends it");
        excuses.end(3, 2_000);
        assert!(is_excused(&excuses, 900_000, 900_001), "another event ended");
        excuses.end(4, 10_000);
        let last = 10_000 + CATCH_UP_MS_MAX + GRACE_MS;
        assert!(is_excused(&excuses, last, last) && !is_excused(&excuses, last + 1, last + 2));
        excuses.saw_head("met", 90, 11_000);
        assert!(is_excused(&excuses, last, last), "it is still behind");
        excuses.saw_head("met", 98, 12_000);
        let last = 12_000 + GRACE_MS;
        assert!(is_excused(&excuses, last, last) && !is_excused(&excuses, last + 1, last + 2));
        excuses.begin(5, "met", Cause::Away, 20_000);
        excuses.end(5, 30_000);
        excuses.saw_head("met", 100, 29_000);
        assert!(is_excused(&excuses, 89_000, 89_000), "its answer is from before the end");
        excuses.saw_head("met", 400, 99_000);
        let last = 30_000 + CATCH_UP_MS_MAX + GRACE_MS;
        assert!(!is_excused(&excuses, last + 1, last + 2), "it was back too late, and before");
    }

    /// Goal: a node that never reaches the head is excused no longer than one that does, and each fault counts
    /// separately.
    #[test]
    fn each_fault_is_an_excuse_of_its_own() {
        let mut excuses = Excuses::default();
        excuses.saw_head("other", 1_000, 0);
        excuses.begin(0, "met", Cause::Away, 1_000);
        excuses.end(0, 2_000);
        excuses.saw_head("met", 1_000, 900_000);
        let late = 2_000 + CATCH_UP_MS_MAX + GRACE_MS + 1;
        assert!(!excuses.excuses("other", "met", Charge::Silent, late, late));
        excuses.begin(1, "met", Cause::Lies, late);
        assert!(excuses.excuses("other", "met", Charge::Wrong, late, late));
    }

    /// Goal: a damaged row excuses failed answers at any time, and nothing else for longer.
    #[test]
    fn damage_is_found_late() {
        let mut excuses = Excuses::default();
        excuses.begin(0, "met", Cause::of(&Harm::BitFlip(9)), 1_000);
        excuses.end(0, 2_000);
        let is_excused = |charge, at| excuses.excuses("other", "met", charge, at, at);
        assert!(is_excused(Charge::Failed, 900_000) && !is_excused(Charge::Failed, 999));
        assert!(!is_excused(Charge::Silent, 900_000) && !is_excused(Charge::Wrong, 900_000));
    }

    /// Goal: if the scenario allows minutes for catching up, requests during that time are no blame; a shorter time
    /// does not shorten the excuse.
    #[test]
    fn an_excuse_lasts_as_long_as_nodes_may_catch_up() {
        for (given_ms, catch_up_ms) in [(300_000, 300_000), (1_000, CATCH_UP_MS_MAX)] {
            let mut excuses = Excuses::default();
            excuses.give(given_ms);
            excuses.saw_head("other", 1_000, 0);
            excuses.begin(0, "met", Cause::Away, 1_000);
            excuses.end(0, 2_000);
            let last = 2_000 + catch_up_ms + GRACE_MS;
            let is_excused = |at: u64| excuses.excuses("met", "other", Charge::Silent, at, at);
            assert!(is_excused(last) && !is_excused(last + 1), "{given_ms} ms");
        }
    }
}
