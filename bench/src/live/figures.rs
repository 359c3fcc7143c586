//! The figures, with the aims of those that have one.

use super::{KINDS, Loaded, Measured};
use crate::{Aim, Figure, harness::ratios};

pub(super) fn figures(measured: &Measured) -> Vec<Figure> {
    let mut figures = Vec::new();
    let [geth, one, four] = &measured.floods;
    for ((name, _), tps) in KINDS.iter().zip(&measured.floods) {
        if !tps.is_empty() {
            figures.push(Figure::new(format!("flood_tps.{name}"), "1/s", tps.clone()));
        }
    }
    if !geth.is_empty() {
        figures.push(Figure::new("tps_vs_geth.4v", "ratio", ratios(four, geth)));
        figures.push(Figure::new("tps_vs_geth.1v", "ratio", ratios(one, geth)));
    }
    figures.extend(measured.sustained_tps.map(|tps| Figure::new("sustained_tps.4v", "1/s", vec![tps])));
    figures.push(Figure::new("replay_cpu_us", "us", measured.replay_us.clone()));
    type Part = fn(&Loaded) -> f64;
    let roles: [(&str, Part); 3] = [
        ("validator", |loaded| 1e6 * loaded.validator.cpu_s / loaded.transfers),
        ("primary", |loaded| 1e6 * loaded.primary.cpu_s / loaded.transfers),
        ("follower", |loaded| 1e6 * loaded.follower.cpu_s / loaded.transfers),
    ];
    for (role, cpu_us) in roles {
        let cpu_us: Vec<f64> = measured.half.iter().map(cpu_us).collect();
        figures.push(Figure::new(
            format!("cpu_vs_replay.{role}"),
            "ratio",
            ratios(&cpu_us, &measured.replay_us),
        ));
        figures.push(Figure::new(format!("cpu_us.{role}"), "us", cpu_us));
    }
    let loads = [
        ("idle", &measured.idle),
        ("third", &measured.third),
        ("half", &measured.half),
        ("nine_tenths", &measured.nine_tenths),
    ];
    for (name, loads) in loads {
        let mut add = |what: &str, unit, of: Part| {
            figures.push(Figure::new(format!("{what}.{name}"), unit, loads.iter().map(of).collect()));
        };
        add("p50_ms", "ms", |loaded| loaded.outcome.quantile_ms(0.5));
        add("p99_ms", "ms", |loaded| loaded.outcome.quantile_ms(0.99));
        add("transfers_per_batch", "1", |loaded| loaded.transfers / loaded.outcome.batches as f64);
    }
    let of_idle = |of: Part| measured.idle.iter().map(of).collect();
    let cpu_ms = of_idle(|loaded| 1e3 * loaded.validator.cpu_s / loaded.batches);
    figures.push(Figure::new("batch_cpu_ms", "ms", cpu_ms));
    let bytes = of_idle(|loaded| loaded.validator.bytes_written / loaded.batches);
    figures.push(Figure::new("batch_bytes_written", "bytes", bytes));
    let syncs = |loaded: &Loaded| loaded.validator.syncs / loaded.batches;
    figures.push(Figure::new("syncs_per_batch", "1", measured.nine_tenths.iter().map(syncs).collect()));
    figures.into_iter().map(aimed).collect()
}

fn aimed(figure: Figure) -> Figure {
    let aim = match figure.name() {
        "tps_vs_geth.4v" => Aim::AtLeast(1.5),
        "tps_vs_geth.1v" => Aim::AtLeast(5.0),
        "cpu_vs_replay.validator" => Aim::AtMost(1.3),
        "cpu_vs_replay.primary" => Aim::AtMost(1.8),
        "cpu_vs_replay.follower" => Aim::AtMost(1.1),
        "p50_ms.idle" => Aim::AtMost(15.0),
        "p99_ms.idle" => Aim::AtMost(50.0),
        "p50_ms.third" => Aim::AtMost(40.0),
        "p99_ms.third" => Aim::AtMost(120.0),
        "p99_ms.nine_tenths" => Aim::AtMost(500.0),
        "batch_cpu_ms" => Aim::AtMost(0.5),
        "batch_bytes_written" => Aim::AtMost(8_192.0),
        "syncs_per_batch" => Aim::AtMost(2.0),
        _ => return figure,
    };
    figure.aim(aim)
}

pub(super) fn notes(measured: &Measured, is_quick: bool) -> Vec<String> {
    let mut notes = vec![
        "the same generator for all: signed transfers of 500 accounts in arrays of 50 over ten connections, at most 5,000 of them uncommitted in a \
         flood; generator and chain share the machine; nodes have what `init` writes"
            .to_owned(),
        "tps: between the commits of the first and of the last tenth; p50, p99: from due to seen in a batch of the node that takes them, which is the \
         primary; idle: 100 a second one by one; sustained: p99 at most 1 s, the highest tenth of the flood's rate; third, half, nine_tenths: of that"
            .to_owned(),
        "cpu_us: of a transfer at half of the sustained rate; validator: one that neither takes nor orders it; replay_cpu_us: a fullnode that executes \
         the whole chain from its genesis, its start included; batch_cpu_ms and batch_bytes_written: of the idle load, at such a validator; syncs_per_batch: there, of the store's log, at nine \
         tenths"
            .to_owned(),
    ];
    if measured.floods[0].is_empty() {
        notes.push("geth is not installed: `./x tools` compiles it".to_owned());
    }
    if is_quick {
        notes.push("--quick: a look; few transfers, and nodes that still measure their machine".to_owned());
    }
    notes
}
