//! The rules of loads.

use clap::ValueEnum;

use super::{
    Rules,
    at::{At, Checked},
};
use crate::{
    load::{RATE_MAX, READS_MAX, TRANSACTIONS_MAX, Workload},
    report::LIST_MAX as CURVES_MAX,
    scenario::{
        model::{Phase, PhaseRate},
        span::Span,
    },
};

impl Rules<'_> {
    pub(super) fn workload(&self) -> Checked {
        let mut curves = 0;
        for (index, phase) in self.scenario.workload.iter().enumerate() {
            let at = At::key("workload").item(index);
            at.then("name").name(&phase.name)?;
            if self.scenario.workload[..index].iter().any(|other| other.name == phase.name) {
                return Err(at.then("name").wrong(format!("`{}` is taken: choose another name", phase.name)));
            }
            self.phase(&at, phase)?;
            curves += self.curves(phase);
            if curves > CURVES_MAX {
                return Err(at.then("followers").wrong(format!(
                    "with them the load has more than {CURVES_MAX} curves, too many for a report: use fewer followers or phases"
                )));
            }
        }
        Ok(())
    }

    fn phase(&self, at: &At, phase: &Phase) -> Checked {
        let duration = self.scenario.duration;
        at.then("at").span(phase.at, 0, duration)?;
        at.then("for").span(phase.lasts, 1_000, duration)?;
        if phase.at.ms() + phase.lasts.ms() > duration.ms() {
            return Err(at.then("for").wrong(format!("ends after the scenario, which lasts {duration}")));
        }
        let at_rate = at.then("rate");
        let (rate, count) = phase.rate.bounds(phase.lasts);
        if rate == 0 || rate > RATE_MAX {
            return Err(at_rate.wrong(format!("must reach 1 to {RATE_MAX} per second, not {rate}")));
        }
        if count > TRANSACTIONS_MAX as f64 {
            return Err(at_rate.wrong(format!(
                "makes {count:.0} transactions, and a phase has at most {TRANSACTIONS_MAX}: use a lower rate, or several phases"
            )));
        }
        match phase.rate {
            PhaseRate::Burst { period, peak_lasts, .. }
                if peak_lasts >= period || peak_lasts.ms() == 0 || period.ms() < 100 =>
            {
                return Err(at_rate.then("burst").then("peak_lasts").wrong(format!(
                    "a peak of {peak_lasts} does not fit a period of {period}: a period lasts at least 100ms, and a peak less than its period"
                )));
            }
            PhaseRate::Burst { period, peak_lasts, .. }
                if period.ms() - peak_lasts.ms() >= phase.lasts.ms() =>
            {
                return Err(at_rate.then("burst").then("period").wrong(format!(
                    "the peak is at the end of each {period}, and the phase is over by then: use a shorter period"
                )));
            }
            PhaseRate::Saturation { step_seconds, .. } => {
                let at_step = at_rate.then("saturation").then("step_seconds");
                at_step.within(step_seconds, 2..=60)?;
                if step_seconds * 1_000 >= phase.lasts.ms() {
                    return Err(at_step.wrong(format!(
                        "no step of {step_seconds} s ends within the {} of the phase, which begins with its preparation: use a shorter step, or a longer `for`",
                        phase.lasts
                    )));
                }
            }
            _ => {}
        }
        at.then("reads_per_second").within(phase.reads_per_second.into(), 0..=READS_MAX.into())?;
        self.mix(&at.then("mix"), phase)?;
        if phase.access_lists.is_some() && !phase.mix.contains_key(Workload::AccessLists.name()) {
            return Err(at.then("access_lists").wrong(
                "is for the kind `access-lists` only: write `mix: { access-lists: 1 }`, or leave it out",
            ));
        }
        self.known(&at.then("to"), &phase.to)?;
        // A load gets the list of its nodes before the clock starts.
        self.there_by(&at.then("to"), &phase.to, Span::default())?;
        if let Some(name) = &phase.read_from {
            self.single(&at.then("read_from"), name)?;
            self.there_by(&at.then("read_from"), std::slice::from_ref(name), Span::default())?;
        }
        if !phase.followers.is_empty() {
            self.known(&at.then("followers"), &phase.followers)?;
            self.there_by(&at.then("followers"), &phase.followers, Span::default())?;
        }
        Ok(())
    }

    /// Counts the curves of a phase in a report: commits, each follower, and for each node that is read from, two
    /// transports and its heads.
    fn curves(&self, phase: &Phase) -> usize {
        let followers = self.names.find_all(&phase.followers).len();
        let read = if phase.reads_per_second > 0 { followers + 1 } else { 0 };
        1 + followers + 3 * read
    }

    fn mix(&self, at: &At, phase: &Phase) -> Checked {
        let known: Vec<&str> = Workload::value_variants().iter().map(|kind| kind.name()).collect();
        for (kind, weight) in &phase.mix {
            if !known.contains(&kind.as_str()) {
                return Err(at
                    .then(kind)
                    .wrong(format!("is not a kind of load; the kinds are {}", known.join(", "))));
            }
            at.then(kind).within((*weight).into(), 1..=1_000)?;
        }
        if phase.mix.is_empty() {
            return Err(at.wrong(format!("is empty; the kinds are {}", known.join(", "))));
        }
        let accounts_min = 2 * self.scenario.workload.len();
        if (self.topology().accounts as usize) < accounts_min {
            return Err(at.wrong(format!(
                "each phase needs its own accounts: write `accounts: {accounts_min}` or more"
            )));
        }
        let lists = Workload::AccessLists.name();
        if phase.mix.contains_key(lists) && phase.access_lists.is_none() {
            return Err(at.then(lists).wrong("replays a directory: name it with `access_lists: DIR`"));
        }
        Ok(())
    }
}
