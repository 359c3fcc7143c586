//! The figures of `slipnet bench replay`: the measurements beside their floor, and the aims.

use super::{
    Plan, Samples,
    floor::Floor,
    follow::{Followed, Memory, Row},
    propose::Proposed,
    traffic::Traffic,
};
use crate::{Aim, Figure, Report, harness::ratios};

pub(super) fn report(plan: &Plan, rows: u64, samples: &[(Traffic, Samples)]) -> Report {
    let mut figures = Vec::new();
    for (traffic, samples) in samples {
        // The aims are for ERC-20; the same figures of other traffic have that traffic's name as a suffix.
        let suffix = if *traffic == Traffic::Erc20 { String::new() } else { format!(".{}", traffic.name()) };
        figures.extend(compared(samples, *traffic == Traffic::Erc20, &suffix));
    }
    for (traffic, samples) in samples {
        figures.extend(of_traffic(traffic.name(), samples));
    }
    Report { bench: "replay", runs: plan.runs, figures, notes: notes(plan, rows) }
}

fn of(memory: Memory, hints: &'static str, predict: &'static str) -> Row {
    Row { memory, hints, predict }
}

/// Returns the figures that have aims.
fn compared(samples: &Samples, has_aims: bool, suffix: &str) -> Vec<Figure> {
    let seconds = |row: Row| -> Option<Vec<f64>> {
        Some(samples.rows.get(&row)?.iter().map(|run| run.seconds).collect())
    };
    let plain = of(Memory::Cold, "off", "off");
    let in_memory = of(Memory::Warm, "off", "off");
    let keys = of(Memory::Cold, "keys", "off");
    let mut figures = Vec::new();
    let mut add = |name: &str, aim: Aim, values: Option<Vec<f64>>| {
        let Some(values) = values.filter(|values| !values.is_empty()) else { return };
        let figure = Figure::new(format!("{name}{suffix}"), "ratio", values);
        figures.push(if has_aims { figure.aim(aim) } else { figure });
    };
    let quotient = |of: Row, to: Row| Some(ratios(&seconds(of)?, &seconds(to)?));
    add("speedup.hints_cold", Aim::AtLeast(4.0), quotient(plain, keys));
    add("speedup.values_cold", Aim::AtLeast(6.0), quotient(plain, of(Memory::Cold, "values", "off")));
    add("speedup.predict_cold", Aim::AtLeast(2.5), quotient(plain, of(Memory::Cold, "off", "full")));
    let hinted_in_memory = of(Memory::Warm, "keys", "off");
    let floors = || {
        let cpu = seconds(in_memory)?.into_iter().zip(seconds(hinted_in_memory)?);
        let cpu = cpu.map(|(plain, hinted)| plain.min(hinted));
        Some(cpu.zip(&samples.floors).map(|(cpu, read)| cpu.max(read.seconds)).collect::<Vec<_>>())
    };
    let over_floor = || Some(ratios(&seconds(keys)?, &floors()?));
    add("time_vs_floor.cold", Aim::AtMost(1.2), over_floor());
    add("cost_warm", Aim::AtMost(1.02), quotient(hinted_in_memory, in_memory));
    let parallel = of(Memory::Warm, "conflicts", "off");
    add("parallel_warm", Aim::AtLeast(1.25), quotient(hinted_in_memory, parallel));
    let made = |predict| {
        let runs = samples.proposed.get(&of(Memory::Cold, "keys", predict))?;
        Some(runs.iter().map(Proposed::tps).collect::<Vec<_>>())
    };
    add(
        "proposer_cold",
        Aim::AtLeast(3.0),
        made("full").zip(made("off")).map(|(full, off)| ratios(&full, &off)),
    );
    let stalled = samples.rows.get(&keys).map(|runs| runs.iter().map(Followed::stall_share).collect());
    add("stall_share", Aim::AtMost(0.1), stalled);
    figures
}

fn of_traffic(name: &str, samples: &Samples) -> Vec<Figure> {
    let Samples { rows, proposed, floors, keys, transactions, batches, hint_bytes } = samples;
    let (transactions, keys) = (*transactions as f64, *keys as f64);
    let mut figures = Vec::new();
    let mut add = |what: &str, unit, values: Vec<f64>| {
        figures.push(Figure::new(format!("{name}.{what}"), unit, values));
    };
    add("keys_per_tx", "keys", vec![keys / transactions]);
    for (kind, bytes) in ["keys", "values"].into_iter().zip(hint_bytes).filter(|(_, bytes)| **bytes > 0) {
        add(&format!("hint_bytes_per_batch.{kind}"), "bytes", vec![*bytes as f64 / *batches as f64]);
    }
    let floor = |value: &dyn Fn(&Floor) -> f64| floors.iter().map(value).collect();
    if !floors.is_empty() {
        add("floor.read_seconds", "s", floor(&|it| it.seconds));
        add("floor.keys_per_s", "1/s", floor(&|it| keys / it.seconds));
        add("floor.cpu_us_per_key", "us", floor(&|it| 1e6 * it.cpu_s / keys));
        add("floor.threads", "1", floor(&|it| it.threads as f64));
        add("floor.keys_at_once", "1", floor(&|it| it.at_once as f64));
    }
    for (row, runs) in proposed {
        let mut add = |what: &str, unit, value: &dyn Fn(&Proposed) -> f64| {
            add(&format!("proposer.{}.{what}", row.name()), unit, runs.iter().map(value).collect());
        };
        add("tps", "1/s", &Proposed::tps);
        add("cpu_us_per_tx", "us", &Proposed::cpu_us_per_tx);
    }
    for (row, runs) in rows {
        let row = row.name();
        let mut add = |what: &str, unit, value: &dyn Fn(&Followed) -> f64| {
            add(&format!("{row}.{what}"), unit, runs.iter().map(value).collect());
        };
        add("tps", "1/s", &|run| transactions / run.seconds);
        add("cpu_us_per_tx", "us", &|run| 1e6 * run.cpu_s / transactions);
        add("stall_share", "ratio", &Followed::stall_share);
        add("stalls_per_tx", "1", &|run| run.stalls / transactions);
        add("execute_share", "ratio", &|run| run.executing_s / run.seconds);
        add("disk_kib_per_key", "KiB", &|run| run.disk_bytes / 1024.0 / keys);
        add("bytes_per_tx", "bytes", &|run| run.bytes / transactions);
    }
    figures
}

fn notes(plan: &Plan, rows: u64) -> Vec<String> {
    let mut notes = vec![
        format!(
            "a follower: a fresh process in mode replay, on a state of {rows} rows of its own, from the first summary of its peer (a process \
             that serves the chain, on the same machine) to the head; rows are MEMORY.HINTS_PREDICT, by executor.hints and \
             executor.predict; programs of predictors are learned during the run"
        ),
        "cold: direct_reads, and a block cache for index, filters and 64 MiB; warm: files are in the operating system's cache".to_owned(),
        "floor: all keys of the chain, known from the beginning, by the fastest of point reads (16, 64 threads) and multi-gets (2, 4, 8 threads; \
         io_uring), in a process that does nothing else; time_vs_floor is against the longer of that and the faster one of warm.off_off and \
         warm.keys_off; parallel_warm is warm.conflicts_off against warm.keys_off, which has the same hints and one thread"
            .to_owned(),
        "proposer: the chain's one validator, a fresh process whose journal holds the transactions of half of the batches when it starts; from its \
         first batch to its last, of 250 transactions each; proposer_cold is reading ahead what predictors foretell of the pool against not"
            .to_owned(),
        "stall_share: of the seconds of the stage execute, those in which executing threads waited for reads of 12 us or longer".to_owned(),
    ];
    if plan.runs < 3 {
        notes.push("--quick: a look, on a small state".to_owned());
    }
    notes
}
