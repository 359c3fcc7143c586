//! What the faults and the criteria of a scenario may say.

use super::{
    Rules, TIMES_MAX,
    at::{At, Checked},
    known_attack, shape,
};
use crate::scenario::{
    criteria::Criterion,
    fault::{Lie, Target, What},
    names::{PRIMARY, Place, is_candidate},
    span::Span,
};

/// Events of one scenario: each is a mark in its report, and each end of one may be a curve.
const EVENTS_MAX: usize = 500;
/// The shortest fault: what begins and ends at one moment cannot be told from nothing.
const LASTS_MS_MIN: u64 = 100;
/// The most that a flush takes longer.
const DELAY_SECONDS_MAX: u64 = 10;
/// Liars of one node: each takes a place among its peers.
const LIARS_MAX: u64 = 16;
/// Liars of one scenario: a report tells what nodes thought of each.
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
            // The earliest moment that the seed may draw.
            let begins = fault.between.map(|[from, _]| from).or(fault.at).unwrap_or_default();
            self.what(&at.then("what").then(fault.what.name()), &fault.what, begins)?;
            events += fault.times as usize * self.met(&fault.what).max(1);
            if events > EVENTS_MAX {
                return Err(at.wrong(format!(
                    "with it more than {EVENTS_MAX} things happen to nodes: a report cannot show them; take fewer nodes or `times`"
                )));
            }
            if let What::LyingPeers { count, .. } = fault.what {
                // Of `primary` nobody knows the name.
                liars += fault.times as usize * self.met(&fault.what).max(1) * count as usize;
                if liars > LIARS_ALL_MAX {
                    return Err(at.wrong(format!(
                        "with it more than {LIARS_ALL_MAX} peers lie: take fewer nodes, `times` or `count`"
                    )));
                }
            }
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
        self.liars_at_once()
    }

    /// How many nodes a fault meets each time.
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
                        .wrong("has a node on both sides; name two sets that share none"));
                }
                match what {
                    What::Link { shape: given, .. } => shape(&at.then("shape"), given),
                    _ => Ok(()),
                }
            }
            What::Attack { name, victim } => {
                known_attack(&at.then("name"), name)?;
                self.single(&at.then("victim"), victim)?;
                self.there_by(&at.then("victim"), std::slice::from_ref(victim), begins)
            }
            What::ExportSnapshot(name) | What::RemoveValidator(name) | What::AddValidator(name) => {
                self.single(at, name)?;
                self.there_by(at, std::slice::from_ref(name), begins)?;
                let place = self.names.find(name)[0];
                let may_validate = is_candidate(self.topology(), &self.names, place);
                let validates = self.names.group(place).is_none();
                match what {
                    What::AddValidator(_) if !may_validate => Err(
                        at.wrong(format!("`{name}` is no candidate: write `part: candidate` into its group"))
                    ),
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
                        at.wrong("there is one node: write a group, of which the liars take the truth")
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
            self.measurable(&at, criterion)?;
        }
        Ok(())
    }
}

impl Rules<'_> {
    /// What no run of this scenario could measure is refused before it runs.
    fn measurable(&self, at: &At, criterion: &Criterion) -> Checked {
        let at_nodes = at.then(criterion.key()).then("nodes");
        let phase = |name: &String| self.scenario.workload.iter().find(|phase| phase.name == *name);
        match criterion {
            Criterion::Read { phase: name, .. } | Criterion::NewHeads { phase: name, .. }
                if phase(name).is_some_and(|it| it.reads_per_second == 0) =>
            {
                Err(at.wrong(format!("nothing is read: write `reads_per_second` into the phase `{name}`")))
            }
            Criterion::Follow { phase: name, .. }
                if phase(name).is_some_and(|it| it.followers.is_empty()) =>
            {
                Err(at
                    .wrong(format!("nobody follows: write `followers: [fullnodes]` into the phase `{name}`")))
            }
            Criterion::CatchUp { nodes, .. } => self.left_behind(&at_nodes, nodes),
            Criterion::Convicted { nodes, .. } => self.lied(&at_nodes, nodes),
            Criterion::LiarsBanned { nodes, lie, .. } => self.lied_to(&at.then(criterion.key()), nodes, *lie),
            Criterion::EqualRoots if self.names.len() < 2 => {
                Err(at.wrong("there is one node, whose state equals itself: write a group"))
            }
            Criterion::LoadComplete if self.scenario.workload.is_empty() => {
                Err(at.wrong("there is no load: write a phase into `workload`"))
            }
            _ => Ok(()),
        }
    }

    /// Who is to catch up must join, or come back from a fault.
    fn left_behind(&self, at: &At, nodes: &[String]) -> Checked {
        let may_be = |place: Place| {
            self.names.group(place).is_some_and(|group| self.topology().groups[group].joins.is_some())
                || self.scenario.faults.iter().any(|fault| {
                    fault.what.leaves_behind(fault.lasts.is_some())
                        && fault.what.may_meet(self.topology(), &self.names, place)
                })
        };
        match self.names.find_all(nodes).into_iter().find(|place| !may_be(*place)) {
            None => Ok(()),
            Some(never) => Err(at.wrong(format!(
                "`{}` neither joins nor comes back from a fault: leave it out, or write the fault with `for`",
                self.names.name(never)
            ))),
        }
    }

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
