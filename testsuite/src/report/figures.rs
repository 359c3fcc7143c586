//! Figures, with the table for people and the JSON for scripts.

use std::{fmt, fs, path::Path};

use anyhow::{Context, Result};

use super::{BenchReport, built::commit};

/// The aim of a figure.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Aim {
    /// At least this value.
    AtLeast(f64),
    /// At most this value.
    AtMost(f64),
}

impl Aim {
    /// Whether a value meets the aim.
    pub fn is_met(self, value: f64) -> bool {
        match self {
            Aim::AtLeast(aim) => value >= aim,
            Aim::AtMost(aim) => value <= aim,
        }
    }
}

/// One measured quantity.
#[derive(Clone, Debug)]
pub struct Figure {
    pub(super) name: String,
    pub(super) unit: &'static str,
    /// The samples, ascending.
    pub(super) samples: Vec<f64>,
    pub(super) aim: Option<Aim>,
}

impl Figure {
    /// Makes a figure from at least one sample.
    pub fn new(name: impl Into<String>, unit: &'static str, mut samples: Vec<f64>) -> Figure {
        assert!(!samples.is_empty(), "a figure has at least one sample");
        samples.sort_by(f64::total_cmp);
        Figure { name: name.into(), unit, samples, aim: None }
    }

    /// Sets the aim.
    pub fn aim(self, aim: Aim) -> Figure {
        Figure { aim: Some(aim), ..self }
    }

    /// The name, as in aims.tsv.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the median.
    pub fn value(&self) -> f64 {
        let half = self.samples.len() / 2;
        match self.samples.len() % 2 {
            1 => self.samples[half],
            _ => (self.samples[half - 1] + self.samples[half]) / 2.0,
        }
    }

    pub(super) fn min(&self) -> f64 {
        self.samples[0]
    }

    pub(super) fn max(&self) -> f64 {
        self.samples[self.samples.len() - 1]
    }
}

/// The figures of one run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The benchmark's name.
    pub bench: &'static str,
    /// The number of samples of most figures.
    pub runs: usize,
    /// The figures, in reading order.
    pub figures: Vec<Figure>,
    /// Lines below the table: what was compared, and how.
    pub notes: Vec<String>,
}

impl Report {
    /// Writes the figures as one JSON object, which says whether the run was a quick one.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_json(&self, path: &Path, quick: bool) -> Result<()> {
        let report = BenchReport::new(self, quick);
        let text = serde_json::to_string_pretty(&report)? + "\n";
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }
}

pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "bench {}, commit {}, {} cores, {} runs", self.bench, commit(), cores(), self.runs)?;
        writeln!(f, "  {:<44} {:>14} {:>14} {:>14}  {:<6} aim", "figure", "median", "min", "max", "unit")?;
        for figure in &self.figures {
            let [value, min, max] = [figure.value(), figure.min(), figure.max()].map(number);
            write!(f, "  {:<44} {value:>14} {min:>14} {max:>14}  {:<6}", figure.name, figure.unit)?;
            match figure.aim {
                None => writeln!(f)?,
                Some(aim) => {
                    let (sign, at) = match aim {
                        Aim::AtLeast(at) => (">=", at),
                        Aim::AtMost(at) => ("<=", at),
                    };
                    let verdict = if aim.is_met(figure.value()) { "met" } else { "MISSED" };
                    writeln!(f, " {sign} {} {verdict}", number(at))?;
                }
            }
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "{note}"))
    }
}

/// Formats small numbers with three significant digits, large ones as whole numbers.
pub fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_aims() {
        let odd = Figure::new("odd", "1/s", vec![3.0, 1.0, 2.0]);
        let even = Figure::new("even", "ratio", vec![4.0, 1.0, 2.0, 3.0]).aim(Aim::AtMost(2.0));
        assert_eq!((odd.value(), even.value()), (2.0, 2.5));
        let report = Report { bench: "test", runs: 4, figures: vec![odd, even], notes: vec!["note".into()] };
        let text = report.to_string();
        assert!(text.contains("<= 2.00 MISSED") && text.ends_with("note\n"), "{text}");
        let path = std::env::temp_dir().join(format!("slipnet-report-{}.json", std::process::id()));
        report.write_json(&path, false).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        fs::remove_file(path).unwrap();
        assert_eq!(json["figures"][1]["value"], 2.5);
        assert_eq!(json["figures"][0]["max"], 3.0);
    }
}
