//! What the faults and the criteria of a scenario may say.

use super::{
    Rules, TIMES_MAX,
    at::{At, Checked},
    shape,
};
use crate::scenario::{
    criteria::Criterion,
    fault::{Lie, Target, What},
    names::{PRIMARY, is_candidate},
    span::Span,
};

/// The shortest fault: one that begins and ends at one moment would be invisible.
const LASTS_MS_MIN: u64 = 100;
/// The most that a flush takes longer.
const DELAY_SECONDS_MAX: u64 = 10;
/// The farthest jump of a clock.
const JUMP_HOURS_MAX: u64 = 24;

impl Rules<'_> {
    pub(super) fn faults(&self) -> Checked {
        for (index, fault) in self.scenario.faults.iter().enumerate() {
            let at = At::key("faults").item(index);
            let duration = self.scenario.duration;
            match (fault.at, fault.between) {
                (Some(moment), None) => at.then("at").span(moment, 0, duration)?,
                (None, Some([from, to])) if from <= to => at.then("between").span(to, 0, duration)?,
                (None, Some(_)) => {
                    return Err(at.then("between").wrong("ends before it begins: swap the two"));
                }
                _ => return Err(at.wrong("write either `at: 20s` or `between: [10s, 30s]`")),
            }
            at.then("times").within(fault.times.into(), 1..=TIMES_MAX.into())?;
            if fault.times > 1 && fault.between.is_none() {
                return Err(at
                    .then("times")
                    .wrong("needs `between: [FROM, TO]`, of which the seed draws the moments"));
            }
            if let Some(lasts) = fault.lasts {
                at.then("for").span(lasts, LASTS_MS_MIN, duration)?;
            }
            if matches!(fault.what, What::LyingValidator { lie: Lie::OldState, .. }) && fault.lasts.is_none()
            {
                return Err(at.wrong("has no end at which the old data comes back: write `for: 20s`"));
            }
            self.what(&at.then("what").then(fault.what.name()), &fault.what)?;
            if let Some(Target::Rolling { nodes, every }) = fault.what.target() {
                let begins = fault.between.map(|[_, to]| to).or(fault.at).unwrap_or_default();
                let turns = self.names.find_all(nodes).len().saturating_sub(1) as u64;
                if begins.ms() + turns * every.ms() > duration.ms() {
                    return Err(at.then("what").wrong(format!(
                        "its last turn comes after the scenario, which lasts {duration}: take a shorter `every`"
                    )));
                }
            }
        }
        Ok(())
    }

    fn what(&self, at: &At, what: &What) -> Checked {
        if let Some(target) = what.target() {
            return self.target(at, what, target);
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
                        .wrong("has a node on both sides; name two sets that share none"));
                }
                match what {
                    What::Link { shape: given, .. } => shape(&at.then("shape"), given),
                    _ => Ok(()),
                }
            }
            What::Attack { name, victim } => {
                at.then("name").name(name)?;
                self.single(&at.then("victim"), victim)
            }
            What::ExportSnapshot(name) | What::RemoveValidator(name) => self.single(at, name),
            What::AddValidator(name) => {
                self.single(at, name)?;
                let place = self.names.find(name)[0];
                if !is_candidate(self.topology(), &self.names, place) {
                    return Err(
                        at.wrong(format!("`{name}` is no candidate: write `part: candidate` into its group"))
                    );
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn target(&self, at: &At, what: &What, target: &Target) -> Checked {
        let at_target = match what {
            What::Upgrade { to, .. } => {
                at.then("to").name(to)?;
                at.then("who")
            }
            What::SlowDisk { .. } | What::ClockJump { .. } | What::LyingValidator { .. } => at.then("who"),
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
        }
        match what {
            What::SlowDisk { delay, .. } => {
                at.then("delay").span(*delay, 1, Span::from_secs(DELAY_SECONDS_MAX))?
            }
            What::ClockJump { ahead, back, .. } => clock_jump(at, *ahead, *back)?,
            What::LyingValidator { lie, .. } => self.lie(at, &listed, target, lie)?,
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
                    "needs a disk of its own: write `disk_mib: 256` into `topology.settings` of these nodes",
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
                "knows the validators of the first epoch alone: leave `{}` out, or take `twin` or `old_state`",
                change.what.name()
            )));
        }
        let Lie::Twin { heard_by } = lie else { return Ok(()) };
        let heard = at.then("lie").then("twin").then("heard_by");
        self.known(&heard, heard_by)?;
        if self.names.find_all(heard_by).iter().any(|place| liars.contains(place)) {
            return Err(heard.wrong("names the liar itself: name those that hear its second self"));
        }
        Ok(())
    }

    pub(super) fn criteria(&self) -> Checked {
        for (index, criterion) in self.scenario.criteria.iter().enumerate() {
            let at = At::key("criteria").item(index);
            if let Some(phase) = criterion.phase() {
                let phases: Vec<&str> =
                    self.scenario.workload.iter().map(|phase| phase.name.as_str()).collect();
                if !phases.contains(&phase) {
                    return Err(
                        at.wrong(format!("there is no phase `{phase}`; there are: {}", phases.join(", ")))
                    );
                }
            }
            if let Criterion::Read { phase, .. } = criterion
                && self.scenario.workload.iter().any(|it| it.name == *phase && it.reads_per_second == 0)
            {
                return Err(
                    at.wrong(format!("nothing is read: write `reads_per_second` into the phase `{phase}`"))
                );
            }
            if !criterion.nodes().is_empty() {
                self.known(&at.then(criterion.key()).then("nodes"), criterion.nodes())?;
            }
            let limit = match criterion {
                Criterion::Throughput { at_least, .. } => *at_least,
                Criterion::Memory { mib_max, .. } => *mib_max,
                Criterion::HeadAge { percent, .. } if *percent > 100.0 => -1.0,
                Criterion::HeadAge { percent, .. } => *percent,
                _ => 1.0,
            };
            // Also false of what is no number.
            if !(limit > 0.0 && limit.is_finite()) {
                return Err(at.wrong("its limit must be a number above 0, a share at most 100"));
            }
            if matches!(criterion, Criterion::History { from_at_most: None, from_at_least: None, .. }) {
                return Err(at.wrong("write `from_at_most` or `from_at_least`, in batches"));
            }
            if let Criterion::Convicted { nodes, .. } = criterion {
                self.lied(&at.then(criterion.key()).then("nodes"), nodes)?;
            }
            if matches!(criterion, Criterion::LoadComplete) && self.scenario.workload.is_empty() {
                return Err(at.wrong("there is no load: write a phase into `workload`"));
            }
        }
        Ok(())
    }
}

impl Rules<'_> {
    /// Who is to be convicted must have lied.
    fn lied(&self, at: &At, nodes: &[String]) -> Checked {
        let lies =
            self.scenario.faults.iter().filter(|fault| matches!(fault.what, What::LyingValidator { .. }));
        let named: Vec<String> =
            lies.filter_map(|fault| fault.what.target()).flat_map(Target::names).cloned().collect();
        let liars = self.names.find_all(&named);
        // Whoever orders the batches then may be any of them.
        let may_be_any = named.iter().any(|name| name == PRIMARY);
        match self.names.find_all(nodes).iter().find(|place| !may_be_any && !liars.contains(place)) {
            None => Ok(()),
            Some(honest) => Err(at.wrong(format!(
                "no fault makes `{}` lie: write `lying_validator` into `faults`",
                self.names.name(*honest)
            ))),
        }
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
