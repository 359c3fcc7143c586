//! The messages: transactions within limits, and answers with the outcome of each.

use alloy_primitives::B256;
use serde::{Deserialize, Serialize};
use slipstream_executor::Transaction;
use slipstream_types::{
    CodecError,
    batch::RawTransaction,
    bounded::{BoundedBytes, BoundedVec},
    codec, limits,
};

use crate::pool::Refused;

/// Maximum number of transactions in one message.
pub(super) const MESSAGE_TRANSACTIONS_MAX: usize = 2_048;
/// Bytes at which a message is full. Its last transaction may exceed them.
const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Bytes of the longest message with its length prefixes.
pub(super) const PAYLOAD_BYTES_MAX: usize =
    MESSAGE_BYTES_MAX + limits::TRANSACTION_BYTES_MAX + MESSAGE_TRANSACTIONS_MAX * 3 + 5;
/// Bytes of the longest answer.
pub(super) const ANSWER_BYTES_MAX: usize = MESSAGE_TRANSACTIONS_MAX + 3;

/// The payload of protocol TRANSACTIONS.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Message {
    transactions: BoundedVec<RawTransaction, MESSAGE_TRANSACTIONS_MAX>,
}

/// The answer: one byte for each transaction, 0 if it was accepted, else the number of its [`Refused`].
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    outcomes: BoundedBytes<MESSAGE_TRANSACTIONS_MAX>,
}

/// The outcome of a transaction: `None` if it was accepted, or the reason of its refusal.
pub(super) type Outcome = Option<Refused>;

/// A message and its transactions.
pub(super) struct Packed {
    pub(super) payload: Vec<u8>,
    pub(super) hashes: Vec<B256>,
}

/// Decodes the transactions of a message.
pub(super) fn decode(payload: &[u8]) -> Result<Vec<RawTransaction>, CodecError> {
    let message: Message = codec::decode("transactions", payload, PAYLOAD_BYTES_MAX)?;
    Ok(message.transactions.into_inner())
}

/// Encodes the answer to a message.
pub(super) fn encode_answer(outcomes: &[Outcome]) -> Result<Vec<u8>, CodecError> {
    let codes = outcomes.iter().map(|outcome| outcome.map_or(0, |reason| reason as u8)).collect();
    codec::encode("outcomes", &Answer { outcomes: BoundedBytes::new(codes)? })
}

/// Decodes the outcomes of a message's transactions. A reason that a later release adds counts as [`Refused::Busy`].
pub(super) fn decode_answer(bytes: &[u8]) -> Result<Vec<Outcome>, CodecError> {
    let answer: Answer = codec::decode("outcomes", bytes, ANSWER_BYTES_MAX)?;
    let outcome = |code: &u8| match code {
        0 => None,
        code => Some(Refused::from_code(*code).unwrap_or(Refused::Busy)),
    };
    Ok(answer.outcomes.iter().map(outcome).collect())
}

/// Packs transactions into messages within the limits.
pub(super) fn pack<'a>(transactions: impl Iterator<Item = &'a Transaction>) -> Vec<Packed> {
    let mut messages = Vec::new();
    let (mut packed, mut hashes, mut bytes) = (Vec::new(), Vec::new(), 0);
    let mut flush = |packed: &mut Vec<RawTransaction>, hashes: &mut Vec<B256>| {
        let hashes = std::mem::take(hashes);
        let transactions = BoundedVec::new(std::mem::take(packed));
        let encoded =
            transactions.and_then(|transactions| codec::encode("transactions", &Message { transactions }));
        messages.extend(encoded.ok().map(|payload| Packed { payload, hashes }));
    };
    for transaction in transactions {
        // Decoded transactions are within the limit of a single transaction.
        let Ok(raw) = RawTransaction::new(transaction.raw.to_vec()) else { continue };
        bytes += raw.len();
        packed.push(raw);
        hashes.push(transaction.hash);
        if packed.len() >= MESSAGE_TRANSACTIONS_MAX || bytes >= MESSAGE_BYTES_MAX {
            flush(&mut packed, &mut hashes);
            bytes = 0;
        }
    }
    if !packed.is_empty() {
        flush(&mut packed, &mut hashes);
    }
    messages
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Account;

    // Many transactions make several messages within the limit. None is lost or reordered.
    #[test]
    fn messages_are_bounded_and_complete() {
        let account = Account::new(0);
        let transactions: Vec<_> = (0..3).map(|nonce| account.transfer(nonce, 1)).collect();
        let many = transactions.iter().cycle().take(MESSAGE_TRANSACTIONS_MAX * 2 + 1);
        let messages = pack(many.clone());
        let decoded: Vec<_> = messages.iter().flat_map(|message| decode(&message.payload).unwrap()).collect();
        assert_eq!(messages.len(), 3);
        assert!(decoded.iter().map(|raw| &raw[..]).eq(many.clone().map(|transaction| &transaction.raw[..])));
        let hashes = messages.iter().flat_map(|message| &message.hashes);
        assert!(hashes.eq(many.map(|transaction| &transaction.hash)));
    }

    /// Goal: the longest answer fits, and an answer from a later release is understood except for its new reasons.
    #[test]
    fn answers_are_bounded_and_open_to_new_reasons() {
        let outcomes: Vec<Outcome> =
            [None, Some(Refused::NotExecutable)].into_iter().cycle().take(MESSAGE_TRANSACTIONS_MAX).collect();
        let encoded = encode_answer(&outcomes).unwrap();
        assert!(encoded.len() <= ANSWER_BYTES_MAX);
        assert_eq!(decode_answer(&encoded).unwrap(), outcomes);
        assert_eq!(decode_answer(&[2, 200, 0]).unwrap(), [Some(Refused::Busy), None]);
        assert!(encode_answer(&[None; MESSAGE_TRANSACTIONS_MAX + 1]).is_err());
    }
}
