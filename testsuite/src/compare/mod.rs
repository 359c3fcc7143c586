//! `slipnet compare A B`: whether B is worse than A, told from noise by a test.
//!
//! Each side is several runs of the same thing. A measure of B is a regression if two things hold. It is worse by a test at
//! `--alpha` over all measures together, which keeps noise out. Its median is worse by at least `--effect`, which keeps out
//! differences that nobody would notice.

mod runs;
mod statistics;

use std::fmt;

use anyhow::{Result, bail, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};

pub use runs::{RunsOptions, compare_runs, report_files};
pub use statistics::{SAMPLES_MAX, median, quantile};

/// Which way is good.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Throughput, for one.
    Higher,
    /// Latency, memory and all that is paid.
    Lower,
}

/// One quantity of both sides, with a sample of each run.
#[derive(Clone, Debug)]
pub struct Measure {
    /// As both sides call it; `--only` finds it by that.
    pub name: String,
    /// Of its samples, such as `ms`.
    pub unit: String,
    /// Which way is good.
    pub better: Better,
    /// Of the side that is held to be good.
    pub before: Vec<f64>,
    /// Of the side that is judged.
    pub after: Vec<f64>,
}

/// How a regression is told from noise.
#[derive(Clone, Debug, Args)]
pub struct Thresholds {
    /// The chance of calling noise a regression, over all measures together: above 0, at most 0.5.
    #[arg(long, default_value_t = 0.05, value_parser = share)]
    pub alpha: f64,
    /// The least change of a median that counts, as a share: 0.05 is 5 %.
    #[arg(long, default_value_t = 0.05, value_parser = share)]
    pub effect: f64,
    /// Judge only measures whose names contain this text; may be given several times. Fewer measures need fewer runs.
    #[arg(long)]
    pub only: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

impl Thresholds {
    /// Whether a measure of this name is judged.
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

/// What was found of one measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// No difference that the test and the least effect both show.
    Same,
    /// Worse.
    Regression,
    /// Better.
    Improvement,
}

/// One measure, judged.
#[derive(Clone, Debug, Serialize)]
pub struct Judged {
    /// As in [`Measure`].
    pub name: String,
    /// As in [`Measure`].
    pub unit: String,
    /// Which way is good.
    pub better: Better,
    /// Median before; infinite, which JSON writes as null, if it never came.
    pub before: f64,
    /// Median after; infinite as above.
    pub after: f64,
    /// Change of the median as a share of that before; none if that was 0 or infinite.
    pub change: Option<f64>,
    /// Probability of ranks as bad as these if nothing changed.
    pub p_worse: f64,
    /// Probability of ranks as good as these if nothing changed.
    pub p_better: f64,
    /// What follows.
    pub verdict: Verdict,
}

/// Two sides, compared.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The test, for whoever reads the JSON alone.
    pub test: &'static str,
    /// Runs before and after.
    pub runs: (usize, usize),
    /// The chance of calling noise a regression.
    pub alpha: f64,
    /// The least change that counts.
    pub effect: f64,
    /// All measures.
    pub measures: Vec<Judged>,
    /// What else a reader should know, such as different machines.
    pub notes: Vec<String>,
}

/// Judges measures, each of the same runs.
///
/// # Errors
/// If there is no measure, a side has 0 runs or more than 32, or the runs are too few to call anything a regression.
pub fn judge(measures: Vec<Measure>, thresholds: &Thresholds, notes: Vec<String>) -> Result<Comparison> {
    let Some(first) = measures.first() else {
        bail!("no measure is on both sides, so there is nothing to compare")
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
        // From 0, and from what never came, every change is large.
        let counts = change.map_or(after != before, |change| change.abs() >= thresholds.effect);
        let Measure { name, unit, better: way, .. } = measure;
        // Ranks and medians can point in two ways: then neither is believed.
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

/// The least number of runs of each side that can show this p.
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
    /// The names of the measures that are worse.
    pub fn regressions(&self) -> Vec<&str> {
        let worse = self.measures.iter().filter(|measure| measure.verdict == Verdict::Regression);
        worse.map(|measure| measure.name.as_str()).collect()
    }

    /// Prints it, as text or as JSON.
    ///
    /// # Errors
    /// If something is worse, or the output cannot be written.
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

    /// Goal: a change counts if both the test and the least effect show it, and noise of the same size does not.
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

    /// Goal: runs that can never show anything are an error that says how many are enough.
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

    /// Goal: where ranks say worse and the median says better, nothing is said.
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
