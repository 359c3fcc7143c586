//! [`Uplink`]: a node's outgoing messages. Its peers take turns, like connections that share a link.

use std::collections::{BTreeMap, VecDeque};

use slipstream_network::Priority;

use super::node::Parcel;

/// Bytes sent to one peer before the next peer's turn: some packets.
const PIECE_BYTES: usize = 16 << 10;

/// A part of a message on a link.
pub(super) struct Piece {
    pub(super) to: usize,
    /// The part's bytes on the link.
    pub(super) bytes: usize,
    /// The message; only the last part has it.
    pub(super) parcel: Option<Parcel>,
}

/// A node's up-link.
#[derive(Default)]
pub(super) struct Uplink {
    lanes: BTreeMap<usize, Lane>,
    /// Peers with waiting messages.
    turns: VecDeque<usize>,
}

/// The messages to one peer in order, and how many bytes of each remain.
#[derive(Default)]
struct Lane {
    waiting: [VecDeque<(Parcel, usize)>; Priority::ALL.len()],
    current: Option<(Parcel, usize)>,
}

impl Lane {
    fn is_empty(&self) -> bool {
        self.current.is_none() && self.waiting.iter().all(VecDeque::is_empty)
    }
}

impl Uplink {
    /// Enqueues a message of `bytes` bytes.
    pub(super) fn push(&mut self, priority: Priority, parcel: Parcel, bytes: usize) {
        let lane = self.lanes.entry(parcel.to).or_default();
        if lane.is_empty() {
            self.turns.push_back(parcel.to);
        }
        lane.waiting[priority as usize].push_back((parcel, bytes));
    }

    /// Returns the next piece to send.
    pub(super) fn next(&mut self) -> Option<Piece> {
        let to = self.turns.pop_front()?;
        let lane = self.lanes.get_mut(&to)?;
        let current = lane.current.take().or_else(|| lane.waiting.iter_mut().find_map(VecDeque::pop_front));
        let (parcel, left) = current?;
        let bytes = left.min(PIECE_BYTES);
        let parcel = match left - bytes {
            0 => Some(parcel),
            left => {
                lane.current = Some((parcel, left));
                None
            }
        };
        if !lane.is_empty() {
            self.turns.push_back(to);
        }
        Some(Piece { to, bytes, parcel })
    }
}
