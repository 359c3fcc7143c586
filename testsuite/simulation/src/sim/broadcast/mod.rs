//! `slipnet sim broadcast`: the broadcast of one batch among thousands of nodes, by two models.
//!
//! * `world`: 2,000 nodes with the mesh that ships, links with latency and bandwidth, and processors with the measured
//!   costs of the codecs.
//! * `fabric`: 60 nodes with the mesh and the network that ship, on a wire in memory; `slipnet bench broadcast` prints
//!   its table. It shows how accurate `world` is.
//!
//! One seed is one run, for equal costs.

mod chain;
mod costs;
mod fabric;
mod habit;
mod node;
pub mod operations;
mod scenario;
mod topology;
mod uplink;
mod world;

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use slipnet::{
    progress::Progress,
    report::{Aim, Figure, Report},
};
use slipstream_coding::CodecKind;

use self::world::World;
pub use self::{
    costs::Costs,
    fabric::{Run, run as run_on_fabric},
    scenario::{Outcome, Scenario},
};

/// The payload sizes: the paper's block, and a megabyte.
const SIZES: [(&str, usize); 2] = [("119k", 121_600), ("1m", 1 << 20)];
/// The up-links that are simulated, in Mbit/s.
const UPLINKS_MBIT: [u64; 3] = [25, 50, 200];
/// The up-link of scenarios with dishonest nodes, in Mbit/s.
const ROUGH_MBIT: u64 = 50;
/// The share of dishonest nodes.
const ROUGH_SHARE: f64 = 0.1;
/// Nodes of the fabric.
const FABRIC_NODES: usize = 60;

/// What to simulate.
#[derive(Clone, Debug, Args)]
pub struct BroadcastSimOptions {
    /// Seeds of each scenario.
    #[arg(long, default_value_t = 1)]
    pub seeds: u64,
    /// Nodes of the event simulation.
    #[arg(long, default_value_t = 2_000)]
    pub nodes: usize,
    /// Write the figures as JSON as well.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Plays one scenario.
///
/// # Errors
/// If the batch cannot be coded.
pub fn play(scenario: &Scenario, costs: &Costs) -> Result<Outcome> {
    World::run(scenario, costs)
}

/// Runs all models.
///
/// # Errors
/// If a codec fails, or the file cannot be written.
pub fn run(options: &BroadcastSimOptions, progress: Progress) -> Result<Report> {
    let mut figures = by_fabric(options.seeds, progress)?;
    for (size, bytes) in SIZES {
        let mut table = Table { size, bytes, options, progress, rows: Vec::new() };
        table.play()?;
        figures.extend(table.figures());
    }
    let report = Report { bench: "sim broadcast", runs: options.seeds as usize, figures, notes: notes() };
    if let Some(path) = &options.json {
        report.write_json(path, false)?;
    }
    Ok(report)
}

/// Runs the paper's block on the fabric, and compares the event simulation with it.
fn by_fabric(seeds: u64, progress: Progress) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let (size, bytes) = SIZES[0];
    for &codec in CodecKind::ALL {
        let (costs, mut p50, mut p99, mut events) =
            (Costs::measure(codec, bytes)?, Vec::new(), Vec::new(), Vec::new());
        for seed in 0..seeds {
            progress.step(&format!("{codec}, {size}, {FABRIC_NODES} nodes on the wire, seed {seed}"));
            let scenario = Scenario::honest(FABRIC_NODES, codec, bytes, ROUGH_MBIT, seed);
            let run = run_on_fabric(&scenario, Some(codec), &costs)?;
            p50.push(run.p50_ms);
            p99.push(run.p99_ms);
            events.push(play(&scenario, &costs)?.p50_ms);
        }
        let name = |what: &str| format!("fabric.{codec}.{what}.{size}.{ROUGH_MBIT}mbit");
        figures.push(Figure::new(name("p50_vs_events"), "ratio", ratios(&p50, &events)));
        figures.push(Figure::new(name("p50"), "ms", p50));
        figures.push(Figure::new(name("p99"), "ms", p99));
    }
    Ok(figures)
}

/// The difference from an honest network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trouble {
    Nothing,
    Silent,
    Polluted,
}

struct Row {
    codec: CodecKind,
    mbit: u64,
    trouble: Trouble,
    outcomes: Vec<Outcome>,
}

/// All scenarios of one payload size.
struct Table<'a> {
    size: &'static str,
    bytes: usize,
    options: &'a BroadcastSimOptions,
    progress: Progress,
    rows: Vec<Row>,
}

impl Table<'_> {
    fn play(&mut self) -> Result<()> {
        for &codec in CodecKind::ALL {
            let costs = Costs::measure(codec, self.bytes)?;
            for mbit in UPLINKS_MBIT {
                self.add(&costs, codec, mbit, Trouble::Nothing)?;
            }
            for trouble in [Trouble::Silent, Trouble::Polluted] {
                self.add(&costs, codec, ROUGH_MBIT, trouble)?;
            }
        }
        Ok(())
    }

    fn add(&mut self, costs: &Costs, codec: CodecKind, mbit: u64, trouble: Trouble) -> Result<()> {
        let mut outcomes = Vec::new();
        for seed in 0..self.options.seeds {
            self.progress.step(&format!("{codec}, {}, {mbit} Mbit/s, {trouble:?}, seed {seed}", self.size));
            let mut scenario = Scenario::honest(self.options.nodes, codec, self.bytes, mbit, seed);
            match trouble {
                Trouble::Nothing => {}
                Trouble::Silent => scenario.silent = ROUGH_SHARE,
                Trouble::Polluted => scenario.polluters = ROUGH_SHARE,
            }
            outcomes.push(play(&scenario, costs)?);
        }
        self.rows.push(Row { codec, mbit, trouble, outcomes });
        Ok(())
    }

    fn of(&self, codec: CodecKind, mbit: u64, trouble: Trouble, value: fn(&Outcome) -> f64) -> Vec<f64> {
        let is_it = |row: &&Row| (row.codec, row.mbit, row.trouble) == (codec, mbit, trouble);
        self.rows.iter().filter(is_it).flat_map(|row| row.outcomes.iter().map(value)).collect()
    }

    fn figures(&self) -> Vec<Figure> {
        let mut figures = Vec::new();
        for row in &self.rows {
            let trouble = match row.trouble {
                Trouble::Nothing => "",
                Trouble::Silent => ".silent",
                Trouble::Polluted => ".polluted",
            };
            let mut add = |what: &str, unit, value: fn(&Outcome) -> f64| {
                let name = format!("{}.{what}.{}.{}mbit{trouble}", row.codec, self.size, row.mbit);
                figures.push(Figure::new(name, unit, row.outcomes.iter().map(value).collect()));
            };
            add("p50", "ms", |outcome| outcome.p50_ms);
            add("p99", "ms", |outcome| outcome.p99_ms);
            add("sent", "payloads", |outcome| outcome.sent_payloads);
            add("pulls", "count", |outcome| outcome.pulls);
            add("fetched", "nodes", |outcome| outcome.fetched as f64);
            if row.trouble == Trouble::Polluted {
                add("cut_off", "nodes", |outcome| outcome.cut_off as f64);
            }
            add("wronged", "nodes", |outcome| outcome.wronged as f64);
        }
        figures.extend(self.aimed());
        figures
    }

    /// Returns the ratios that have targets, for the paper's block.
    fn aimed(&self) -> Vec<Figure> {
        use CodecKind::{Gossip, ReedSolomon};
        let p99 = |codec, mbit, trouble| self.of(codec, mbit, trouble, |outcome| outcome.p99_ms);
        let sent = |codec| self.of(codec, ROUGH_MBIT, Trouble::Nothing, |outcome| outcome.sent_payloads);
        let vs_gossip = |mbit| {
            let honest = |codec| p99(codec, mbit, Trouble::Nothing);
            ratios(&honest(Gossip), &honest(ReedSolomon))
        };
        let slowdown = ratios(
            &p99(ReedSolomon, ROUGH_MBIT, Trouble::Polluted),
            &p99(ReedSolomon, ROUGH_MBIT, Trouble::Nothing),
        );
        let figure = |name: &str, values, aim| match self.size == SIZES[0].0 {
            true => Figure::new(name, "ratio", values).aim(aim),
            false => Figure::new(format!("{name}.{}", self.size), "ratio", values),
        };
        vec![
            figure("p99_vs_gossip.50mbit", vs_gossip(50), Aim::AtLeast(2.2)),
            figure("p99_vs_gossip.200mbit", vs_gossip(200), Aim::AtLeast(1.5)),
            figure("bytes_vs_gossip", ratios(&sent(ReedSolomon), &sent(Gossip)), Aim::AtMost(1.0)),
            figure("polluted_slowdown", slowdown, Aim::AtMost(1.2)),
        ]
    }
}

fn ratios(of: &[f64], to: &[f64]) -> Vec<f64> {
    of.iter().zip(to).map(|(of, to)| of / to).collect()
}

fn notes() -> Vec<String> {
    [
        "fabric: 60 nodes with the network that ships as well, on a wire in memory, and the same scenario event by event (p50_vs_events).",
        "The rest: 2,000 nodes with the mesh that ships (4 validators, 8 connections out of each), places with 10 to 150 ms between them, down-links twice as",
        "wide as up-links, one processor a node, with the costs of the codecs as measured at the start. p50, p99: from the certificate to the body at honest",
        "fullnodes. sent: bytes that one sends, in payloads. pulls: times that one asks. fetched: those that had to fetch the body. silent, polluted: 10 % of the nodes.",
    ]
    .map(str::to_owned)
    .to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns round costs, so that a test does not depend on the machine.
    fn costs(codec: CodecKind) -> Costs {
        let (chunk_bytes, chunks_needed) = match codec {
            CodecKind::Gossip => (121_600, 1),
            CodecKind::ReedSolomon => (8_270, 15),
            CodecKind::Rlnc => (12_704, 10),
        };
        Costs {
            encode_us: 1_000.0,
            accept_us: 10.0,
            next_us: 20.0,
            verify_us: (1_000.0, 100.0),
            decode_us: 500.0,
            vouch_us: 1_000.0,
            open_us: 100.0,
            chunk_bytes,
            chunks_needed,
        }
    }

    /// Goal: with every codec all nodes get the body by the mesh alone, and the same seed gives the same run.
    #[test]
    fn a_batch_reaches_all() {
        for &codec in CodecKind::ALL {
            let scenario = Scenario::honest(120, codec, 121_600, 50, 3);
            let outcome = play(&scenario, &costs(codec)).unwrap();
            assert_eq!((outcome.fetched, outcome.wronged), (0, 0), "{codec}: {outcome:?}");
            assert!(outcome.sent_payloads < 8.5, "{codec}: {outcome:?}");
            assert_eq!(outcome, play(&scenario, &costs(codec)).unwrap(), "{codec}");
        }
    }

    /// Goal: on the fabric, the same seed sends the same datagrams at the same times, and another seed sends others.
    #[test]
    fn the_same_seed_sends_the_same_packets() {
        let trace = |seed| {
            let scenario = Scenario::honest(16, CodecKind::ReedSolomon, 121_600, 50, seed);
            let run = run_on_fabric(&scenario, Some(CodecKind::ReedSolomon), &costs(CodecKind::ReedSolomon))
                .unwrap();
            assert_eq!((run.missing, run.gave_up), (0, 0), "{run:?}");
            run.trace
        };
        assert_eq!(trace(1), trace(1));
        assert_ne!(trace(1), trace(2));
    }

    /// Goal: the event simulation is accurate: its median is within a quarter of the fabric's.
    #[test]
    fn the_fabric_agrees_with_the_event_simulation() {
        let agree = |codec| {
            let scenario = Scenario::honest(30, codec, 121_600, 50, 7);
            let events = play(&scenario, &costs(codec)).unwrap();
            let fabric = run_on_fabric(&scenario, Some(codec), &costs(codec)).unwrap();
            let ratio = fabric.p50_ms / events.p50_ms;
            assert!((0.75..1.25).contains(&ratio), "{codec}: {events:?} {fabric:?}");
        };
        std::thread::scope(|scope| {
            CodecKind::ALL.iter().copied().for_each(|codec| drop(scope.spawn(move || agree(codec))));
        });
    }

    /// Goal: with a tenth of silent nodes, or of polluters, all the others get the body by the mesh. Only forgers are
    /// cut off.
    #[test]
    fn a_tenth_of_bad_nodes_changes_little() {
        for &codec in CodecKind::ALL {
            let honest = Scenario::honest(120, codec, 121_600, 50, 5);
            let silent = play(&Scenario { silent: 0.1, ..honest.clone() }, &costs(codec)).unwrap();
            assert_eq!((silent.fetched, silent.wronged), (0, 0), "{codec}: {silent:?}");
            let polluted = play(&Scenario { polluters: 0.1, ..honest }, &costs(codec)).unwrap();
            assert_eq!((polluted.fetched, polluted.wronged), (0, 0), "{codec}: {polluted:?}");
            assert!(polluted.cut_off >= 1, "{codec}: {polluted:?}");
        }
    }
}
