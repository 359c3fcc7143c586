//! Encodes a batch's hints as a blob for [`seal`](mod@crate::seal), and opens them for followers.

use slipstream_types::{
    Address, Blob, BlobKind, CodecError,
    hints::{self, DecodedHints, HintContext, TransactionParts},
};

use alloy_consensus::Transaction as _;

use crate::{outcome::Outcome, transaction::Transaction};

/// Seals the hints of a batch. Returns `None` if they are empty or exceed the limits: hints are only advice.
pub fn seal_hints(outcome: &Outcome, fee_recipient: Address, transactions: &[Transaction]) -> Option<Blob> {
    if !is_sealed(outcome) {
        return None;
    }
    let context = hint_context(fee_recipient, transactions);
    let content = hints::encode(&outcome.hints, &outcome.preimages, Some(&outcome.conflicts()), &context);
    Blob::compress(BlobKind::Hints, &content).ok()
}

/// As [`seal_hints`], with the values of the rows before the batch if all of them fit.
pub fn seal_hints_with_values(
    outcome: &Outcome,
    fee_recipient: Address,
    transactions: &[Transaction],
) -> Option<Blob> {
    if !is_sealed(outcome) {
        return None;
    }
    let context = hint_context(fee_recipient, transactions);
    let Outcome { hints, preimages, touched, .. } = outcome;
    let conflicts = outcome.conflicts();
    let content = hints::encode_with_values(hints, preimages, Some(&conflicts), &touched.rows, &context);
    let sealed = Blob::compress(BlobKind::Hints, &content).ok();
    sealed.or_else(|| seal_hints(outcome, fee_recipient, transactions))
}

/// Whether the hints have any keys, and at most as many as [`open_hints`] allows.
fn is_sealed(outcome: &Outcome) -> bool {
    (1..=hints::keys_max(outcome.gas_used)).contains(&outcome.hints.keys().count())
}

/// Opens the hints of a batch whose proposer receives its fees at `fee_recipient`. The batch's gas bounds the number of
/// keys.
///
/// # Errors
/// If the blob is damaged, has an unknown version, or names more keys than a batch with that gas can read. A follower
/// then treats the batch as one without hints.
pub fn open_hints(
    blob: &Blob,
    gas_used: u64,
    fee_recipient: Address,
    transactions: &[Transaction],
) -> Result<DecodedHints, CodecError> {
    let content = blob.content(BlobKind::Hints)?;
    hints::decode(&content, &hint_context(fee_recipient, transactions), hints::keys_max(gas_used))
}

/// The context for encoding and decoding a batch's hints: its transactions and its fee recipient.
pub fn hint_context(fee_recipient: Address, transactions: &[Transaction]) -> HintContext {
    HintContext::new(fee_recipient, transactions.iter().map(parts))
}

fn parts(transaction: &Transaction) -> TransactionParts<'_> {
    TransactionParts {
        sender: transaction.sender,
        nonce: transaction.nonce(),
        to: transaction.to(),
        input: transaction.envelope.input(),
        access_list: transaction.envelope.access_list().map_or(&[], |list| &list.0),
    }
}
