//! `slipnet run` and `slipnet scenarios`.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand};

use super::{
    RunOptions, Scenario, Twin, engine::setup::check_programs, names::Names, notes::notes, run, schema,
    shipped,
};
use crate::{
    leftovers::RunDir,
    output::{is_closed, print, print_line},
    progress::Progress,
    report::RunReport,
};

/// Runs scenarios. The exit code is 1 if a criterion fails, and the message names the criterion.
#[derive(Clone, Debug, Args)]
pub struct RunScenarios {
    /// Files, or names of built-in scenarios; `slipnet scenarios list` lists these.
    #[arg(required = true, num_args = 1..=64)]
    scenarios: Vec<String>,
    /// Also runs each scenario's twin with its planted defect, which must fail.
    #[arg(long)]
    twin: bool,
    /// A program that a scenario names, such as the previous release: `before=PATH`.
    #[arg(long, value_parser = program)]
    program: Vec<(String, PathBuf)>,
    /// The directory of each run's report (`DIR/NAME/report.json`, .md, .html) and of the nodes' files. Without it, a
    /// temporary directory, which is kept only if a run fails.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// The seed of all keys and faults, instead of the scenario's.
    #[arg(long)]
    seed: Option<String>,
}

/// Lists, checks and prints scenarios.
#[derive(Clone, Debug, Subcommand)]
pub enum ScenariosCommand {
    /// Lists the built-in scenarios.
    List,
    /// Prints the JSON Schema, for editors.
    Schema {
        /// Prints the schema of a twin's file.
        #[arg(long)]
        twin: bool,
    },
    /// Checks files without running them.
    Check {
        /// Files; a file that ends in .defect.yaml is a twin, and is checked with the scenario beside it.
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Prints a built-in scenario, as a start for your own.
    Show {
        /// The scenario's name.
        name: String,
        /// Prints its twin.
        #[arg(long)]
        twin: bool,
    },
}

fn program(text: &str) -> Result<(String, PathBuf), String> {
    let (name, path) = text
        .split_once('=')
        .ok_or_else(|| format!("{text}: write NAME=PATH, such as before=/opt/slipstream"))?;
    Ok((name.to_owned(), PathBuf::from(path)))
}

impl ScenariosCommand {
    /// Runs the command.
    ///
    /// # Errors
    /// If a file is no scenario, or no built-in scenario has the name.
    pub fn run(&self) -> Result<()> {
        match self {
            ScenariosCommand::List => list(),
            ScenariosCommand::Schema { twin } => print_line(&serde_json::to_string_pretty(&schema(*twin))?),
            ScenariosCommand::Check { files } => check(files),
            ScenariosCommand::Show { name, twin } => {
                let shipped = shipped::named(name).with_context(|| unknown(name))?;
                print(if *twin { shipped.twin } else { shipped.text })
            }
        }
    }
}

fn list() -> Result<()> {
    let mut text = String::new();
    for shipped in shipped::ALL {
        let scenario = shipped.scenario()?;
        writeln!(
            text,
            "{:<22} {:>5}  {}",
            scenario.name,
            scenario.duration.to_string(),
            scenario.description
        )?;
    }
    print(&text)
}

fn check(files: &[PathBuf]) -> Result<()> {
    for file in files {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let scenario = match name.strip_suffix(super::TWIN_SUFFIX) {
            None => Scenario::load_whole(file)?,
            Some(stem) => {
                let scenario = Scenario::load_whole(&file.with_file_name(format!("{stem}.yaml")))?;
                Twin::load(file, &scenario)?.0
            }
        };
        print_line(&format!("{}: sound", file.display()))?;
        for note in notes(&scenario) {
            print_line(&format!("  {note}"))?;
        }
    }
    Ok(())
}

fn unknown(name: &str) -> String {
    let names: Vec<&str> = shipped::ALL.iter().map(|shipped| shipped.name).collect();
    format!("`{name}` is neither a file nor a built-in scenario; the built-in ones are {}", names.join(", "))
}

/// A scenario, and its twin if that is wanted.
struct Wanted {
    scenario: Scenario,
    twin: Option<(Scenario, Vec<String>)>,
}

impl RunScenarios {
    /// Runs the scenarios one after another; a failure does not stop the later ones.
    ///
    /// # Errors
    /// If a scenario cannot be run, a criterion fails, or a twin does not fail as it must.
    pub async fn run(&self) -> Result<()> {
        // All are read before the first one runs: a mistake in the last one wastes no time.
        let wanted = self.scenarios.iter().map(|name| self.read(name)).collect::<Result<Vec<_>>>()?;
        let mut failed = Vec::new();
        for Wanted { scenario, twin } in &wanted {
            match self.one(scenario).await {
                Ok(report) => {
                    let names = names_failed(&report).into_iter();
                    failed.extend(names.map(|name| format!("{}: {name}", scenario.name)));
                }
                Err(error) => failed.push(told(&scenario.name, error)?),
            }
            let Some((defective, must_fail)) = twin else { continue };
            match self.one(defective).await {
                Ok(report) => {
                    let found = names_failed(&report);
                    let absent = never_there(defective, &report).into_iter();
                    failed.extend(absent.map(|node| format!("{}: {node} never answered", defective.name)));
                    let missed = must_fail.iter().filter(|name| !found.contains(name));
                    failed.extend(
                        missed.map(|name| format!("{}: {name} passed, but must fail", defective.name)),
                    );
                }
                Err(error) => failed.push(told(&defective.name, error)?),
            }
        }
        ensure!(failed.is_empty(), "failed: {}", failed.join("; "));
        Ok(())
    }

    fn read(&self, name: &str) -> Result<Wanted> {
        let path = Path::new(name);
        let (mut scenario, mut twin) = match shipped::named(name) {
            Some(shipped) if !path.is_file() => {
                (shipped.scenario()?, if self.twin { Some(shipped.defective()?) } else { None })
            }
            _ if path.is_file() => {
                let scenario = Scenario::load_whole(path)?;
                let twin = match self.twin {
                    true => Some(Twin::load(&Twin::path_of(path), &scenario)?),
                    false => None,
                };
                (scenario, twin)
            }
            _ => bail!(unknown(name)),
        };
        if let Some(seed) = &self.seed {
            // Another seed draws other times, so the scenario is checked again.
            for scenario in [&mut scenario].into_iter().chain(twin.as_mut().map(|(twin, _)| twin)) {
                scenario.seed.clone_from(seed);
                super::rules::check(scenario).map_err(|problem| {
                    anyhow::anyhow!("--seed: {}: {}", problem.key.join("."), problem.text)
                })?;
            }
        }
        let programs = self.programs();
        for scenario in [&scenario].into_iter().chain(twin.as_ref().map(|(twin, _)| twin)) {
            check_programs(scenario, &programs).with_context(|| scenario.name.clone())?;
        }
        Ok(Wanted { scenario, twin })
    }

    fn programs(&self) -> BTreeMap<String, PathBuf> {
        self.program.iter().cloned().collect()
    }

    async fn one(&self, scenario: &Scenario) -> Result<RunReport> {
        let temporary = RunDir::new("run-");
        let temporary = temporary.context("cannot create a temporary directory; name one with --dir")?;
        let dir = match &self.dir {
            Some(dir) => dir.join(&scenario.name),
            None => temporary.path().to_owned(),
        };
        let nodes = dir.join("nodes");
        ensure!(
            !nodes.exists(),
            "{} has the nodes of an earlier run: remove it, or choose another --dir",
            nodes.display()
        );
        std::fs::create_dir_all(&nodes)
            .with_context(|| format!("cannot create the directory {}", nodes.display()))?;
        let nodes = nodes.canonicalize().with_context(|| format!("cannot open {}", nodes.display()))?;
        let programs = self.programs();
        let command = std::env::args().collect::<Vec<_>>().join(" ");
        let result = run(scenario, &RunOptions { dir: nodes, programs, command }, Progress::detect()).await;
        let passed = result.as_ref().is_ok_and(RunReport::passed);
        // The report and the files are written even if the reader of the output has gone.
        let shown = match &result {
            Ok(report) => report.write(&dir).and_then(|()| print(&table(report))),
            Err(_) => Ok(()),
        };
        if self.dir.is_none() && !passed {
            let kept = temporary.keep();
            Progress::detect().step(&format!("report, files and logs are in {}", kept.display()));
        }
        shown?;
        result
    }
}

/// Reports a scenario that could not be completed, so that the others still run. Fails only if the reader of the output
/// has gone.
fn told(name: &str, error: anyhow::Error) -> Result<String> {
    if is_closed(&error) {
        return Err(error);
    }
    let text = format!("{name}: {error:#}");
    Progress::detect().step(&text);
    Ok(text)
}

pub(super) fn names_failed(report: &RunReport) -> Vec<String> {
    let failed = report.criteria.iter().filter(|criterion| !criterion.passed);
    failed.map(|criterion| criterion.name.clone()).collect()
}

/// Returns the nodes that should have run from the start but never showed a head. A twin must fail because of its
/// defect, not because nodes are missing.
fn never_there(scenario: &Scenario, report: &RunReport) -> Vec<String> {
    let names = Names::of(scenario);
    let joins = |group: usize| scenario.topology.groups[group].joins.is_some();
    let from_start = names.all().filter(|place| !names.group(*place).is_some_and(joins));
    let showed =
        |name: &str| report.nodes.iter().any(|node| node.name == name && !node.head.points.is_empty());
    from_start.map(|place| names.name(place)).filter(|name| !showed(name)).map(str::to_owned).collect()
}

/// Formats the criteria as a table.
pub(super) fn table(report: &RunReport) -> String {
    let mut text = format!("{}, {:.0} s\n", report.scenario, report.seconds);
    for criterion in &report.criteria {
        let verdict = if criterion.passed { "ok    " } else { "FAILED" };
        text += &format!("  {verdict} {}: {} ({})\n", criterion.name, criterion.measured, criterion.wanted);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{NodeSeries, Series};

    /// Goal: a twin whose nodes did not start proves nothing; nodes that join late may be missing because of the
    /// defect.
    #[test]
    fn nodes_that_never_came_are_told() {
        let text = "name: a\ndescription: b\nduration: 60s\ncriteria: [equal_roots]\n\
                    topology:\n  validators: 1\n  groups:\n  - { name: early }\n  - { name: late, joins: 5s }\n";
        let scenario = Scenario::parse(text, Path::new("a.yaml")).unwrap_or_else(|error| panic!("{error}"));
        let mut report = RunReport::default();
        for (name, points) in [("validator-0", vec![(0, 1.0)]), ("early", Vec::new())] {
            report.nodes.push(NodeSeries {
                name: name.to_owned(),
                head: Series { unit: String::new(), points },
                ..NodeSeries::default()
            });
        }
        assert_eq!(never_there(&scenario, &report), ["early"]);
        report.nodes[1].head.points.push((0, 1.0));
        assert_eq!(never_there(&scenario, &report), Vec::<String>::new());
    }

    #[test]
    fn programs_are_named_and_unknown_scenarios_are_refused_with_the_known_ones() {
        assert_eq!(program("before=/a=b").unwrap(), ("before".to_owned(), PathBuf::from("/a=b")));
        assert!(program("before").unwrap_err().contains("NAME=PATH"));
        let run = RunScenarios {
            scenarios: Vec::new(),
            twin: true,
            program: Vec::new(),
            dir: None,
            seed: Some("other".to_owned()),
        };
        let wanted = run.read("steady-state").unwrap();
        assert_eq!((wanted.scenario.seed.as_str(), wanted.twin.unwrap().0.seed.as_str()), ("other", "other"));
        assert!(run.read("no-such").err().unwrap().to_string().contains("steady-state"));
    }

    /// Goal: a program that was not given is reported before the first of several scenarios runs.
    #[test]
    fn a_program_that_nobody_gave_is_told_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.yaml");
        let text = "name: a\ndescription: b\nduration: 60s\ncriteria: [no_alarm]\n\
                    faults: [{ at: 45s, what: { upgrade: { who: { nodes: [all] }, to: nightly } } }]\n";
        std::fs::write(&file, text).unwrap();
        let run =
            RunScenarios { scenarios: Vec::new(), twin: false, program: Vec::new(), dir: None, seed: None };
        let error = format!("{:#}", run.read(file.to_str().unwrap()).err().unwrap());
        assert!(error.starts_with("a: ") && error.contains("--program nightly=PATH"), "{error}");
        let program = vec![("nightly".to_owned(), std::env::current_exe().unwrap())];
        assert!(RunScenarios { program, ..run }.read(file.to_str().unwrap()).is_ok());
    }

    /// Goal: the draws of another seed may be refused, and the error names the key.
    #[test]
    fn a_seed_that_draws_too_much_is_refused_with_the_key() {
        let faults: String = (1..6)
            .map(|at| {
                format!(
                    "- {{ at: {at}s, what: {{ lying_peers: {{ who: {{ one_of: [validators] }}, lie: forged_heads, count: 16 }} }} }}\n"
                )
            })
            .collect();
        let text = |seed: u32| {
            format!(
                "name: a\ndescription: b\nseed: \"{seed}\"\nduration: 60s\ncriteria: [no_alarm]\n\
                 topology: {{ validators: 2 }}\nfaults:\n{faults}"
            )
        };
        // A node accepts the liars of only four of the five faults. One seed in sixteen draws the same node for all
        // five.
        let is_sound = |seed: &u32| Scenario::parse(&text(*seed), Path::new("a.yaml")).is_ok();
        let sound = (0..1_000).find(is_sound).unwrap();
        let unsound = (0..1_000).find(|seed| !is_sound(seed)).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.yaml");
        std::fs::write(&file, text(sound)).unwrap();
        let run = RunScenarios {
            scenarios: Vec::new(),
            twin: false,
            program: Vec::new(),
            dir: None,
            seed: Some(unsound.to_string()),
        };
        let error = run.read(file.to_str().unwrap()).err().unwrap().to_string();
        assert!(error.starts_with("--seed: faults.4: with it `validator-"), "{error}");
    }
}
