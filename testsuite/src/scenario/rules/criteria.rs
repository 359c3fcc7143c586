//! The rules of criteria: every criterion must be measurable, and possible to meet.

use super::{
    Rules,
    at::{At, Checked},
};
use crate::{
    load::{Schedule, TRANSACTIONS_MAX},
    scenario::{criteria::Criterion, model::Phase, names::NodeIndex, span::Span},
};

impl Rules<'_> {
    pub(super) fn criteria(&self) -> Checked {
        for (index, criterion) in self.scenario.criteria.iter().enumerate() {
            let item = At::key("criteria").item(index);
            let at = item.then(criterion.key());
            let before = &self.scenario.criteria[..index];
            if let Some(first) = before.iter().position(|other| other == criterion) {
                return Err(item.wrong(format!("is the same as criteria.{first}: remove one of the two")));
            }
            if let Some(phase) = criterion.phase() {
                self.phase_known(&at.then("phase"), phase)?;
            }
            if let Some(nodes) = criterion.listed() {
                // An empty list counts all nodes that were lied to.
                let is_whole = nodes.is_empty() && matches!(criterion, Criterion::LiarsBanned { .. });
                if !is_whole {
                    self.known(&at.then("nodes"), nodes)?;
                }
            }
            limits(&at, criterion)?;
            self.measurable(&item, criterion)?;
        }
        Ok(())
    }

    fn phase_known(&self, at: &At, name: &str) -> Checked {
        let phases: Vec<&str> = self.scenario.workload.iter().map(|phase| phase.name.as_str()).collect();
        if phases.contains(&name) {
            return Ok(());
        }
        Err(at.wrong(match phases.is_empty() {
            true => format!("there is no phase `{name}`, and no load: write the phase into `workload`"),
            false => format!("there is no phase `{name}`; there are: {}", phases.join(", ")),
        }))
    }

    /// Refuses a criterion that no run of this scenario could measure.
    fn measurable(&self, item: &At, criterion: &Criterion) -> Checked {
        let at = item.then(criterion.key());
        let phase = |name: &String| self.scenario.workload.iter().find(|phase| phase.name == *name);
        match criterion {
            Criterion::Read { phase: name, .. } | Criterion::NewHeads { phase: name, .. }
                if phase(name).is_some_and(|it| it.reads_per_second == 0) =>
            {
                Err(item.wrong(format!("nothing is read: write `reads_per_second` into the phase `{name}`")))
            }
            Criterion::Follow { phase: name, .. }
                if phase(name).is_some_and(|it| it.followers.is_empty()) =>
            {
                Err(item.wrong(format!(
                    "no node follows: write `followers: [fullnodes]` into the phase `{name}`"
                )))
            }
            Criterion::Throughput { phase: name, at_least } => match phase(name).and_then(fastest) {
                Some(most) if *at_least > most => Err(at.then("at_least").wrong(format!(
                    "the phase `{name}` offers {most:.1} per second, and no more than that can be committed: \
                     write a lower limit, or a higher `rate`"
                ))),
                _ => Ok(()),
            },
            Criterion::CatchUp { nodes, .. } => self.left_behind(&at.then("nodes"), nodes),
            Criterion::Convicted { nodes, of } => self.lied(&at, nodes, of),
            Criterion::LiarsBanned { nodes, lie, .. } => self.lied_to(&at, nodes, *lie),
            Criterion::Epoch { at_least } => self.epoch(&at.then("at_least"), *at_least),
            Criterion::EqualRoots if self.names.len() < 2 => {
                Err(item.wrong("there is only one node, so its state has nothing to equal: write a group"))
            }
            Criterion::LoadComplete if self.scenario.workload.is_empty() => {
                Err(item.wrong("there is no load: write a phase into `workload`"))
            }
            _ => Ok(()),
        }
    }

    /// Checks that each of the nodes, which should catch up, joins during the run or comes back from a fault.
    fn left_behind(&self, at: &At, nodes: &[String]) -> Checked {
        let may_be = |place: NodeIndex| {
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
}

/// Returns the transactions per second of a phase if each is committed when it is due; `None` for a search, and for a
/// single transaction.
fn fastest(phase: &Phase) -> Option<f64> {
    let schedule = Schedule::new(phase.rate.known()?, phase.lasts.duration(), TRANSACTIONS_MAX).ok()?;
    let last = schedule.due(schedule.len().checked_sub(1)?);
    let seconds = last.saturating_sub(schedule.due(0)).as_secs_f64();
    (seconds > 0.0).then(|| schedule.len() as f64 / seconds)
}

/// Refuses a limit that nothing could keep, or that everything keeps: it is a mistake.
fn limits(at: &At, criterion: &Criterion) -> Checked {
    match criterion {
        Criterion::Throughput { at_least, .. } => above_zero(&at.then("at_least"), *at_least),
        Criterion::Memory { mib_max, .. } => above_zero(&at.then("mib_max"), *mib_max),
        Criterion::HeadAge { at_most, percent, .. } => {
            some_time(at, *at_most)?;
            // This is also false for NaN.
            match *percent > 0.0 && *percent <= 100.0 {
                true => Ok(()),
                false => Err(at
                    .then("percent")
                    .wrong(format!("must be a percentage above 0 and at most 100, not {percent}"))),
            }
        }
        Criterion::Commit { at_most, .. }
        | Criterion::Follow { at_most, .. }
        | Criterion::Read { at_most, .. }
        | Criterion::NewHeads { at_most, .. }
        | Criterion::CatchUp { at_most, .. }
        | Criterion::NoProgress { at_most }
        | Criterion::LiarsBanned { at_most, .. } => some_time(at, *at_most),
        Criterion::History { from_at_most: None, from_at_least: None, .. } => {
            Err(at.wrong("write `from_at_most` or `from_at_least`, in batches"))
        }
        Criterion::History { from_at_most: Some(0), .. } => {
            Err(at.then("from_at_most").wrong("batch 1 is the first, and no node has one before it: write 1"))
        }
        Criterion::History { from_at_most: Some(most), from_at_least: Some(least), .. } if least > most => {
            Err(at.then("from_at_least").wrong(format!(
                "{least} is after `from_at_most: {most}`, so no batch fits both: swap the two"
            )))
        }
        _ => Ok(()),
    }
}

fn above_zero(at: &At, limit: f64) -> Checked {
    // This is also false for NaN.
    match limit > 0.0 && limit.is_finite() {
        true => Ok(()),
        false => Err(at.wrong(format!("must be a number above 0, not {limit}"))),
    }
}

fn some_time(at: &At, at_most: Span) -> Checked {
    match at_most.ms() {
        0 => Err(at.then("at_most").wrong("must be above 0s: everything takes some time")),
        _ => Ok(()),
    }
}
