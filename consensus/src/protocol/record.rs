//! What a validator must never forget: its last vote, and a proposer also the batch that it voted for.

use serde::{Deserialize, Serialize};
use slipstream_storage::{StorageError, Store};
use slipstream_types::{BatchHeader, BatchNumber, Blob, CodecError, Digest, blob::BLOB_BYTES_MAX, codec};

/// The name of the store's record.
const KEY: &str = "consensus/vote";
/// A header and a body.
const RECORD_BYTES_MAX: usize = BLOB_BYTES_MAX;

/// The last vote of this validator.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct VoteRecord {
    /// The batch.
    pub(crate) number: BatchNumber,
    /// [`slipstream_types::LedgerInfo::digest`] of what was signed.
    pub(crate) info: Digest,
    /// What the proposer must propose again after a restart, because its signature on it may be known already.
    pub(crate) proposal: Option<(BatchHeader, Blob)>,
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
pub(crate) fn permission(last: Option<&VoteRecord>, number: BatchNumber, info: Digest) -> Permission {
    match last {
        Some(last) if last.number == number && last.info == info => Permission::Again,
        Some(last) if last.number >= number => Permission::Never { voted: last.number },
        _ => Permission::New,
    }
}

/// The record could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The store failed.
    #[error("the vote record could not be read or written")]
    Storage(#[from] StorageError),
    /// The store holds something else under the record's name. Voting on would risk a second vote.
    #[error(
        "the vote record is unreadable: this validator must not vote until its data directory is restored"
    )]
    Unreadable(#[source] CodecError),
}

/// The last vote, if there was one.
pub(crate) fn load(store: &Store) -> Result<Option<VoteRecord>, RecordError> {
    let Some(bytes) = store.record(KEY)? else { return Ok(None) };
    codec::decode("vote record", &bytes, RECORD_BYTES_MAX).map(Some).map_err(RecordError::Unreadable)
}

/// Replaces the last vote; durable when it returns.
pub(crate) fn save(store: &Store, record: &VoteRecord) -> Result<(), RecordError> {
    let bytes = codec::encode("vote record", record).map_err(RecordError::Unreadable)?;
    Ok(store.put_record(KEY, &bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Once a number is signed, only the very same statement may be signed for it, and nothing below it.
    #[test]
    fn one_statement_per_number() {
        let (a, b) = (Digest::tagged("a", b""), Digest::tagged("b", b""));
        let last = VoteRecord { number: BatchNumber(5), info: a, proposal: None };
        assert_eq!(permission(None, BatchNumber(5), a), Permission::New);
        assert_eq!(permission(Some(&last), BatchNumber(5), a), Permission::Again);
        let never = Permission::Never { voted: BatchNumber(5) };
        assert_eq!(permission(Some(&last), BatchNumber(5), b), never);
        assert_eq!(permission(Some(&last), BatchNumber(4), a), never);
        assert_eq!(permission(Some(&last), BatchNumber(4), b), never);
        assert_eq!(permission(Some(&last), BatchNumber(6), b), Permission::New);
    }
}
