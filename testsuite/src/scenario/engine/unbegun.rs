//! [`report`]: the report of a run that failed before its clock started. Nothing was measured, so no criterion is met.

use std::time::Duration;

use super::{RunOptions, nothing_ended};
use crate::{
    report::{Environment, RunReport},
    scenario::{
        criteria::{Findings, judge},
        model::Scenario,
        names::Names,
    },
};

/// Makes a report in which no criterion is measured. The criterion `nothing_ended` has the cause of the failure.
pub(super) fn report(
    scenario: &Scenario,
    options: &RunOptions,
    (started_ms, passed): (u64, Duration),
    error: &anyhow::Error,
) -> RunReport {
    let names = Names::of(scenario);
    // The accusations of these nodes are unknown.
    let unseen = names.all().map(|place| names.name(place).to_owned()).collect();
    let findings = Findings { unseen, ..Findings::default() };
    let mut report = RunReport {
        scenario: scenario.name.clone(),
        command: options.command.clone(),
        environment: Environment::detect(),
        started_ms,
        seconds: passed.as_secs_f64(),
        ..RunReport::default()
    };
    report.criteria = judge(scenario, &report, &findings);
    report.criteria.push(nothing_ended(&[format!("the clock did not start: {error:#}")]));
    report
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::scenario::shipped;

    /// Goal: a run that did not begin meets no criterion of any scenario, and the report has the reason.
    #[test]
    fn nothing_is_met_by_a_run_that_did_not_begin() {
        let options =
            RunOptions { dir: "/d".into(), programs: BTreeMap::new(), command: "slipnet run a".to_owned() };
        let error = anyhow::anyhow!("out of file handles").context("validator-2");
        for shipped in shipped::ALL {
            let scenario = shipped.scenario().unwrap();
            let report = report(&scenario, &options, (7, Duration::from_secs(3)), &error);
            assert_eq!(report.criteria.len(), scenario.criteria.len() + 1, "{}", scenario.name);
            let met: Vec<_> = report.criteria.iter().filter(|criterion| criterion.passed).collect();
            assert!(met.is_empty(), "{}: {met:?}", scenario.name);
            let last = report.criteria.last().unwrap();
            assert_eq!(last.name, "nothing_ended");
            assert!(last.measured.contains("validator-2: out of file handles"), "{}", last.measured);
            for text in [report.to_markdown(), report.to_html()] {
                assert!(text.contains("validator-2: out of file handles"), "{text}");
            }
        }
    }
}
