//! Refuses requests that this node cannot answer, before anything waits, loads or merges for them.

use slipstream_storage::{LEVELS_MAX, REVERSE_DELTA_BATCHES_MAX, RangeDeltaError, StorageError, Store};
use slipstream_types::{BatchNumber, BlobKind, Path, limits};

use super::{
    answer::{not_kept, snapshot},
    error::ServeError,
};
use crate::{
    protocol::{RangeDeltaRequest, Request, SUBTREE_HASHES_MAX, SubtreesRequest},
    range_delta::BASE_STEP,
};

/// Checks a request's form. The store is not read.
pub(super) fn form(request: &Request) -> Result<(), ServeError> {
    match request {
        Request::Chunk { first, last, .. } => ends(*first, *last),
        Request::RangeDelta(request) => range_delta(request),
        Request::Subtrees(request) => opening(request),
        Request::Headers { first, last } => headers(*first, *last),
        Request::Survey { numbers, last } => survey(numbers, *last),
        Request::ReverseDelta { from, to } => reverse_delta(*from, *to),
        Request::Summary
        | Request::Range(_)
        | Request::Offer { .. }
        | Request::Codes { .. }
        | Request::Origin { .. }
        | Request::RangeProof { .. }
        | Request::Epochs { .. } => Ok(()),
    }
}

/// Whether the store has the data for an answer, as far as a few short reads show.
pub(super) fn kept(store: &Store, request: &Request) -> Result<(), ServeError> {
    if !store.is_initialized() {
        return Err(ServeError::NotKept("this node has no ledger yet".into()));
    }
    match request {
        // A dropped snapshot is not served from the cache either: its other chunks are gone.
        Request::Chunk { number, .. }
        | Request::RangeProof { number, .. }
        | Request::Offer { number, .. } => snapshot(store, *number).map(|_| ()),
        Request::RangeDelta(request) => {
            snapshot(store, request.to)?;
            // A cached merge is refused once its deltas are gone: the rest of its chunks cannot be made.
            let due = request.from.next();
            let lowest = store.lowest(BlobKind::Delta)?.filter(|lowest| *lowest <= due);
            lowest.map(|_| ()).ok_or_else(|| not_kept(BlobKind::Delta.name(), due))
        }
        Request::Subtrees(request) => state(store, request),
        Request::ReverseDelta { from, to } => {
            let is_kept = store.states_from()? <= *to && store.header(*from)?.is_some();
            if is_kept { Ok(()) } else { Err(not_kept("state", *to)) }
        }
        // Code is requested with a snapshot, or with a batch whose state is compared.
        Request::Codes { number, .. } => {
            let is_known = store.snapshot(*number)?.is_some() || store.header(*number)?.is_some();
            if is_known { Ok(()) } else { Err(not_kept("state", *number)) }
        }
        Request::Summary
        | Request::Range(_)
        | Request::Headers { .. }
        | Request::Survey { .. }
        | Request::Origin { .. }
        | Request::Epochs { .. } => Ok(()),
    }
}

/// Checks that a reverse delta leads back, and not too far.
fn reverse_delta(from: BatchNumber, to: BatchNumber) -> Result<(), ServeError> {
    match (1..=REVERSE_DELTA_BATCHES_MAX).contains(&from.since(to)) {
        true => Ok(()),
        false => Err(ServeError::Malformed(format!(
            "a reverse delta leads back 1 to {REVERSE_DELTA_BATCHES_MAX} batches, not from {from} to {to}"
        ))),
    }
}

/// Checks that a survey names each header once, in order, with the last one of the ledger at the end.
fn survey(numbers: &[BatchNumber], last: BatchNumber) -> Result<(), ServeError> {
    let is_in_order = numbers.is_sorted_by(|one, other| one < other) && numbers.last() == Some(&last);
    if is_in_order {
        Ok(())
    } else {
        Err(ServeError::Malformed("the headers of a survey are out of order".into()))
    }
}

fn ends(first: Path, last: Path) -> Result<(), ServeError> {
    if first > last { Err(ServeError::Malformed("the range of the chunk is empty".into())) } else { Ok(()) }
}

/// Checks a range delta's ends and base. Each base needs a merge of its own: askers that are about as far behind must
/// share one.
fn range_delta(request: &RangeDeltaRequest) -> Result<(), ServeError> {
    let RangeDeltaRequest { from, to, first, last, .. } = *request;
    ends(first, last)?;
    if from >= to {
        return Err(StorageError::from(RangeDeltaError::EmptyRange { from, to }).into());
    }
    match from.get().is_multiple_of(BASE_STEP) {
        true => Ok(()),
        false => Err(ServeError::Malformed(format!(
            "a range delta must begin after a multiple of {BASE_STEP}, not after batch {from}"
        ))),
    }
}

/// Checks an opening's bounds. Each batch's state needs a merge of its own, so askers pay for it.
fn opening(request: &SubtreesRequest) -> Result<(), ServeError> {
    let is_bounded =
        (1..=LEVELS_MAX).contains(&request.levels) && (1..=SUBTREE_HASHES_MAX).contains(&request.hashes());
    if is_bounded {
        return Ok(());
    }
    Err(ServeError::Malformed(format!(
        "a request must name at least one place, 1 to {LEVELS_MAX} levels, and at most {SUBTREE_HASHES_MAX} hashes"
    )))
}

fn headers(first: BatchNumber, last: BatchNumber) -> Result<(), ServeError> {
    let is_bounded = first <= last && last.since(first) < limits::HEADERS_MAX as u64;
    if is_bounded {
        return Ok(());
    }
    Err(ServeError::Malformed(format!(
        "headers {first} to {last} are not 1 to {} headers",
        limits::HEADERS_MAX
    )))
}

/// Checks that the requested state is the one of this ledger. Nothing is revealed about another ledger's state.
fn state(store: &Store, request: &SubtreesRequest) -> Result<(), ServeError> {
    let SubtreesRequest { number, root, .. } = *request;
    let header = store.header(number)?.ok_or_else(|| not_kept("state", number))?;
    match header.state_root == root {
        true => Ok(()),
        false => Err(ServeError::NotKept(format!("the state of batch {number} has another root here"))),
    }
}

#[cfg(test)]
mod tests {
    use slipstream_types::{Digest, bounded::BoundedVec};

    use super::*;

    fn refused(request: &Request) -> Option<String> {
        form(request).err().map(|unserved| unserved.into_refusal().to_string())
    }

    /// Goal: no state is made for a request without places.
    #[test]
    fn subtrees_are_asked_for_by_their_places() {
        let (number, root, places) = (BatchNumber::GENESIS, Digest::ZERO, BoundedVec::default());
        let request = SubtreesRequest { number, root, levels: 1, places };
        assert!(refused(&Request::Subtrees(request)).is_some_and(|it| it.contains("at least one place")));
    }

    /// Goal: range deltas have few bases, so that askers share the merges.
    #[test]
    fn a_range_delta_begins_where_others_begin() {
        let refused = |from| {
            let (from, to) = (BatchNumber::new(from), BatchNumber::new(1_000));
            let (first, last) = (Path::MIN, Path::MAX);
            refused(&Request::RangeDelta(RangeDeltaRequest { from, to, first, last, bytes_max: 1 }))
        };
        assert_eq!((0..1_000).filter(|from| refused(*from).is_none()).count(), 16);
        assert!(refused(63).is_some_and(|it| it.contains("after a multiple of 64, not after batch 63")));
        assert!(refused(1_000).is_some());
    }

    /// Goal: a survey names each header once, in order, and ends with the ledger that proves them.
    #[test]
    fn a_survey_is_in_order() {
        let refused = |numbers: &[u64], last| {
            let numbers = numbers.iter().map(|number| BatchNumber::new(*number)).collect();
            let numbers = BoundedVec::new(numbers).unwrap();
            refused(&Request::Survey { numbers, last: BatchNumber::new(last) }).is_some()
        };
        assert!(!refused(&[1, 5, 9], 9) && !refused(&[9], 9));
        assert!(refused(&[], 9) && refused(&[1, 5], 9) && refused(&[5, 5, 9], 9) && refused(&[5, 1, 9], 9));
    }

    /// Goal: a request for no headers, or for more than an answer may have, is refused.
    #[test]
    fn headers_are_as_many_as_an_answer_may_have() {
        let refused = |first, last| {
            let (first, last) = (BatchNumber::new(first), BatchNumber::new(last));
            refused(&Request::Headers { first, last }).is_some()
        };
        let most = limits::HEADERS_MAX as u64;
        assert!(!refused(1, 1) && !refused(1, most));
        assert!(refused(2, 1) && refused(1, most + 1) && refused(0, u64::MAX));
    }
}
