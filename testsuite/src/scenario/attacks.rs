//! [`ATTACKS`]: the names of the siege's attacks, for the rules. The attacks themselves are in a crate above this one.

/// The attacks of the siege, in the order of `slipnet campaign siege --list`. A test of the siege compares the two.
pub const ATTACKS: &[&str] = &[
    // HTTP.
    "slow-headers",
    "slow-body",
    "slow-reader",
    "half-open",
    "connection-flood",
    "endless-headers",
    "pipeline-unread",
    "batch-bomb",
    "deep-json",
    "log-bomb",
    "call-burner",
    "estimate-burner",
    "gone-callers",
    "idle-filters",
    "waiting-calls",
    "receipt-bomb",
    // WebSocket.
    "ws-half-upgrades",
    "ws-huge-frames",
    "ws-endless-fragments",
    "ws-ping-flood",
    "ws-long-messages",
    "ws-unread-news",
    "ws-many-subscriptions",
    // Connections and requests between peers.
    "stalled-handshakes",
    "handshake-flood",
    "identities",
    "identities-one-network",
    "identities-cycling",
    "identities-busy",
    "forged-addresses",
    "garbage-datagrams",
    "ban-evasion",
    "unread-answers",
    "range-deltas",
    "chunk-after-restart",
    "request-flood",
    "epochs-flood",
    "open-streams",
    "slow-requests",
    "oversized-frames",
    "truncated-frames",
    // Announcements.
    "stale-announcements",
    "future-announcements",
    "forged-announcements",
    "noise-broadcasts",
    "untaken-broadcasts",
    // Lying servers.
    "snapshot-lure",
    "snapshot-lure-ground",
    "snapshot-drip",
    "stalling-servers",
    "unasked-hints",
    "oversized-answers",
    "literal-blobs",
    "corrupt-answers",
    "forged-heads",
    "garbage-answers",
    "foreign-genesis",
    "strange-signatures",
    "grafted-batches",
    "changed-money",
    "hidden-rows",
    "changed-rows",
    "false-hints",
    "unsigned-heads",
    "empty-promises",
    "short-ranges",
    "empty-ranges",
    "shifted-ranges",
    "missing-parts",
    "changed-headers",
    "unsigned-ranges",
    "useless-hints",
    "huge-hints",
    "false-offers",
    "subtle-offers",
    "changed-ancestry",
    "swapped-siblings",
    "other-code",
    "corrupt-range-deltas",
    "padded-range-deltas",
    "false-validators",
    "repeated-epochs",
    "reversed-epochs",
    "false-genesis",
    "late-answers",
    "busy-servers",
    // Transactions.
    "junk-transactions",
    "bad-signatures",
    "replacements",
    "gas-hogs",
    "low-tips",
    "zero-tip-tails",
    "heavy-transactions",
    "nonce-gaps",
    "lone-transactions",
];

/// Checks that an attack of this name exists. The error is the most similar name.
pub(super) fn known(name: &str) -> Result<(), &'static str> {
    if ATTACKS.contains(&name) {
        return Ok(());
    }
    Err(nearest(name, ATTACKS.iter().copied()))
}

/// Returns the most similar name.
pub(super) fn nearest(name: &str, all: impl Iterator<Item = &'static str>) -> &'static str {
    let likeness = |attack: &str| strsim::jaro_winkler(attack, name);
    let nearest = all.max_by(|one, other| likeness(one).total_cmp(&likeness(other)));
    nearest.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::fault::PeerLie;

    /// Goal: every attack that a scenario can ask for has a name in the siege, and a typo finds the intended name.
    #[test]
    fn names_are_known_or_the_nearest_is() {
        for &lie in PeerLie::ALL {
            assert_eq!(known(lie.of_program()), Ok(()));
        }
        assert_eq!(known("junk-transaction"), Err("junk-transactions"));
        assert_eq!(known("coruppt-answers"), Err("corrupt-answers"));
    }
}
