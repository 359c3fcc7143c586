//! `slipnet campaign gas`: the slowest gas on this machine, and its effect on a chain.
//!
//! ```text
//!  candidates: each opcode and precompile, cold reads, frames ─▶ search: one call each ─▶ the slowest, and their mixes ─▶ table
//!                                                                                           │ the slowest three
//!  assault: a devnet of four under honest load, at full speed, half and a quarter ◀─────────┘       ─▶ table, JSON
//! ```
//!
//! Gas is meant to bound the time of a batch, so the slowest gas could halt a chain. The search runs on a state in
//! memory, without a disk; the assault runs complete nodes.

mod assault;
mod brake;
mod candidates;
mod search;
mod waits;

use std::{fmt, path::PathBuf, time::Duration};

use anyhow::Result;
use clap::Args;
use slipnet::{
    progress::Progress,
    quantiles::quantile,
    report::{Aim, Figure, Report},
};
use slipstream_types::limits::TRANSACTION_GAS_MAX;

use self::{
    assault::{AssaultTimes, Outcome},
    brake::Speed,
    search::{Effort, Measured},
};

/// The number of slowest programs that the assault sends.
const SENT: usize = 3;

/// What to search, and where to write the results.
#[derive(Clone, Debug, Args)]
pub struct GasCampaign {
    /// Also write the figures to this file.
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// A quick look: fewer mixes, shorter measurements and attacks. Quote only the figures of a full run.
    #[arg(long)]
    pub quick: bool,
    /// The seed that draws the mixes.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Keep the nodes' files and logs.
    #[arg(long)]
    pub keep: bool,
}

/// The extent of the search, and the durations of the assault.
#[derive(Clone, Copy, Debug)]
struct Pace {
    effort: Effort,
    course: AssaultTimes,
}

impl Pace {
    /// For figures that are quoted.
    const FULL: Pace = Pace {
        effort: Effort {
            look_gas: 2_000_000,
            runs: 2,
            finalists: 40,
            mixes: 400,
            final_gas: TRANSACTION_GAS_MAX,
        },
        course: AssaultTimes {
            quiet: Duration::from_secs(20),
            attack: Duration::from_secs(60),
            drain: Duration::from_secs(60),
        },
    };
    /// For a quick look.
    const QUICK: Pace = Pace {
        effort: Effort { look_gas: 500_000, runs: 1, finalists: 10, mixes: 20, final_gas: 4_000_000 },
        course: AssaultTimes {
            quiet: Duration::from_secs(5),
            attack: Duration::from_secs(10),
            drain: Duration::from_secs(15),
        },
    };
}

/// The results: programs by speed, slowest first, and the chain at each speed.
#[derive(Clone, Debug)]
pub struct Summary {
    measured: Vec<Measured>,
    finalists: usize,
    outcomes: Vec<Outcome>,
}

/// Searches, and attacks one devnet per speed with the slowest programs.
///
/// # Errors
/// If a candidate does not use up its gas (a bug), a devnet does not start, one of its nodes exits, or the file cannot
/// be written.
pub async fn run(options: &GasCampaign, progress: Progress) -> Result<Summary> {
    let pace = if options.quick { Pace::QUICK } else { Pace::FULL };
    let seed = options.seed;
    progress.step("searching for the programs that use gas most slowly");
    // On a blocking thread, because it keeps its thread busy.
    let search = move || search::search(&pace.effort, seed, progress);
    let measured = tokio::task::spawn_blocking(search).await??;
    let mut summary = Summary { measured, finalists: pace.effort.finalists, outcomes: Vec::new() };
    let worst: Vec<_> = summary.measured.iter().take(SENT).map(|it| it.candidate.clone()).collect();
    for &speed in Speed::ALL {
        progress.step(&format!("four validators at {} speed", speed.name()));
        summary.outcomes.push(assault::assault(&worst, speed, &pace.course, options.keep, progress).await?);
    }
    if let Some(path) = &options.json {
        summary.report().write_json(path, options.quick)?;
    }
    Ok(summary)
}

impl Summary {
    fn slowest(&self) -> &[Measured] {
        &self.measured[..self.finalists.min(self.measured.len())]
    }

    fn report(&self) -> Report {
        let figure = |name: &str, unit, value: f64| Figure::new(name, unit, vec![value]);
        let mut figures = Vec::new();
        for outcome in &self.outcomes {
            match outcome.speed {
                Speed::Full => {
                    figures.push(figure("longest_gap_s", "s", outcome.gap_s).aim(Aim::AtMost(3.0)));
                }
                Speed::Quarter => {
                    figures.push(figure("longest_gap_slow_s", "s", outcome.gap_s).aim(Aim::AtMost(10.0)));
                }
                Speed::Half => {}
            }
        }
        // The worst of all speeds.
        let p99 = self.outcomes.iter().filter_map(|outcome| quantile(&outcome.waits_s, 0.99));
        figures.extend(
            p99.max_by(f64::total_cmp).map(|worst| figure("honest_p99_s", "s", worst).aim(Aim::AtMost(10.0))),
        );
        for outcome in &self.outcomes {
            let mut add = |name: &str, unit, value| {
                figures.push(figure(&format!("{}.{name}", outcome.speed.name()), unit, value));
            };
            add("longest_gap_s", "s", outcome.gap_s);
            add("quiet_gap_s", "s", outcome.quiet_gap_s);
            for (name, share) in [("honest_p50_s", 0.5), ("honest_p99_s", 0.99)] {
                if let Some(wait) = quantile(&outcome.waits_s, share) {
                    add(name, "s", wait);
                }
            }
            add("honest_waiting", "1", outcome.honest_waiting as f64);
            for (name, count) in outcome.fates.counts() {
                add(&format!("attacks_{name}"), "1", count as f64);
            }
        }
        let speeds = self.slowest().iter();
        figures.extend(
            speeds.map(|it| figure(&format!("mgas_per_s.{}", it.candidate.name), "Mgas/s", it.mgas_per_s)),
        );
        Report { bench: "gas", runs: 1, figures, notes: Vec::new() }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "the slowest of {} programs, in Mgas/s on one core", self.measured.len())?;
        for Measured { candidate, mgas_per_s } in self.slowest() {
            writeln!(f, "{mgas_per_s:>8.1}  {}", candidate.name)?;
        }
        if self.outcomes.is_empty() {
            return Ok(());
        }
        writeln!(f, "\nthe first {SENT} of them against four validators, in seconds and transactions")?;
        writeln!(
            f,
            "{:<8} {:>10} {:>10} {:>10} {:>10} {:>8}   attacks:",
            "speed", "gap before", "gap", "honest p50", "p99", "waiting"
        )?;
        for outcome in &self.outcomes {
            let wait = |share| quantile(&outcome.waits_s, share).unwrap_or_default();
            let (p50, p99) = (wait(0.5), wait(0.99));
            let Outcome { speed, quiet_gap_s, gap_s, honest_waiting, .. } = outcome;
            write!(
                f,
                "{:<8} {quiet_gap_s:>10.2} {gap_s:>10.2} {p50:>10.2} {p99:>10.2} {honest_waiting:>8}  ",
                speed.name()
            )?;
            for (name, count) in outcome.fates.counts() {
                write!(f, " {count} {}", name.replace('_', " "))?;
            }
            writeln!(f)?;
            for refusal in &outcome.fates.refusals {
                writeln!(f, "         refused: {refusal}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each candidate uses up its gas, on a budget too small to measure its speed; the table and the figures list
    /// the slowest first.
    #[test]
    fn the_table_has_the_slowest_first() {
        let effort = Effort { look_gas: 300_000, runs: 1, finalists: 5, mixes: 3, final_gas: 400_000 };
        let measured = search::search(&effort, 1, Progress::Quiet).unwrap();
        let count = candidates::all().len();
        assert_eq!(measured.len(), count + 3, "none is lost");
        let summary = Summary { measured, finalists: 5, outcomes: Vec::new() };
        let slowest = summary.slowest();
        assert!(slowest.is_sorted_by(|a, b| a.mgas_per_s <= b.mgas_per_s), "{summary}");
        let table = summary.to_string();
        let figures = summary.report().figures;
        assert_eq!((table.lines().count(), figures.len()), (6, 5), "{table}");
        assert!(table.lines().nth(1).unwrap().ends_with(&slowest[0].candidate.name), "{table}");
        assert_eq!(figures[0].name(), format!("mgas_per_s.{}", slowest[0].candidate.name));
    }

    /// Goal: the figures of an assault have the names of their targets; the honest wait is that of the worst speed.
    #[test]
    fn figures_have_the_names_of_their_aims() {
        let outcome = |speed, gap_s| Outcome {
            speed,
            quiet_gap_s: 0.5,
            gap_s,
            waits_s: vec![gap_s],
            honest_waiting: 0,
            fates: assault::Fates::default(),
        };
        let outcomes =
            vec![outcome(Speed::Full, 1.0), outcome(Speed::Half, 3.0), outcome(Speed::Quarter, 2.0)];
        let summary = Summary { measured: Vec::new(), finalists: 0, outcomes };
        let figures = summary.report().figures;
        let named = |name| figures.iter().find(|figure| figure.name() == name).map(Figure::value);
        assert_eq!(named("longest_gap_s"), Some(1.0));
        assert_eq!(named("longest_gap_slow_s"), Some(2.0));
        assert_eq!(named("honest_p99_s"), Some(3.0));
        assert_eq!(named("half.longest_gap_s"), Some(3.0));
        assert_eq!(named("quarter.attacks_executed"), Some(0.0));
    }
}
