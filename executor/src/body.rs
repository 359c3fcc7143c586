//! Decodes bodies into transactions, on all cores.

use rayon::prelude::*;
use slipstream_types::Body;

use crate::{
    senders::Senders,
    transaction::{Admission, Transaction, TransactionError},
};

/// The calling thread decodes a batch alone if the batch has at most this number of transactions divided by the number
/// of threads. A transaction takes up to 40 us. Waking the other threads costs CPU, and saves little time where cores
/// are few or busy.
const ALONE_MAX: usize = 256;

/// Whether the calling thread decodes a batch of this size alone.
pub(crate) fn is_few(transactions: usize) -> bool {
    transactions <= ALONE_MAX / rayon::current_num_threads()
}

/// A body with an envelope that the chain does not admit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("transaction {index} of the body: {source}")]
pub struct BodyError {
    /// The first such envelope.
    pub index: usize,
    /// The rule that the transaction breaks.
    #[source]
    pub source: TransactionError,
}

/// Decodes and checks every envelope. Recovering a sender takes about 30 us, so a large enough body is spread over
/// rayon's threads.
///
/// # Errors
/// Returns the first inadmissible envelope in the body's order, even if a thread met a later one first.
pub fn decode_body(body: &Body, admission: impl Into<Admission>) -> Result<Vec<Transaction>, BodyError> {
    let admission = admission.into();
    decode_with(body, |raw| Transaction::decode(raw, admission))
}

/// As [`decode_body`], but does not recover senders that are known.
pub(crate) fn decode_body_with(
    body: &Body,
    admission: Admission,
    senders: &Senders,
) -> Result<Vec<Transaction>, BodyError> {
    decode_with(body, |raw| senders.decode(raw, admission))
}

fn decode_with(
    body: &Body,
    decode: impl Fn(&[u8]) -> Result<Transaction, TransactionError> + Send + Sync,
) -> Result<Vec<Transaction>, BodyError> {
    let decoded = each(&body.transactions, |raw| decode(raw));
    let named = |(index, result): (usize, Result<_, _>)| result.map_err(|source| BodyError { index, source });
    decoded.into_iter().enumerate().map(named).collect()
}

/// Runs [`Transaction::decode`] on each envelope, spread over threads as in [`decode_body`]; keeps the order.
pub fn decode_each(
    envelopes: &[&[u8]],
    admission: impl Into<Admission>,
) -> Vec<Result<Transaction, TransactionError>> {
    let admission = admission.into();
    each(envelopes, |raw| Transaction::decode(raw, admission))
}

fn each<T: Sync, R: Send>(items: &[T], decode: impl Fn(&T) -> R + Send + Sync) -> Vec<R> {
    match is_few(items.len()) {
        true => items.iter().map(decode).collect(),
        false => items.par_iter().map(decode).collect(),
    }
}
