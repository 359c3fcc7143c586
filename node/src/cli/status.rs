//! `slipstream status`.

use std::{
    fmt::Write as _,
    io::{Read, Write},
    net::{SocketAddr, TcpStream, ToSocketAddrs},
    path::PathBuf,
    time::Duration,
};

use clap::Args;
use miette::{Context, IntoDiagnostic, Result, miette};
use serde_json::Value;

use super::print;

/// A node that is alive answers at once.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Longest status that is read: thousands of peers fit.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    /// The node's API
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8545", conflicts_with = "config")]
    api: String,
    /// The node's configuration file, to take the API's address from
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the JSON document as it is
    #[arg(long)]
    json: bool,
}

pub(super) fn status(args: &StatusArgs) -> Result<()> {
    let authority = match &args.config {
        Some(file) => {
            let mut listen = slipstream_config::load(file).into_diagnostic()?.api.listen;
            if listen.ip().is_unspecified() {
                listen.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
            }
            listen.to_string()
        }
        None => {
            let rest = args.api.strip_prefix("http://");
            let rest = rest.ok_or_else(|| miette!("{} is not a URL http://HOST:PORT", args.api))?;
            rest.trim_end_matches('/').to_owned()
        }
    };
    let body = get(&authority, "/v1/status").wrap_err_with(|| {
        format!("cannot ask the node at http://{authority}; is it running, and is this its api.listen?")
    })?;
    if args.json {
        print(body.trim_end());
        return Ok(());
    }
    let document: Value =
        serde_json::from_str(&body).into_diagnostic().wrap_err("the answer is not a node's status")?;
    print(table(&document).trim_end());
    Ok(())
}

/// One HTTP GET. HTTP/1.0, so that the answer ends where the connection does.
fn get(authority: &str, path: &str) -> Result<String> {
    let addresses: Vec<SocketAddr> = authority.to_socket_addrs().into_diagnostic()?.collect();
    let address = addresses.first().ok_or_else(|| miette!("{authority} has no address"))?;
    let mut stream = TcpStream::connect_timeout(address, TIMEOUT).into_diagnostic()?;
    stream.set_read_timeout(Some(TIMEOUT)).into_diagnostic()?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {authority}\r\n\r\n").into_diagnostic()?;
    let mut answer = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer).into_diagnostic()?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| miette!("the answer is not HTTP"))?;
    let line = head.lines().next().unwrap_or_default();
    match line.split_whitespace().nth(1) {
        Some("200") => Ok(body.to_owned()),
        _ => Err(miette!("the answer is `{line}`: {}", body.trim())),
    }
}

/// The status for people. Fields that a newer or older node does not have are left out.
fn table(status: &Value) -> String {
    let mut text = String::new();
    let mut row = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            writeln!(text, "{name:<12} {value}").expect("a String takes everything");
        }
    };
    let at = |pointer: &str| status.pointer(pointer).and_then(plain);
    row("client", at("/client"));
    row("chain", at("/chain_id"));
    row("genesis", at("/genesis"));
    row("role", at("/role"));
    row("peer", at("/peer_address"));
    row("head", at("/head/number"));
    row("  digest", at("/head/digest"));
    row("  state root", at("/head/state_root"));
    row("waypoint", at("/waypoint"));
    row(
        "sync",
        at("/sync/phase").zip(at("/sync/mode")).map(|(phase, mode)| format!("{phase} (mode {mode})")),
    );
    row("  target", at("/sync/target"));
    row(
        "  followed",
        at("/sync/batches")
            .zip(at("/sync/transactions"))
            .map(|(batches, transactions)| format!("{batches} batches, {transactions} transactions")),
    );
    row("  received", at("/sync/bytes_received").map(|bytes| format!("{bytes} bytes")));
    row(
        "pool",
        at("/pool/pending")
            .zip(at("/pool/queued"))
            .map(|(pending, queued)| format!("{pending} executable, {queued} waiting")),
    );
    let peers = status.get("peers").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    row("peers", Some(peers.len().to_string()));
    for peer in peers {
        let id = peer.get("id").and_then(plain).unwrap_or_default();
        let address = peer.get("address").and_then(plain).unwrap_or_default();
        let rtt = peer.get("rtt_ms").and_then(Value::as_f64).unwrap_or_default();
        row("", Some(format!("{id}@{address} {rtt:.1} ms")));
    }
    text
}

/// A scalar without quotes.
fn plain(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn table_shows_what_is_there() {
        let status = json!({
            "role": "fullnode",
            "head": { "number": 12, "state_root": "0xaa" },
            "sync": { "phase": "idle", "mode": "auto", "batches": 3, "transactions": 4 },
            "peers": [{ "id": "ab", "address": "127.0.0.1:1", "rtt_ms": 0.25 }],
        });
        let text = table(&status);
        assert_eq!(
            text,
            "role         fullnode\nhead         12\n  state root 0xaa\nsync         idle (mode auto)\n  followed   3 batches, \
             4 transactions\npeers        1\n             ab@127.0.0.1:1 0.2 ms\n"
        );
    }
}
