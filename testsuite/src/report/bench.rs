//! [`BenchReport`]: the JSON of a benchmark.

use serde::{Deserialize, Serialize};

use super::{Aim, Environment, Figure, Report};
use crate::compare::Better;

/// The figures of one benchmark, as scripts, comparisons and docs/benchmarks.md read them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BenchReport {
    /// Name of the benchmark.
    pub bench: String,
    /// Whether it was a look: figures that are quoted come from full runs. Files from before this was written do not say it.
    #[serde(default)]
    pub quick: bool,
    /// The commit that it was built from.
    pub commit: String,
    /// Where it ran.
    pub machine: Environment,
    /// Samples of most figures.
    pub runs: usize,
    /// What was measured, in the order in which it is read.
    pub figures: Vec<BenchFigure>,
    /// What was compared, and how.
    pub notes: Vec<String>,
}

/// One measured quantity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BenchFigure {
    /// Its name.
    pub name: String,
    /// The median of the samples.
    pub value: f64,
    /// The smallest sample.
    pub min: f64,
    /// The largest sample.
    pub max: f64,
    /// Its unit.
    pub unit: String,
    /// The good direction; `None` for a figure that is not judged, such as a ratio without an aim.
    pub better: Option<Better>,
    /// What it should be, such as `at most 1.5`.
    pub aim: Option<String>,
    /// Whether it is that; none without an aim.
    pub met: Option<bool>,
}

impl BenchReport {
    /// The figures of a run, and whether it was a look.
    pub fn new(report: &Report, quick: bool) -> BenchReport {
        let machine = Environment::detect();
        // JSON has no NaN: a file with one could not be read again, and with it all that was measured before.
        let (figures, broken): (Vec<&Figure>, Vec<&Figure>) =
            report.figures.iter().partition(|figure| figure.samples.iter().all(|sample| sample.is_finite()));
        let broken = broken.iter().map(|figure| format!("{} has a sample that is no number", figure.name));
        BenchReport {
            bench: report.bench.to_owned(),
            quick,
            commit: machine.commit.clone(),
            machine,
            runs: report.runs,
            figures: figures.into_iter().map(BenchFigure::from).collect(),
            notes: report.notes.iter().cloned().chain(broken).collect(),
        }
    }
}

impl From<&Figure> for BenchFigure {
    fn from(figure: &Figure) -> BenchFigure {
        let aim = figure.aim.map(|aim| match aim {
            Aim::AtLeast(aim) => format!("at least {aim}"),
            Aim::AtMost(aim) => format!("at most {aim}"),
        });
        BenchFigure {
            name: figure.name.clone(),
            value: figure.value(),
            min: figure.min(),
            max: figure.max(),
            unit: figure.unit.to_owned(),
            better: better(figure.aim, figure.unit),
            aim,
            met: figure.aim.map(|aim| aim.is_met(figure.value())),
        }
    }
}

/// An aim says which way is good; without one the unit does, if it is a rate, a time or a size.
fn better(aim: Option<Aim>, unit: &str) -> Option<Better> {
    match (aim, unit) {
        (Some(Aim::AtLeast(_)), _) => Some(Better::Higher),
        (Some(Aim::AtMost(_)), _) => Some(Better::Lower),
        (None, unit) if unit.ends_with("/s") => Some(Better::Higher),
        (None, "s" | "ms" | "us" | "ns" | "MiB" | "B" | "bytes") => Some(Better::Lower),
        (None, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a figure is judged the way that it was meant, or not at all.
    #[test]
    fn a_figure_knows_which_way_is_good() {
        assert_eq!(better(Some(Aim::AtLeast(1.0)), "ms"), Some(Better::Higher));
        assert_eq!(better(Some(Aim::AtMost(1.0)), "1/s"), Some(Better::Lower));
        assert_eq!(better(None, "MB/s"), Some(Better::Higher));
        assert_eq!(better(None, "us"), Some(Better::Lower));
        assert_eq!((better(None, "ratio"), better(None, "1")), (None, None));
    }

    /// Goal: a ratio to nothing costs one figure, and not the file.
    #[test]
    fn what_is_no_number_is_a_note() {
        let figures =
            vec![Figure::new("ratio", "ratio", vec![1.0, f64::NAN]), Figure::new("time", "s", vec![1.0])];
        let report = BenchReport::new(&Report { bench: "test", runs: 1, figures, notes: vec![] }, false);
        assert_eq!((report.figures.len(), report.figures[0].name.as_str()), (1, "time"));
        assert_eq!(report.notes, ["ratio has a sample that is no number"]);
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<BenchReport>(&text).unwrap(), report);
    }

    #[test]
    fn a_report_is_read_as_it_was_written() {
        let figures = vec![Figure::new("time", "s", vec![1.0, 3.0, 2.0]).aim(Aim::AtMost(1.5))];
        let report = Report { bench: "test", runs: 3, figures, notes: vec!["note".into()] };
        let report = BenchReport::new(&report, true);
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<BenchReport>(&text).unwrap(), report);
        let before = text.replace("\"quick\":true,", "");
        assert_ne!(before, text);
        assert_eq!(
            serde_json::from_str::<BenchReport>(&before).unwrap(),
            BenchReport { quick: false, ..report.clone() }
        );
        let figure = &report.figures[0];
        assert_eq!(
            (figure.value, figure.met, figure.aim.as_deref()),
            (2.0, Some(false), Some("at most 1.5"))
        );
    }
}
