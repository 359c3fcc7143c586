//! The screen's sections about a status: those of the node's page, in the same words.

use ratatui::{style::Style, text::Line};
use slipstream_broadcast::{CodecStatus, DECODED_MS};
use slipstream_consensus::{ConsensusStatus, PeerStanding};
use slipstream_status::{NodeStatus, health::HEARD_WITHIN_MS};
use slipstream_sync::{Phase, work::HintUse};

use super::lines::{Cell, Lines};
use crate::status::{
    backfill, past_states,
    units::{age, bytes, count, duration, ways},
};

/// A cell in the default style.
pub(super) fn plain(text: impl ToString, width: usize) -> Cell {
    (text.to_string(), width, Style::new())
}

/// The name of a key, or the key itself if it has none.
pub(super) fn called(name: Option<&String>, key: impl ToString) -> String {
    name.cloned().unwrap_or_else(|| short(key))
}

/// A key or a digest, short enough for a line and long enough to be distinguished.
pub(super) fn short(key: impl ToString) -> String {
    let key = key.to_string();
    match key.len() {
        0..=20 => key,
        len => format!("{}…{}", key.get(..10).unwrap_or(&key), key.get(len - 6..).unwrap_or_default()),
    }
}

/// Milliseconds, as a duration.
pub(super) fn ms(ms: u64) -> String {
    duration(ms as f64 / 1e3)
}

fn share(part: u64, whole: u64) -> String {
    match whole {
        0 => "none yet".into(),
        whole => format!("{:.0} %", 100.0 * part as f64 / whole as f64),
    }
}

pub(super) fn progress(status: &NodeStatus, width: usize) -> Vec<Line<'static>> {
    let (sync, mut lines) = (&status.sync, Lines::new("Progress", width));
    let bound = sync.bottleneck.map_or_else(String::new, |bound| format!(", bound by {bound}"));
    lines.fact("sync", Some(format!("{} (mode {}){bound}", sync.phase, sync.mode.name())));
    lines.fact("because", Some(sync.reason.clone()).filter(|reason| !reason.is_empty()));
    lines.fact("ways", ways(&sync.plan.ways));
    let waiting = sync.waiting.as_ref().filter(|_| sync.phase != Phase::Idle);
    lines.fact("waiting", waiting.map(|waiting| waiting.reason.clone()));
    lines.fact("behind", Some(format!("{} batches", status.health.behind_batches)));
    let pool = &status.pool;
    let rate = count(sync.transactions_per_second);
    lines.fact(
        "transactions",
        Some(format!("{rate}/s; {} executable and {} waiting in the pool", pool.pending, pool.queued)),
    );
    let restore = sync.snapshot.as_ref();
    lines
        .fact("restore", restore.map(|of| format!("of batch {}, {} rows", of.number, count(of.rows as f64))));
    lines.fact("history", sync.backfill.as_ref().map(backfill));
    lines.fact("past states", sync.past_states.as_ref().map(past_states));
    lines.fact("head", Some(status.head.digest.to_string()));
    lines.fact("state root", Some(status.head.state_root.to_string()));
    lines.fact("waypoint", Some(status.waypoint.to_string()));
    let next = status.rules.next.as_ref().map_or_else(String::new, |next| format!("; next {next}"));
    lines.fact("rules", Some(format!("{}{next}", status.rules.fork.name())));
    lines.end()
}

pub(super) fn pipeline(status: &NodeStatus, width: usize) -> Vec<Line<'static>> {
    let (sync, mut lines) = (&status.sync, Lines::new("Pipeline", width));
    let stages: Vec<_> = sync.stages.iter().filter(|stage| stage.busy_seconds > 0.0).collect();
    match stages.is_empty() {
        true => lines.below("no stage has worked since the start", Style::new().dim()),
        false => lines.head(&[("stage", 10), ("busy", 8), ("queued", 12), ("rate", 14), ("since start", 24)]),
    }
    for stage in stages {
        lines.row(vec![
            plain(stage.stage.name(), 10),
            plain(format!("{:.0} %", stage.busy_percent), 8),
            plain(bytes(stage.queue_bytes as f64), 12),
            plain(format!("{}/s", bytes(stage.bytes_per_second)), 14),
            plain(format!("{} in {}", bytes(stage.bytes as f64), duration(stage.busy_seconds)), 24),
        ]);
    }
    lines.fact(
        "requests",
        Some(format!("{} under way; {} late ones given to a second peer", sync.requests, sync.hedges)),
    );
    let (batches, replayed, transactions) = (sync.batches, sync.batches_replayed, sync.transactions);
    lines.fact(
        "followed",
        Some(format!("{batches} batches, {replayed} executed; {transactions} transactions")),
    );
    lines.fact("received", Some(bytes(sync.bytes_received as f64)));
    let (audited, skipped) = (sync.audited, sync.audits_skipped);
    let audits = (audited + skipped > 0).then(|| format!("{audited} executed again, {skipped} left out"));
    lines.fact("audits", audits);
    lines.end()
}

pub(super) fn consensus(status: &NodeStatus, width: usize) -> Vec<Line<'static>> {
    let (epoch, mut lines) = (&status.epoch, Lines::new("Consensus", width));
    let certify = format!(
        "epoch {}: {} of {} validators certify a batch",
        epoch.number,
        epoch.quorum,
        epoch.validators.len()
    );
    let Some(own) = &status.consensus else {
        lines.fact("this node", Some("follows; it does not validate".into()));
        silence(status, &mut lines);
        lines.fact("certified by", Some(certify));
        return lines.end();
    };
    let ConsensusStatus { index, view, primary, quorum, .. } = own;
    let mut said = format!("validator {}, counted from 0", own.member(*index));
    for (is, text) in [
        (own.is_primary, ", the primary"),
        (own.silence.is_some(), ", signs nothing"),
        (own.complains, ", wants another primary"),
    ] {
        said.push_str(if is { text } else { "" });
    }
    lines.fact("this node", Some(said));
    silence(status, &mut lines);
    lines.fact("certified by", Some(certify));
    let begins = if own.changing { ", which has not begun" } else { "" };
    lines.fact("view", Some(format!("{view} of primary {}{begins}", own.member(*primary))));
    let votes = own.voting.map(|votes| {
        let (number, prepares, commits) = (votes.number, votes.prepares, votes.commits);
        format!("batch {number}: {prepares} prepare it, {commits} commit to it, {quorum} decide")
    });
    lines.fact("votes", votes);
    let diverged = Some(own.divergences).filter(|times| *times > 0);
    lines.styled(
        "diverged",
        diverged.map(|times| format!("{times} times from what the others agreed on")),
        Style::new().red(),
    );
    lines.fact("refused", Some(format!("{} messages", own.refused)));
    if !own.evidence.is_empty() {
        let lies = format!("{} proofs that validators lied: /v1/consensus/evidence", own.evidence.len());
        lines.styled("evidence", Some(lies), Style::new().red());
    }
    lines.head(&[("validator", 22), ("last heard", 14), ("view", 7), ("decided", 11), ("says", 44)]);
    for peer in &own.peers {
        lines.row(standing(peer, *primary));
        if peer.name.is_some() {
            lines.below(&short(peer.key), Style::new().dim());
        }
    }
    lines.end()
}

/// Adds why a node that runs as a validator signs nothing, and the remedy.
fn silence(status: &NodeStatus, lines: &mut Lines) {
    if let Some(silence) = &status.health.silence {
        lines.styled("silence", Some(silence.text.clone()), Style::new().red());
        lines.fact("way out", Some(silence.way_out.clone()));
    }
}

/// Another validator, when it was last heard, and the position that it reported.
fn standing(peer: &PeerStanding, primary: u16) -> Vec<Cell> {
    let heard = match peer.heard_ms_ago {
        None => ("not yet".into(), 16, Style::new().red()),
        Some(heard) if heard > HEARD_WITHIN_MS => (format!("{} ago", ms(heard)), 16, Style::new().red()),
        Some(heard) => (format!("{} ago", ms(heard)), 16, Style::new().green()),
    };
    let is_primary = if peer.index == primary { "primary" } else { "" };
    let (view, decided, says) = match peer.said {
        None => ("–".into(), "–".into(), is_primary.to_owned()),
        Some(said) => {
            let wants = if said.complains { "wants another primary, " } else { "" };
            let silence =
                said.silence.map_or_else(String::new, |it| format!("{}, ", it.name().replace('_', " ")));
            (
                said.view.to_string(),
                said.decided.to_string(),
                format!("{silence}{wants}said {} ago", ms(said.said_ms_ago)),
            )
        }
    };
    vec![
        plain(format!("{} {}", peer.index, called(peer.name.as_ref(), peer.key)), 22),
        heard,
        plain(view, 7),
        plain(decided, 11),
        plain(says, 44),
    ]
}

pub(super) fn caches(status: &NodeStatus, width: usize) -> Vec<Line<'static>> {
    let (hot, serve, mut lines) = (&status.hot_cache, &status.serve, Lines::new("Hints and caches", width));
    let used = |of: HintUse| match of.reads {
        0 => "none was needed yet".to_owned(),
        reads => {
            let (named, vain) = (share(of.used, reads), share(of.named.saturating_sub(of.used), of.named));
            format!("named {named} of {} reads; {vain} of the named unused", count(reads as f64))
        }
    };
    lines.fact("hints", Some(used(status.sync.hints)));
    let wrong = Some(status.sync.hints.values_wrong).filter(|wrong| *wrong > 0);
    lines.styled("wrong values", wrong.map(|wrong| wrong.to_string()), Style::new().yellow());
    lines.fact("predictors", Some(used(status.sync.foretold)));
    let reads = hot.hits + hot.misses;
    let (hits, rows, size) = (share(hot.hits, reads), count(hot.rows as f64), bytes(hot.bytes as f64));
    lines.fact("hot cache", Some(format!("{hits} of {} reads; {rows} rows, {size}", count(reads as f64))));
    let stalls = &status.stalls;
    lines.fact(
        "disk waits",
        Some(format!("{} times, {} in all", count(stalls.stalls as f64), duration(stalls.seconds))),
    );
    let parts = serve.cache_hits + serve.cache_misses;
    let (hits, kept) = (share(serve.cache_hits, parts), bytes(serve.cache_bytes as f64));
    lines.fact("answers", Some(format!("{hits} of {} parts from memory; {kept} kept", count(parts as f64))));
    lines.end()
}

pub(super) fn latency(status: &NodeStatus, width: usize) -> Vec<Line<'static>> {
    let mut lines = Lines::new("Latency", width);
    let head_age = status.health.head_age_seconds;
    lines.fact("age of head", Some(head_age.map_or_else(|| "no batch yet".into(), age)));
    for (codec, took) in &status.mesh.codecs {
        lines.fact(codec.name(), Some(decoded(took)));
    }
    let mut trips: Vec<_> = status.peers.iter().map(|peer| peer.rtt_ms).collect();
    trips.sort_by(f64::total_cmp);
    let trips = match (&trips[..], trips.get(trips.len() / 2)) {
        ([first, ..], Some(median)) => {
            let last = trips.last().unwrap_or(first);
            format!("{first:.1} to {last:.1} ms, median {median:.1} ms")
        }
        _ => "no peer is connected".into(),
    };
    lines.fact("round trips", Some(trips));
    let slowest = status.sync.peers.iter().map(|peer| peer.tail_ms).max().filter(|tail| *tail > 0);
    let answers = slowest.map(|tail| format!("95 % within {} from the slowest peer", ms(tail)));
    lines.fact("answers", Some(answers.unwrap_or_else(|| "none yet".into())));
    let stalls = &status.stalls;
    let read = match stalls.stalls {
        0 => "none yet".to_owned(),
        reads => format!("{:.0} µs on average", 1e6 * stalls.seconds / reads as f64),
    };
    lines.fact("disk reads", Some(read));
    lines.end()
}

/// Describes the times from a batch's certificate to the last byte of its parts.
fn decoded(took: &CodecStatus) -> String {
    let total: u64 = took.decoded.iter().sum();
    if total == 0 {
        return "none yet".into();
    }
    let mut below = 0;
    let class = took.decoded.iter().position(|count| {
        below += count;
        below as f64 >= 0.95 * total as f64
    });
    let end = class.and_then(|class| DECODED_MS.get(class));
    let end = end.map_or_else(|| "beyond the measured range".into(), |end| format!("within {}", ms(*end)));
    let mean = duration(took.decoded_s / total as f64);
    format!("{mean} on average, 95 % {end}, of {}", count(total as f64))
}

pub(super) fn machine(status: &NodeStatus, cpu_percent: Option<f64>, width: usize) -> Vec<Line<'static>> {
    let (process, mut lines) = (&status.process, Lines::new("Disk and memory", width));
    lines.fact("memory", Some(bytes(process.memory_bytes as f64)));
    let now = cpu_percent.map_or_else(String::new, |percent| format!("{percent:.0} % of a core; "));
    lines.fact("CPU", Some(format!("{now}{} in all", duration(process.cpu_seconds))));
    lines.fact("up", Some(format!("{}, process {}", duration(process.uptime_seconds as f64), process.pid)));
    let most = process.open_files_max.map_or_else(String::new, |most| format!(" of {most}"));
    lines.fact("open files", Some(format!("{}{most}; {} threads", process.open_files, process.threads)));
    if let Some(disk) = &status.disk {
        let (free, least) = (bytes(disk.free_bytes as f64), bytes(disk.min_bytes as f64));
        let is_low = disk.min_bytes > 0 && disk.free_bytes < disk.min_bytes.saturating_mul(2);
        let style = if is_low { Style::new().red() } else { Style::new() };
        let stops = if disk.min_bytes > 0 { format!("; stops below {least}") } else { String::new() };
        lines.styled("disk free", Some(format!("{free}{stops}")), style);
        lines.fact("inodes free", disk.free_inodes.map(|free| free.to_string()));
    }
    if let Some(used) = status.disk.as_ref().and_then(|disk| disk.used) {
        let part = |bytes_used: u64| bytes(bytes_used as f64);
        let (total, database, journal) =
            (part(used.total_bytes), part(used.database_bytes), part(used.journal_bytes));
        lines.fact("disk used", Some(format!("{total}: database {database}, journal {journal}")));
        lines.fact("", Some(format!("snapshots {} beside the database", part(used.snapshots_bytes))));
    }
    let numbers: Vec<_> = status.snapshots.iter().map(ToString::to_string).collect();
    let kept = if numbers.is_empty() { "none".into() } else { format!("of batch {}", numbers.join(", ")) };
    lines.fact("snapshots", Some(kept));
    lines.end()
}
