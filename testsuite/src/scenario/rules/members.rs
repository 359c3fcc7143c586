//! The validator set in the course of a scenario, with the seed's draws.

use std::collections::BTreeSet;

use super::{
    Rules,
    at::{At, Checked},
};
use crate::scenario::{
    names::{NodeIndex, VALIDATORS},
    plan::{Action, Event, of_fault},
};

impl Rules<'_> {
    /// Checks that the chain accepts each change: it adds a node that does not validate, or removes one of several
    /// validators.
    pub(super) fn validators_at_all_times(&self) -> Checked {
        let mut validators: BTreeSet<NodeIndex> = self.names.find(VALIDATORS).into_iter().collect();
        for (fault, event) in self.changes() {
            let what = self.scenario.faults[fault].what.name();
            let at = At::key("faults").item(fault).then("what").then(what);
            let refused =
                |place: NodeIndex, text: &str| Err(at.wrong(format!("`{}` {text}", self.names.name(place))));
            match event.action {
                Action::AddValidator(place) if !validators.insert(place) => {
                    return refused(place, "validates already at that time: leave it out");
                }
                Action::RemoveValidator(place) if !validators.remove(&place) => {
                    return refused(
                        place,
                        "does not validate at that time: write `add_validator` at an earlier time, or leave it out",
                    );
                }
                Action::RemoveValidator(place) if validators.is_empty() => {
                    return refused(
                        place,
                        "is the last validator at that time, and a chain keeps one: write `add_validator` of a candidate at an earlier time",
                    );
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Checks the number of an epoch criterion: only a change of the validators begins an epoch.
    pub(super) fn epoch(&self, at: &At, at_least: u64) -> Checked {
        let most = self.changes().len();
        if at_least <= most as u64 {
            return Ok(());
        }
        Err(at.wrong(format!(
            "the chain begins in epoch 0, and the faults change its validators {most} times: \
             write `at_least: {most}`, or more `add_validator` and `remove_validator` into `faults`"
        )))
    }

    /// Returns the changes of the validators in time order, with the index of their fault.
    fn changes(&self) -> Vec<(usize, Event)> {
        let faults = self.scenario.faults.iter().enumerate();
        let mut changes: Vec<(usize, Event)> = faults
            .filter(|(_, fault)| fault.what.changes_validators())
            .flat_map(|(index, _)| {
                of_fault(self.scenario, &self.names, index).into_iter().map(move |event| (index, event))
            })
            .collect();
        changes.sort_by_key(|(_, event)| event.at_ms);
        changes
    }
}
