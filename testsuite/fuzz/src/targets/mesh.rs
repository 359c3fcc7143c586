//! Messages of the mesh, as bytes. Decoding and handling them never panics, and the mesh forwards and delivers none of
//! them. A message that decodes encodes to the same bytes.

use std::sync::Arc;

use slipstream_broadcast::{BroadcastConfig, Effect, Head, Mesh, Message, Wants};
use slipstream_testkit::{keys, set};
use slipstream_types::{Address, BatchNumber, Digest, PublicKey, accumulator::Accumulator};
use tokio::time::Instant;

fn mesh() -> Mesh {
    let set = set(0, &keys(0..4), Address::ZERO);
    let mut accumulator = Accumulator::default();
    accumulator.append(Digest::ZERO);
    let head = Head { number: BatchNumber::GENESIS, digest: Digest::ZERO, accumulator, set: Arc::new(set) };
    Mesh::new(BroadcastConfig::default(), Wants { body: true, hints: true }, head, [7; 32])
}

pub(crate) fn run(bytes: &[u8]) {
    let (mut mesh, now) = (mesh(), Instant::now());
    let peers: Vec<_> = (0..4).map(|peer| PublicKey([peer; 32])).collect();
    mesh.handle_peers(&peers, now);
    while mesh.poll_effect().is_some() {}
    let mut rest = bytes;
    // Each message follows its sender and its length.
    while let [from, high, low, tail @ ..] = rest {
        let len = usize::from(u16::from_be_bytes([*high, *low])).min(tail.len());
        let (message, next) = tail.split_at(len);
        if let Ok(decoded) = Message::decode(message) {
            assert_eq!(decoded.encode().expect("it was decoded"), message);
        }
        mesh.handle_message(peers[usize::from(*from % 4)], message, now);
        rest = next;
    }
    mesh.handle_timeout(now);
    while let Some(effect) = mesh.poll_effect() {
        match effect {
            Effect::Send { message, .. } => {
                assert!(matches!(Message::decode(&message), Ok(Message::Wants { .. } | Message::Have(_))))
            }
            Effect::Ban { .. } | Effect::Heard { .. } => {}
            other => panic!("no validator certified a batch, but the mesh did this: {other:?}"),
        }
    }
}

/// Returns this node's own messages, and a rumour, after their senders and lengths.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let mut mesh = mesh();
    let now = Instant::now();
    mesh.handle_peers(&[PublicKey([0; 32])], now);
    let mut said = Vec::new();
    while let Some(effect) = mesh.poll_effect() {
        if let Effect::Send { message, .. } = effect {
            said.push([&[1][..], &(message.len() as u16).to_be_bytes(), &message].concat());
        }
    }
    said.push(vec![2, 0, 9, 1, 1, 0, 0, 0, 0, 0, 0, 0]);
    said
}
