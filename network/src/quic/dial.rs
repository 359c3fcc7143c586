//! Keeps a configured peer connected: dials, waits for the end of the connection, and dials again.

use std::{
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::Duration,
};

use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tracing::{debug, warn};

use super::{
    driver::Driver,
    link::{Disconnection, describe},
    tls,
};
use crate::{BanEnd, ContactFailure, PeerAddress, PeerHost, PeerTarget, peers::Direction};

/// Wait after the first failed attempt.
const BACKOFF_FIRST: Duration = Duration::from_millis(250);
/// Longest wait: a peer that returns is found again within about this time.
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// A connection that lasted this long was a success; a shorter one counts as a failed attempt. So a peer that accepts
/// and then refuses (full, banned) is not dialled in a tight loop.
const STABLE: Duration = Duration::from_secs(10);
/// Timeout of resolving a name: a resolver that tries two servers twice answers in less.
const RESOLVE_PATIENCE: Duration = Duration::from_secs(10);
/// Maximum number of addresses of a name that one attempt dials, one after another; a record may have very many.
const ADDRESSES_MAX: usize = 4;

/// Dials and redials a peer until the node shuts down, which drops the future.
pub(crate) async fn keep_connected(driver: Arc<Driver>, target: PeerTarget) {
    loop {
        // Subscribes before the ban is checked, so that a ban lifted in between is noticed.
        let unbanned = driver.unbanned.notified();
        if let Some(until) = driver.banned_until(target.id) {
            match until {
                BanEnd::At(until) => {
                    let _ = timeout_at(until, unbanned).await;
                }
                BanEnd::Never => unbanned.await,
            }
            continue;
        }
        let began = Instant::now();
        let came = match driver.connection(target.id) {
            Some(connection) => {
                let end = Disconnection::of(&connection.closed().await);
                // The task that serves the connection removes it from the table at about this moment.
                sleep(BACKOFF_FIRST / 10).await;
                Ok(end)
            }
            None => dial_target(&driver, &target).await,
        };
        let is_gone = driver.connection(target.id).is_none();
        if let Ok(Disconnection { is_displaced: true, .. }) = came
            && is_gone
        {
            let shared = driver.ledger.lock().shared_keys.ousted(target.id, Instant::now());
            driver.tell_shared(shared);
        }
        if came.is_ok() && began.elapsed() >= STABLE {
            driver.ledger.lock().attempts.lasted(&target.id);
        } else if is_gone {
            let failure = came.map_or_else(|failure| failure, |end| ContactFailure::Ended(end.text));
            wait_after(&driver, &target, failure, began).await;
        }
    }
}

/// Records a failed attempt and waits until the next one is due.
async fn wait_after(driver: &Driver, target: &PeerTarget, failure: ContactFailure, began: Instant) {
    debug!(peer = %target, ?failure, "cannot reach a peer");
    let next_attempt = {
        let mut ledger = driver.ledger.lock();
        // Without randomness from the system, the waits are merely less spread.
        let wait = backoff(ledger.attempts.count(&target.id) + 1, getrandom::u32().unwrap_or(u32::MAX));
        let next_attempt = Instant::now() + wait;
        if let Some(problem) = ledger.attempts.failed(target, failure, began, next_attempt) {
            warn!(peer = %target, problem, "cannot reach a configured peer; retrying");
        }
        next_attempt
    };
    sleep_until(next_attempt).await;
}

/// Makes one attempt at a configured peer: dials its current addresses one after another until one succeeds.
async fn dial_target(driver: &Arc<Driver>, target: &PeerTarget) -> Result<Disconnection, ContactFailure> {
    let id = target.id;
    let mut last = None;
    for address in addresses(driver, target).await? {
        match dial(driver, PeerAddress { id, address }).await {
            Ok(end) => return Ok(end),
            // A wrong key at one address says more than silence at another.
            Err(ContactFailure::Unreachable(_)) if matches!(last, Some(ContactFailure::WrongKey(_))) => {}
            Err(failure) => last = Some(failure),
        }
    }
    Err(last.unwrap_or_else(|| ContactFailure::Unreachable(format!("{} has no address", target.at))))
}

/// The addresses at which a peer is dialled now. A name is resolved at each attempt, so that changes of its record are
/// followed.
async fn addresses(driver: &Driver, target: &PeerTarget) -> Result<Vec<SocketAddr>, ContactFailure> {
    let (host, port) = match &target.at {
        PeerHost::Address(address) => return Ok(vec![*address]),
        PeerHost::Name { host, port } => (host, *port),
    };
    let unresolved = |reason: String| {
        ContactFailure::Unreachable(format!(
            "cannot resolve {host}: {reason}; check the name in network.peers, and this machine's DNS"
        ))
    };
    let resolved = tokio::time::timeout(RESOLVE_PATIENCE, driver.resolver.resolve(host, port)).await;
    let found = resolved
        .map_err(|_| unresolved(format!("no answer within {RESOLVE_PATIENCE:?}")))?
        .map_err(|error| unresolved(error.to_string()))?;
    let is_ipv4 = driver.endpoint.local_addr().map(|local| local.is_ipv4());
    let usable: Vec<_> = found
        .into_iter()
        .filter(|address| !address.ip().is_unspecified())
        // An IPv4 socket cannot reach IPv6 addresses.
        .filter(|address| address.is_ipv4() || !matches!(is_ipv4, Ok(true)))
        .take(ADDRESSES_MAX)
        .collect();
    if usable.is_empty() {
        return Err(unresolved("it has no address that this node can dial".into()));
    }
    driver.door.expect(target.id, &usable);
    Ok(usable)
}

/// Makes one attempt. If it succeeds, serves the connection until it ends.
pub(super) async fn dial(driver: &Arc<Driver>, target: PeerAddress) -> Result<Disconnection, ContactFailure> {
    let unreachable = |error: &dyn std::error::Error| ContactFailure::Unreachable(error.to_string());
    let found = Arc::new(OnceLock::new());
    let config = driver.client_config(target.id, found.clone()).map_err(|error| unreachable(&error))?;
    let connecting = driver
        .endpoint
        .connect_with(config, target.address, tls::SERVER_NAME)
        .map_err(|error| unreachable(&error))?;
    let connection = tokio::time::timeout(driver.config.handshake_timeout(), connecting)
        .await
        .map_err(|_| {
            let patience = driver.config.handshake_timeout();
            ContactFailure::Unreachable(format!(
                "no answer within {patience:?}; is the peer running, and reachable by UDP at this address?"
            ))
        })?
        .map_err(|error| match found.get() {
            Some(found) if *found != target.id => ContactFailure::WrongKey(*found),
            _ => ContactFailure::Unreachable(describe(&error)),
        })?;
    let link = driver.link(target.id, connection, target.address);
    Ok(driver.run(link, Direction::Dialled).await)
}

/// The next wait: it grows exponentially up to a maximum, and is drawn from its upper half. So nodes that lost the same
/// peer do not return in step.
fn backoff(failures: u32, random: u32) -> Duration {
    let full = BACKOFF_FIRST.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(BACKOFF_MAX);
    full / 2 + (full / 2).mul_f64(f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_is_bounded_and_spread() {
        assert_eq!(backoff(1, u32::MAX), BACKOFF_FIRST);
        assert_eq!(backoff(1, 0), BACKOFF_FIRST / 2);
        assert_eq!(backoff(3, u32::MAX), BACKOFF_FIRST * 4);
        assert_eq!(backoff(u32::MAX, u32::MAX), BACKOFF_MAX);
        assert_eq!(backoff(u32::MAX, 0), BACKOFF_MAX / 2);
    }
}
