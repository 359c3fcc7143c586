//! `slipstream wait`: waits until a condition holds for a node, or a deadline passes. For scripts and service managers,
//! instead of loops around `curl`.

use std::{
    fmt,
    str::FromStr,
    time::{Duration, Instant},
};

use clap::Args;
use miette::Result;
use slipstream_status::{
    NodeStatus,
    health::{Blocker, State},
};
use slipstream_types::BatchNumber;

use super::{
    exit::{CommandFailure, Exit, is_temporary},
    output::{pause, print},
    status::{NodeArgs, line, read_within},
};

/// Time between two checks: each costs the node less than a millisecond.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Time limit for one check; a running node answers at once.
const LOOK_MAX: Duration = Duration::from_secs(5);
/// The longest `--timeout`: beyond it a deadline may overflow.
const TIMEOUT_MAX: Duration = Duration::from_secs(365 * 24 * 3_600);

#[derive(Debug, Args)]
pub(super) struct WaitArgs {
    #[command(flatten)]
    node: NodeArgs,
    /// What to wait for: `synced` (at the head that peers announce), `batch=N` (committed here), `ready` (according to
    /// GET /health) or `healthy` (nothing needs attention: catching up does not)
    #[arg(long = "for", value_name = "WHAT")]
    what: Condition,
    /// The longest time to wait, such as 500ms, 60s, 5m or 2h
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    timeout: Duration,
}

/// The condition to wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Condition {
    Synced,
    Batch(BatchNumber),
    Ready,
    Healthy,
}

impl FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Condition, String> {
        match text.split_once('=') {
            None if text == "synced" => Ok(Condition::Synced),
            None if text == "ready" => Ok(Condition::Ready),
            None if text == "healthy" => Ok(Condition::Healthy),
            Some(("batch", number)) => {
                let number = number.parse().map_err(|_| format!("`{number}` is not a batch number"))?;
                Ok(Condition::Batch(BatchNumber::new(number)))
            }
            _ => Err("it must be synced, batch=N, ready or healthy".into()),
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Condition::Synced => f.write_str("synced"),
            Condition::Batch(number) => write!(f, "batch={number}"),
            Condition::Ready => f.write_str("ready"),
            Condition::Healthy => f.write_str("healthy"),
        }
    }
}

impl Condition {
    /// The unmet part of the condition; `None` once it holds.
    fn missing(self, status: &NodeStatus) -> Option<String> {
        let NodeStatus { health, sync, shared_keys, rules, .. } = status;
        let blocker = health.blocker.as_ref();
        let blocked = |blocker: &Blocker| format!("the node is not ready: {}", blocker.text);
        match self {
            Condition::Ready => blocker.map(blocked),
            Condition::Batch(number) if health.head >= number => None,
            Condition::Batch(_) => Some(format!("the head is {}{}", health.head, because(blocker))),
            Condition::Synced if health.state == State::AtHead && !health.syncing => None,
            Condition::Synced => Some(format!(
                "the node is {}, {} batches behind{}",
                health.state,
                health.behind_batches,
                because(blocker)
            )),
            Condition::Healthy => {
                let shared = shared_keys.first().map(|key| key.problem.clone());
                let unknown = rules.unknown.first().map(|fork| {
                    format!("peers' schedules have the fork {fork}, which this node's schedule lacks")
                });
                let alert = blocker.filter(|blocker| blocker.alert).map(blocked);
                sync.alarm
                    .clone()
                    .map(|alarm| format!("an audit raised an alarm: {alarm}"))
                    .or(alert)
                    .or(shared)
                    .or(unknown)
            }
        }
    }
}

fn because(blocker: Option<&Blocker>) -> String {
    blocker.map_or_else(String::new, |blocker| format!(": {}", blocker.text))
}

pub(super) fn wait(args: &WaitArgs) -> Result<()> {
    let node = args.node.address()?;
    let WaitArgs { what, timeout, .. } = args;
    let deadline = Instant::now() + *timeout;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // The last check takes place however little time is left.
        let patience = left.clamp(LOOK_EVERY, LOOK_MAX);
        let missing = match read_within(&node, patience) {
            Ok(status) => match what.missing(&status) {
                None => return print(&format!("{what}: {}", line(&status))),
                Some(missing) => missing,
            },
            // Only another command line helps.
            Err(error) if !is_temporary(&error) => return Err(error),
            Err(error) => error.to_string(),
        };
        if Instant::now() + LOOK_EVERY > deadline {
            let text = format!("waited {} s in vain for {what}: {missing}", timeout.as_secs_f64());
            return Err(CommandFailure::new(Exit::TryAgain, text).into());
        }
        pause(LOOK_EVERY);
    }
}

/// Parses a time with its unit.
fn duration(text: &str) -> std::result::Result<Duration, String> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| "it must be a number and a unit, such as 60s".to_owned())?;
    let time = match unit {
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        "m" => number.checked_mul(60).map(Duration::from_secs),
        "h" => number.checked_mul(3_600).map(Duration::from_secs),
        _ => return Err("its unit must be ms, s, m or h, as in 60s".into()),
    };
    time.filter(|time| *time <= TIMEOUT_MAX).ok_or_else(|| "it must be at most a year".into())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use slipstream_status::fixture;

    use super::*;

    fn missing(what: &str, changes: Value) -> Option<String> {
        what.parse::<Condition>().unwrap().missing(&fixture::status(changes))
    }

    #[test]
    fn what_is_missing_is_named() {
        for what in ["synced", "batch=300", "ready", "healthy"] {
            assert_eq!(missing(what, json!({})), None, "{what}");
        }
        assert_eq!(missing("batch=301", json!({})).unwrap(), "the head is 300");
        let behind = json!({ "reason": "behind", "text": "this node is 90 batches behind", "alert": false, "retry_ms": null });
        let health = json!({ "health": { "ready": false, "state": "catching_up", "syncing": true, "behind_batches": 90, "blocker": behind } });
        let text = "the node is catching up, 90 batches behind: this node is 90 batches behind";
        assert_eq!(missing("synced", health.clone()).unwrap(), text);
        assert_eq!(
            missing("ready", health.clone()).unwrap(),
            "the node is not ready: this node is 90 batches behind"
        );
        assert_eq!(missing("healthy", health), None, "catching up ends by itself");
        let halted =
            json!({ "reason": "halted", "text": "the chain stands", "alert": true, "retry_ms": null });
        let health = json!({ "health": { "ready": false, "blocker": halted } });
        assert_eq!(missing("healthy", health.clone()).unwrap(), "the node is not ready: the chain stands");
        assert_eq!(missing("synced", health), None, "there is nothing to sync");
        let alarm = json!({ "sync": { "alarm": "batch 13: another root" } });
        assert_eq!(missing("healthy", alarm).unwrap(), "an audit raised an alarm: batch 13: another root");
    }

    #[test]
    fn arguments_are_checked() {
        for (text, ms) in [("500ms", 500), ("60s", 60_000), ("5m", 300_000), ("2h", 7_200_000), ("0s", 0)] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)));
        }
        for text in ["", "s", "60", "1.5s", "-1s", "9999999999h", "18446744073709551615m", "1y"] {
            assert!(duration(text).is_err(), "{text}");
        }
        for text in ["batch", "batch=", "batch=x", "batch=-1", "all", "synced=1"] {
            assert!(text.parse::<Condition>().is_err(), "{text}");
        }
        assert_eq!("batch=7".parse::<Condition>().unwrap().to_string(), "batch=7");
    }
}
