//! The exit codes of `slipnet run` and `slipnet compare`, as scripts see them.

use std::{fs, path::Path, process::Output, thread};

use slipnet::report::RunReport;

use crate::common::{never_ready, program, succeed};

/// A scenario without a load: a chain, and a node that follows it.
const SCENARIO: &str = "\
name: tiny
description: A fullnode follows one validator.
duration: 6s
topology:
  validators: 1
  batch_interval_ms: 100
  accounts: 20
  groups:
  - { name: follower, mode: replay }
criteria:
- history: { nodes: [follower], from_at_most: 1 }
- equal_roots
";

const TWIN: &str = "\
description: The follower is killed and does not come back.
defect:
  faults:
  - { at: 4s, what: { kill: { nodes: [follower] } } }
must_fail: [history of follower, equal_roots]
";

/// A limit that no program can keep.
const IMPOSSIBLE: &str = "- memory: { nodes: [validator-0], mib_max: 1 }\n";

const HARMLESS: &str = "\
description: One snapshot more is kept, which nobody notices.
defect:
  config: { storage.snapshots_kept: 3 }
must_fail: [history of follower]
";

/// Runs a scenario and its twin, with their output in the directory.
fn run(dir: &Path, scenario: &str, twin: &str) -> Output {
    fs::create_dir(dir).unwrap();
    let file = dir.join("tiny.yaml");
    fs::write(&file, scenario).unwrap();
    fs::write(dir.join("tiny.defect.yaml"), twin).unwrap();
    program().arg("run").arg(&file).arg("--twin").arg("--dir").arg(dir).output().unwrap()
}

/// Compares two runs by the number of failed criteria; with a single measure, one run per side is enough.
fn compare(before: &Path, after: &Path) -> Output {
    let mut command = program();
    command.arg("compare").args([before, after]);
    command.args(["--only", "criteria_failed", "--alpha", "0.5"]).output().unwrap()
}

/// Checks that a command exited with 1, and returns its standard output and standard error.
fn failed(output: &Output) -> (String, String) {
    let [said, told] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it).into_owned());
    assert_eq!(output.status.code(), Some(1), "{said}{told}");
    (said, told)
}

/// Goal: a run exits with 0 if its twin fails as it must. It exits with 1 and the criterion's name if a criterion fails
/// or a twin passes. A comparison of these two runs exits with 1 and the measure's name. With the two sides swapped, it
/// exits with 0.
#[test]
fn runs_and_comparisons_end_with_1_and_the_name_of_what_failed() {
    let dir = tempfile::tempdir().unwrap();
    let [good, bad] = ["good", "bad"].map(|name| dir.path().join(name));
    // They run in parallel: most of their time is that of their clocks.
    let (sound, broken) = thread::scope(|scope| {
        let broken = scope.spawn(|| run(&bad, &(SCENARIO.to_owned() + IMPOSSIBLE), HARMLESS));
        (run(&good, SCENARIO, TWIN), broken.join().unwrap())
    });
    let said = succeed(&sound);
    assert!(said.contains("ok     history of follower") && said.contains("FAILED equal_roots"), "{said}");
    let report = |dir: &Path, name: &str| dir.join(name).join("report.json");
    assert!(RunReport::load(&report(&good, "tiny")).unwrap().passed());
    assert!(!RunReport::load(&report(&good, "tiny-defect")).unwrap().passed());

    let (said, told) = failed(&broken);
    assert!(said.contains("FAILED memory of validator-0"), "{said}");
    let names = "failed: tiny: memory of validator-0; tiny-defect: history of follower passed, but must fail";
    assert!(told.contains(names), "{told}");

    let [before, after] = [&good, &bad].map(|dir| report(dir, "tiny"));
    let (said, told) = failed(&compare(&before, &after));
    assert!(said.contains("criteria_failed") && said.contains("REGRESSION"), "{said}");
    assert!(told.contains("worse than before: criteria_failed"), "{told}");
    succeed(&compare(&after, &before));
    succeed(&compare(&before, &before));
}

/// One of the two validators runs a program that prints something and is never ready.
const STUCK: &str = "\
name: stuck
description: One of two validators is never ready.
duration: 6s
topology:
  validators: 2
  accounts: 20
  ready_within: 4s
  settings: [{ nodes: [validator-1], program: stuck }]
criteria:
- no_progress: { at_most: 10s }
- nobody_honest_blamed
";

/// Goal: a run that fails before its first phase exits with 1, and its report names the node and quotes the end of its
/// log.
#[test]
fn a_run_that_never_begins_has_a_report_and_ends_with_1() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("stuck.yaml");
    fs::write(&file, STUCK).unwrap();
    let program_of = format!("stuck={}", never_ready().display());
    let mut command = program();
    command.arg("run").arg(&file).args(["--program", &program_of]).arg("--dir").arg(dir.path());
    let (said, told) = failed(&command.output().unwrap());
    assert!(said.contains("FAILED no_progress") && said.contains("FAILED nothing_ended"), "{said}");
    assert!(told.contains("failed: stuck: no_progress; stuck: nobody_honest_blamed"), "{told}");
    let report = dir.path().join("stuck");
    let read = RunReport::load(&report.join("report.json")).unwrap();
    assert!(read.criteria.iter().all(|criterion| !criterion.passed), "{:?}", read.criteria);
    for name in ["report.json", "report.md", "report.html"] {
        let text = fs::read_to_string(report.join(name)).unwrap();
        assert!(text.contains("validator-1") && text.contains("it waits for nothing"), "{name}: {text}");
    }
}
