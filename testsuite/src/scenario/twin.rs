//! [`Twin`]: a scenario with a planted defect. It must fail the criteria that it names; otherwise the scenario shows
//! nothing.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    criteria::names_of,
    error::ScenarioError,
    fault::Fault,
    model::{Config, Link, Scenario, Settings},
    parse::{self, Problem},
    rules,
};

/// The suffix of a twin's file name, instead of `.yaml`.
pub const TWIN_SUFFIX: &str = ".defect.yaml";

/// A twin's file. The rest comes from the scenario beside it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Twin {
    /// The planted defect, and why the criteria detect it.
    pub description: String,
    /// The defect.
    pub defect: Defect,
    /// The criteria that must fail, by their names in reports; at least one.
    pub must_fail: Vec<String>,
}

/// The additions of a twin to its scenario.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Defect {
    /// Keys of node.yaml for all nodes; they override the scenario's.
    pub config: Config,
    /// Settings that override the scenario's.
    pub settings: Vec<Settings>,
    /// Links that replace the scenario's between the same regions.
    pub links: Vec<Link>,
    /// Faults that follow the scenario's.
    pub faults: Vec<Fault>,
}

impl Twin {
    /// Returns the path of a scenario's twin.
    pub fn path_of(scenario: &Path) -> PathBuf {
        let name = scenario.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        scenario.with_file_name(name + TWIN_SUFFIX)
    }

    /// Decodes a text from, or for, the file `path`. Returns the scenario with the defect, and the names of the
    /// criteria that must fail.
    ///
    /// # Errors
    /// As [`Scenario::parse`], including for the scenario with the defect.
    pub fn parse(
        text: &str,
        path: &Path,
        scenario: &Scenario,
    ) -> Result<(Scenario, Vec<String>), ScenarioError> {
        let twin: Twin = parse::decode(text, path)?;
        let refused = |problem| parse::refused(text, path, problem);
        twin.check(scenario).map_err(refused)?;
        let must_fail = twin.must_fail.clone();
        let defective = twin.planted_in(scenario.clone());
        rules::check(&defective).map_err(|problem| refused(shifted(problem, scenario)))?;
        Ok((defective, must_fail))
    }

    /// As [`Twin::parse`], for a file.
    ///
    /// # Errors
    /// As [`Twin::parse`], and if it cannot be read.
    pub fn load(path: &Path, scenario: &Scenario) -> Result<(Scenario, Vec<String>), ScenarioError> {
        Twin::parse(&parse::read(path)?, path, scenario)
    }

    fn check(&self, scenario: &Scenario) -> Result<(), Problem> {
        let wrong = |key: &str, text: String| Problem { key: vec![key.to_owned()], text };
        let known = names_of(&scenario.criteria);
        if self.must_fail.is_empty() {
            return Err(wrong("must_fail", format!("is empty; name one of: {}", known.join("; "))));
        }
        for name in &self.must_fail {
            if !known.contains(name) {
                let text = format!("the scenario has no criterion `{name}`; it has: {}", known.join("; "));
                return Err(wrong("must_fail", text));
            }
        }
        if self.defect == Defect::default() {
            return Err(wrong(
                "defect",
                "is empty: write `config`, `settings`, `links` or `faults`".to_owned(),
            ));
        }
        Ok(())
    }

    fn planted_in(self, mut scenario: Scenario) -> Scenario {
        let Defect { config, settings, links, faults } = self.defect;
        scenario.name += "-defect";
        scenario.description = self.description;
        scenario.topology.config.extend(config);
        scenario.topology.settings.extend(settings);
        let planted = links.len();
        let own = std::mem::replace(&mut scenario.topology.links, links);
        let all = &mut scenario.topology.links;
        for link in own {
            if !all[..planted].iter().any(|other| other.is_beside(&link)) {
                all.push(link);
            }
        }
        scenario.faults.extend(faults);
        scenario
    }
}

/// Moves a problem of the scenario with the defect to its position in the twin's file.
fn shifted(problem: Problem, scenario: &Scenario) -> Problem {
    let Problem { mut key, text } = problem;
    let own = match key.first().map(String::as_str) {
        Some("topology") => {
            key.remove(0);
            if key.first().is_some_and(|key| key == "links") { 0 } else { scenario.topology.settings.len() }
        }
        _ => scenario.faults.len(),
    };
    if let Some(index) = key.get_mut(1)
        && let Ok(number) = index.parse::<usize>()
    {
        let Some(number) = number.checked_sub(own) else {
            // The value is the scenario's, and is wrong only together with the defect.
            return Problem { key: vec!["defect".to_owned()], text };
        };
        *index = number.to_string();
    }
    if key.first().is_none_or(|key| !["config", "settings", "links", "faults"].contains(&key.as_str())) {
        return Problem { key: vec!["defect".to_owned()], text };
    }
    key.insert(0, "defect".to_owned());
    Problem { key, text }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCENARIO: &str = "name: a\ndescription: b\nduration: 10s\ncriteria:\n- equal_roots\n";

    fn twin(text: &str) -> Result<(Scenario, Vec<String>), String> {
        let scenario = Scenario::parse(SCENARIO, Path::new("a.yaml")).unwrap();
        Twin::parse(text, Path::new("a.defect.yaml"), &scenario).map_err(|error| error.to_string())
    }

    #[test]
    fn a_twin_is_its_scenario_with_the_defect() {
        let text =
            "description: c\nmust_fail: [equal_roots]\ndefect:\n  config: { consensus.rotate_after: 1 }\n";
        let (scenario, must_fail) = twin(text).unwrap();
        assert_eq!((scenario.name.as_str(), must_fail), ("a-defect", vec!["equal_roots".to_owned()]));
        assert_eq!(scenario.topology.config["consensus.rotate_after"], 1);
        assert_eq!(Twin::path_of(Path::new("x/a.yaml")), Path::new("x/a.defect.yaml"));
    }

    /// Goal: a twin's links replace its scenario's links between the same regions, and a twin with two links for the
    /// same regions is refused.
    #[test]
    fn links_of_a_twin_are_in_place_of_the_scenarios() {
        let link = |one: &str, other: &str, ms: u32| {
            format!("{{ between: [{one}, {other}], shape: {{ delay: {ms}ms }} }}")
        };
        let settings = "[{ nodes: [validator-0], region: a }, { nodes: [validator-1], region: b }]";
        let own = [link("a", "b", 5), link("a", "a", 6)].join(", ");
        let text = format!("{SCENARIO}topology: {{ settings: {settings}, links: [{own}] }}\n");
        let scenario = Scenario::parse(&text, Path::new("a.yaml")).unwrap_or_else(|error| panic!("{error}"));
        let twin = |links: &[String]| {
            let links = links.join(", ");
            let text = format!("description: c\nmust_fail: [equal_roots]\ndefect: {{ links: [{links}] }}\n");
            Twin::parse(&text, Path::new("a.defect.yaml"), &scenario).map_err(|error| error.to_string())
        };
        let (defective, _) = twin(&[link("b", "a", 900)]).unwrap();
        let delays: Vec<u64> = defective.topology.links.iter().map(|link| link.shape.delay.ms()).collect();
        assert_eq!(delays, [900, 6]);
        let error = twin(&[link("b", "a", 900), link("a", "b", 800)]).unwrap_err();
        assert!(error.contains("defect.links.1.between: there are links between `a` and `b`"), "{error}");
    }

    #[test]
    fn a_twin_that_shows_nothing_or_breaks_its_scenario_is_refused_at_its_place() {
        let error =
            twin("description: c\nmust_fail: [no_alarm]\ndefect: { config: { a: 1 } }\n").unwrap_err();
        assert!(error.contains("a.defect.yaml:2:12") && error.contains("it has: equal_roots"), "{error}");
        let error = twin("description: c\nmust_fail: [equal_roots]\ndefect: {}\n").unwrap_err();
        assert!(error.contains("`faults`"), "{error}");
        let fault = "description: c\nmust_fail: [equal_roots]\ndefect:\n  faults:\n  - at: 1s\n    what: { kill: { nodes: [nobody] } }\n";
        let error = twin(fault).unwrap_err();
        assert!(
            error.contains("a.defect.yaml:6:") && error.contains("no node is called `nobody`"),
            "{error}"
        );
        let key = "description: c\nmust_fail: [equal_roots]\ndefect:\n  config: { consensus.rotate: 1 }\n";
        let error = twin(key).unwrap_err();
        assert!(error.contains("a.defect.yaml:4:") && error.contains("the nearest is consensus."), "{error}");
    }
}
