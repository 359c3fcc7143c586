//! [`notes`]: where a valid scenario may not mean what its author intended.

use super::{
    engine::setup::{BEFORE, CURRENT, programs_of},
    model::Scenario,
    names::Names,
    plan::of_fault,
    span::Span,
};

/// Returns a line for each fault that the scenario's end cuts short, and for each program that must be given on the
/// command line.
pub(super) fn notes(scenario: &Scenario) -> Vec<String> {
    let names = Names::of(scenario);
    let end_ms = scenario.duration.ms();
    let mut notes = Vec::new();
    for (index, fault) in scenario.faults.iter().enumerate() {
        let events = of_fault(scenario, &names, index);
        let beyond = events.iter().filter_map(|event| event.until_ms?.checked_sub(end_ms)).max();
        if let Some(ms) = beyond.filter(|ms| *ms > 0) {
            notes.push(format!(
                "faults.{index}: `{}` ends with the scenario, {} too early",
                fault.what.name(),
                Span::from_ms(ms)
            ));
        }
    }
    for program in programs_of(scenario).into_iter().filter(|program| *program != CURRENT) {
        notes.push(match program {
            BEFORE => {
                format!("without `--program {BEFORE}=PATH`, the program under test also serves as `{BEFORE}`")
            }
            program => format!("to run it, name the program with `--program {program}=PATH`"),
        });
    }
    notes
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Goal: a check of a file reports which faults the end of the clock cuts short, and what a run requires. Faults
    /// that fit are not mentioned.
    #[test]
    fn what_is_cut_and_what_is_missing_is_told() {
        let text = "name: a\ndescription: b\nduration: 60s\ncriteria: [equal_roots]\n\
                    topology: { settings: [{ nodes: [validator-0], program: before }] }\nfaults:\n\
                    - { at: 40s, for: 20s, what: { pause: { nodes: [validator-1] } } }\n\
                    - { at: 40s, for: 45s, what: { pause: { nodes: [validator-1] } } }\n\
                    - { at: 10s, for: 30s, what: { restart: { rolling: { nodes: [validators], every: 10s } } } }\n\
                    - { at: 45s, what: { upgrade: { who: { nodes: [validator-0] }, to: nightly } } }\n";
        let scenario = Scenario::parse(text, Path::new("a.yaml")).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(
            notes(&scenario),
            [
                "faults.1: `pause` ends with the scenario, 25s too early",
                "faults.2: `restart` ends with the scenario, 10s too early",
                "without `--program before=PATH`, the program under test also serves as `before`",
                "to run it, name the program with `--program nightly=PATH`",
            ]
        );
    }
}
