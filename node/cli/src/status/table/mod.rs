//! A [`NodeStatus`] as a table: faults come first, and each line names its value.

use std::net::SocketAddr;

use slipstream_consensus::{ConsensusStatus, Conviction, EvidenceKind, PeerStanding};
use slipstream_status::{
    DiskStatus, DiskUse, EpochStatus, NodeStatus, ProcessStatus,
    health::{Blocker, Health, SilenceStatus},
    speed::SpeedStatus,
};

use super::{
    peers, sync,
    units::{age, bytes, duration, is_ahead},
};
use crate::rows::Rows;

/// Formats the status for people.
pub(super) fn table(status: &NodeStatus) -> String {
    let mut rows = Rows::default();
    sync::alarm(&mut rows, &status.sync);
    rows.add("client", Some(status.client.clone()));
    rows.add("chain", Some(status.chain_id.to_string()));
    rows.add("genesis", Some(status.genesis.to_string()));
    rows.add("role", Some(status.role.name().to_owned()));
    rows.add("peer", Some(peers::named(status.name.as_ref(), &status.peer_address)));
    rows.add("", reach_hint(&status.peer_address));
    rows.add("health", Some(health(&status.health)));
    if let Some(SilenceStatus { text, way_out, .. }) = &status.health.silence {
        rows.add("  silence", Some(text.clone()));
        rows.add("", Some(way_out.clone()));
    }
    let told = status.health.head_age_seconds.map_or_else(String::new, |seconds| {
        let old = if is_ahead(seconds) { "" } else { " old" };
        format!(", {}{old}", age(seconds))
    });
    rows.add("head", Some(format!("{}{told}", status.head.number)));
    rows.add("  digest", Some(status.head.digest.to_string()));
    rows.add("  state root", Some(status.head.state_root.to_string()));
    rows.add("waypoint", Some(status.waypoint.to_string()));
    rows.add("epoch", Some(epoch(&status.epoch)));
    rows.add("rules", Some(status.rules.fork.name().to_owned()));
    let begins = status.rules.next_begins.iter().map(|begins| format!(", {begins}")).collect::<String>();
    rows.add("  next", status.rules.next.as_ref().map(|fork| format!("{fork}{begins}")));
    for fork in &status.rules.unknown {
        rows.add(
            "  unknown",
            Some(format!(
                "{fork}, according to peers' schedules: this node stops there; extend its `schedule`"
            )),
        );
    }
    sync::describe(&mut rows, status);
    if let Some(status) = &status.consensus {
        consensus(&mut rows, status);
    }
    let pool = &status.pool;
    rows.add("pool", Some(format!("{} executable, {} waiting", pool.pending, pool.queued)));
    rows.add("process", Some(process(&status.process)));
    if let Some(status) = &status.speed {
        speed(&mut rows, status);
    }
    rows.add("disk", status.disk.as_ref().map(disk));
    rows.add("  used", status.disk.as_ref().and_then(|disk| disk.used.as_ref()).map(disk_use));
    rows.add("snapshots", Some(snapshots(status)));
    peers::describe(&mut rows, status);
    rows.0
}

/// Adds the current primary, the next batch's progress, and when validators were last heard.
fn consensus(rows: &mut Rows, status: &ConsensusStatus) {
    let ConsensusStatus { index, validators, quorum, view, primary, .. } = status;
    let mut said = format!("validator {} of {validators}, counted from 0", status.member(*index));
    for (is, text) in [
        (status.is_primary, ", the primary"),
        (status.silence.is_some(), ", SIGNS NOTHING"),
        (status.complains, ", wants another primary"),
    ] {
        said.push_str(if is { text } else { "" });
    }
    rows.add("consensus", Some(said));
    let begins = if status.changing { ", which has not begun" } else { "" };
    rows.add("  view", Some(format!("{view} of primary {}{begins}", status.member(*primary))));
    rows.add(
        "  voting",
        status.voting.map(|votes| {
            let (number, prepares, commits) = (votes.number, votes.prepares, votes.commits);
            format!("batch {number}: {prepares} prepare it, {commits} commit to it, {quorum} decide")
        }),
    );
    for (index, peer) in status.peers.iter().enumerate() {
        rows.add(if index == 0 { "  others" } else { "" }, Some(standing(peer)));
    }
    let divergences = Some(status.divergences).filter(|times| *times > 0);
    rows.add("  diverged", divergences.map(|times| format!("{times} times from what the others agreed on")));
    rows.add("  refused", Some(format!("{} messages and orders", status.refused)));
    for lie in &status.evidence {
        rows.add("  evidence", Some(conviction(lie, &status.member(lie.author))));
    }
}

/// Describes another validator, and when it was last heard.
fn standing(PeerStanding { index, key, name, heard_ms_ago, said, unwanted }: &PeerStanding) -> String {
    let who = format!("{index} {}", peers::named(name.as_ref(), key));
    let ago = |ms: u64| format!("{} ago", duration(ms as f64 / 1e3));
    let Some(heard) = heard_ms_ago else {
        return format!("{who}: NOT HEARD since this node began to validate");
    };
    let said = said.as_ref().map_or_else(String::new, |said| {
        let wants = if said.complains { ", wants another primary" } else { "" };
        let silence = said.silence.map_or_else(String::new, |silence| format!(", SIGNS NOTHING: {silence}"));
        format!(
            "; said {}: in view {}, decided {}{wants}{silence}",
            ago(said.said_ms_ago),
            said.view,
            said.decided
        )
    });
    let unwanted = match unwanted {
        0 => String::new(),
        orders => format!("; {orders} unwanted orders"),
    };
    format!("{who}: heard {}{said}{unwanted}", ago(*heard))
}

fn conviction(Conviction { kind, number, view, .. }: &Conviction, author: &str) -> String {
    let kind = match kind {
        EvidenceKind::Orders => "orders",
        EvidenceKind::Prepares => "prepares",
        EvidenceKind::Commits => "commits",
    };
    format!("validator {author} signed two {kind} for batch {number} in view {view}: /v1/consensus/evidence")
}

/// The number of certifying validators, and the size of a quorum.
fn epoch(EpochStatus { number, validators, quorum, .. }: &EpochStatus) -> String {
    format!("{number}, {quorum} of {} validators certify a batch", validators.len())
}

/// Whether the node is ready, and if not, why.
fn health(health: &Health) -> String {
    let Some(Blocker { text, retry_ms, .. }) = &health.blocker else { return "ready".into() };
    let retry = match retry_ms {
        None => String::new(),
        Some(0) => "; it is trying now".into(),
        Some(ms) => format!("; it tries again in {}", duration(*ms as f64 / 1e3)),
    };
    format!("NOT READY: {text}{retry}")
}

fn process(process: &ProcessStatus) -> String {
    let ProcessStatus { pid, threads, open_files, .. } = process;
    let files = match process.open_files_max {
        Some(most) => format!("{open_files} of {most} open files"),
        None => format!("{open_files} open files"),
    };
    format!(
        "{pid}, up {}, {} of memory, {} of CPU time, {threads} threads, {files}",
        duration(process.uptime_seconds as f64),
        bytes(process.memory_bytes as f64),
        duration(process.cpu_seconds),
    )
}

/// Adds the machine's speed per second for each kind of work, slowest first, and whether the chain may demand more.
fn speed(rows: &mut Rows, status: &SpeedStatus) {
    let mut all: Vec<_> = status.gas_per_second.iter().collect();
    all.sort_by_key(|(_, gas)| *gas);
    let all: Vec<_> = all.iter().map(|(work, gas)| format!("{} {}", work.name(), gas / 1_000_000)).collect();
    rows.add("Mgas/s", Some(all.join(", ")));
    rows.add("", status.problem().map(|problem| format!("TOO SLOW: {problem}")));
}

/// The free space on the database's file system, and the limit below which the node stops.
fn disk(DiskStatus { free_bytes, min_bytes, free_inodes, .. }: &DiskStatus) -> String {
    let inodes = free_inodes.iter().map(|free| format!("; {free} inodes free")).collect::<String>();
    match min_bytes >> 20 {
        0 => format!("{} MiB free{inodes}", free_bytes >> 20),
        min => format!("{} MiB free, stops below {min} MiB{inodes}", free_bytes >> 20),
    }
}

/// The node's disk usage.
fn disk_use(used: &DiskUse) -> String {
    let part = |bytes_used: u64| bytes(bytes_used as f64);
    format!(
        "{}: database {}, snapshots {} beside it, journal {}, other {}",
        part(used.total_bytes),
        part(used.database_bytes),
        part(used.snapshots_bytes),
        part(used.journal_bytes),
        part(used.other_bytes)
    )
}

fn snapshots(status: &NodeStatus) -> String {
    let numbers: Vec<_> = status.snapshots.iter().map(ToString::to_string).collect();
    match numbers.len() {
        0 => "none is kept".into(),
        1 => format!("1 is kept, of batch {}", numbers[0]),
        kept => format!("{kept} are kept, of batches {}", numbers.join(", ")),
    }
}

/// Advice about an address that stands for all addresses of the machine.
fn reach_hint(peer: &str) -> Option<String> {
    let address: SocketAddr = peer.split_once('@')?.1.parse().ok()?;
    let ip = address.ip();
    ip.is_unspecified()
        .then(|| format!("for network.peers of others, replace {ip} with this machine's reachable IP"))
}

#[cfg(test)]
mod tests;
