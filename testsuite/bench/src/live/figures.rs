//! The aims of the figures, and the notes that explain them.

use super::Plan;
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

const FLOODS: &str = "floods: signed transfers of 500 accounts in arrays of 50 over ten connections, at most 5,000 of \
    them uncommitted; tps: between the commits of the first and of the last tenth; 4v, 7v and 1v_1f \
    have a fullnode, 1v and 4v_0f none";
const RATES: &str = "rates: p50 and p99 from due to seen in a batch of the node that takes the transfers, which is \
    the primary and stays it; idle: 100 a second one by one; sustained: p99 at most 1 s, the highest \
    tenth of a flood's rate; third, half, nine_tenths: of that; cpu_us: of a transfer at half; \
    validator: one that neither takes nor orders it; replay_cpu_us: a fullnode that executes the \
    whole chain from its genesis, its start included; floor_cpu_us: 100 batches of 150 transfers \
    recovered, executed, rooted, written and synced in one process; batch_cpu_ms, \
    batch_bytes_written: idle, at such a validator; syncs_per_batch, bytes_sent (all datagrams, a \
    transfer), bytes_written_vs_body (log, flushes and compactions over stored bodies, receipts and \
    deltas): at nine tenths";
const LINKS: &str = "links: one flood and the idle load of four validators and a fullnode, each so far from the \
    others one way";
const MIXES: &str = "mixes: four validators and a fullnode; 98 % in time and p99 at most 1 s, by `slipnet load`, \
    offered to all validators in turns";

/// Returns the notes that explain the parts' figures.
pub(super) fn notes(parts: &[&str], figures: &[Figure], plan: &Plan, is_quick: bool) -> Vec<String> {
    let genesis = format!(
        "genesis_cost: CPU of a batch at a validator and its fullnode, of the idle load, with {} accounts in the \
         genesis over a thousand",
        plan.accounts
    );
    let of_part = |part: &&str| match *part {
        "floods" => FLOODS.to_owned(),
        "rates" => RATES.to_owned(),
        "links" => LINKS.to_owned(),
        "mixes" => MIXES.to_owned(),
        _ => genesis.clone(),
    };
    let mut notes: Vec<String> = parts.iter().map(of_part).collect();
    notes.push("nodes have what `init` writes; generator and chain share the machine".to_owned());
    if parts.contains(&"floods") && figures.iter().all(|figure| figure.name() != "flood_tps.geth") {
        notes.push("geth is not installed: `./x tools` compiles it".to_owned());
    }
    if is_quick {
        notes.push("--quick: a look; few transfers, and nodes that still measure their machine".to_owned());
    }
    notes
}
