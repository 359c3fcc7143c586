//! [`KeptOutcomes`]: the outcomes that this validator may have announced, durable until their number is committed.
//!
//! A validator that announces a token promises to show its outcome: others may agree on it, in this view or a later
//! one. So an outcome is written before it is announced, and survives a rollback.

use std::{collections::BTreeMap, ops::RangeInclusive, sync::Arc};

use serde::{Deserialize, Serialize};
use slipstream_eve::SignedOrder;
use slipstream_storage::{RECORD_BYTES_MAX, StorageError, Store};
use slipstream_types::{BatchNumber, CodecError, Digest, codec};

use super::{executed::DurableOutcome, message::OutcomeParts};
use crate::error::RecordError;

/// Maximum number of outcomes of one number: one for each view in which it was executed. Those of the oldest views are
/// removed first. Each outcome takes a view, so a primary must lead a view for each one that it makes others keep.
const NUMBER_MAX: usize = 16;

/// The prefix of the records' names.
const PREFIX: &str = "consensus/outcome/";

/// An outcome as it is stored.
#[derive(Serialize, Deserialize)]
struct StoredOutcome {
    /// `None` for a fetched outcome.
    order: Option<SignedOrder>,
    parts: OutcomeParts,
}

/// A record as it was found.
pub(super) struct FoundOutcome {
    /// `None` for a fetched outcome.
    pub(super) order: Option<SignedOrder>,
    pub(super) token: Digest,
    pub(super) parts: OutcomeParts,
}

/// See the module.
#[derive(Default)]
pub(super) struct KeptOutcomes {
    numbers: BTreeMap<BatchNumber, Vec<Arc<DurableOutcome>>>,
}

impl KeptOutcomes {
    /// Takes a durable outcome. Returns the name of a record to remove, if it must make room.
    pub(super) fn insert(&mut self, parts: Arc<DurableOutcome>) -> Option<String> {
        let outcomes = self.numbers.entry(parts.number()).or_default();
        if outcomes.iter().any(|kept| name(kept) == name(&parts)) {
            return None;
        }
        outcomes.push(parts);
        // Fetched outcomes are decided, so they are removed last.
        outcomes.sort_by_key(|kept| kept.order.as_ref().map_or(u64::MAX, |order| order.order.view));
        (outcomes.len() > NUMBER_MAX).then(|| name(&outcomes.remove(0)))
    }

    /// The outcome with that token.
    pub(super) fn get(&self, number: BatchNumber, token: &Digest) -> Option<&Arc<DurableOutcome>> {
        self.numbers.get(&number)?.iter().find(|parts| parts.token == *token)
    }

    /// The outcome of an order.
    pub(super) fn of_order(&self, order: &SignedOrder) -> Option<&Arc<DurableOutcome>> {
        let outcomes = self.numbers.get(&order.order.number)?;
        outcomes.iter().find(|parts| parts.order.as_ref() == Some(order))
    }

    /// Forgets committed outcomes. Returns the first number among them, if any; the caller must then call [`remove`].
    pub(super) fn settle(&mut self, committed: BatchNumber) -> Option<BatchNumber> {
        let open = self.numbers.split_off(&committed.next());
        std::mem::replace(&mut self.numbers, open).into_keys().next()
    }
}

/// Makes an outcome durable. Call it before this outcome, or one that builds on it, is announced.
pub(super) fn write(store: &Store, parts: &DurableOutcome) -> Result<(), RecordError> {
    let stored = StoredOutcome { order: parts.order.clone(), parts: parts.outcome() };
    let bytes = codec::encode("outcome", &stored).map_err(RecordError::Unreadable)?;
    Ok(store.put_record(&name(parts), &bytes)?)
}

/// Loads the outcomes above `head`, by number and view. Removes those up to `head`, in case a crash prevented that.
///
/// # Errors
/// If one cannot be read: this validator promised to show it.
pub(super) fn load(store: &Store, head: BatchNumber) -> Result<Vec<FoundOutcome>, RecordError> {
    remove(store, BatchNumber::new(0)..=head)?;
    let records = store.records(PREFIX, &last_of(BatchNumber::MAX))?;
    let open = |(name, bytes): (String, Vec<u8>)| -> Result<FoundOutcome, RecordError> {
        let StoredOutcome { order, parts } =
            codec::decode("outcome", &bytes, RECORD_BYTES_MAX).map_err(RecordError::Unreadable)?;
        let nameless = CodecError::Invalid { what: "outcome", rule: "its name does not end with its token" };
        let token = token_of(&name).ok_or(RecordError::Unreadable(nameless))?;
        Ok(FoundOutcome { order, token, parts })
    };
    records.into_iter().map(open).collect()
}

/// Removes the outcomes of batches that are committed. The range should be short: the store is searched for their names.
pub(super) fn remove(store: &Store, committed: RangeInclusive<BatchNumber>) -> Result<(), StorageError> {
    store.remove_records(&first_of(*committed.start()), &last_of(*committed.end()))
}

/// The tokens of a batch's kept outcomes.
pub(crate) fn kept_tokens(store: &Store, number: BatchNumber) -> Result<Vec<Digest>, StorageError> {
    let records = store.records(&first_of(number), &last_of(number))?;
    Ok(records.iter().filter_map(|(name, _)| token_of(name)).collect())
}

/// The name of an outcome's record. Names sort by number, then by view; fetched outcomes come last.
fn name(parts: &DurableOutcome) -> String {
    let view = parts.order.as_ref().map_or(u64::MAX, |order| order.order.view);
    format!("{PREFIX}{:020}/{view:020}/{}", parts.number().get(), parts.token)
}

fn token_of(name: &str) -> Option<Digest> {
    name.rsplit('/').next()?.parse().ok()
}

/// The bound before all names of that number.
fn first_of(number: BatchNumber) -> String {
    format!("{PREFIX}{:020}/", number.get())
}

/// The bound after all names of that number.
fn last_of(number: BatchNumber) -> String {
    format!("{PREFIX}{:020}/~", number.get())
}
