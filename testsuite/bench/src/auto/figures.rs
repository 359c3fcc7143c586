//! Figures from runs.

use super::{Results, backfill, measured::Measured};
use crate::{Aim, Figure, Report, harness::ratios};

/// ETAs count only for runs that take more than this many seconds.
const ETA_RUN_SECONDS: f64 = 10.0;

/// The aims of this bench; other figures have none.
fn aimed(figure: Figure) -> Figure {
    let aim = match figure.name() {
        "regret.median" => 1.15,
        "regret.worst" => 1.4,
        "head_vs_chain_length" => 1.2,
        "eta_error.5s" => 0.33,
        backfill::NAME => 1.05,
        _ => return figure,
    };
    figure.aim(Aim::AtMost(aim))
}

pub(super) fn report(results: &Results, is_quick: bool) -> Report {
    let mut figures = regrets(&results.measured);
    figures.extend(of_length(results));
    figures.extend(eta_error(&results.measured));
    figures.extend(of_backfill(results));
    figures.extend(results.measured.iter().flat_map(Measured::figures));
    let runs = results.measured.iter().map(|measured| measured.rounds(is_quick)).max().unwrap_or_default();
    Report {
        bench: "auto",
        runs,
        figures: figures.into_iter().map(aimed).collect(),
        notes: notes(results, is_quick),
    }
}

/// Returns the median regret over the situations, and the worst.
fn regrets(measured: &[Measured]) -> Vec<Figure> {
    let of = |measured: &Measured| Some(Figure::new("regret", "ratio", measured.regret()?).value());
    let regrets: Vec<f64> = measured.iter().filter_map(of).collect();
    let Some(worst) = regrets.iter().copied().max_by(f64::total_cmp) else { return Vec::new() };
    vec![Figure::new("regret.median", "ratio", regrets), Figure::new("regret.worst", "ratio", vec![worst])]
}

fn of_length(results: &Results) -> Vec<Figure> {
    let [long, short] = &results.lengths;
    if long.is_empty() || short.is_empty() {
        return Vec::new();
    }
    vec![
        Figure::new("head_vs_chain_length", "ratio", ratios(long, short)),
        Figure::new("length_seconds.20000", "s", long.clone()),
        Figure::new("length_seconds.500", "s", short.clone()),
    ]
}

/// Returns the ETA error over the situations with long runs; each situation counts with its median.
fn eta_error(measured: &[Measured]) -> Option<Figure> {
    let of = |measured: &Measured| {
        Some(Figure::new("eta", "ratio", measured.eta_errors(ETA_RUN_SECONDS)?).value())
    };
    let errors: Vec<f64> = measured.iter().filter_map(of).collect();
    (!errors.is_empty()).then(|| Figure::new("eta_error.5s", "ratio", errors))
}

fn of_backfill(results: &Results) -> Vec<Figure> {
    let [with, without] = &results.head_cost.lag_ms;
    if with.is_empty() {
        return Vec::new();
    }
    vec![
        Figure::new(backfill::NAME, "ratio", ratios(with, without)),
        Figure::new("backfill_lag_ms.with", "ms", with.clone()),
        Figure::new("backfill_lag_ms.without", "ms", without.clone()),
    ]
}

fn notes(results: &Results, is_quick: bool) -> Vec<String> {
    let mut notes: Vec<String> = results.measured.iter().map(Measured::line).collect();
    notes.push(
        "a run: a fresh slipstream process with sync.mode pinned or auto, on an empty directory or on the store of a node that stopped, from \
         its first request for data to the head. snapshot begins on an empty directory always. > 30: cut off after 30 s. stuck: nobody serves \
         it. The ways of a round take turns; after the first round those that took more than 1.5 times the best one's time are left out"
            .to_owned(),
    );
    notes.push(
        "regret: auto over the pinned way with the least median, run by run; an auto that was cut off counts as the seconds until then. \
         history: seconds until auto answers for the receipts of the first batch of its gap (window_seconds)"
            .to_owned(),
    );
    if results.head_cost.left_out > 0 {
        notes.push(format!(
            "{}: {} runs are left out, in which history was fetched for less than half of the time",
            backfill::NAME,
            results.head_cost.left_out
        ));
    }
    if is_quick {
        notes.push("--quick: a look, on one short chain".to_owned());
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auto::measured::tests::measured;

    /// Goal: each figure that has an aim covers the right situations.
    #[test]
    fn headlines_are_made_of_all_situations() {
        let good = measured([&[10.0], &[], &[], &[], &[11.0]]);
        let bad = measured([&[1.0], &[], &[], &[], &[101.0]]);
        let better = measured([&[10.0], &[], &[], &[], &[9.0]]);
        let results = Results {
            measured: vec![good, bad, better],
            lengths: [vec![3.0], vec![2.0]],
            ..Results::default()
        };
        let report = report(&results, true);
        let value =
            |name: &str| report.figures.iter().find(|figure| figure.name() == name).map(Figure::value);
        assert_eq!(value("regret.median"), Some(1.1));
        assert_eq!(value("regret.worst"), Some(101.0));
        assert_eq!(value("head_vs_chain_length"), Some(1.5));
        // Only the first takes longer than ten seconds: six seconds were left, and the ETA was four.
        assert!((value("eta_error.5s").unwrap() - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!(value(backfill::NAME), None);
        assert!(report.notes.len() > 3);
    }
}
