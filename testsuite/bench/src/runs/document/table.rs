//! The tables of the blocks.

use std::fmt;

use anyhow::{Context, Result, ensure};
use slipnet::report::{BenchFigure, BenchReport, number};

use super::block::{Pattern, Source};

/// One benchmark of a run, as shown in tables.
#[derive(Clone, Copy)]
pub(super) struct Shown<'a> {
    pub(super) source: &'a Source,
    pub(super) report: &'a BenchReport,
    /// Whether the run was a quick look. Its sizes are smaller than those of the aims, so that the aims do not apply.
    pub(super) is_look: bool,
}

impl<'a> Shown<'a> {
    /// Returns a table with a line for each figure.
    ///
    /// # Errors
    /// If a pattern matches no figure.
    pub(super) fn figures(self, wanted: &[Pattern]) -> Result<String> {
        let mut figures: Vec<&BenchFigure> = Vec::new();
        for wanted in wanted {
            let before = figures.len();
            figures.extend(self.report.figures.iter().filter(|figure| wanted.of(&figure.name).is_some()));
            ensure!(figures.len() > before, "{self} has no figure {}", wanted.text());
        }
        if wanted.is_empty() {
            figures.extend(&self.report.figures);
        }
        let mut text = self.heading("median (least to most)");
        text += "| figure | value | aim | |\n|---|---|---|---|\n";
        for figure in figures {
            let aim = figure.aim.as_deref().unwrap_or_default();
            let (name, verdict) = (titled(&figure.name, &figure.unit), self.verdict(figure));
            text += &format!("| {name} | {} | {aim} | {verdict} |\n", ranged(figure));
        }
        Ok(text)
    }

    /// Returns a table with a row for each text that the `*` of a column matches, in the order of the figures, or only
    /// the wanted ones.
    ///
    /// # Errors
    /// If a column has no figure in these rows, or a wanted row has none.
    pub(super) fn rows(self, columns: &[Pattern], wanted: &[Pattern]) -> Result<String> {
        let rows = self.row_names(columns, wanted)?;
        let units: Result<Vec<_>> = columns.iter().map(|column| self.unit(column, &rows)).collect();
        let columns: Vec<_> = columns.iter().zip(units?).collect();
        let mut text = self.heading("medians") + "| |";
        for (column, unit) in &columns {
            text += &format!(" {} |", titled(&column.title(), unit.unwrap_or_default()));
        }
        text += &format!("\n|{}\n", "---|".repeat(columns.len() + 1));
        for row in rows {
            text += &format!("| {row} |");
            for (column, unit) in &columns {
                let cell = self.figure(&column.name(row)).map(|figure| match unit {
                    Some(_) => grouped(figure.value),
                    None => format!("{} {}", grouped(figure.value), figure.unit),
                });
                text += &format!(" {} |", cell.unwrap_or_default());
            }
            text.push('\n');
        }
        Ok(text)
    }

    /// Returns the common unit of a column's figures; `None` if they differ, and then the cells have the units.
    fn unit(self, column: &Pattern, rows: &[&str]) -> Result<Option<&'a str>> {
        let figures = rows.iter().filter_map(|row| self.figure(&column.name(row)));
        let mut units = figures.map(|figure| figure.unit.as_str());
        let first = units.next();
        let first = first.with_context(|| format!("{self} has no figure {} in these rows", column.text()))?;
        Ok(units.all(|unit| unit == first).then_some(first))
    }

    /// Returns the names of a table's rows, each once.
    fn row_names(self, columns: &[Pattern], wanted: &[Pattern]) -> Result<Vec<&'a str>> {
        let mut all: Vec<&'a str> = Vec::new();
        for figure in &self.report.figures {
            let row = columns.iter().find_map(|column| column.of(&figure.name));
            all.extend(row.filter(|row| !row.is_empty() && !all.contains(row)));
        }
        if wanted.is_empty() {
            return Ok(all);
        }
        let mut rows = Vec::new();
        for wanted in wanted {
            let before = rows.len();
            rows.extend(all.iter().copied().filter(|row| wanted.of(row).is_some()));
            ensure!(rows.len() > before, "{self} has no row {}", wanted.text());
        }
        Ok(rows)
    }

    fn figure(self, name: &str) -> Option<&'a BenchFigure> {
        self.report.figures.iter().find(|figure| figure.name == name)
    }

    fn heading(self, what: &str) -> String {
        let BenchReport { commit, machine, runs, .. } = self.report;
        let rounds = if *runs == 1 { "round" } else { "rounds" };
        let look = if self.is_look { ", a look" } else { "" };
        let debug = if machine.debug { ", debug build" } else { "" };
        format!(
            "Run {}, commit {commit}, {runs} {rounds}{look}{debug}; {} cores, {}; {what}.\n\n",
            self.source.run, machine.cores, machine.processor
        )
    }

    fn verdict(self, figure: &BenchFigure) -> &'static str {
        match figure.met {
            None => "",
            Some(_) if self.is_look => "a look",
            Some(true) => "met",
            Some(false) => "**missed**",
        }
    }
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the benchmark {} of the run {}", self.source.bench, self.source.run)
    }
}

/// Returns the table of all figures with an aim, by benchmark and figure.
pub(super) fn aims(all: &[Shown<'_>]) -> String {
    let mut text = "| figure | aim | measured | | run |\n|---|---|---|---|---|\n".to_owned();
    for shown in all {
        for figure in &shown.report.figures {
            let Some(aim) = &figure.aim else { continue };
            let name = titled(&format!("{}.{}", shown.source.bench, figure.name), &figure.unit);
            let (value, verdict) = (ranged(figure), shown.verdict(figure));
            text += &format!("| {name} | {aim} | {value} | {verdict} | {} |\n", shown.source.run);
        }
    }
    text
}

/// Returns a name with its unit; counts and ratios have none.
fn titled(name: &str, unit: &str) -> String {
    match unit {
        "" | "1" | "ratio" => name.to_owned(),
        unit => format!("{name}, {unit}"),
    }
}

/// Returns the median, and the range of the samples if it is visible.
fn ranged(figure: &BenchFigure) -> String {
    let [value, min, max] = [figure.value, figure.min, figure.max].map(grouped);
    if min == max { value } else { format!("{value} ({min} to {max})") }
}

/// Formats a number with separators between thousands.
fn grouped(value: f64) -> String {
    let text = number(value);
    let start = text.find(|c: char| c.is_ascii_digit()).unwrap_or_default();
    let end = text.find('.').unwrap_or(text.len());
    let mut grouped = text[..start].to_owned();
    for (place, digit) in text[start..end].char_indices() {
        if place > 0 && (end - start - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + &text[end..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runs::document::block::Block;

    fn figure(name: &str, value: f64, unit: &str, met: Option<bool>) -> BenchFigure {
        let aim = met.map(|_| "at most 7".to_owned());
        BenchFigure {
            name: name.into(),
            value,
            min: value,
            max: value,
            unit: unit.into(),
            better: None,
            aim,
            met,
        }
    }

    /// Returns a report with two rows, and a figure outside of them.
    fn report() -> BenchReport {
        let mut report = crate::runs::tests::run(8.0).benches.remove(0);
        report.figures = vec![
            figure("worst", 8.0, "ratio", Some(false)),
            figure("tps.erc20.delta", 1_234_567.0, "1/s", None),
            figure("cpu.erc20.delta", 2.5, "us", None),
            figure("tps.hot.delta", 70_000.0, "1/s", Some(true)),
        ];
        report
    }

    fn shown<'a>(source: &'a Source, report: &'a BenchReport) -> Shown<'a> {
        Shown { source, report, is_look: false }
    }

    fn source() -> Source {
        Source { run: "full".into(), bench: "open".into() }
    }

    fn rows(line: &str, report: &BenchReport) -> Result<String> {
        match Block::parse(line).unwrap().unwrap() {
            Block::Rows { columns, rows, .. } => shown(&source(), report).rows(&columns, &rows),
            other => panic!("{other:?}"),
        }
    }

    /// Goal: figures of different columns share a row, and a row without a figure has an empty cell.
    #[test]
    fn figures_stand_in_rows() {
        let table = rows("<!-- rows full open: tps.*, cpu.* -->", &report()).unwrap();
        assert_eq!(
            table,
            "Run full, commit 2750843, 5 rounds; 2 cores, EPYC; medians.\n\n\
             | | tps, 1/s | cpu, us |\n|---|---|---|\n\
             | erc20.delta | 1,234,567 | 2.50 |\n| hot.delta | 70,000 |  |\n"
        );
        let table = rows("<!-- rows full open: tps.*; hot.*, erc20.delta -->", &report()).unwrap();
        assert!(table.ends_with("| hot.delta | 70,000 |\n| erc20.delta | 1,234,567 |\n"), "{table}");
    }

    /// Goal: in a column with several units each figure shows its own.
    #[test]
    fn units_that_differ_stand_in_the_cells() {
        let mut report = report();
        report.figures[3].unit = "MiB".into();
        let table = rows("<!-- rows full open: tps.* -->", &report).unwrap();
        assert!(table.contains("| | tps |\n"), "{table}");
        assert!(table.ends_with("| erc20.delta | 1,234,567 1/s |\n| hot.delta | 70,000 MiB |\n"), "{table}");
    }

    #[test]
    fn a_row_or_a_column_that_is_missing_is_named() {
        let refused = |line: &str| rows(line, &report()).unwrap_err().to_string();
        let text = refused("<!-- rows full open: tps.*; gone.* -->");
        assert_eq!(text, "the benchmark open of the run full has no row gone.*");
        let text = refused("<!-- rows full open: tps.*, cpu.*; hot.delta -->");
        assert_eq!(text, "the benchmark open of the run full has no figure cpu.* in these rows");
    }

    /// Goal: one table has all aims and their measurements; a quick look neither meets nor misses them.
    #[test]
    fn aims_are_met_or_missed_by_full_runs() {
        let (source, report) = (source(), report());
        let text = aims(&[shown(&source, &report)]);
        assert!(text.contains("| open.worst | at most 7 | 8.00 | **missed** | full |\n"), "{text}");
        assert!(text.contains("| open.tps.hot.delta, 1/s | at most 7 | 70,000 | met | full |\n"), "{text}");
        assert!(!text.contains("erc20"), "{text}");
        let text = aims(&[Shown { is_look: true, ..shown(&source, &report) }]);
        assert!(text.contains("| 8.00 | a look | full |") && !text.contains("met"), "{text}");
    }

    #[test]
    fn thousands_stand_apart() {
        let texts = [0.004_36, 12.345, 999.4, 1_000.0, -1_234_567.0, 100_000.0].map(grouped);
        assert_eq!(texts, ["0.0044", "12.35", "999", "1,000", "-1,234,567", "100,000"]);
    }
}
