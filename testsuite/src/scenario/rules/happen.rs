//! The rules of faults.

use super::{
    Rules, TIMES_MAX,
    at::{At, Checked},
    shape, siege,
};
use crate::scenario::{
    fault::{Lie, Target, What},
    names::{PRIMARY, is_candidate},
    span::Span,
};

/// The most events of one scenario: each is a mark in its report, and the end of each may be a curve.
const EVENTS_MAX: usize = 500;
/// The shortest fault: one without a duration has no visible effect.
const LASTS_MS_MIN: u64 = 100;
/// The longest additional time of a flush.
const DELAY_SECONDS_MAX: u64 = 10;
/// The most liars of one node: each takes a place among its peers.
const LIARS_MAX: u64 = 16;
/// The most liars of one scenario: a report shows the nodes' opinions of each.
const LIARS_ALL_MAX: usize = 256;
/// The farthest jump of a clock.
const JUMP_HOURS_MAX: u64 = 24;

impl Rules<'_> {
    pub(super) fn faults(&self) -> Checked {
        let (mut events, mut liars) = (0, 0);
        for (index, fault) in self.scenario.faults.iter().enumerate() {
            let at = At::key("faults").item(index);
            let duration = self.scenario.duration;
            match (fault.at, fault.between) {
                (Some(moment), None) => self.begins(&at.then("at"), moment)?,
                (None, Some([from, to])) if from <= to => self.begins(&at.then("between"), to)?,
                (None, Some(_)) => {
                    return Err(at.then("between").wrong("ends before it begins: swap the two"));
                }
                _ => return Err(at.wrong("write either `at: 20s` or `between: [10s, 30s]`")),
            }
            at.then("times").within(fault.times.into(), 1..=TIMES_MAX.into())?;
            if fault.times > 1 && fault.between.is_none() {
                return Err(at
                    .then("times")
                    .wrong("needs `between: [FROM, TO]`, from which the seed draws the moments"));
            }
            if let Some(lasts) = fault.lasts {
                at.then("for").span(lasts, LASTS_MS_MIN, duration)?;
                if fault.what.is_done_at_once() {
                    return Err(at.then("for").wrong(format!(
                        "`{}` is done at once, and has no end: leave `for` out",
                        fault.what.name()
                    )));
                }
            }
            if matches!(fault.what, What::LyingValidator { lie: Lie::OldState, .. }) && fault.lasts.is_none()
            {
                return Err(at.wrong("has no end at which the old data comes back: write `for: 20s`"));
            }
            // The earliest time that the seed may draw.
            let begins = fault.between.map(|[from, _]| from).or(fault.at).unwrap_or_default();
            self.what(&at.then("what").then(fault.what.name()), &fault.what, begins)?;
            events += fault.times as usize * self.met(&fault.what).max(1);
            if events > EVENTS_MAX {
                return Err(at.wrong(format!(
                    "with it the nodes meet more than {EVENTS_MAX} events, too many for a report: use fewer nodes or `times`"
                )));
            }
            if let What::LyingPeers { count, .. } = fault.what {
                // `primary` matches no node, so at least one is counted.
                liars += fault.times as usize * self.met(&fault.what).max(1) * count as usize;
                if liars > LIARS_ALL_MAX {
                    return Err(at.wrong(format!(
                        "with it more than {LIARS_ALL_MAX} peers lie: use fewer nodes, `times` or `count`"
                    )));
                }
            }
            if let Some(Target::Rolling { nodes, every }) = fault.what.target() {
                let begins = fault.between.map(|[_, to]| to).or(fault.at).unwrap_or_default();
                let turns = self.names.find_all(nodes).len().saturating_sub(1) as u64;
                if begins.ms() + turns * every.ms() >= duration.ms() {
                    return Err(at.then("what").wrong(format!(
                        "its last turn comes after the scenario, which lasts {duration}: use a shorter `every`"
                    )));
                }
            }
        }
        self.liars_at_once()?;
        self.validators_at_all_times()
    }

    /// Checks that a fault begins before the clock ends.
    fn begins(&self, at: &At, latest: Span) -> Checked {
        let duration = self.scenario.duration;
        at.span(latest, 0, duration)?;
        if latest == duration {
            return Err(at.wrong(format!(
                "comes when the scenario is over, which lasts {duration}: schedule it earlier, or use a longer `duration`"
            )));
        }
        Ok(())
    }

    /// Returns how many nodes a fault affects each time.
    fn met(&self, what: &What) -> usize {
        match what {
            What::Link { between, .. } | What::Partition { between } => {
                between.iter().map(|names| self.names.find_all(names).len()).sum()
            }
            what => match what.target() {
                Some(Target::Nodes(names) | Target::Rolling { nodes: names, .. }) => {
                    self.names.find_all(names).len()
                }
                Some(Target::OneOf(_)) | None => 1,
            },
        }
    }

    fn what(&self, at: &At, what: &What, begins: Span) -> Checked {
        if let Some(target) = what.target() {
            return self.target(at, what, target, begins);
        }
        match what {
            What::Link { between, .. } | What::Partition { between } => {
                for (index, names) in between.iter().enumerate() {
                    self.known(&at.then("between").item(index), names)?;
                }
                let [one, other] = between.each_ref().map(|names| self.names.find_all(names));
                if one.iter().any(|place| other.contains(place)) {
                    return Err(at
                        .then("between")
                        .wrong("has a node on both sides; name two sets without a common node"));
                }
                match what {
                    What::Link { shape: given, .. } => shape(&at.then("shape"), given),
                    _ => Ok(()),
                }
            }
            What::Attack { name, victim } => {
                self.single(&at.then("victim"), victim)?;
                siege::attack(&at.then("name"), name, victim)?;
                self.there_by(&at.then("victim"), std::slice::from_ref(victim), begins)
            }
            What::ExportSnapshot(name) | What::RemoveValidator(name) | What::AddValidator(name) => {
                self.single(at, name)?;
                self.there_by(at, std::slice::from_ref(name), begins)?;
                let place = self.names.find(name)[0];
                let may_validate = is_candidate(self.topology(), &self.names, place);
                let validates = self.names.group(place).is_none();
                match what {
                    What::AddValidator(_) if !may_validate => Err(at.wrong(format!(
                        "`{name}` is not a candidate: write `part: candidate` into its group"
                    ))),
                    What::RemoveValidator(_) if !may_validate && !validates => {
                        Err(at.wrong(format!("`{name}` never validates: name a validator or a candidate")))
                    }
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    fn target(&self, at: &At, what: &What, target: &Target, begins: Span) -> Checked {
        let at_target = match what {
            What::Upgrade { to, .. } => {
                at.then("to").name(to)?;
                at.then("who")
            }
            What::SlowDisk { .. }
            | What::ClockJump { .. }
            | What::LyingValidator { .. }
            | What::LyingPeers { .. } => at.then("who"),
            _ => at.clone(),
        };
        if let Target::Rolling { every, .. } = target {
            at_target.then("rolling").then("every").span(*every, 100, self.scenario.duration)?;
        }
        let is_primary = matches!(target, Target::Nodes(names) if names.len() == 1 && names[0] == PRIMARY);
        let listed = match target {
            Target::Nodes(_) => at_target.then("nodes"),
            Target::OneOf(_) => at_target.then("one_of"),
            Target::Rolling { .. } => at_target.then("rolling").then("nodes"),
        };
        if !is_primary {
            self.known(&listed, target.names())?;
            self.there_by(&listed, target.names(), begins)?;
        }
        match what {
            What::SlowDisk { delay, .. } => {
                at.then("delay").span(*delay, 1, Span::from_secs(DELAY_SECONDS_MAX))?
            }
            What::ClockJump { ahead, back, .. } => clock_jump(at, *ahead, *back)?,
            What::LyingPeers { count, .. } => {
                at.then("count").within((*count).into(), 1..=LIARS_MAX)?;
                if self.names.len() < 2 {
                    return Err(
                        at.wrong("there is only one node: write a group, from which the liars get true data")
                    );
                }
            }
            What::LyingValidator { lie, .. } => {
                self.lie(at, &listed, target, lie)?;
                if let Lie::Twin { heard_by } = lie {
                    self.there_by(&at.then("lie").then("twin").then("heard_by"), heard_by, begins)?;
                }
            }
            _ => {}
        }
        if let What::FullDisk(_) = what {
            let has_disk = |place| {
                self.topology().settings.iter().any(|settings| {
                    settings.disk_mib.is_some() && self.names.find_all(&settings.nodes).contains(place)
                })
            };
            if is_primary || !self.names.find_all(target.names()).iter().all(has_disk) {
                return Err(listed.wrong(
                    "needs a separate disk: write `disk_mib: 256` into `topology.settings` of these nodes",
                ));
            }
        }
        Ok(())
    }

    fn lie(&self, at: &At, listed: &At, target: &Target, lie: &Lie) -> Checked {
        let liars = self.names.find_all(target.names());
        if let Some(other) = liars.iter().find(|place| self.names.group(**place).is_some()) {
            let name = self.names.name(*other);
            return Err(listed.wrong(format!("`{name}` does not validate from the start: name validators")));
        }
        if lie.of_program().is_some()
            && let Some(change) = self.scenario.faults.iter().find(|fault| fault.what.changes_validators())
        {
            return Err(at.then("lie").wrong(format!(
                "knows only the validators of the first epoch: leave `{}` out, or use `twin` or `old_state`",
                change.what.name()
            )));
        }
        let Lie::Twin { heard_by } = lie else { return Ok(()) };
        let heard = at.then("lie").then("twin").then("heard_by");
        self.known(&heard, heard_by)?;
        if self.names.find_all(heard_by).iter().any(|place| liars.contains(place)) {
            return Err(heard.wrong("names the liar itself: name the nodes that hear its twin"));
        }
        Ok(())
    }
}

fn clock_jump(at: &At, ahead: Option<Span>, back: Option<Span>) -> Checked {
    let most = Span::from_secs(JUMP_HOURS_MAX * 3_600);
    match (ahead, back) {
        (Some(by), None) => at.then("ahead").span(by, 1_000, most),
        (None, Some(by)) => at.then("back").span(by, 1_000, most),
        _ => Err(at.wrong("write either `ahead: 1h` or `back: 1h`")),
    }
}
