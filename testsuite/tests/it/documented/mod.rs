//! The command lines of the README and docs/. Each is run on a devnet that one of them starts, or is listed with the
//! reason why it is not.
//!
//! ```text
//!  documents ──▶ commands ──▶ listed: its arguments are known, and the test that it names exists
//!                         └─▶ rules (when, how) + values (of placeholders) ──▶ shell
//! ```

mod chain;
mod commands;
mod listed;
mod process;
mod rules;
mod shell;
mod values;

use std::{collections::BTreeSet, fs, path::Path};

use self::{
    commands::{Documented, documented, of_text, with_spans, within_text},
    listed::{LISTED, Listed},
    rules::{How, RULES, STAGES, Stage, rule},
    shell::{Shell, ended_well},
};
use crate::common::{room, skip};

/// Goal: every command line is run or listed, and every listed one is still documented.
#[test]
fn every_command_line_is_run_or_listed() {
    let commands = documented();
    let mut used = BTreeSet::new();
    for Documented { place, line } in &commands {
        match (rule(line), LISTED.iter().any(|listed| listed.fits(line))) {
            (Some(rule), false) => {
                used.insert(rule);
            }
            (None, true) => {}
            (Some(_), true) => panic!("{place}: `{line}` is listed as not run, and has a rule"),
            (None, false) => panic!(
                "{place}: `{line}` is not run: give it a rule (rules.rs), or say why it cannot be run (listed.rs)"
            ),
        }
    }
    for (place, (beginning, ..)) in RULES.iter().enumerate() {
        assert!(used.contains(&place), "the documents have no command line for the rule `{beginning}`");
    }
    for listed in LISTED {
        let Listed { line, why, test } = listed;
        assert!(
            !why.is_empty() && commands.iter().any(|command| listed.fits(&command.line)),
            "{line}: not in the documents"
        );
        let Some((file, function)) = test else { continue };
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file));
        let has_test = text.is_ok_and(|text| text.contains(&format!("fn {function}(")));
        assert!(has_test, "{line}: there is no test {function} in {file}");
    }
}

/// Goal: the documented command lines work: each command ends well, or runs until it is ended.
#[test]
fn documented_commands_run() {
    let mut known = BTreeSet::new();
    // A command line in two documents is run once.
    let commands: Vec<Documented> =
        documented().into_iter().filter(|command| known.insert(command.line.clone())).collect();
    // Room is held from the large devnet on; commands that need only files do not wait for it.
    let mut held = None;
    let mut shell = Shell::new();
    for stage in STAGES {
        match stage {
            Stage::Files => {
                chain::write_runs(&shell);
                chain::write_scenario(&shell);
            }
            Stage::Node => chain::meet_devnet(&mut shell),
            Stage::Running => chain::meet_node(&mut shell),
            Stage::Stopped => {
                shell.stop_node();
                let line = "slipstream init --dir other --genesis genesis.json --peer KEY@HOST:PORT";
                shell.run("another node's configuration", line, How::Ends);
            }
            Stage::Devnet => held = Some(futures::executor::block_on(room())),
            Stage::End => {}
        }
        for Documented { place, line } in &commands {
            let Some((_, when, how)) = rule(line).map(|rule| RULES[rule]) else { continue };
            if when == stage && has_program(&shell, line) {
                shell.run(place, line, how);
            }
        }
    }
    drop(held);
    // The arguments of command lines that are not run are known all the same. Benchmarks are another program, whose own
    // test checks the documents. Planted faults are a switch of programs that are built with them.
    let own = |line: &str| {
        line.starts_with("slipnet ") && !line.starts_with("slipnet bench ") && !line.contains(" --planted ")
    };
    for Listed { line, .. } in LISTED.iter().filter(|listed| own(listed.line)) {
        ended_well(line, &shell.output(&format!("{} --help", shell.values.fill(line))));
    }
}

/// Whether the line's program is available. Of the programs that are not built here, only curl may be missing.
fn has_program(shell: &Shell, line: &str) -> bool {
    if !line.starts_with("curl ") || shell.has("curl") {
        return true;
    }
    skip(&format!("curl is missing, for `{line}`"));
    false
}

/// Goal: command lines are found as a shell would read them.
#[test]
fn command_lines_are_found() {
    let text = "slipstream no\n```sh\n# a comment\nslipstream a [--batch N] \\\n    'b [1] # c'   # it's one\n\nx #y\n```\n```text\nz\n```\n";
    let found = of_text("a.md", text);
    let lines: Vec<(&str, &str)> =
        found.iter().map(|command| (command.place.as_str(), command.line.as_str())).collect();
    assert_eq!(lines, [("a.md:4", "slipstream a --batch N 'b [1] # c'"), ("a.md:7", "x")]);
}

/// Goal: commands within text and tables are found completely, each choice separately; names of commands do not count.
#[test]
fn command_lines_within_text_are_found() {
    let text = "`slipstream a` of `slipstream a --to\nFILE [--b]`, `x`, `slipstream c …`, `./x d`.\n\n```sh\n`slipnet no`\n```\n\
                | `slipnet e --in f\\|g` | `slipnet h | i` |\n";
    let block = Documented { place: "b.md:1".into(), line: "slipnet h --j".into() };
    let found = with_spans(vec![block], within_text("a.md", text));
    let lines: Vec<(&str, &str)> =
        found.iter().map(|command| (command.place.as_str(), command.line.as_str())).collect();
    assert_eq!(
        lines,
        [
            ("b.md:1", "slipnet h --j"),
            ("a.md:1", "slipstream a --to FILE --b"),
            ("a.md:2", "./x d"),
            ("a.md:7", "slipnet e --in f"),
            ("a.md:7", "slipnet e --in g"),
            ("a.md:7", "slipnet i"),
        ]
    );
}

/// Goal: unterminated code is an error: everything after it would be misread.
#[test]
#[should_panic(expected = "a.md:2: code in the paragraph before has no end")]
fn code_within_text_ends() {
    within_text("a.md", "`slipnet status\n\nx\n");
}

/// Goal: a command outside of shell blocks is an error.
#[test]
#[should_panic(expected = "a.md:2: a command stands in a block that is not marked `sh`")]
fn command_lines_stand_in_shell_blocks() {
    of_text("a.md", "```\nslipnet status\n```\n");
}
