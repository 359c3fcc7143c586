//! `slipnet bench document`: writes tables of named runs into a document.
//!
//! The first line of a block names its content, and the block holds the generated table:
//!
//! ```text
//! <!-- run 2026-11-25-full state: commit.1m, commit.10m -->     a line for each figure
//! (the table)
//! <!-- end -->
//! <!-- rows 2026-11-25-full sync: tps.*, cpu_us_per_tx.*; erc20.* -->     a column for each pattern, a row for each match of its `*`
//! <!-- aims -->     every figure with an aim, of the benchmarks that the other blocks name
//! ```
//!
//! The run is `NAME.json` in the directory of runs. The document must contain the command that makes it, with
//! `--json docs/runs/NAME.json`.

mod block;
mod table;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use clap::Args;

use self::{
    block::{Block, Source},
    table::{Shown, aims},
};
use super::BenchRun;

const END: &str = "<!-- end -->";

/// The document, and the directory of its runs.
#[derive(Clone, Debug, Args)]
pub struct DocumentOptions {
    /// The document with blocks `<!-- run NAME BENCH: FIGURES -->`, `<!-- rows NAME BENCH: COLUMNS; ROWS -->` and `<!-- aims -->`.
    #[arg(default_value = "docs/benchmarks.md")]
    pub document: PathBuf,
    /// Directory with the runs, each a file NAME.json from `slipnet bench all --json` or `slipnet bench BENCH --json`.
    #[arg(long, default_value = "docs/runs")]
    pub runs: PathBuf,
    /// Write nothing; fail if the document differs from its runs.
    #[arg(long)]
    pub check: bool,
}

impl DocumentOptions {
    /// Writes the tables, or checks them.
    ///
    /// # Errors
    /// If a block names something that does not exist, or, with `--check`, differs from its run.
    pub fn run(&self) -> Result<()> {
        let path = &self.document;
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let filled = fill(&text, &self.runs).with_context(|| path.display().to_string())?;
        if self.check {
            ensure!(
                filled == text,
                "{} does not match its runs: run `slipnet bench document`",
                path.display()
            );
            return Ok(());
        }
        fs::write(path, filled).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Returns the document with freshly made tables in its blocks.
fn fill(text: &str, dir: &Path) -> Result<String> {
    let sources = sources(text)?;
    let runs = Runs::load(&sources, text, dir)?;
    let mut filled = String::with_capacity(text.len());
    let mut lines = text.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        filled.push_str(line);
        filled.push('\n');
        ensure!(line != END, "line {}: {END} ends no block", index + 1);
        let Some(block) = Block::parse(line) else { continue };
        let table = block.and_then(|block| runs.table(&block, &sources));
        filled.push_str(&table.with_context(|| format!("line {}", index + 1))?);
        // A block that began before the end marker would be lost with the text between.
        let mut rest = lines.by_ref().map(|(_, line)| line);
        let stop = rest.find(|line| *line == END || Block::parse(line).is_some());
        ensure!(stop == Some(END), "line {}: the block has no {END}", index + 1);
        filled.push_str(END);
        filled.push('\n');
    }
    Ok(filled)
}

/// Returns the benchmarks that the blocks of a document name, each once.
fn sources(text: &str) -> Result<Vec<Source>> {
    let mut sources: Vec<Source> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let Some(block) = Block::parse(line) else { continue };
        let block = block.with_context(|| format!("line {}", index + 1))?;
        sources.extend(block.source().filter(|source| !sources.contains(*source)).cloned());
    }
    Ok(sources)
}

/// The runs that a document names.
struct Runs(BTreeMap<String, BenchRun>);

impl Runs {
    /// Reads the runs.
    ///
    /// # Errors
    /// If the document has no command for a run, or a run cannot be read or is missing. The error names all missing
    /// runs, each with its command.
    fn load(sources: &[Source], text: &str, dir: &Path) -> Result<Runs> {
        let names: BTreeSet<&String> = sources.iter().map(|source| &source.run).collect();
        let (mut runs, mut missing) = (BTreeMap::new(), Vec::new());
        for name in names {
            let command = command(text, name).with_context(|| {
                format!(
                    "the document lacks the command of the run {name}, with `--json docs/runs/{name}.json`"
                )
            })?;
            let path = dir.join(format!("{name}.json"));
            match path.exists() {
                true => _ = runs.insert(name.clone(), BenchRun::load(&path)?),
                false => missing.push(format!("{}: run `{command}`", path.display())),
            }
        }
        ensure!(missing.is_empty(), "runs are missing:\n{}", missing.join("\n"));
        Ok(Runs(runs))
    }

    /// Returns the table of a block; `sources` are the benchmarks that the document names.
    fn table(&self, block: &Block, sources: &[Source]) -> Result<String> {
        match block {
            Block::Figures { source, wanted } => self.shown(source)?.figures(wanted),
            Block::Rows { source, columns, rows } => self.shown(source)?.rows(columns, rows),
            Block::Aims => {
                let all: Result<Vec<_>> = sources.iter().map(|source| self.shown(source)).collect();
                Ok(aims(&all?))
            }
        }
    }

    fn shown<'a>(&'a self, source: &'a Source) -> Result<Shown<'a>> {
        let Source { run: name, bench } = source;
        let run = self.0.get(name).with_context(|| format!("the run {name} was not read"))?;
        let report = run.benches.iter().find(|report| report.bench == *bench);
        let report = report.with_context(|| format!("the run {name} has no benchmark {bench}"))?;
        Ok(Shown { source, report, is_look: run.quick || report.quick })
    }
}

/// Returns the command line in a document that makes a run: a line of a block, or inline code.
fn command<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let file = format!("--json docs/runs/{name}.json");
    text.lines().flat_map(|line| line.split('`')).map(str::trim).find(|part| part.contains(&file))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The document's command for the run of these tests.
    const COMMAND: &str = "`slipnet bench all --json docs/runs/full.json` makes it.";

    fn runs() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let run = serde_json::to_string(&crate::runs::tests::run(8.0)).unwrap();
        fs::write(dir.path().join("full.json"), run).unwrap();
        dir
    }

    /// Goal: a block gets its run's figures; filling it again changes nothing.
    #[test]
    fn blocks_are_filled_from_their_runs() {
        let dir = runs();
        let text = format!(
            "<!-- aims -->\n<!-- end -->\n{COMMAND}\n<!-- run full open: cl* -->\nold\n<!-- end -->\nafter\n"
        );
        let filled = fill(&text, dir.path()).unwrap();
        let line = "| clean, s | 8.00 (7.00 to 9.00) | at most 7 | **missed** |\n<!-- end -->\nafter\n";
        assert!(filled.ends_with(line) && !filled.contains("old"), "{filled}");
        let aim = "| open.clean, s | at most 7 | 8.00 (7.00 to 9.00) | **missed** | full |\n";
        assert!(filled.contains(aim), "{filled}");
        assert_eq!(fill(&filled, dir.path()).unwrap(), filled);
        let all = fill(&format!("{COMMAND}\n<!-- run full open -->\n<!-- end -->\n"), dir.path()).unwrap();
        assert!(all.contains("| other, s |"), "{all}");
    }

    /// Goal: the file of a single benchmark is a run too, and its table says if it was a quick look.
    #[test]
    fn a_block_takes_a_single_benchmark() {
        let dir = tempfile::tempdir().unwrap();
        let mut report = crate::runs::tests::run(8.0).benches.remove(0);
        report.quick = true;
        fs::write(dir.path().join("full.json"), serde_json::to_string(&report).unwrap()).unwrap();
        let text = format!("{COMMAND}\n<!-- run full open: clean -->\n<!-- end -->\n");
        let filled = fill(&text, dir.path()).unwrap();
        assert!(filled.contains("Run full, commit 2750843, 5 rounds, a look; 2 cores, EPYC;"), "{filled}");
        assert!(filled.contains("| clean, s | 8.00 (7.00 to 9.00) | at most 7 | a look |"), "{filled}");
    }

    /// Goal: a block that cannot be filled is reported with its line and the missing name.
    #[test]
    fn a_block_that_names_nothing_is_refused() {
        let dir = runs();
        let refused =
            |block: &str| format!("{:#}", fill(&format!("{COMMAND}\n{block}\n"), dir.path()).unwrap_err());
        for (block, wanted) in [
            (
                "<!-- run full open: gone -->\n<!-- end -->",
                "line 2: the benchmark open of the run full has no figure gone",
            ),
            ("<!-- run full state -->\n<!-- end -->", "line 2: the run full has no benchmark state"),
            ("<!-- run full open -->", "line 2: the block has no <!-- end -->"),
            (
                "<!-- run full open -->\nof the author\n<!-- aims -->\n<!-- end -->",
                "line 2: the block has no <!-- end -->",
            ),
            ("<!-- run full open: clean", "line 2: `-->` is missing"),
            ("text\n<!-- end -->", "line 3: <!-- end --> ends no block"),
        ] {
            let found = refused(block);
            assert!(found.contains(wanted), "{wanted}: {found}");
        }
    }

    /// Goal: all missing runs are reported at once, with the commands that make them.
    #[test]
    fn missing_runs_are_named_with_their_commands() {
        let dir = runs();
        let block = "<!-- run a open -->\n<!-- end -->\n<!-- run b open -->\n<!-- end -->\n";
        let commands = "```sh\nslipnet bench open --json docs/runs/a.json\n```\n";
        let error = |text: &str| fill(text, dir.path()).map(drop).unwrap_err().to_string();
        let text = error(&format!("{commands}{block}"));
        assert_eq!(text, "the document lacks the command of the run b, with `--json docs/runs/b.json`");
        let text =
            error(&format!("{commands}Or `slipnet bench open --quick --json docs/runs/b.json`.\n{block}"));
        assert!(text.contains("a.json: run `slipnet bench open --json docs/runs/a.json`"), "{text}");
        assert!(text.contains("b.json: run `slipnet bench open --quick --json docs/runs/b.json`"), "{text}");
    }

    /// Goal: the shipped page agrees with the runs beside it.
    #[test]
    fn the_page_of_benchmarks_is_what_its_runs_say() {
        let docs = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs"));
        let text = fs::read_to_string(docs.join("benchmarks.md")).unwrap();
        let filled = fill(&text, &docs.join("runs")).unwrap();
        assert!(filled == text, "run `slipnet bench document`");
    }
}
