//! [`RepairSession`]: which peer is asked for what, and what happens to the answers.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::{
    FutureExt,
    future::BoxFuture,
    stream::{FuturesUnordered, StreamExt},
};
use parking_lot::Mutex;
use slipstream_network::{NetworkError, PeerId, Protocol, RequestLimits, Transport};
use slipstream_storage::Repair;
use slipstream_types::{BatchNumber, Digest, codec};
use tokio::time::Instant;

use super::{blocking, peers::Peers, question::Question};
use crate::{
    SyncError,
    protocol::{CODES_MAX, PLACES_MAX},
};

/// Maximum number of open questions, and most requests for them in flight. A question unanswered for [`HEDGE`] goes to another peer
/// too. The first true answer counts, so silence costs a moment instead of a deadline.
const QUESTIONS_MAX: usize = 8;
const ALL_MAX: usize = 24;
const HEDGE: Duration = Duration::from_millis(1_500);
/// How long one peer may take. A server that merges deltas first says so sooner.
const DEADLINE: Duration = Duration::from_secs(10);
/// How long a peer that lied is banned.
const BAN: Duration = Duration::from_secs(3_600);
/// How often the repair looks whether a peer came, has rested or is late.
const LOOK: Duration = Duration::from_millis(100);
/// How often the log tells a waiting operator what peers say.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);

/// The traffic of a repair.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct RepairTraffic {
    /// Bytes of all questions and answers.
    pub(super) bytes: u64,
    /// Questions that were answered.
    pub(super) questions: u64,
}

/// A question without an answer.
struct OpenQuestion {
    question: Question,
    /// The peers that were asked, in turn.
    peers: Vec<PeerId>,
    /// Those of them that are late.
    late: Vec<PeerId>,
    /// When the last of them was asked.
    asked_at: Instant,
}

/// How a request to one peer ended.
struct EndedRequest {
    id: u64,
    peer: PeerId,
    answer: Result<Vec<u8>, NetworkError>,
}

/// A repair in progress. See the module.
pub(super) struct RepairSession<'a> {
    transport: &'a dyn Transport,
    number: BatchNumber,
    root: Digest,
    repair: Arc<Mutex<Repair>>,
    patience: Duration,
    peers: Peers,
    /// By id. An answer to a question that is not here any more came too late.
    open: BTreeMap<u64, OpenQuestion>,
    next_id: u64,
    under_way: FuturesUnordered<BoxFuture<'a, EndedRequest>>,
    /// Codes that a peer is asked for.
    codes: Vec<Digest>,
    /// When a peer last gave something.
    progress_at: Instant,
    report_at: Instant,
    moved: RepairTraffic,
}

impl<'a> RepairSession<'a> {
    pub(super) fn new(
        transport: &'a dyn Transport,
        number: BatchNumber,
        root: Digest,
        repair: Arc<Mutex<Repair>>,
        patience: Duration,
    ) -> RepairSession<'a> {
        let now = Instant::now();
        RepairSession {
            transport,
            number,
            root,
            repair,
            patience,
            peers: Peers::default(),
            open: BTreeMap::new(),
            next_id: 0,
            under_way: FuturesUnordered::new(),
            codes: Vec::new(),
            progress_at: now,
            report_at: now + REPORT_INTERVAL,
            moved: RepairTraffic::default(),
        }
    }

    /// Asks until nothing differs any more.
    pub(super) async fn run(mut self) -> Result<RepairTraffic, SyncError> {
        loop {
            let left = self.ask_all().await?;
            if !left && self.open.is_empty() {
                return Ok(self.moved);
            }
            tokio::select! {
                Some(ended) = self.under_way.next() => self.take(ended).await?,
                () = tokio::time::sleep(LOOK) => {}
            }
            self.look()?;
        }
    }

    /// Asks the free peers. Returns whether something is left to ask for.
    async fn ask_all(&mut self) -> Result<bool, SyncError> {
        self.ask_others();
        while self.open.len() < QUESTIONS_MAX && self.under_way.len() < ALL_MAX {
            let Some(question) = self.next_question().await? else { return Ok(false) };
            let Some(peer) = self.peers.free(self.transport.peers(), &[]) else {
                self.give_back(question);
                return Ok(true);
            };
            let id = self.next_id;
            self.next_id += 1;
            let asked_at = Instant::now();
            self.open.insert(id, OpenQuestion { question, peers: Vec::new(), late: Vec::new(), asked_at });
            self.ask(id, peer);
        }
        Ok(true)
    }

    /// Asks another peer too for questions that were unanswered for a while.
    fn ask_others(&mut self) {
        let now = Instant::now();
        let due = self.open.iter().filter(|(_, open)| now - open.asked_at >= HEDGE);
        let due: Vec<u64> = due.map(|(id, _)| *id).collect();
        for id in due {
            let Some(open) = self.open.get_mut(&id) else { continue };
            for peer in &open.peers {
                if !open.late.contains(peer) {
                    open.late.push(*peer);
                    self.peers.is_late(*peer);
                }
            }
            if self.under_way.len() >= ALL_MAX {
                continue;
            }
            if let Some(peer) = self.peers.free(self.transport.peers(), &open.peers) {
                self.ask(id, peer);
            }
        }
    }

    async fn next_question(&mut self) -> Result<Option<Question>, SyncError> {
        let wanted = self.repair.lock().take_wanted(PLACES_MAX);
        if !wanted.is_empty() {
            let (question, rest) = Question::about(wanted);
            self.repair.lock().want_again(rest);
            return Ok(Some(question));
        }
        if self.codes.is_empty() && !self.open.is_empty() {
            // Their answers may show more differences.
            return Ok(None);
        }
        let (repair, max, began) = (Arc::clone(&self.repair), self.codes.len() + CODES_MAX, Instant::now());
        let missing = blocking(move || Ok(repair.lock().missing_codes(max)?)).await?;
        // The first time it reads all code, and perhaps all rows. That time does not count against peers.
        self.progress_at += began.elapsed();
        let due = missing.into_iter().filter(|hash| !self.codes.contains(hash)).take(CODES_MAX);
        let due: Vec<Digest> = due.collect();
        if due.is_empty() {
            return Ok(None);
        }
        self.codes.extend(&due);
        Ok(Some(Question::Codes(due)))
    }

    fn give_back(&mut self, question: Question) {
        match question {
            Question::Places { wanted, .. } => self.repair.lock().want_again(wanted),
            Question::Codes(hashes) => self.codes.retain(|hash| !hashes.contains(hash)),
        }
    }

    fn ask(&mut self, id: u64, peer: PeerId) {
        let Some(open) = self.open.get_mut(&id) else { return };
        open.peers.push(peer);
        open.asked_at = Instant::now();
        self.peers.ask(peer);
        let request = open.question.request(self.number, self.root);
        let response_bytes_max = request.answer_bytes_max();
        let payload = codec::encode("sync request", &request).expect("requests are within their bounds");
        self.moved.bytes += payload.len() as u64;
        let transport = self.transport;
        let limits = RequestLimits { deadline: DEADLINE, response_bytes_max };
        let asked = async move {
            let answer = transport.request(peer, Protocol::SYNC, payload, limits).await;
            EndedRequest { id, peer, answer }
        };
        self.under_way.push(asked.boxed());
    }

    async fn take(&mut self, ended: EndedRequest) -> Result<(), SyncError> {
        let EndedRequest { id, peer, answer } = ended;
        self.moved.bytes += answer.as_ref().map_or(0, |answer| answer.len() as u64);
        let is_late = self.open.get(&id).is_none_or(|open| open.late.contains(&peer));
        self.peers.end(peer, is_late);
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                self.peers.refused(peer, &error);
                self.leave(id, peer);
                return Ok(());
            }
        };
        // A late answer is dropped without a comparison, and blames nobody.
        let Some(OpenQuestion { question, peers, late, .. }) = self.open.remove(&id) else { return Ok(()) };
        for other in peers.into_iter().filter(|other| *other != peer && !late.contains(other)) {
            self.peers.is_late(other);
        }
        if let Question::Codes(hashes) = &question {
            self.codes.retain(|hash| !hashes.contains(hash));
        }
        let repair = Arc::clone(&self.repair);
        let added = blocking(move || question.add(&repair, peer, &answer)).await?;
        match added.lie {
            None => {
                self.moved.questions += 1;
                if self.peers.gave(peer) {
                    self.progress_at = Instant::now();
                }
            }
            Some(lie) => {
                let reason = format!("repair: {lie}");
                tracing::warn!(peer = %peer.short(), %reason, "banned");
                self.transport.ban(peer, &reason, BAN);
                self.peers.fail(peer, reason, BAN);
            }
        }
        added.shallow.into_iter().for_each(|peer| self.peers.shallow(peer));
        Ok(())
    }

    /// Takes the news that a peer did not answer. If no other peer is asked, the question has to be asked anew.
    fn leave(&mut self, id: u64, peer: PeerId) {
        let Some(open) = self.open.get_mut(&id) else { return };
        open.peers.retain(|asked| *asked != peer);
        open.late.retain(|asked| *asked != peer);
        if open.peers.is_empty()
            && let Some(open) = self.open.remove(&id)
        {
            self.give_back(open.question);
        }
    }

    /// Gives up if no peer has given anything for `patience`.
    fn look(&mut self) -> Result<(), SyncError> {
        let now = Instant::now();
        if now - self.progress_at >= self.patience {
            return Err(SyncError::Unrepaired { number: self.number, answers: self.answers() });
        }
        if now >= self.report_at {
            self.report_at = now + REPORT_INTERVAL;
            let (bytes, answers) = (self.moved.bytes, self.answers());
            tracing::info!(batch = %self.number, bytes, %answers, "comparing the state with peers");
        }
        Ok(())
    }

    /// What each peer last said.
    fn answers(&self) -> String {
        self.peers.answers().unwrap_or_else(|| match self.transport.peers().is_empty() {
            true => "no peer is connected".into(),
            false => "no peer has refused".into(),
        })
    }
}
