//! [`BenchReport`]: the JSON of a benchmark.

use serde::{Deserialize, Serialize};

use super::{Aim, Environment, Figure, Report};

/// The figures of one benchmark, for scripts, comparisons and docs/benchmarks.md.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BenchReport {
    /// The benchmark's name.
    pub bench: String,
    /// Whether it was a quick run; quoted figures come from full runs. Older files lack this field.
    #[serde(default)]
    pub quick: bool,
    /// The commit from which it was built.
    pub commit: String,
    /// The machine on which it ran.
    pub machine: Environment,
    /// The number of samples of most figures.
    pub runs: usize,
    /// The figures, in reading order.
    pub figures: Vec<BenchFigure>,
    /// Notes on what was compared, and how.
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
    /// The aim, such as `at most 1.5`.
    pub aim: Option<String>,
    /// Whether the aim is met; `None` without an aim.
    pub met: Option<bool>,
}

/// The good direction of a measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Higher is better, as for throughput.
    Higher,
    /// Lower is better, as for latency, memory and other costs.
    Lower,
}

impl BenchReport {
    /// Makes the report of a run, which may be a quick one.
    pub fn new(report: &Report, quick: bool) -> BenchReport {
        let machine = Environment::detect();
        // JSON has no NaN: a file with one could not be read again, and all its figures would be lost.
        let (figures, broken): (Vec<&Figure>, Vec<&Figure>) =
            report.figures.iter().partition(|figure| figure.samples.iter().all(|sample| sample.is_finite()));
        let broken = broken.iter().map(|figure| format!("{} has a sample that is not a number", figure.name));
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

/// Returns the good direction: that of the aim or, without one, that of the unit if it is a rate, a time or a size.
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

    /// Goal: a figure has its intended direction, or none.
    #[test]
    fn a_figure_knows_which_way_is_good() {
        assert_eq!(better(Some(Aim::AtLeast(1.0)), "ms"), Some(Better::Higher));
        assert_eq!(better(Some(Aim::AtMost(1.0)), "1/s"), Some(Better::Lower));
        assert_eq!(better(None, "MB/s"), Some(Better::Higher));
        assert_eq!(better(None, "us"), Some(Better::Lower));
        assert_eq!((better(None, "ratio"), better(None, "1")), (None, None));
    }

    /// Goal: a ratio to zero costs only its own figure, not the file.
    #[test]
    fn what_is_no_number_is_a_note() {
        let figures =
            vec![Figure::new("ratio", "ratio", vec![1.0, f64::NAN]), Figure::new("time", "s", vec![1.0])];
        let report = BenchReport::new(&Report { bench: "test", runs: 1, figures, notes: vec![] }, false);
        assert_eq!((report.figures.len(), report.figures[0].name.as_str()), (1, "time"));
        assert_eq!(report.notes, ["ratio has a sample that is not a number"]);
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
