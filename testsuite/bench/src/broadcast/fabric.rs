//! Sixty nodes with the real network and mesh, on a wire in memory: each codec beside flooding, which the mesh
//! replaced.

use anyhow::Result;
use slipstream_coding::CodecKind;

use super::{
    super::{Aim, Figure, harness::ratios},
    SIZES,
};
use slipnet::{cpu, progress::Progress};
use slipnet_simulation::sim::broadcast::{Costs, Outcome, Run, Scenario, play, run_on_fabric};

const NODES: usize = 60;
/// The up-link of each node, in Mbit/s.
const UPLINK_MBIT: u64 = 50;

/// One way to broadcast and one size, with a sample for each seed.
struct Row {
    /// The codec; `None` for flooding.
    codec: Option<CodecKind>,
    size: &'static str,
    runs: Vec<Run>,
    /// CPU milliseconds of this process for each run.
    cpu_ms: Vec<f64>,
    /// The same runs in the event simulation.
    events: Vec<Outcome>,
}

pub(super) fn figures(seeds: u64, progress: Progress) -> Result<Vec<Figure>> {
    let mut rows = Vec::new();
    for (size, bytes) in SIZES {
        for codec in [None].into_iter().chain(CodecKind::ALL.iter().copied().map(Some)) {
            rows.push(Row::measure(codec, (size, bytes), seeds, progress)?);
        }
    }
    let mut figures: Vec<_> = rows.iter().flat_map(Row::figures).collect();
    let of = |codec, value: fn(&Run) -> f64| {
        let row = rows.iter().find(|row| (row.codec, row.size) == (codec, "1m"));
        row.map(|row| row.runs.iter().map(value).collect::<Vec<_>>()).unwrap_or_default()
    };
    let shipped = Some(slipstream_broadcast::BroadcastConfig::default().codec);
    let p99 = ratios(&of(None, |run| run.p99_ms), &of(shipped, |run| run.p99_ms));
    figures.push(Figure::new("mesh_p99_vs_flood", "ratio", p99).aim(Aim::AtLeast(1.5)));
    let bytes = ratios(&of(shipped, |run| run.sent_payloads), &of(None, |run| run.sent_payloads));
    figures.push(Figure::new("mesh_bytes_vs_flood", "ratio", bytes).aim(Aim::AtMost(0.5)));
    Ok(figures)
}

impl Row {
    fn measure(
        codec: Option<CodecKind>,
        (size, bytes): (&'static str, usize),
        seeds: u64,
        progress: Progress,
    ) -> Result<Row> {
        let kind = codec.unwrap_or(CodecKind::Gossip);
        let costs = Costs::measure(kind, bytes)?;
        let mut row = Row { codec, size, runs: Vec::new(), cpu_ms: Vec::new(), events: Vec::new() };
        for seed in 0..seeds {
            progress.step(&format!("{}, {size}, {NODES} nodes, seed {seed}", row.name()));
            let scenario = Scenario::honest(NODES, kind, bytes, UPLINK_MBIT, seed);
            let before = cpu::of_this_process();
            let run = run_on_fabric(&scenario, codec, &costs)?;
            let cpu_ms = (cpu::of_this_process() - before) * 1e3;
            row.cpu_ms.push(cpu_ms / (NODES * run.batches) as f64);
            row.runs.push(run);
            if codec.is_some() {
                row.events.push(play(&scenario, &costs)?);
            }
        }
        Ok(row)
    }

    fn name(&self) -> &'static str {
        self.codec.map_or("flood", CodecKind::name)
    }

    fn figures(&self) -> Vec<Figure> {
        let mut figures = Vec::new();
        let mut add = |what: &str, unit, values| {
            figures.push(Figure::new(format!("fabric.{}.{what}.{}", self.name(), self.size), unit, values));
        };
        let of = |value: fn(&Run) -> f64| self.runs.iter().map(value).collect::<Vec<_>>();
        add("p50", "ms", of(|run| run.p50_ms));
        add("p99", "ms", of(|run| run.p99_ms));
        add("sent", "payloads", of(|run| run.sent_payloads));
        add("lost", "%", of(|run| run.lost * 100.0));
        add("cpu", "ms", self.cpu_ms.clone());
        if self.codec.is_some() {
            add("coding", "ms", of(|run| run.busy_ms));
            add("pulls", "count", of(|run| run.pulls));
            add("gave_up", "batches", of(|run| run.gave_up as f64));
            let events: Vec<_> = self.events.iter().map(|outcome| outcome.p50_ms).collect();
            add("p50_vs_events", "ratio", ratios(&of(|run| run.p50_ms), &events));
        }
        figures
    }
}
