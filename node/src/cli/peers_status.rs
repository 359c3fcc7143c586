//! What `slipstream status` and `slipstream peers list` say of peers: those that are connected, those that should be, those that the node
//! finds by itself, and those that it does not let in.

use std::time::{Duration, UNIX_EPOCH};

use serde::Deserialize as _;
use serde_json::Value;

use super::{
    rows::{Rows, plain},
    sync_status,
};
use crate::api::peers::BanStatus;

/// Milliseconds from 1970 to the last year that has four digits.
const YEAR_9999_MS: u64 = 253_370_764_800_000;

/// Who is connected, who should be, and why somebody is not.
pub(super) fn describe(rows: &mut Rows, status: &Value) {
    let list = |name: &str| status.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let (connected, configured) = (list("peers"), list("configured_peers"));
    rows.add("peers", Some(connected.len().to_string()));
    for peer in connected {
        let id = peer.get("id").and_then(plain).unwrap_or_default();
        let address = peer.get("address").and_then(plain).unwrap_or_default();
        let rtt = peer.get("rtt_ms").and_then(Value::as_f64).unwrap_or_default();
        let chosen = status.pointer("/exchange/chosen").and_then(Value::as_array);
        let is_chosen = chosen.is_some_and(|chosen| chosen.iter().any(|it| it.as_str() == Some(&id)));
        let by_choice = if is_chosen { ", chosen" } else { "" };
        rows.add("", Some(format!("{id}@{address} {rtt:.1} ms{by_choice}")));
    }
    rows.add("  exchange", exchange(status));
    for (index, peer) in configured.iter().enumerate() {
        rows.add(if index == 0 { "configured" } else { "" }, configured_peer(peer));
    }
    let bans = list("bans");
    for (index, standing) in bans.iter().enumerate() {
        let standing = BanStatus::deserialize(standing).ok();
        rows.add(if index == 0 { "banned" } else { "" }, standing.as_ref().map(ban));
    }
    let more = status.get("bans_count").and_then(Value::as_u64).unwrap_or_default();
    let more = more.saturating_sub(bans.len() as u64);
    rows.add("", (more > 0).then(|| format!("and {more} more")));
    for key in list("shared_keys") {
        rows.add("SHARED KEY", key.get("problem").and_then(plain));
    }
}

/// A ban: who, by whom, until when and why.
pub(super) fn ban(ban: &BanStatus) -> String {
    let BanStatus { id, by, reason, seconds_left, until_ms } = ban;
    let left = humantime::format_duration(Duration::from_secs(*seconds_left));
    // A clock beyond the year 9999 has no such text.
    let until = UNIX_EPOCH.checked_add(Duration::from_millis(*until_ms)).filter(|_| *until_ms < YEAR_9999_MS);
    let until = until
        .map_or_else(String::new, |until| format!(", until {}", humantime::format_rfc3339_seconds(until)));
    format!("{id} for {left}{until}, by {by}: {reason}")
}

/// Whom the node chose by itself, and among how many it chooses.
fn exchange(status: &Value) -> Option<String> {
    let exchange = status.get("exchange")?;
    let of = |name: &str| exchange.get(name).and_then(plain);
    let (most, heard, reached) = (of("outbound_max")?, of("heard")?, of("reached")?);
    let chosen = exchange.get("chosen")?.as_array()?.len();
    let advertised = exchange.get("advertised")?.as_array()?;
    let advertised: Vec<_> = advertised.iter().filter_map(plain).collect();
    let told = match advertised.is_empty() {
        true => "not told to others".to_owned(),
        false => format!("told to others as {}", advertised.join(" and ")),
    };
    Some(format!("{chosen} of {most} chosen, {reached} reached and {heard} heard of; {told}"))
}

/// A peer of the configuration with its state; one without a connection with the reason.
fn configured_peer(peer: &Value) -> Option<String> {
    let field = |name: &str| peer.get(name).and_then(plain);
    let seconds = |value: Option<f64>, unit: f64| value.map(|it| sync_status::duration(it / unit));
    let number = |name: &str| peer.get(name).and_then(Value::as_f64);
    let added = if field("added").as_deref() == Some("true") { " (added)" } else { "" };
    let mut text = format!("{} {}{added}", field("peer")?, field("state")?);
    if let Some(time) = seconds(number("seconds"), 1.0) {
        text += &format!(" for {time}");
    }
    let Some(problem) = field("problem") else { return Some(text) };
    let next = number("next_attempt_ms");
    let next = match next.filter(|ms| *ms > 0.0) {
        Some(_) => format!("next in {}", seconds(next, 1e3)?),
        None => "trying now".to_owned(),
    };
    let attempts = match field("attempts")?.as_str() {
        "1" => "1 attempt".to_owned(),
        attempts => format!("{attempts} attempts"),
    };
    Some(format!("{text}, {attempts}, {next}: {problem}"))
}
