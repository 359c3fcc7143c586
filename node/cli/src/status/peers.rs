//! The peers in `slipstream status` and `slipstream peers list`: connected ones, expected ones, those that the node
//! found itself, and banned ones.

use std::{
    fmt::Display,
    time::{Duration, UNIX_EPOCH},
};

use slipstream_network::ContactKind;
use slipstream_status::{
    NodeStatus,
    peers::{BanStatus, ConfiguredPeerStatus, ConnectedPeer, PeerExchangeStatus, RemovedPeerStatus},
};
use slipstream_sync::{
    PeerStatus, ScoreReason,
    plan::part::{PeerMode, PeerModeReason},
};

use super::units::duration;
use crate::rows::Rows;

/// Milliseconds from 1970 to the year 9999, the last year with four digits.
const YEAR_9999_MS: u64 = 253_370_764_800_000;

/// Maximum number of reasons of a score that are shown, newest first: the rest is in the JSON.
const REASONS_SHOWN: usize = 5;

/// Describes the connected peers, the expected ones, and why an expected peer is missing.
pub(crate) fn describe(rows: &mut Rows, status: &NodeStatus) {
    rows.add("peers", Some(status.peers.len().to_string()));
    for peer in &status.peers {
        rows.add("", Some(connected(peer, status.exchange.as_ref())));
    }
    rows.add("  exchange", status.exchange.as_ref().map(exchange));
    for (index, peer) in status.configured_peers.iter().enumerate() {
        rows.add(if index == 0 { "configured" } else { "" }, Some(configured(peer)));
    }
    for (index, peer) in status.removed_peers.iter().enumerate() {
        rows.add(if index == 0 { "removed" } else { "" }, Some(removed(peer)));
    }
    for (index, standing) in status.bans.iter().enumerate() {
        rows.add(if index == 0 { "banned" } else { "" }, Some(ban(standing)));
    }
    let more = status.bans_count.saturating_sub(status.bans.len());
    rows.add("", (more > 0).then(|| format!("and {more} more")));
    for key in &status.shared_keys {
        rows.add("SHARED KEY", Some(named(key.name.as_ref(), &key.problem)));
    }
    // Peers that work well are listed above; here they only have their score.
    for peer in &status.sync.peers {
        rows.add("", judgement(peer));
        if peer.banned {
            continue;
        }
        rows.add("", part(peer));
        rows.add("", Some(score(peer)));
        for reason in peer.reasons.iter().take(REASONS_SHOWN) {
            rows.add("", Some(score_reason(reason)));
        }
    }
}

/// A text that begins with a key, prefixed with the key's name.
pub(crate) fn named(name: Option<&String>, text: impl Display) -> String {
    name.map_or_else(|| text.to_string(), |name| format!("{name} {text}"))
}

/// Describes a ban: its peer, its author, its end and its reason.
pub(crate) fn ban(ban: &BanStatus) -> String {
    let BanStatus { id, name, by, reason, seconds_left, until_ms } = ban;
    let who = named(name.as_ref(), id);
    let (Some(seconds_left), Some(until_ms)) = (seconds_left, until_ms) else {
        return format!("{who} until it is unbanned, by {by}: {reason}");
    };
    let left = humantime::format_duration(Duration::from_secs(*seconds_left));
    // A time beyond the year 9999 has no text.
    let until = UNIX_EPOCH.checked_add(Duration::from_millis(*until_ms)).filter(|_| *until_ms < YEAR_9999_MS);
    let until = until
        .map_or_else(String::new, |until| format!(", until {}", humantime::format_rfc3339_seconds(until)));
    format!("{who} for {left}{until}, by {by}: {reason}")
}

fn connected(peer: &ConnectedPeer, exchange: Option<&PeerExchangeStatus>) -> String {
    let is_chosen = exchange.is_some_and(|exchange| exchange.chosen.contains(&peer.id));
    let by_choice = if is_chosen { ", chosen" } else { "" };
    let address = peer.address.as_deref().unwrap_or("?");
    let ConnectedPeer { id, name, from, rtt_ms, .. } = peer;
    named(name.as_ref(), format_args!("{id}@{address} {rtt_ms:.1} ms, {}{by_choice}", from.name()))
}

/// Describes the peers that the node chose itself, and how many it can choose from.
fn exchange(exchange: &PeerExchangeStatus) -> String {
    let told = match exchange.advertised.is_empty() {
        true => "not announced to others".to_owned(),
        false => format!("announced to others as {}", exchange.advertised.join(" and ")),
    };
    let PeerExchangeStatus { chosen, outbound_max, reached, heard, .. } = exchange;
    format!("{} of {outbound_max} chosen, {reached} reached and {heard} heard of; {told}", chosen.len())
}

/// Describes a configured peer: its state, and the reason if it is not connected.
fn configured(peer: &ConfiguredPeerStatus) -> String {
    let added = if peer.added { " (added)" } else { "" };
    let mut text = named(peer.name.as_ref(), format_args!("{} {}{added}", peer.peer, peer.state.name()));
    if let Some(seconds) = peer.seconds {
        text += &format!(" for {}", duration(seconds as f64));
    }
    let Some(problem) = &peer.problem else { return text };
    if peer.state == ContactKind::Banned {
        // The line about the ban shows when it ends.
        return format!("{text}: {problem}");
    }
    let next = match peer.next_attempt_ms {
        Some(ms) if ms > 0 => format!("next in {}", duration(ms as f64 / 1e3)),
        _ => "trying now".to_owned(),
    };
    let attempts = match peer.attempts {
        1 => "1 attempt".to_owned(),
        attempts => format!("{attempts} attempts"),
    };
    format!("{text}, {attempts}, {next}: {problem}")
}

/// Describes a peer that the operator removed, and how to add it again.
pub(crate) fn removed(RemovedPeerStatus { peer, name }: &RemovedPeerStatus) -> String {
    named(name.as_ref(), format_args!("{peer} is in network.peers; `slipstream peers add` adds it again"))
}

/// Sync's complaint about a peer, if any.
fn judgement(peer: &PeerStatus) -> Option<String> {
    let reason = peer.last_reason.as_deref();
    let state = match peer.pause_ms {
        _ if peer.banned => "banned".to_owned(),
        0 if reason.is_none() => return None,
        0 => "no longer paused".to_owned(),
        pause => format!("paused for {pause} ms"),
    };
    // A past judgement must not look current.
    let ago = peer.last_reason_seconds_ago.map_or_else(String::new, |ago| format!(", the last {ago} s ago"));
    let reason = reason.unwrap_or("no reason is known");
    let text = format!("{}: {state}, {} failures{ago}: {reason}", peer.id, peer.failures);
    Some(named(peer.name.as_ref(), text))
}

/// The part that is requested from a peer; `None` at the head, where the node requests nothing.
fn part(peer: &PeerStatus) -> Option<String> {
    match (peer.mode, peer.mode_reason) {
        (PeerMode::Nothing, PeerModeReason::NothingNew) => None,
        (mode, reason) => Some(named(
            peer.name.as_ref(),
            format_args!("{}: asked for {}, as {reason}", peer.id, mode.name()),
        )),
    }
}

/// The figures by which a peer is ranked.
fn score(peer: &PeerStatus) -> String {
    let PeerStatus { id, name, score, bytes_per_second, tail_ms, .. } = peer;
    named(name.as_ref(), format_args!("{id}: score {score}, {bytes_per_second} bytes/s, tail {tail_ms} ms"))
}

/// One change of a score.
fn score_reason(ScoreReason { what, times, change, seconds_ago }: &ScoreReason) -> String {
    format!("  {change:+} {what} ({times} times, {seconds_ago} s ago)")
}
