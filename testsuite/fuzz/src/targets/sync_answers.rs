//! Announcements and answers of peers, to a node that syncs. Whatever they contain, the node's store has a prefix of
//! the chain that the validators signed, and nothing else.

use std::{collections::VecDeque, time::Duration};

use slipstream_network::PeerId;
use slipstream_sync::{
    Defences, SyncConfig, answer,
    engine::{Effect, Engine, Local, RequestId, Setup},
    work::Worker,
};
use slipstream_types::{BatchNumber, codec};
use tokio::time::Instant;

use super::world::{BATCHES, CHAIN, session, store, stranger};
use crate::claim::edit;

/// The most effects that one frame may have here: a node's queue has no limit.
const EFFECTS_MAX: usize = 64;
/// The most frames of one input.
const FRAMES_MAX: usize = 12;

/// A node that syncs, with its store.
struct Node {
    engine: Engine,
    worker: Worker,
    /// Encoded requests in flight.
    asked: VecDeque<(RequestId, Vec<u8>)>,
    now: Instant,
}

pub(super) fn run(bytes: &[u8]) {
    let store = store(&CHAIN.genesis);
    let mut node = Node::on(&store);
    let peer = stranger().public();
    node.engine.handle_peers(&[peer], node.now);
    node.act();
    let mut rest = bytes;
    for _ in 0..FRAMES_MAX {
        let [kind, high, low, tail @ ..] = rest else { break };
        let len = usize::from(u16::from_be_bytes([*high, *low])).min(tail.len());
        let (payload, next) = tail.split_at(len);
        node.hear(peer, *kind, payload);
        rest = next;
    }
    let head = store.head().expect("memory is readable").header;
    if head.number > BatchNumber::GENESIS {
        assert!(CHAIN.headers.contains(&head), "the node reached a head that no validator signed: {head:?}");
    }
}

impl Node {
    fn on(store: &slipstream_storage::Store) -> Node {
        let setup = Setup {
            hints: true,
            patience: Duration::ZERO,
            waypoint: BatchNumber::GENESIS,
            cores: 1,
            seed: 1,
            defences: Defences::default(),
        };
        let (config, now) = (SyncConfig::default(), Instant::now());
        let worker = Worker::new(store.clone(), &config, session(&CHAIN.genesis), None, 1);
        let local = Local::of(store).expect("memory is readable");
        Node {
            engine: Engine::new(config, &setup, local, None, now),
            worker: worker.expect("it has a genesis"),
            asked: VecDeque::new(),
            now,
        }
    }

    /// Handles a frame of the peer: a broadcast or an answer, either made up or honest with altered bytes.
    fn hear(&mut self, peer: PeerId, kind: u8, payload: &[u8]) {
        self.now += Duration::from_millis(50);
        let altered = |mut honest: Vec<u8>| {
            edit(&mut honest, payload);
            honest
        };
        match kind % 4 {
            0 => self.engine.handle_broadcast(peer, payload.to_vec(), self.now),
            1 => {
                let number = BatchNumber::new(1 + u64::from(kind / 4) % BATCHES);
                self.engine.handle_broadcast(peer, altered(CHAIN.announcement(number)), self.now);
            }
            answers => {
                let Some((id, request)) = self.asked.pop_front() else { return };
                let honest = || answer(&CHAIN.store, &request).unwrap_or_default();
                let said = if answers == 2 { payload.to_vec() } else { altered(honest()) };
                self.engine.handle_answer(id, Ok(said), self.now);
            }
        }
        self.act();
        if self.engine.poll_timeout().is_some_and(|at| at <= self.now) {
            self.engine.handle_timeout(self.now);
            self.act();
        }
    }

    /// Carries out the engine's effects.
    fn act(&mut self) {
        for _ in 0..EFFECTS_MAX {
            let Some(effect) = self.engine.poll_effect() else { return };
            match effect {
                Effect::Send { id, request, .. } => {
                    let request = codec::encode("sync request", &request).expect("its own request encodes");
                    self.asked.push_back((id, request));
                }
                Effect::Run { id, job } => {
                    let done = self.worker.run(job);
                    let went_on = self.engine.handle_done(id, done, Duration::from_millis(1), self.now);
                    went_on.expect("a peer must not stop the node");
                }
                Effect::Cancel { id } => self.asked.retain(|(asked, _)| *asked != id),
                Effect::Ban { .. } | Effect::Hear { .. } => {}
            }
        }
    }
}

/// Returns honest answers to all requests, announcements, one altered byte of each, and junk.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let frame = |kind: u8, payload: &[u8]| [&[kind, 0, payload.len() as u8][..], payload].concat();
    let (answers, announced) = (frame(3, &[]), [1, 5, 9].map(|kind| frame(kind, &[])).concat());
    vec![
        answers.repeat(FRAMES_MAX),
        [announced.clone(), answers.repeat(6)].concat(),
        [answers.repeat(2), frame(3, &[40, 0, 1]), answers.repeat(4)].concat(),
        [announced, frame(1, &[90, 0, 4])].concat(),
        [frame(2, &[0; 9]), frame(0, &[1; 9]), answers.repeat(3)].concat(),
    ]
}
