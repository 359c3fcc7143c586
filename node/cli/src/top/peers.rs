//! The screen's section about peers.

use std::collections::{BTreeMap, BTreeSet};

use ratatui::{style::Style, text::Line};
use slipstream_network::PeerId;
use slipstream_status::{
    NodeStatus,
    peers::{ConfiguredPeerStatus, ConnectedPeer},
};
use slipstream_sync::PeerStatus;

use super::{
    lines::Lines,
    sections::{called, ms, plain, short},
};
use crate::status::{peers as text, units::bytes};

/// Maximum number of reasons of a score that are shown; the rest is in the JSON.
const REASONS_SHOWN: usize = 4;
/// Maximum number of bans and removed peers that are shown; `slipstream peers list` shows all.
const BANS_SHOWN: usize = 8;

/// Everything known about one peer.
#[derive(Default)]
struct PeerRow<'a> {
    sync: Option<&'a PeerStatus>,
    connection: Option<&'a ConnectedPeer>,
    configured: Option<&'a ConfiguredPeerStatus>,
}

pub(super) fn peers(status: &NodeStatus, width: usize) -> Vec<Line<'static>> {
    let mut all = BTreeMap::<PeerId, PeerRow<'_>>::new();
    for peer in &status.configured_peers {
        all.entry(peer.peer.id).or_default().configured = Some(peer);
    }
    for peer in &status.peers {
        all.entry(peer.id).or_default().connection = Some(peer);
    }
    for peer in &status.sync.peers {
        all.entry(peer.id).or_default().sync = Some(peer);
    }
    let mut all: Vec<_> = all.into_iter().collect();
    all.sort_by_key(|(_, known)| std::cmp::Reverse(known.sync.map(|peer| peer.score)));
    let validators: BTreeSet<_> = status.epoch.validators.iter().collect();
    let mut lines = Lines::new("Peers", width);
    match all.is_empty() {
        true => lines.below("no peer is known", Style::new().dim()),
        false => lines.head(&[
            ("peer", 18),
            ("asked for", 12),
            ("score", 6),
            ("rate", 13),
            ("trip", 9),
            ("95 % in", 9),
            ("its head", 10),
        ]),
    }
    for (id, known) in &all {
        let is_chosen = status.exchange.as_ref().is_some_and(|exchange| exchange.chosen.contains(id));
        let roles = [
            (validators.contains(id), "validator"),
            (known.configured.is_some_and(|peer| !peer.added), "configured"),
            (known.configured.is_some_and(|peer| peer.added), "added"),
            (is_chosen, "chosen"),
        ];
        let roles: Vec<_> = roles.into_iter().filter_map(|(is, role)| is.then_some(role)).collect();
        peer(&mut lines, id, known, &roles.join(", "));
    }
    lines.fact(
        "exchange",
        status.exchange.as_ref().map(|exchange| {
            let (chosen, most) = (exchange.chosen.len(), exchange.outbound_max);
            format!("{chosen} of {most} chosen, {} reached and {} heard of", exchange.reached, exchange.heard)
        }),
    );
    let serve = &status.serve;
    let (sent, busy) = (bytes(serve.bytes as f64), serve.refused_busy);
    lines.fact("served", Some(format!("{} answers, {sent}; {busy} refused as busy", serve.answers)));
    for ban in status.bans.iter().take(BANS_SHOWN) {
        lines.styled("banned", Some(text::ban(ban)), Style::new().red());
    }
    let more = status.bans_count.saturating_sub(BANS_SHOWN);
    lines.fact("more bans", (more > 0).then(|| format!("{more}: `slipstream peers list` shows them")));
    for peer in status.removed_peers.iter().take(BANS_SHOWN) {
        lines.fact("removed", Some(text::removed(peer)));
    }
    lines.end()
}

fn peer(lines: &mut Lines, id: &PeerId, known: &PeerRow<'_>, roles: &str) {
    let PeerRow { sync, connection, configured } = known;
    let names = [
        sync.and_then(|peer| peer.name.as_ref()),
        connection.and_then(|peer| peer.name.as_ref()),
        configured.and_then(|peer| peer.name.as_ref()),
    ];
    let name = names.into_iter().flatten().next();
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "–".into());
    lines.row(vec![
        plain(called(name, id), 18),
        plain(sync.map_or("–", |peer| peer.mode.name()), 12),
        plain(or_none(sync.map(|peer| peer.score.to_string())), 6),
        plain(or_none(sync.map(|peer| format!("{}/s", bytes(peer.bytes_per_second as f64)))), 13),
        plain(or_none(connection.map(|peer| format!("{:.1} ms", peer.rtt_ms))), 9),
        plain(or_none(sync.filter(|peer| peer.tail_ms > 0).map(|peer| ms(peer.tail_ms))), 9),
        plain(or_none(sync.and_then(|peer| peer.head).map(|head| head.to_string())), 10),
    ]);
    let address = connection.and_then(|peer| peer.address.clone());
    let address = address.or_else(|| Some(configured.as_ref()?.peer.at.to_string()));
    let mode = sync.map(|peer| peer.mode_reason.to_string());
    let key = name.map(|_| short(id));
    let told = [key, address, Some(roles.to_owned()).filter(|roles| !roles.is_empty()), mode];
    let told: Vec<_> = told.into_iter().flatten().collect();
    lines.below(&told.join("; "), Style::new().dim());
    if let Some(peer) = sync {
        let why = peer.last_reason.as_deref().unwrap_or("no reason is known");
        match peer.pause_ms {
            _ if peer.banned => lines.below(&format!("banned: {why}"), Style::new().red()),
            0 => {}
            pause => lines.below(&format!("paused for {}: {why}", ms(pause)), Style::new().yellow()),
        }
        for reason in peer.reasons.iter().take(REASONS_SHOWN) {
            let text = format!(
                "{:+} {} ({} times, {} s ago)",
                reason.change, reason.what, reason.times, reason.seconds_ago
            );
            let style = if reason.change < 0 { Style::new().yellow() } else { Style::new().dim() };
            lines.below(&text, style);
        }
    }
    if let (Some(peer), None) = (configured, connection) {
        let problem = peer.problem.as_ref().map_or_else(String::new, |problem| format!(": {problem}"));
        let next = peer.next_attempt_ms.filter(|next| *next > 0);
        let next = next.map_or_else(String::new, |next| format!("; next attempt in {}", ms(next)));
        lines.below(&format!("{}{problem}{next}", peer.state.name()), Style::new().red());
    }
}
