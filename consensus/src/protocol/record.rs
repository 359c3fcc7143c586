//! What a validator must never forget, its last vote, and what that forbids.

use slipstream_types::{BatchNumber, Digest, LedgerInfo};

/// The last vote of a validator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Vote {
    /// The batch.
    pub(crate) number: BatchNumber,
    /// [`LedgerInfo::digest`] of what was signed.
    pub(crate) info: Digest,
}

impl Vote {
    /// The vote that a signature on the ledger info is.
    pub(crate) fn on(info: &LedgerInfo) -> Vote {
        Vote { number: info.number, info: info.digest() }
    }
}

/// Whether a vote may be given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Permission {
    /// Nothing was signed for this number or a later one: record it first.
    New,
    /// Exactly this was signed before: say it again.
    Again,
    /// Something else was signed for this number or a later one.
    Never {
        /// The number of the last vote.
        voted: BatchNumber,
    },
}

/// The rule that keeps certificates unique.
pub(crate) fn permission(last: Option<Vote>, vote: Vote) -> Permission {
    match last {
        Some(last) if last == vote => Permission::Again,
        Some(last) if last.number >= vote.number => Permission::Never { voted: last.number },
        _ => Permission::New,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Once a number is signed, only the very same statement may be signed for it, and nothing below it.
    #[test]
    fn one_statement_per_number() {
        let vote = |number, info: &str| Vote { number: BatchNumber(number), info: Digest::tagged(info, b"") };
        let last = vote(5, "a");
        assert_eq!(permission(None, vote(5, "a")), Permission::New);
        assert_eq!(permission(Some(last), vote(5, "a")), Permission::Again);
        let never = Permission::Never { voted: BatchNumber(5) };
        for refused in [vote(5, "b"), vote(4, "a"), vote(4, "b")] {
            assert_eq!(permission(Some(last), refused), never);
        }
        assert_eq!(permission(Some(last), vote(6, "b")), Permission::New);
    }
}
