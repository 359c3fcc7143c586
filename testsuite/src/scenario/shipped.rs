//! The built-in scenarios, and their twins.

use std::path::Path;

use super::{Scenario, ScenarioError, Twin};

/// A built-in scenario.
#[derive(Clone, Copy, Debug)]
pub struct Shipped {
    /// The name for `slipnet run`, which is also that in its file.
    pub name: &'static str,
    /// The scenario's YAML.
    pub text: &'static str,
    /// The YAML of its twin.
    pub twin: &'static str,
}

/// All built-in scenarios, from plain to wild.
pub const ALL: &[Shipped] = &[
    Shipped {
        name: "steady-state",
        text: include_str!("../../scenarios/steady-state.yaml"),
        twin: include_str!("../../scenarios/steady-state.defect.yaml"),
    },
    Shipped {
        name: "saturation",
        text: include_str!("../../scenarios/saturation.yaml"),
        twin: include_str!("../../scenarios/saturation.defect.yaml"),
    },
    Shipped {
        name: "cold-joins",
        text: include_str!("../../scenarios/cold-joins.yaml"),
        twin: include_str!("../../scenarios/cold-joins.defect.yaml"),
    },
    Shipped {
        name: "rolling-upgrade",
        text: include_str!("../../scenarios/rolling-upgrade.yaml"),
        twin: include_str!("../../scenarios/rolling-upgrade.defect.yaml"),
    },
    Shipped {
        name: "primary-killed",
        text: include_str!("../../scenarios/primary-killed.yaml"),
        twin: include_str!("../../scenarios/primary-killed.defect.yaml"),
    },
    Shipped {
        name: "two-validators-lost",
        text: include_str!("../../scenarios/two-validators-lost.yaml"),
        twin: include_str!("../../scenarios/two-validators-lost.defect.yaml"),
    },
    Shipped {
        name: "epoch-change",
        text: include_str!("../../scenarios/epoch-change.yaml"),
        twin: include_str!("../../scenarios/epoch-change.defect.yaml"),
    },
    Shipped {
        name: "regional-latency",
        text: include_str!("../../scenarios/regional-latency.yaml"),
        twin: include_str!("../../scenarios/regional-latency.defect.yaml"),
    },
    Shipped {
        name: "hostile-peers",
        text: include_str!("../../scenarios/hostile-peers.yaml"),
        twin: include_str!("../../scenarios/hostile-peers.defect.yaml"),
    },
    Shipped {
        name: "slow-disk",
        text: include_str!("../../scenarios/slow-disk.yaml"),
        twin: include_str!("../../scenarios/slow-disk.defect.yaml"),
    },
    Shipped {
        name: "full-disk",
        text: include_str!("../../scenarios/full-disk.yaml"),
        twin: include_str!("../../scenarios/full-disk.defect.yaml"),
    },
    Shipped {
        name: "clock-jump",
        text: include_str!("../../scenarios/clock-jump.yaml"),
        twin: include_str!("../../scenarios/clock-jump.defect.yaml"),
    },
    Shipped {
        name: "lying-validator",
        text: include_str!("../../scenarios/lying-validator.yaml"),
        twin: include_str!("../../scenarios/lying-validator.defect.yaml"),
    },
    Shipped {
        name: "empty-batches",
        text: include_str!("../../scenarios/empty-batches.yaml"),
        twin: include_str!("../../scenarios/empty-batches.defect.yaml"),
    },
    Shipped {
        name: "pruned-network",
        text: include_str!("../../scenarios/pruned-network.yaml"),
        twin: include_str!("../../scenarios/pruned-network.defect.yaml"),
    },
    Shipped {
        name: "fan-out",
        text: include_str!("../../scenarios/fan-out.yaml"),
        twin: include_str!("../../scenarios/fan-out.defect.yaml"),
    },
    Shipped {
        name: "archive-start",
        text: include_str!("../../scenarios/archive-start.yaml"),
        twin: include_str!("../../scenarios/archive-start.defect.yaml"),
    },
    Shipped {
        name: "day-in-ten-minutes",
        text: include_str!("../../scenarios/day-in-ten-minutes.yaml"),
        twin: include_str!("../../scenarios/day-in-ten-minutes.defect.yaml"),
    },
];

/// Returns the built-in scenario with this name.
pub fn named(name: &str) -> Option<&'static Shipped> {
    ALL.iter().find(|shipped| shipped.name == name)
}

impl Shipped {
    /// Parses the scenario.
    ///
    /// # Errors
    /// None in practice: a test parses all of them.
    pub fn scenario(&self) -> Result<Scenario, ScenarioError> {
        Scenario::parse(self.text, Path::new(&format!("{}.yaml", self.name)))
    }

    /// Parses the twin: the scenario with its defect, and the criteria that must fail.
    ///
    /// # Errors
    /// As [`Shipped::scenario`].
    pub fn defective(&self) -> Result<(Scenario, Vec<String>), ScenarioError> {
        Twin::parse(self.twin, Path::new(&format!("{}.defect.yaml", self.name)), &self.scenario()?)
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;
    use crate::{
        load::Workload,
        scenario::{criteria::Criterion, model::PhaseRate},
    };

    /// The longest duration of a scenario's clock, so that a run takes less than five minutes.
    const SECONDS_MAX: f64 = 270.0;

    /// Goal: the documentation names all built-in scenarios with their purpose and planted defect, and its example is a
    /// valid scenario.
    #[test]
    fn the_documentation_is_of_what_ships() {
        let page = include_str!("../../../docs/scenarios.md");
        for shipped in ALL {
            let scenario = shipped.scenario().unwrap_or_else(|error| panic!("{error}"));
            let (defective, _) = shipped.defective().unwrap_or_else(|error| panic!("{error}"));
            let (name, says, planted) = (&scenario.name, &scenario.description, &defective.description);
            assert!(page.contains(&format!("| `{name}` |")), "{name}");
            assert!(page.contains(&format!("| {says} | {planted} |")), "{name}");
        }
        let (_, example) = page.split_once("```yaml\n").unwrap();
        let (example, _) = example.split_once("```").unwrap();
        Scenario::parse(example, Path::new("docs/scenarios.md")).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Goal: every built-in scenario can be run, has the name of its file, and ends in time. Its twin fails one of its
    /// criteria.
    #[test]
    fn all_that_ships_is_sound() {
        assert!(ALL.len() >= 12);
        for shipped in ALL {
            let scenario = shipped.scenario().unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(scenario.name, shipped.name);
            assert!(scenario.duration.seconds() <= SECONDS_MAX, "{}", shipped.name);
            let (defective, must_fail) = shipped.defective().unwrap_or_else(|error| panic!("{error}"));
            assert!(!must_fail.is_empty() && defective != scenario, "{}", shipped.name);
        }
    }

    /// Goal: the built-in scenarios send each kind of transaction that needs no outside data, read at the same time,
    /// and detect every loss. A search exceeds a chain's limit.
    #[test]
    fn loads_that_ship_are_of_all_kinds_and_complete() {
        let scenario = |shipped: &Shipped| shipped.scenario().unwrap_or_else(|error| panic!("{error}"));
        let scenarios: Vec<Scenario> = ALL.iter().map(scenario).collect();
        let phases: Vec<_> = scenarios.iter().flat_map(|scenario| &scenario.workload).collect();
        let from_outside = Workload::AccessLists;
        for kind in Workload::value_variants().iter().filter(|kind| **kind != from_outside) {
            assert!(phases.iter().any(|phase| phase.mix.contains_key(kind.name())), "{kind:?}");
        }
        let is_search = |rate: &PhaseRate| matches!(rate, PhaseRate::Saturation { .. });
        for scenario in scenarios.iter().filter(|it| it.workload.iter().any(|it| !is_search(&it.rate))) {
            assert!(scenario.criteria.contains(&Criterion::LoadComplete), "{}", scenario.name);
        }
        let read = |scenario: &Scenario, phase: &str| {
            let mut criteria = scenario.criteria.iter();
            criteria.any(|it| matches!(it, Criterion::Read { phase: of, .. } if of == phase))
        };
        for scenario in &scenarios {
            for phase in scenario.workload.iter().filter(|phase| phase.reads_per_second > 0) {
                assert!(
                    read(scenario, &phase.name),
                    "{}: reads of {} are not judged",
                    scenario.name,
                    phase.name
                );
            }
        }
    }
}
