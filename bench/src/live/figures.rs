//! The aims of figures, and what they mean.

use crate::{Aim, Figure};

pub(super) fn aimed(figure: Figure) -> Figure {
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
        "bytes_written_vs_body" => Aim::AtMost(3.0),
        "genesis_cost" => Aim::AtMost(1.02),
        _ => return figure,
    };
    figure.aim(aim)
}

pub(super) fn notes(figures: &[Figure], is_quick: bool) -> Vec<String> {
    let mut notes = vec![
        "the same generator for all but mixes: signed transfers of 500 accounts in arrays of 50 over ten connections, at most 5,000 of them \
         uncommitted in a flood; generator and chain share the machine; nodes have what `init` writes; 4v, 7v and 1v_1f have a fullnode, 1v and \
         4v_0f none"
            .to_owned(),
        "tps: between the commits of the first and of the last tenth; p50, p99: from due to seen in a batch of the node that takes them, which is the \
         primary; idle: 100 a second one by one; sustained: p99 at most 1 s, the highest tenth of the flood's rate; third, half, nine_tenths: of that; \
         sustained of mixes: 98 % in time and p99 at most 1 s, by `slipnet load`, offered to all validators"
            .to_owned(),
        "cpu_us: of a transfer at half of the sustained rate; validator: one that neither takes nor orders it; replay_cpu_us: a fullnode that executes \
         the whole chain from its genesis, its start included; floor_cpu_us: 100 batches of 150 transfers recovered, executed, rooted, written and \
         synced in one process; batch_cpu_ms and batch_bytes_written: of the idle load, at such a validator; at nine tenths: syncs_per_batch, of the \
         store's log; bytes_sent, of all datagrams a transfer; bytes_written_vs_body, of the log over stored bodies, receipts and deltas"
            .to_owned(),
        "genesis_cost: CPU of a batch at a validator and its fullnode, of the idle load, with a million accounts in the genesis over a thousand".to_owned(),
    ];
    let has_floods = figures.iter().any(|figure| figure.name().starts_with("flood_tps.1v"));
    if has_floods && figures.iter().all(|figure| figure.name() != "flood_tps.geth") {
        notes.push("geth is not installed: `./x tools` compiles it".to_owned());
    }
    if is_quick {
        notes.push(
            "--quick: a look at floods and rates; few transfers, and nodes that still measure their machine"
                .to_owned(),
        );
    }
    notes
}
