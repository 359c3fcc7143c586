//! `slipnet bench document`: writes tables of named runs into a document.
//!
//! A block of the document names a run and figures, and holds the table that is made of them:
//!
//! ```text
//! <!-- run 2026-11-25-full state: commit.1m, commit.10m -->
//! (the table)
//! <!-- end -->
//! ```
//!
//! The run is `NAME.json` in the directory of runs. A name that ends with `*` takes all figures that begin so; without figures all are shown.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use slipnet::report::{BenchFigure, BenchReport, number};

use super::BenchRun;

const BEGIN: &str = "<!-- run ";
const END: &str = "<!-- end -->";

/// Which document, of which runs.
#[derive(Clone, Debug, Args)]
pub struct DocumentOptions {
    /// The document with blocks `<!-- run NAME BENCH: FIGURES -->`.
    #[arg(default_value = "docs/benchmarks.md")]
    pub document: PathBuf,
    /// Directory with the runs, each NAME.json as `slipnet bench all --json` or `slipnet bench BENCH --json` writes it.
    #[arg(long, default_value = "docs/runs")]
    pub runs: PathBuf,
    /// Write nothing; fail if the document is not what its runs say.
    #[arg(long)]
    pub check: bool,
}

impl DocumentOptions {
    /// Writes the tables, or checks them.
    ///
    /// # Errors
    /// If a block names what is not there, or, with `--check`, holds something else than its run says.
    pub fn run(&self) -> Result<()> {
        let path = &self.document;
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let filled = fill(&text, &self.runs).with_context(|| path.display().to_string())?;
        if self.check {
            ensure!(
                filled == text,
                "{} is not what its runs say: run `slipnet bench document`",
                path.display()
            );
            return Ok(());
        }
        fs::write(path, filled).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// The document with the tables of its blocks in place of those that it has.
fn fill(text: &str, runs: &Path) -> Result<String> {
    let mut filled = String::with_capacity(text.len());
    let mut lines = text.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        filled.push_str(line);
        filled.push('\n');
        let Some(block) = line.strip_prefix(BEGIN) else { continue };
        let table =
            block.strip_suffix("-->").context("`-->` is missing at its end").and_then(|it| table(it, runs));
        filled.push_str(&table.with_context(|| format!("line {}", index + 1))?);
        if !lines.any(|(_, line)| line == END) {
            bail!("line {}: the block has no {END}", index + 1);
        }
        filled.push_str(END);
        filled.push('\n');
    }
    Ok(filled)
}

/// The table of `NAME BENCH: FIGURES`.
fn table(block: &str, runs: &Path) -> Result<String> {
    let (what, wanted) = block.split_once(':').unwrap_or((block, ""));
    let mut words = what.split_whitespace();
    let (Some(name), Some(bench), None) = (words.next(), words.next(), words.next()) else {
        bail!("expected `run NAME BENCH: FIGURES`, found `run {}`", block.trim());
    };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    ensure!(name.chars().all(is_plain), "the run {name:?} is no plain file name");
    let run = BenchRun::load(&runs.join(format!("{name}.json")))?;
    let report = run.benches.iter().find(|report| report.bench == bench);
    let report = report.with_context(|| format!("the run {name} has no benchmark {bench}"))?;
    let wanted: Vec<&str> = wanted.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    let mut figures: Vec<&BenchFigure> = Vec::new();
    for wanted in &wanted {
        let before = figures.len();
        figures.extend(report.figures.iter().filter(|figure| is_named(wanted, &figure.name)));
        ensure!(figures.len() > before, "the benchmark {bench} of the run {name} has no figure {wanted}");
    }
    if wanted.is_empty() {
        figures.extend(&report.figures);
    }
    Ok(render(report, run.quick, name, &figures))
}

fn is_named(wanted: &str, name: &str) -> bool {
    match wanted.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == wanted,
    }
}

fn render(report: &BenchReport, quick: bool, name: &str, figures: &[&BenchFigure]) -> String {
    let BenchReport { bench, commit, machine, runs, .. } = report;
    let look = if quick { ", a look" } else { "" };
    // The siege is a campaign, and its file is of the same form.
    let command = if bench == "siege" { "campaign" } else { "bench" };
    let rounds = if *runs == 1 { "round" } else { "rounds" };
    let mut text = format!(
        "Run {name}: `slipnet {command} {bench}`, commit {commit}, {runs} {rounds}{look}; {} cores, {}.\n\n\
         | figure | value | aim | |\n|---|---|---|---|\n",
        machine.cores, machine.processor
    );
    for figure in figures {
        let verdict = match figure.met {
            Some(true) => "met",
            Some(false) => "**missed**",
            None => "",
        };
        let [value, min, max] = [figure.value, figure.min, figure.max].map(number);
        let aim = figure.aim.as_deref().unwrap_or_default();
        text +=
            &format!("| {}, {} | {value} ({min} to {max}) | {aim} | {verdict} |\n", figure.name, figure.unit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a block becomes what its run says, once and for all: filling it again changes nothing.
    #[test]
    fn blocks_are_filled_from_their_runs() {
        let dir = tempfile::tempdir().unwrap();
        let run = serde_json::to_string(&crate::runs::tests::run(8.0)).unwrap();
        fs::write(dir.path().join("full.json"), run).unwrap();
        let text = "# Title\n<!-- run full open: cl* -->\nold\n<!-- end -->\nafter\n";
        let filled = fill(text, dir.path()).unwrap();
        assert!(
            filled.contains(
                "| clean, s | 8.00 (7.00 to 9.00) | at most 7 | **missed** |\n<!-- end -->\nafter\n"
            ),
            "{filled}"
        );
        assert!(!filled.contains("old") && !filled.contains("other"), "{filled}");
        assert_eq!(fill(&filled, dir.path()).unwrap(), filled);
        let all = fill("<!-- run full open -->\n<!-- end -->\n", dir.path()).unwrap();
        assert!(all.contains("| other, s |"), "{all}");
    }

    /// Goal: the file of a single benchmark is a run too, and its table says that it was a look.
    #[test]
    fn a_block_takes_a_single_benchmark() {
        let dir = tempfile::tempdir().unwrap();
        let mut report = crate::runs::tests::run(8.0).benches.remove(0);
        report.quick = true;
        fs::write(dir.path().join("alone.json"), serde_json::to_string(&report).unwrap()).unwrap();
        let filled = fill("<!-- run alone open: clean -->\n<!-- end -->\n", dir.path()).unwrap();
        assert!(
            filled.contains("Run alone: `slipnet bench open`, commit 2750843, 5 rounds, a look;"),
            "{filled}"
        );
        assert!(filled.contains("| clean, s | 8.00 (7.00 to 9.00) |"), "{filled}");
    }

    /// Goal: a block that cannot be filled is named with its line and what is missing.
    #[test]
    fn a_block_that_names_nothing_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let run = serde_json::to_string(&crate::runs::tests::run(8.0)).unwrap();
        fs::write(dir.path().join("full.json"), run).unwrap();
        let refused = |block: &str| format!("{:#}", fill(&format!("x\n{block}\n"), dir.path()).unwrap_err());
        for (block, wanted) in [
            (
                "<!-- run full open: gone -->\n<!-- end -->",
                "line 2: the benchmark open of the run full has no figure gone",
            ),
            ("<!-- run full state -->\n<!-- end -->", "has no benchmark state"),
            ("<!-- run full open -->", "line 2: the block has no <!-- end -->"),
            ("<!-- run ../full open -->\n<!-- end -->", "no plain file name"),
            ("<!-- run full -->\n<!-- end -->", "expected `run NAME BENCH: FIGURES`"),
            ("<!-- run none open -->\n<!-- end -->", "cannot read"),
        ] {
            let found = refused(block);
            assert!(found.contains(wanted), "{wanted}: {found}");
        }
    }

    /// Goal: the page that ships agrees with the runs beside it.
    #[test]
    fn the_page_of_benchmarks_is_what_its_runs_say() {
        let docs = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs"));
        let text = fs::read_to_string(docs.join("benchmarks.md")).unwrap();
        let filled = fill(&text, &docs.join("runs")).unwrap();
        assert!(filled == text, "run `slipnet bench document`");
    }
}
