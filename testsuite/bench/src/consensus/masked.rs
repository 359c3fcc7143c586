//! The table of figure 9.

use anyhow::Result;
use slipstream_executor::ConcurrencyBug;

use super::{
    Plan,
    bugs::{self, Counts, Setting},
    object::Request,
};
use crate::Figure;
use slipnet::progress::Progress;

const BUGS: [(&str, ConcurrencyBug); 3] = [
    ("lost_update", ConcurrencyBug::LostUpdate),
    ("skipped_increment", ConcurrencyBug::SkippedIncrement),
    ("torn_read", ConcurrencyBug::TornRead),
];
/// The mixers: the share of conflicts that each misses, and whether bugs hit all replicas alike.
const MIXERS: [(&str, f64, bool); 6] = [
    ("off", 1.0, false),
    ("off_alike", 1.0, true),
    ("fn_50", 0.5, false),
    ("fn_10", 0.1, false),
    ("fn_1", 0.01, false),
    ("on", 0.0, false),
];
/// The rate of bugs among concurrent conflicting transactions: high enough that some batches in a hundred have a bug
/// without the mixer.
const RATE: f64 = 0.05;
/// A request of about 0.1 ms.
const REQUEST: Request = Request { hashes: 40, slots: 2 };

pub(super) fn run(plan: &Plan, progress: Progress) -> Result<Vec<Figure>> {
    let local = bugs::local()?;
    let mut figures = Vec::new();
    for (mixer, false_negatives, alike) in MIXERS {
        if plan.is_quick && !["off", "on"].contains(&mixer) {
            continue;
        }
        progress.step(&format!("bugs with mixer {mixer}"));
        let mut samples = Vec::new();
        for run in 0..plan.runs as u64 {
            let mut sum = Counts::default();
            for (place, (_, bug)) in BUGS.into_iter().enumerate() {
                let seed = 100 * run + place as u64 + 1;
                let batches = plan.bug_batches;
                let setting = Setting { bug, rate: RATE, alike, false_negatives, batches, seed };
                sum = sum.plus(bugs::run(&local, REQUEST, setting)?);
            }
            sum.tps /= BUGS.len() as f64;
            samples.push(sum);
        }
        let of = |value: fn(Counts) -> f64| samples.iter().copied().map(value).collect::<Vec<_>>();
        match mixer {
            "off" => figures.push(Figure::new("masked_unmixed", "ratio", of(Counts::masked))),
            "on" => figures.push(Figure::new("masked_mixed", "ratio", of(Counts::masked))),
            _ => {}
        }
        let mut add = |what: &str, unit, value: fn(Counts) -> f64| {
            figures.push(Figure::new(format!("bugs.{mixer}.{what}"), unit, of(value)));
        };
        add("side_by_side", "1", |counts| counts.met as f64);
        add("manifested", "1", |counts| counts.manifested as f64);
        add("outvoted", "1", |counts| counts.outvoted as f64);
        add("rolled_back", "1", |counts| counts.rolled_back as f64);
        add("not_masked", "1", |counts| counts.not_masked as f64);
        add("masked", "ratio", Counts::masked);
        add("tps", "1/s", |counts| counts.tps);
    }
    Ok(figures)
}
