//! [`Habit`]: a node's way with others.

use slipstream_network::Bytes;

/// The habit of a node, as the module describes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Habit {
    /// It follows the protocol.
    Honest,
    /// It is connected and says nothing.
    Silent,
    /// It changes every chunk.
    Forges,
    /// It changes what a validator signed of how a payload is cut.
    ForgesPlans,
    /// It sends the same chunk to everybody, again and again.
    Repeats,
    /// It tells of batches and sends no chunk.
    Withholds,
    /// It sends chunks of payloads that nobody knows.
    Invents,
}

/// Whether a message has a chunk: its first byte says so.
pub(super) fn is_chunk(message: &[u8]) -> bool {
    message.first() == Some(&1)
}

impl Habit {
    /// Each kind of polluter in turn.
    pub(super) fn polluter(number: usize) -> Habit {
        [Habit::Forges, Habit::ForgesPlans, Habit::Repeats, Habit::Withholds, Habit::Invents][number % 5]
    }

    /// The message that it sends instead; `None` if it sends nothing.
    pub(super) fn twist(self, message: Bytes) -> Option<Bytes> {
        let changed = |at: usize| {
            let mut bytes = message.to_vec();
            bytes[at] ^= 1;
            Bytes::from(bytes)
        };
        match self {
            Habit::Honest | Habit::Repeats => Some(message),
            Habit::Silent => None,
            // An announcement ends with the signature of its last plan.
            Habit::ForgesPlans if message.first() == Some(&0) => Some(changed(message.len() - 1)),
            Habit::ForgesPlans => Some(message),
            _ if !is_chunk(&message) => Some(message),
            // The lowest byte of a chunk's last scalar, so that it still is one.
            Habit::Forges => Some(changed(message.len() - 32.min(message.len() - 34))),
            Habit::Withholds => None,
            // In the payload's name.
            Habit::Invents => Some(changed(1)),
        }
    }
}
