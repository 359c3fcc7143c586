//! The rules for configurations that types cannot express.

use slipstream_network::{NetworkError, PeerTarget};
use slipstream_sync::{Mode, SyncConfig};

use crate::{
    ApiConfig, NodeConfig, Role,
    error::RuleViolation,
    mask::mask_value,
    ranges::{self, BODY_BYTES_MIN},
};

/// Maximum number of archives: each is asked every minute, and its lists are in memory.
const ARCHIVES_MAX: usize = 16;

/// Checks the rules that concern several keys, and the ranges of numbers.
pub(crate) fn check(config: &NodeConfig) -> Result<(), RuleViolation> {
    check_role(config)?;
    check_peers(config)?;
    if let Some(problem) = audit_problem(config.sync.audit) {
        return Err(problem);
    }
    if let Some((key, problem, advice)) = sync_problem(&config.sync) {
        return Err(RuleViolation::new(key, format!("{problem}; {advice}")));
    }
    config.network.check().map_err(|error| match error {
        NetworkError::Config { key, reason } => RuleViolation::new(key, reason),
        other => RuleViolation::new("network", other.to_string()),
    })?;
    check_api(&config.api)?;
    ranges::check(config)
}

/// Checks the keys that a validator, or a fullnode, needs.
fn check_role(config: &NodeConfig) -> Result<(), RuleViolation> {
    let (key, text) = match config.role {
        Role::Validator if config.genesis.is_none() => (
            "genesis",
            "a validator needs the chain's genesis file; set `genesis: FILE` to the file that all validators of the chain share",
        ),
        Role::Validator if !config.storage.fsync => (
            "storage.fsync",
            "a validator that does not wait for the disk may forget a vote in a power cut, and then sign two different batches \
             of one number; leave `fsync` out or set it to `true`",
        ),
        Role::Fullnode if config.genesis.is_none() && config.waypoint.is_none() => (
            "genesis",
            "a fullnode needs a genesis file or a waypoint, from which its trust starts; set \
             `genesis: FILE`, or `waypoint: NUMBER:0xHASH` as `slipstream status` prints it on a node that you trust",
        ),
        Role::Fullnode if config.network.peers.is_empty() => (
            "network.peers",
            "a fullnode needs a peer to follow; list at least one as `ID@HOST:PORT`, as `slipstream status` prints it on \
             that peer",
        ),
        Role::Validator | Role::Fullnode => return Ok(()),
    };
    Err(RuleViolation::new(key, text))
}

/// Checks that peers can be dialled at their configured addresses.
fn check_peers(config: &NodeConfig) -> Result<(), RuleViolation> {
    let unreachable = |peer: &&PeerTarget| {
        peer.address().is_some_and(|address| address.ip().is_unspecified() || address.port() == 0)
    };
    if let Some(peer) = config.network.peers.iter().find(unreachable) {
        let problem = format!(
            "cannot dial {peer}: a peer can listen on this address, but others cannot reach it there; write the IP or the DNS \
             name of the peer's machine, and the peer's UDP port, as `ID@HOST:PORT`"
        );
        return Err(RuleViolation::new("network.peers", problem));
    }
    Ok(())
}

fn check_api(api: &ApiConfig) -> Result<(), RuleViolation> {
    let body_bytes = api.max_body_bytes;
    if (body_bytes as u64) < BODY_BYTES_MIN {
        let problem = format!(
            "{body_bytes} bytes cannot carry the largest transaction; set it to {BODY_BYTES_MIN} or more"
        );
        return Err(RuleViolation::new("api.max_body_bytes", problem));
    }
    let is_name = |host: &&String| {
        !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte))
    };
    if let Some(host) = api.allowed_hosts.iter().find(|host| *host != "*" && !is_name(host)) {
        // The operator may have written a whole URL.
        let host = mask_value("", host);
        let problem = format!(
            "`{host}` is not a host name; write names as `node1.example`, without scheme or port, or `*` for all"
        );
        return Err(RuleViolation::new("api.allowed_hosts", problem));
    }
    Ok(())
}

/// Refuses values that cannot be joined with other layers: infinite and undefined numbers exist only as text.
pub(crate) fn check_layer(config: &NodeConfig) -> Result<(), RuleViolation> {
    if config.sync.audit.is_finite() { Ok(()) } else { audit_problem(config.sync.audit).map_or(Ok(()), Err) }
}

fn audit_problem(audit: f64) -> Option<RuleViolation> {
    let advice = "set it to a number from 0 (audit none) to 1 (audit all)";
    let text = || format!("{audit} is not a share of the batches; {advice}");
    (!(0.0..=1.0).contains(&audit)).then(|| RuleViolation::new("sync.audit", text()))
}

/// Returns the first fault of the sync section: the key, the fault, what to write.
fn sync_problem(sync: &SyncConfig) -> Option<(&'static str, String, &'static str)> {
    if sync.forbid.contains(&Mode::Auto) {
        let problem = "`auto` chooses among the modes, and is not one of them".to_owned();
        let advice =
            "take it out of `forbid`; to follow in one mode only, set `sync.mode` to `replay` or `delta`";
        return Some(("sync.forbid", problem, advice));
    }
    let archives = &sync.archives;
    if archives.len() > ARCHIVES_MAX {
        let problem = format!("{} archives exceed the limit of {ARCHIVES_MAX}", archives.len());
        return Some((
            "sync.archives",
            problem,
            "one archive of a ledger is enough; others only help when it fails",
        ));
    }
    if (1..archives.len()).any(|at| archives[..at].contains(&archives[at])) {
        return Some(("sync.archives", "one archive is named twice".into(), "leave one of the two out"));
    }
    // A snapshot or a range delta ends at a batch certified some time ago: the batches after it need one of these
    // modes.
    let follows = match sync.mode {
        Mode::Replay | Mode::Delta => true,
        _ => [Mode::Replay, Mode::Delta].iter().any(|mode| !sync.forbid.contains(mode)),
    };
    let problem = "with `replay` and `delta` forbidden, no mode is left to follow new batches".to_owned();
    (!follows).then_some(("sync.forbid", problem, "leave one of the two out of `forbid`"))
}
