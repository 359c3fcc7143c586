//! Keeps a configured peer connected: dials, waits for the end of the connection, dials again.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, info};

use super::{Driver, link::describe, tls};
use crate::{PeerAddress, peers::Direction};

/// Wait after the first failed attempt.
const BACKOFF_FIRST: Duration = Duration::from_millis(250);
/// Longest wait: a peer that comes back is found again within about this time.
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// A connection that lasted this long was a success; a shorter one counts as a failed attempt, so that a peer that
/// accepts and then refuses (full, banned) is not dialled in a loop.
const STABLE: Duration = Duration::from_secs(10);

/// Dials until the node shuts down, which drops the future.
pub(crate) async fn keep_connected(driver: Arc<Driver>, target: PeerAddress) {
    let mut failures = 0;
    loop {
        if let Some(until) = driver.banned_until(target.id) {
            sleep_until(until).await;
            continue;
        }
        let started = Instant::now();
        if let Some(connection) = driver.connection(target.id) {
            connection.closed().await;
            // The task that serves the connection takes it out of the table at about this moment.
            sleep(BACKOFF_FIRST / 10).await;
        } else {
            match dial(&driver, target).await {
                Ok(end) => debug!(peer = %target.id, end, "the dialled connection ended"),
                Err(error) if failures == 0 => {
                    info!(peer = %target, error, "cannot reach a peer, will keep trying")
                }
                Err(error) => debug!(peer = %target, error, failures, "cannot reach a peer"),
            }
        }
        failures = if started.elapsed() >= STABLE { 0 } else { failures + 1 };
        if failures > 0 && driver.connection(target.id).is_none() {
            // Without randomness from the system the waits are merely less spread.
            sleep(backoff(failures, getrandom::u32().unwrap_or(u32::MAX))).await;
        }
    }
}

/// One attempt and, if it succeeds, the whole life of the connection.
async fn dial(driver: &Arc<Driver>, target: PeerAddress) -> Result<String, String> {
    let config = driver.client_config(target.id).map_err(|error| error.to_string())?;
    let connecting = driver
        .endpoint
        .connect_with(config, target.address, tls::SERVER_NAME)
        .map_err(|error| error.to_string())?;
    let connection = tokio::time::timeout(driver.config.handshake_timeout(), connecting)
        .await
        .map_err(|_| "no answer; is the peer running and reachable by UDP?".to_owned())?
        .map_err(|error| describe(&error))?;
    Ok(driver.run(connection, target.id, Direction::Dialled).await)
}

/// Exponential, bounded, and spread over its upper half so that nodes which lost the same peer do not come back in step.
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
