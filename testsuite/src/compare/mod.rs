//! `slipnet compare A B`: tests whether B is worse than A, beyond noise.
//!
//! Each side is several runs of the same thing. A measure of B is a regression if two things hold. First, a test finds
//! it worse, at `--alpha` over all measures together, which excludes noise. Second, its median is worse by at least
//! `--effect`, which excludes differences that nobody would notice.

mod runs;
mod statistics;

use std::fmt;

use anyhow::{Result, bail, ensure};
use clap::Args;
use serde::Serialize;

pub use runs::{RunsOptions, compare_runs, report_files};
pub use statistics::SAMPLES_MAX;

use crate::{quantiles::median, report::Better};

/// One quantity on both sides, with a sample per run.
#[derive(Clone, Debug)]
pub struct Measure {
    /// The name, which is the same on both sides; `--only` selects by it.
    pub name: String,
    /// The unit of the samples, such as `ms`.
    pub unit: String,
    /// The good direction.
    pub better: Better,
    /// The samples of the reference side.
    pub before: Vec<f64>,
    /// The samples of the side that is judged.
    pub after: Vec<f64>,
}

/// The thresholds between regressions and noise.
#[derive(Clone, Debug, Args)]
pub struct Thresholds {
    /// The probability of reporting noise as a regression, over all measures together: above 0, at most 0.5.
    #[arg(long, default_value_t = 0.05, value_parser = share)]
    pub alpha: f64,
    /// The least change of a median that counts, as a share: 0.05 is 5 %.
    #[arg(long, default_value_t = 0.05, value_parser = share)]
    pub effect: f64,
    /// Judges only measures whose names contain this text; may be repeated. Fewer measures need fewer runs.
    #[arg(long)]
    pub only: Vec<String>,
    /// Prints JSON.
    #[arg(long)]
    pub json: bool,
}

impl Thresholds {
    /// Whether a measure with this name is judged.
    pub fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| name.contains(part))
    }
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if share > 0.0 && share <= 0.5 => Ok(share),
        _ => Err(format!("{text}: expected a share above 0 and at most 0.5, such as 0.05")),
    }
}

/// The verdict on one measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// No difference that passes both the test and the least effect.
    Same,
    /// The measure became worse.
    Regression,
    /// The measure became better.
    Improvement,
}

/// One measure with its verdict.
#[derive(Clone, Debug, Serialize)]
pub struct Judged {
    /// The name, as in [`Measure`].
    pub name: String,
    /// The unit, as in [`Measure`].
    pub unit: String,
    /// The good direction.
    pub better: Better,
    /// The median before; infinite, which JSON writes as null, if the event never happened.
    pub before: f64,
    /// The median after; infinite as above.
    pub after: f64,
    /// The change of the median as a share of that before; `None` if that was 0 or infinite.
    pub change: Option<f64>,
    /// The probability of ranks at least this bad if nothing changed.
    pub p_worse: f64,
    /// The probability of ranks at least this good if nothing changed.
    pub p_better: f64,
    /// The verdict.
    pub verdict: Verdict,
}

/// The comparison of two sides.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The name of the test, for readers of the JSON.
    pub test: &'static str,
    /// The number of runs before and after.
    pub runs: (usize, usize),
    /// The probability of reporting noise as a regression.
    pub alpha: f64,
    /// The least change that counts.
    pub effect: f64,
    /// All measures.
    pub measures: Vec<Judged>,
    /// Further facts for the reader, such as different machines.
    pub notes: Vec<String>,
}

/// Judges measures, all with the same runs.
///
/// # Errors
/// If there is no measure, a side has 0 runs or more than 32, or the runs are too few to call anything a regression.
pub fn judge(measures: Vec<Measure>, thresholds: &Thresholds, notes: Vec<String>) -> Result<Comparison> {
    let Some(first) = measures.first() else {
        bail!("the two sides have no measure in common, so there is nothing to compare")
    };
    let runs = (first.before.len(), first.after.len());
    for count in [runs.0, runs.1] {
        ensure!((1..=SAMPLES_MAX).contains(&count), "a side has {count} runs: give 1 to {SAMPLES_MAX}");
    }
    for Measure { name, before, after, .. } in &measures {
        let found = (before.len(), after.len());
        ensure!(found == runs, "{name} has {found:?} samples where the first measure has {runs:?}");
    }
    let (least, needed) = (statistics::p_min(runs.1, runs.0), thresholds.alpha / measures.len() as f64);
    ensure!(
        least <= needed,
        "{} and {} runs cannot show a regression: the smallest p is {least:.4}, and {} measures at --alpha {} need {needed:.4}. \
         Give {} runs of each side, or judge fewer measures with --only",
        runs.0,
        runs.1,
        measures.len(),
        thresholds.alpha,
        enough(needed)
    );
    let worse: Vec<f64> = measures.iter().map(|measure| measure.p(Verdict::Regression)).collect();
    let better: Vec<f64> = measures.iter().map(|measure| measure.p(Verdict::Improvement)).collect();
    let [is_worse, is_better] = [&worse, &better].map(|ps| statistics::below(thresholds.alpha, ps));
    let judged = measures.into_iter().enumerate().map(|(index, measure)| {
        let [before, after] = [&measure.before, &measure.after].map(|side| median(side).unwrap_or_default());
        let change = (before != 0.0 && before.is_finite()).then(|| (after - before) / before.abs());
        // From 0 or infinity, any change is large.
        let counts = change.map_or(after != before, |change| change.abs() >= thresholds.effect);
        let Measure { name, unit, better: way, .. } = measure;
        // If ranks and medians contradict each other, neither is believed.
        let is_up_good = way == Better::Higher;
        let verdict = match (after > before) == is_up_good {
            false if is_worse[index] && counts => Verdict::Regression,
            true if is_better[index] && counts => Verdict::Improvement,
            _ => Verdict::Same,
        };
        let (p_worse, p_better) = (worse[index], better[index]);
        Judged { name, unit, better: way, before, after, change, p_worse, p_better, verdict }
    });
    Ok(Comparison {
        test: "Mann-Whitney U, exact, one-sided, Holm over all measures",
        runs,
        alpha: thresholds.alpha,
        effect: thresholds.effect,
        measures: judged.collect(),
        notes,
    })
}

/// Returns the least number of runs per side that can show this p.
fn enough(p: f64) -> String {
    match (1..=SAMPLES_MAX).find(|runs| statistics::p_min(*runs, *runs) <= p) {
        Some(runs) => runs.to_string(),
        None => format!("more than {SAMPLES_MAX}"),
    }
}

impl Measure {
    fn p(&self, verdict: Verdict) -> f64 {
        let is_larger = (self.better == Better::Higher) == (verdict == Verdict::Improvement);
        match is_larger {
            true => statistics::p_larger(&self.after, &self.before),
            false => statistics::p_larger(&self.before, &self.after),
        }
    }
}

impl Comparison {
    /// Returns the names of the measures that became worse.
    pub fn regressions(&self) -> Vec<&str> {
        let worse = self.measures.iter().filter(|measure| measure.verdict == Verdict::Regression);
        worse.map(|measure| measure.name.as_str()).collect()
    }

    /// Prints the comparison, as text or as JSON.
    ///
    /// # Errors
    /// If a measure became worse, or the output cannot be written.
    pub fn show(&self, as_json: bool) -> Result<()> {
        match as_json {
            true => crate::output::print_line(&serde_json::to_string_pretty(self)?)?,
            false => crate::output::print(&self.to_string())?,
        }
        let regressions = self.regressions();
        ensure!(regressions.is_empty(), "worse than before: {}", regressions.join(", "));
        Ok(())
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (before, after) = self.runs;
        let (alpha, effect) = (self.alpha, self.effect * 100.0);
        writeln!(
            f,
            "{before} runs before, {after} after; {}, alpha {alpha}, least effect {effect} %",
            self.test
        )?;
        writeln!(
            f,
            "  {:<44} {:>12} {:>12} {:>10} {:>8}  verdict",
            "measure", "before", "after", "change", "p"
        )?;
        for it in &self.measures {
            let change = match it.change {
                Some(change) if change.is_finite() => format!("{:+.1} %", change * 100.0),
                Some(_) => "never".to_owned(),
                None if it.before == 0.0 => "from 0".to_owned(),
                None => "from never".to_owned(),
            };
            let (p, verdict) = match it.verdict {
                Verdict::Regression => (it.p_worse, "REGRESSION"),
                Verdict::Improvement => (it.p_better, "better"),
                Verdict::Same => (it.p_worse.min(it.p_better), ""),
            };
            let name = format!("{}, {}", it.name, it.unit);
            let line = format!(
                "  {name:<44} {:>12.4} {:>12.4} {change:>10} {p:>8.4}  {verdict}",
                it.before, it.after
            );
            writeln!(f, "{}", line.trim_end())?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thresholds() -> Thresholds {
        Thresholds { alpha: 0.05, effect: 0.05, only: Vec::new(), json: false }
    }

    fn measure(name: &str, better: Better, before: [f64; 5], after: [f64; 5]) -> Measure {
        let (before, after) = (before.to_vec(), after.to_vec());
        Measure { name: name.into(), unit: "ms".into(), better, before, after }
    }

    /// Goal: a change counts if it passes both the test and the least effect; noise of the same size does not count.
    #[test]
    fn a_regression_is_told_from_noise() {
        let base = [100.0, 101.0, 99.0, 102.0, 98.0];
        let up = base.map(|value| value * 1.2);
        let little = base.map(|value| value + 4.5);
        let noise = [130.0, 90.0, 101.0, 140.0, 80.0];
        let measures = vec![
            measure("slower", Better::Lower, base, up),
            measure("faster", Better::Higher, base, up),
            measure("little", Better::Lower, base, little),
            measure("noise", Better::Lower, base, noise),
            measure("from nothing", Better::Lower, [0.0; 5], [1.0; 5]),
        ];
        let found = judge(measures, &thresholds(), Vec::new()).unwrap();
        assert_eq!(found.regressions(), ["slower", "from nothing"]);
        let verdicts: Vec<_> = found.measures.iter().map(|measure| measure.verdict).collect();
        use Verdict::{Improvement, Regression, Same};
        assert_eq!(verdicts, [Regression, Improvement, Same, Same, Regression]);
        let text = found.to_string();
        assert!(text.contains("+20.0 %") && text.contains("from 0") && text.contains("REGRESSION"), "{text}");
        assert!(found.show(true).unwrap_err().to_string().contains("slower, from nothing"));
    }

    /// Goal: too few runs to show anything are an error, which says how many are enough.
    #[test]
    fn too_few_runs_are_refused() {
        let few = |count: usize, measures: usize| {
            let one = Measure {
                name: "x".into(),
                unit: "s".into(),
                better: Better::Lower,
                before: vec![1.0; count],
                after: vec![1.0; count],
            };
            judge(vec![one; measures], &thresholds(), Vec::new())
        };
        let error = few(3, 2).unwrap_err().to_string();
        assert!(error.contains("Give 4 runs of each side"), "{error}");
        assert!(few(3, 1).is_ok() && few(4, 2).is_ok());
        assert!(few(33, 1).is_err() && few(0, 1).is_err());
        assert!(judge(Vec::new(), &thresholds(), Vec::new()).is_err());
    }

    /// Goal: if ranks say worse and the median says better, there is no verdict.
    #[test]
    fn ranks_and_medians_must_agree() {
        let before = [vec![1.0; 15], vec![10.0; 17]].concat();
        let after = [vec![2.0; 9], vec![9.0; 8], vec![11.0; 15]].concat();
        let one = Measure { name: "x".into(), unit: "s".into(), better: Better::Lower, before, after };
        let found = judge(vec![one], &thresholds(), Vec::new()).unwrap();
        let it = &found.measures[0];
        assert!(it.p_worse < 0.05 && it.after < it.before && it.verdict == Verdict::Same, "{it:?}");
    }

    #[test]
    fn shares_are_bounded() {
        assert_eq!(share("0.05"), Ok(0.05));
        assert!(share("0").is_err() && share("0.6").is_err() && share("NaN").is_err() && share("x").is_err());
    }
}
