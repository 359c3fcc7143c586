//! [`Node`]: one node's mesh, its links and its processor.

use std::collections::{BTreeSet, VecDeque};

use slipstream_broadcast::{BroadcastConfig, Done, Job, JobId, Mesh, Wants};
use slipstream_network::{Bytes, PeerId, Priority};
use slipstream_types::PublicKey;

use super::{
    chain::Chain,
    habit::{Habit, is_chunk},
    uplink::Uplink,
};

/// Nanoseconds since the certificate.
pub(super) type Time = u64;

/// Returns the peer id of a node.
pub(super) fn peer(node: usize) -> PeerId {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&(node as u64 + 1).to_le_bytes());
    PublicKey(bytes)
}

pub(super) fn index(peer: &PeerId) -> usize {
    peer.0.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes) as usize) - 1
}

/// A message in flight.
pub(super) struct Parcel {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) message: Bytes,
}

/// Work for a processor.
pub(super) enum Task {
    Message(usize, Bytes),
    Job(JobId, Job),
    Done(JobId, Done),
    Timeout,
}

/// The current work of a processor.
pub(super) enum Current {
    /// Handling a message or a timer; these messages leave when the handling is done.
    Handling(Vec<(Priority, Parcel)>),
    Job(JobId, Done),
}

pub(super) struct Node {
    pub(super) mesh: Mesh,
    pub(super) links: BTreeSet<usize>,
    pub(super) habit: Habit,
    /// The first chunk that the node sent.
    pub(super) first_chunk: Option<Bytes>,
    pub(super) up: Uplink,
    pub(super) is_sending: bool,
    pub(super) down_free: Time,
    pub(super) tasks: VecDeque<Task>,
    pub(super) current: Option<Current>,
    pub(super) timer: Option<Time>,
    pub(super) has_body_at: Option<Time>,
    pub(super) is_incomplete: bool,
    pub(super) was_banned: bool,
    pub(super) bytes_sent: u64,
}

impl Node {
    /// Makes a node at the genesis, without links. Each of its chunks counts as one of `chunk_bytes` bytes.
    pub(super) fn new(wants: Wants, chain: &Chain, secret: [u8; 32], chunk_bytes: usize) -> Node {
        let mut mesh = Mesh::new(BroadcastConfig::default(), wants, chain.heads[0].clone(), secret);
        mesh.set_chunk_bytes(chunk_bytes);
        Node {
            mesh,
            links: BTreeSet::new(),
            habit: Habit::Honest,
            first_chunk: None,
            up: Uplink::default(),
            is_sending: false,
            down_free: 0,
            tasks: VecDeque::new(),
            current: None,
            timer: None,
            has_body_at: None,
            is_incomplete: false,
            was_banned: false,
            bytes_sent: 0,
        }
    }

    /// Returns the parcel that the node sends instead, by its habit; `None` if the node sends nothing.
    pub(super) fn twist(&mut self, Parcel { from, to, message }: Parcel) -> Option<Parcel> {
        if is_chunk(&message) && self.habit == Habit::Repeats {
            let message = self.first_chunk.get_or_insert(message).clone();
            return Some(Parcel { from, to, message });
        }
        self.habit.twist(message).map(|message| Parcel { from, to, message })
    }
}
