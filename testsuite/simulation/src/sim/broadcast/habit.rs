//! [`Habit`]: a node's behaviour towards others.

use slipstream_network::Bytes;

/// The behaviour of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Habit {
    /// It follows the protocol.
    Honest,
    /// It is connected and sends nothing.
    Silent,
    /// It changes every chunk.
    Forges,
    /// It changes the validator's signature on the plan of a payload.
    ForgesPlans,
    /// It sends the same chunk to all peers, again and again.
    Repeats,
    /// It announces batches and sends no chunk.
    Withholds,
    /// It sends chunks of unknown payloads.
    Invents,
}

/// Whether a message is a chunk, by its first byte.
pub(super) fn is_chunk(message: &[u8]) -> bool {
    message.first() == Some(&1)
}

impl Habit {
    /// Returns each kind of polluter in turn.
    pub(super) fn polluter(number: usize) -> Habit {
        [Habit::Forges, Habit::ForgesPlans, Habit::Repeats, Habit::Withholds, Habit::Invents][number % 5]
    }

    /// Returns the message that a node of this habit sends instead; `None` if the node sends nothing.
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
            // The lowest byte of a chunk's last scalar, so that the scalar stays valid.
            Habit::Forges => Some(changed(message.len() - 32.min(message.len() - 34))),
            Habit::Withholds => None,
            // A byte of the payload's id.
            Habit::Invents => Some(changed(1)),
        }
    }
}
