//! [`Server`]: a peer that serves the ledger, or lies about it.
//!
//! All servers of a process share one store that has everything. A server's own state (its windows, its snapshots, its
//! head) decides which requests it refuses. It answers all other requests with the code that a node serves with.

use std::time::Duration;

use anyhow::Result;
use rand::{Rng, rngs::StdRng};
use slipstream_network::{PeerId, Refusal};
use slipstream_sync::{
    answer,
    protocol::{
        ANSWER_BYTES_MAX, EpochEnds, Parts, REQUEST_BYTES_MAX, Request, SNAPSHOTS_MAX, SnapshotOffer, Summary,
    },
};
use slipstream_types::{BatchNumber, Epoch, bounded::BoundedVec, codec};

use super::{
    chain::Chain,
    fault::{Fault, Fired},
    lie::{Lie, Question},
    queue::Moment,
};

/// The pause of a trickling peer between two chunks, in request deadlines; a restore counts as stalled after three.
const TRICKLE_DEADLINES: f64 = 2.6;

/// Snapshots that a pretending peer offers at once. Each holds up a node whose only defence is patience, until the node
/// gives it up.
const PRETENDED: u64 = 4;

/// How a server behaves.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Habit {
    /// Answers correctly.
    Honest,
    /// Answers correctly, but its connections come and go.
    Flapping,
    /// Tells these lies from time to time.
    Lying(Vec<Lie>),
    /// Sends summaries and nothing else.
    Stalling,
    /// Answers just before the deadline.
    Dripping,
    /// Shows the forged ledger; its summaries are forged if `summaries`, and honest otherwise.
    Colluding { summaries: bool },
    /// Offers snapshots of no bytes with every possible row, holds each request until just before its deadline, and
    /// then refuses it as busy.
    Pretending,
    /// Sends chunks as rarely as it can without the restore counting as stalled; refuses anything else as busy, just
    /// before each deadline.
    Trickling,
    /// Refuses everything but summaries as busy.
    Busy,
    /// Answers correctly, and sends useless announcements without end.
    Flooding,
}

/// A server's reaction to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reaction {
    /// Answers at this moment.
    Answer(Moment),
    /// Refuses the request as busy at this moment.
    Busy(Moment),
    /// Never replies.
    Silence,
}

impl Habit {
    /// Whether all answers of such a server are true, and all announcements useful.
    pub(super) fn is_honest(&self) -> bool {
        !matches!(self, Habit::Lying(_) | Habit::Colluding { .. } | Habit::Pretending | Habit::Flooding)
    }
}

/// A server's windows, in batches; a window of 0 keeps all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Keeps {
    pub(super) bodies: u64,
    pub(super) receipts: u64,
    pub(super) deltas: u64,
    pub(super) snapshots: usize,
}

impl Keeps {
    /// Everything that any follower may need.
    pub(super) const ALL: Keeps = Keeps { bodies: 0, receipts: 0, deltas: 0, snapshots: 3 };
}

/// One of the peers.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) id: PeerId,
    pub(super) habit: Habit,
    pub(super) keeps: Keeps,
    /// How many batches the server is behind the certified head.
    pub(super) lag: u64,
    /// Whether the server comes back under another key when it is banned, and every few seconds if no node bans it.
    pub(super) renames: bool,
    /// The keys that the server had before.
    pub(super) former: Vec<PeerId>,
    /// When a trickling server sends its next chunk.
    pub(super) chunk_at: Moment,
}

/// A server's answer, and whether it is true.
pub(super) struct Answer {
    pub(super) bytes: Result<Vec<u8>, Refusal>,
    /// Whether the asker must give no credit for the answer.
    pub(super) is_lie: bool,
    /// The lie in the answer, even an unprovable one, for the readers of a recording.
    pub(super) lie: Option<String>,
}

impl Answer {
    /// An answer in which nothing is false.
    pub(super) fn honest(bytes: Result<Vec<u8>, Refusal>) -> Answer {
        Answer { bytes, is_lie: false, lie: None }
    }
}

impl Server {
    /// Returns the server's head while `certified` is the ledger's head.
    pub(super) fn head(&self, certified: BatchNumber) -> BatchNumber {
        certified.before(self.lag).max(BatchNumber::new(1))
    }

    /// Whether the server offers a snapshot.
    pub(super) fn offers(&self, certified: BatchNumber, number: BatchNumber) -> bool {
        self.snapshots(certified).contains(&number)
    }

    fn snapshots(&self, certified: BatchNumber) -> Vec<BatchNumber> {
        let head = self.head(certified);
        let made = Chain::canonical().store.snapshots();
        let numbers = made.into_iter().map(|info| info.number).filter(|number| *number <= head);
        // Some trickling peers have only snapshots that honest peers have dropped, so that no other peer can send the
        // rest. The other trickling peers are asked among many.
        let is_alone = self.habit == Habit::Trickling && self.keeps.snapshots == Keeps::ALL.snapshots;
        let forgotten = if is_alone { Keeps::ALL.snapshots } else { 0 };
        numbers.skip(forgotten).take(self.keeps.snapshots.min(SNAPSHOTS_MAX)).collect()
    }

    /// Decides whether and when the server answers a request whose deadline is `deadline_at`.
    pub(super) fn manner(
        &mut self,
        payload: &[u8],
        now: Moment,
        deadline_at: Moment,
        fired: &mut Fired,
    ) -> Result<Reaction> {
        let request: Request = codec::decode("sync request", payload, REQUEST_BYTES_MAX)?;
        let left = deadline_at.saturating_sub(now);
        let late = now + left - left / 10;
        let is_chunk = matches!(request, Request::Chunk { .. } | Request::RangeDelta(_));
        let begins =
            matches!(request, Request::Offer { .. } | Request::Headers { .. } | Request::Codes { .. });
        let (manner, fault) = match self.habit {
            _ if request == Request::Summary => return Ok(Reaction::Answer(now)),
            Habit::Stalling => (Reaction::Silence, Fault::Stall),
            Habit::Dripping => (Reaction::Answer(late), Fault::Drip),
            Habit::Pretending => (Reaction::Busy(late), Fault::Pretence),
            Habit::Busy => (Reaction::Busy(now), Fault::EndlessBusy),
            Habit::Trickling if begins => return Ok(Reaction::Answer(now)),
            Habit::Trickling if is_chunk && now >= self.chunk_at => {
                self.chunk_at = now + (left as f64 * TRICKLE_DEADLINES) as Moment;
                (Reaction::Answer(late), Fault::Trickle)
            }
            Habit::Trickling => return Ok(Reaction::Busy(late)),
            _ => return Ok(Reaction::Answer(now)),
        };
        fired.insert(fault);
        Ok(manner)
    }

    /// Answers a request according to its habit; the asking node has stored the epochs up to `known`.
    pub(super) fn answer(
        &self,
        certified: BatchNumber,
        payload: &[u8],
        known: Epoch,
        rng: &mut StdRng,
        fired: &mut Fired,
    ) -> Result<Answer> {
        let request: Request = codec::decode("sync request", payload, REQUEST_BYTES_MAX)?;
        match &self.habit {
            Habit::Colluding { summaries } if *summaries || request != Request::Summary => {
                fired.insert(Fault::Collusion);
                let lie = Some("the forged ledger".to_owned());
                Ok(Answer { bytes: answer(&Chain::forged().store, payload), is_lie: true, lie })
            }
            Habit::Lying(lies) => {
                let honest = match self.honest(certified, request.clone(), fired)? {
                    Ok(honest) => honest,
                    Err(refusal) => return Ok(Answer::honest(Err(refusal))),
                };
                let fitting: Vec<Lie> = lies.iter().copied().filter(|lie| lie.fits(&request)).collect();
                if fitting.is_empty() || rng.random_ratio(1, 4) {
                    return Ok(Answer::honest(Ok(honest)));
                }
                let lie = fitting[rng.random_range(0..fitting.len())];
                let question = Question { request: &request, honest: &honest, known };
                let told = lie.tell(question, rng)?.filter(|told| *told != honest);
                fired.extend(told.as_ref().and_then(|_| lie.fault()));
                let is_lie = told.is_some() && lie.is_provable();
                let what = told.as_ref().map(|_| lie.name());
                Ok(Answer { bytes: Ok(told.unwrap_or(honest)), is_lie, lie: what })
            }
            _ => Ok(Answer::honest(self.honest(certified, request, fired)?)),
        }
    }

    fn honest(
        &self,
        certified: BatchNumber,
        request: Request,
        fired: &mut Fired,
    ) -> Result<Result<Vec<u8>, Refusal>> {
        let head = self.head(certified);
        let chain = Chain::canonical();
        let kept = match &request {
            Request::Summary => true,
            Request::Range(range) => range.first <= head && self.keeps_parts(head, range.first, range.parts),
            Request::Headers { last, .. } | Request::Survey { last, .. } => *last <= head,
            Request::Offer { number, .. }
            | Request::Chunk { number, .. }
            | Request::Codes { number, .. }
            | Request::RangeProof { number, .. } => self.offers(certified, *number),
            Request::RangeDelta(delta) => {
                let keeps = delta.from.next() >= lowest(head, self.keeps.deltas);
                self.offers(certified, delta.to) && keeps
            }
            Request::Subtrees(request) => request.number <= head,
            Request::ReverseDelta { from, to } => *from <= head && *to >= lowest(head, self.keeps.deltas),
            Request::Epochs { .. } | Request::Origin { .. } => true,
        };
        if !kept {
            fired.insert(Fault::Pruning);
            return Ok(Err(Refusal::not_kept("this is not kept here")));
        }
        let request = match request {
            Request::Range(mut range) => {
                let due = u32::try_from(head.since(range.first) + 1).unwrap_or(u32::MAX);
                range.batches_max = range.batches_max.min(due);
                Request::Range(range)
            }
            request => request,
        };
        let answered = answer(&chain.store, &codec::encode("sync request", &request)?);
        match (&request, answered) {
            (Request::Summary, Ok(full)) => {
                let mut summary: Summary = codec::decode("summary", &full, ANSWER_BYTES_MAX)?;
                summary.head = chain.batch(head).map(|made| made.certificate.clone());
                summary.bodies_from = Some(lowest(head, self.keeps.bodies));
                summary.receipts_from = Some(lowest(head, self.keeps.receipts));
                summary.deltas_from = Some(lowest(head, self.keeps.deltas));
                summary.states_from = Some(lowest(head, self.keeps.deltas));
                let made = chain.store.snapshots();
                let served = |number| made.iter().find(|info| info.number == number);
                let numbers = self.snapshots(certified);
                let offers = numbers.iter().filter_map(|number| served(*number));
                let offers = offers.map(|info| SnapshotOffer::new(info.number, info.rows)).collect();
                let pretended = |number| SnapshotOffer { number, rows: u64::MAX, bytes: 0 };
                let offers = match self.habit {
                    Habit::Pretending => {
                        head.before(PRETENDED - 1).through(head).rev().map(pretended).collect()
                    }
                    _ => offers,
                };
                summary.snapshots = BoundedVec::new(offers)?;
                Ok(Ok(codec::encode("summary", &summary)?))
            }
            (Request::Epochs { .. }, Ok(all)) => {
                let ends: EpochEnds = codec::decode("epoch ends", &all, ANSWER_BYTES_MAX)?;
                let known = ends.certificates.iter().filter(|end| end.info.number <= head).cloned();
                let certificates = BoundedVec::new(known.collect())?;
                Ok(Ok(codec::encode("epoch ends", &EpochEnds { certificates })?))
            }
            (_, answered) => Ok(answered),
        }
    }

    fn keeps_parts(&self, head: BatchNumber, first: BatchNumber, parts: Parts) -> bool {
        let windows = [
            (Parts::BODY, self.keeps.bodies),
            (Parts::RECEIPTS, self.keeps.receipts),
            (Parts::DELTA, self.keeps.deltas),
        ];
        windows.into_iter().all(|(part, window)| !parts.has(part) || first >= lowest(head, window))
    }
}

/// Returns the first batch of a window that ends with `head`.
fn lowest(head: BatchNumber, window: u64) -> BatchNumber {
    match window {
        0 => BatchNumber::GENESIS,
        window => head.next().before(window),
    }
}

/// Returns a busy peer's refusal.
pub(super) fn busy() -> Refusal {
    Refusal::busy(Duration::ZERO, "come back later")
}
