//! [`Block`]: the content that a line of the document requests.

use anyhow::{Context, Result, ensure};

/// A block of the document, parsed from its first line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Block {
    /// `run NAME BENCH: FIGURES`: a table line for each named figure, or for all without FIGURES.
    Figures { source: Source, wanted: Vec<Pattern> },
    /// `rows NAME BENCH: COLUMNS; ROWS`: a column for each pattern, and a row for each text that its `*` matches, or
    /// only the named ROWS.
    Rows { source: Source, columns: Vec<Pattern>, rows: Vec<Pattern> },
    /// `aims`: each figure with an aim, of all benchmarks that the document names.
    Aims,
}

/// One benchmark of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Source {
    /// The run: `NAME.json` in the directory of runs.
    pub(super) run: String,
    /// The benchmark's name in the run.
    pub(super) bench: String,
}

/// The name of a figure, or of several: a `*` matches any text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Pattern(String);

impl Block {
    /// Parses the block that a line begins; `None` if it begins none.
    pub(super) fn parse(line: &str) -> Option<Result<Block>> {
        let inner = line.strip_prefix("<!-- ")?;
        let (kind, rest) = inner.split_once(' ')?;
        let parse: fn(&str) -> Result<Block> = match kind {
            "run" => parse_figures,
            "rows" => parse_rows,
            "aims" => parse_aims,
            _ => return None,
        };
        let rest = rest.strip_suffix("-->").context("`-->` is missing at its end");
        Some(rest.and_then(|rest| parse(rest.trim())))
    }

    /// Returns the benchmark that the block shows; `None` for `aims`, which shows the benchmarks of other blocks.
    pub(super) fn source(&self) -> Option<&Source> {
        match self {
            Block::Figures { source, .. } | Block::Rows { source, .. } => Some(source),
            Block::Aims => None,
        }
    }
}

fn parse_figures(text: &str) -> Result<Block> {
    let (source, wanted) = text.split_once(':').unwrap_or((text, ""));
    Ok(Block::Figures { source: Source::parse(source)?, wanted: patterns(wanted)? })
}

fn parse_rows(text: &str) -> Result<Block> {
    let (source, rest) = text.split_once(':').unwrap_or((text, ""));
    let (columns, rows) = rest.split_once(';').unwrap_or((rest, ""));
    let (columns, rows) = (patterns(columns)?, patterns(rows)?);
    ensure!(!columns.is_empty(), "expected `rows NAME BENCH: COLUMNS`, found `rows {text}`");
    for Pattern(column) in &columns {
        ensure!(column.contains('*'), "the column {column} has no `*`, which stands for the name of a row");
    }
    Ok(Block::Rows { source: Source::parse(source)?, columns, rows })
}

fn parse_aims(text: &str) -> Result<Block> {
    ensure!(text.is_empty(), "expected `aims`, found `aims {text}`");
    Ok(Block::Aims)
}

fn patterns(text: &str) -> Result<Vec<Pattern>> {
    text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(Pattern::parse).collect()
}

impl Source {
    fn parse(text: &str) -> Result<Source> {
        let (run, bench) = text
            .trim()
            .split_once(' ')
            .with_context(|| format!("expected `NAME BENCH: FIGURES`, found `{}`", text.trim()))?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        ensure!(run.chars().all(is_plain), "the run {run:?} is not a plain file name");
        Ok(Source { run: run.to_owned(), bench: bench.trim().to_owned() })
    }
}

impl Pattern {
    fn parse(text: &str) -> Result<Pattern> {
        ensure!(text.matches('*').count() <= 1, "{text} has more than one `*`");
        Ok(Pattern(text.to_owned()))
    }

    /// Returns the pattern as written.
    pub(super) fn text(&self) -> &str {
        &self.0
    }

    /// Returns the text that the `*` matches in a name, empty if the pattern has none; `None` if the name does not
    /// match.
    pub(super) fn of<'a>(&self, name: &'a str) -> Option<&'a str> {
        match self.0.split_once('*') {
            Some((start, end)) => name.strip_prefix(start)?.strip_suffix(end),
            None => (self.0 == name).then_some(""),
        }
    }

    /// Returns the name of a row's figure.
    pub(super) fn name(&self, row: &str) -> String {
        self.0.replace('*', row)
    }

    /// Returns the pattern without its `*`, and without the separators next to it.
    pub(super) fn title(&self) -> String {
        let (start, end) = self.0.split_once('*').unwrap_or((&self.0, ""));
        let (start, end) = (start.trim_end_matches(['.', '_']), end.trim_start_matches(['.', '_']));
        let dot = if start.is_empty() || end.is_empty() { "" } else { "." };
        format!("{start}{dot}{end}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(line: &str) -> String {
        Block::parse(line).expect("a block").unwrap_err().to_string()
    }

    /// Goal: a line names run, benchmark and figures; other comments and text begin no block.
    #[test]
    fn a_block_is_read() {
        let source = |run: &str, bench: &str| Source { run: run.into(), bench: bench.into() };
        let all = |texts: &[&str]| texts.iter().map(|text| Pattern((*text).into())).collect::<Vec<_>>();
        let block = Block::parse("<!-- run full sim broadcast: p99, sent.* -->").unwrap().unwrap();
        let wanted = all(&["p99", "sent.*"]);
        assert_eq!(block, Block::Figures { source: source("full", "sim broadcast"), wanted });
        let block = Block::parse("<!-- run full open -->").unwrap().unwrap();
        assert_eq!(block, Block::Figures { source: source("full", "open"), wanted: vec![] });
        let block = Block::parse("<!-- rows full sync: tps.*, busy.*.s; erc20.*, hot.delta -->");
        let (columns, rows) = (all(&["tps.*", "busy.*.s"]), all(&["erc20.*", "hot.delta"]));
        assert_eq!(block.unwrap().unwrap(), Block::Rows { source: source("full", "sync"), columns, rows });
        assert_eq!(Block::parse("<!-- aims -->").unwrap().unwrap(), Block::Aims);
        for line in ["<!-- end -->", "<!-- a note -->", "<!---->", "the line `<!-- run a b -->`"] {
            assert!(Block::parse(line).is_none(), "{line}");
        }
    }

    /// Goal: a malformed block is refused with the expected form.
    #[test]
    fn a_block_of_another_form_is_refused() {
        assert!(refused("<!-- run full open").contains("`-->` is missing"));
        assert!(refused("<!-- run full -->").contains("expected `NAME BENCH: FIGURES`, found `full`"));
        assert!(refused("<!-- run ../full open -->").contains("not a plain file name"));
        assert!(refused("<!-- run full open: a*b* -->").contains("more than one `*`"));
        assert!(refused("<!-- rows full open -->").contains("expected `rows NAME BENCH: COLUMNS`"));
        assert!(refused("<!-- rows full open: clean -->").contains("the column clean has no `*`"));
        assert!(refused("<!-- aims full -->").contains("expected `aims`"));
    }

    /// Goal: a pattern's `*` can be anywhere, and the title of a column has none.
    #[test]
    fn a_pattern_takes_names_apart() {
        let pattern = |text: &str| Pattern::parse(text).unwrap();
        assert_eq!(pattern("tps.*").of("tps.erc20.delta"), Some("erc20.delta"));
        assert_eq!(pattern("*.p99_ms").of("quiet.p99_ms"), Some("quiet"));
        assert_eq!(pattern("far.*.tps").of("far.50ms.tps"), Some("50ms"));
        assert_eq!((pattern("tps").of("tps"), pattern("tps").of("tps.a")), (Some(""), None));
        assert_eq!(pattern("a.*.a").of("a.a"), None);
        assert_eq!(pattern("far.*.tps").name("50ms"), "far.50ms.tps");
        let titles = ["tps.*", "*_s.10m", "far.*.tps", "threads_*.hints"].map(|text| pattern(text).title());
        assert_eq!(titles, ["tps", "s.10m", "far.tps", "threads.hints"]);
    }
}
