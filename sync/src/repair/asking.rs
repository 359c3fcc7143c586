//! [`Asking`]: who is asked for what, and what is done with the answers.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::{
    FutureExt,
    future::BoxFuture,
    stream::{FuturesUnordered, StreamExt},
};
use parking_lot::Mutex;
use slipstream_network::{NetworkError, PeerId, Protocol, RefusalKind, RequestLimits, Transport};
use slipstream_storage::{LEVELS_MAX, Place, Repair, Wanted};
use slipstream_types::{BatchNumber, Digest, bounded::BoundedVec, codec};
use tokio::time::Instant;

use super::blocking;
use crate::{
    SyncError,
    protocol::{ANSWER_BYTES_MAX, CODES_MAX, Codes, PLACES_MAX, Request, Subtrees, SubtreesRequest},
};

/// Questions under way at once, at one peer and in all.
const OF_PEER_MAX: usize = 2;
const ALL_MAX: usize = 8;
/// How long one peer may take. A server that merges deltas first says so sooner.
const DEADLINE: Duration = Duration::from_secs(10);
/// A peer that is late or not there rests for so long, one that does not have what is asked for longer.
const REST: Duration = Duration::from_secs(3);
const NOT_KEPT_REST: Duration = Duration::from_secs(20);
/// How long whoever lied is kept out.
const BAN: Duration = Duration::from_secs(3_600);
/// How often is looked whether a peer came or has rested.
const LOOK: Duration = Duration::from_millis(100);
/// How often an operator who waits is told what peers say.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);
/// Levels that many places are opened at once: what is sent is least for one or two, and two take half the round trips.
const LEVELS: u8 = 2;
/// So few places are opened further: their bytes are few anyway.
const FEW_PLACES: usize = 4;
const LEVELS_OF_FEW: u8 = 4;
/// Bytes of the places in one question: a request has 4 KiB.
const PLACES_BYTES_MAX: usize = 3_900;
/// Peers whose answers are told in one line, and remembered.
const TOLD_MAX: usize = 16;
const PEERS_MAX: usize = 1_024;

/// What it cost.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Moved {
    /// Bytes of all questions and answers.
    pub(super) bytes: u64,
    /// Questions that were answered.
    pub(super) questions: u64,
}

/// What is asked of one peer.
enum Question {
    Places { wanted: Vec<Wanted>, levels: u8 },
    Codes(Vec<Digest>),
}

/// How a question ended.
struct Ended {
    peer: PeerId,
    question: Question,
    /// Bytes of the question.
    sent: usize,
    answer: Result<Vec<u8>, NetworkError>,
}

/// What is known of a peer.
#[derive(Default)]
struct Known {
    asked: usize,
    rests_until: Option<Instant>,
    /// Why it gave nothing the last time.
    said: Option<String>,
}

/// A repair under way. See the module.
pub(super) struct Asking<'a> {
    transport: &'a dyn Transport,
    number: BatchNumber,
    root: Digest,
    repair: Arc<Mutex<Repair>>,
    patience: Duration,
    peers: BTreeMap<PeerId, Known>,
    under_way: FuturesUnordered<BoxFuture<'a, Ended>>,
    /// Codes that somebody is asked for.
    codes: Vec<Digest>,
    /// When somebody last gave something.
    progress_at: Instant,
    report_at: Instant,
    moved: Moved,
}

impl<'a> Asking<'a> {
    pub(super) fn new(
        transport: &'a dyn Transport,
        number: BatchNumber,
        root: Digest,
        repair: Arc<Mutex<Repair>>,
        patience: Duration,
    ) -> Asking<'a> {
        let now = Instant::now();
        Asking {
            transport,
            number,
            root,
            repair,
            patience,
            peers: BTreeMap::new(),
            under_way: FuturesUnordered::new(),
            codes: Vec::new(),
            progress_at: now,
            report_at: now + REPORT_INTERVAL,
            moved: Moved::default(),
        }
    }

    /// Asks until nothing differs any more.
    pub(super) async fn run(mut self) -> Result<Moved, SyncError> {
        loop {
            let left = self.ask_all().await?;
            if !left && self.under_way.is_empty() {
                return Ok(self.moved);
            }
            tokio::select! {
                Some(ended) = self.under_way.next() => self.take(ended).await?,
                () = tokio::time::sleep(LOOK) => self.look()?,
            }
        }
    }

    /// Asks whoever is free. Returns whether something is left to be asked for.
    async fn ask_all(&mut self) -> Result<bool, SyncError> {
        while self.under_way.len() < ALL_MAX {
            let Some(question) = self.next_question().await? else { return Ok(false) };
            let Some(peer) = self.free_peer() else {
                self.give_back(question);
                return Ok(true);
            };
            self.ask(peer, question);
        }
        Ok(true)
    }

    /// The connected peer with the least to do.
    fn free_peer(&mut self) -> Option<PeerId> {
        let (now, connected) = (Instant::now(), self.transport.peers());
        if self.peers.len() > PEERS_MAX {
            self.peers.retain(|peer, _| connected.contains(peer));
        }
        let asked = |peer: &PeerId| self.peers.get(peer).map_or(0, |known| known.asked);
        let rests = |peer: &PeerId| {
            self.peers.get(peer).and_then(|known| known.rests_until).is_some_and(|until| now < until)
        };
        let free = connected.into_iter().filter(|peer| asked(peer) < OF_PEER_MAX && !rests(peer));
        free.min_by_key(asked)
    }

    async fn next_question(&mut self) -> Result<Option<Question>, SyncError> {
        let wanted = self.repair.lock().take_wanted(PLACES_MAX);
        if !wanted.is_empty() {
            return Ok(Some(self.about_places(wanted)));
        }
        if self.codes.is_empty() && !self.under_way.is_empty() {
            // Their answers may show more that differs.
            return Ok(None);
        }
        let (repair, max, began) = (Arc::clone(&self.repair), self.codes.len() + CODES_MAX, Instant::now());
        let missing = blocking(move || Ok(repair.lock().missing_codes(max)?)).await?;
        // The first time it reads all code, and perhaps all rows: nobody was waited for meanwhile.
        self.progress_at += began.elapsed();
        let due = missing.into_iter().filter(|hash| !self.codes.contains(hash)).take(CODES_MAX);
        let due: Vec<Digest> = due.collect();
        if due.is_empty() {
            return Ok(None);
        }
        self.codes.extend(&due);
        Ok(Some(Question::Codes(due)))
    }

    /// As many of the places as one question has room for; the others wait.
    fn about_places(&self, mut wanted: Vec<Wanted>) -> Question {
        let mut bytes = 0;
        let fits = wanted.iter().take_while(|wanted| {
            bytes += 3 + wanted.place().bits().div_ceil(8);
            bytes <= PLACES_BYTES_MAX
        });
        let fitting = fits.count();
        let rest = wanted.split_off(fitting);
        self.repair.lock().want_again(rest);
        let levels = match wanted.len() {
            1 if wanted[0].place() == Place::ROOT => LEVELS_MAX,
            ..=FEW_PLACES => LEVELS_OF_FEW,
            _ => LEVELS,
        };
        Question::Places { wanted, levels }
    }

    fn give_back(&mut self, question: Question) {
        match question {
            Question::Places { wanted, .. } => self.repair.lock().want_again(wanted),
            Question::Codes(hashes) => self.codes.retain(|hash| !hashes.contains(hash)),
        }
    }

    fn ask(&mut self, peer: PeerId, question: Question) {
        self.peers.entry(peer).or_default().asked += 1;
        let request = question.request(self.number, self.root);
        let response_bytes_max = request.answer_bytes_max();
        let payload = codec::encode("sync request", &request).expect("requests are within their bounds");
        let (transport, sent) = (self.transport, payload.len());
        let limits = RequestLimits { deadline: DEADLINE, response_bytes_max };
        let asked = async move {
            let answer = transport.request(peer, Protocol::SYNC, payload, limits).await;
            Ended { peer, question, sent, answer }
        };
        self.under_way.push(asked.boxed());
    }

    async fn take(&mut self, ended: Ended) -> Result<(), SyncError> {
        let Ended { peer, question, sent, answer } = ended;
        self.peers.entry(peer).or_default().asked -= 1;
        self.moved.bytes += sent as u64;
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                self.give_back(question);
                self.rest(peer, &error);
                return Ok(());
            }
        };
        self.moved.bytes += answer.len() as u64;
        if let Question::Codes(hashes) = &question {
            self.codes.retain(|hash| !hashes.contains(hash));
        }
        let repair = Arc::clone(&self.repair);
        match blocking(move || question.add(&repair, &answer)).await? {
            Ok(()) => {
                self.moved.questions += 1;
                self.progress_at = Instant::now();
                if let Some(known) = self.peers.get_mut(&peer) {
                    known.said = None;
                }
            }
            Err(lie) => {
                let reason = format!("repair: {lie}");
                tracing::warn!(peer = %peer.short(), %reason, "banned");
                self.transport.ban(peer, &reason, BAN);
                self.tell(peer, reason, BAN);
            }
        }
        Ok(())
    }

    fn rest(&mut self, peer: PeerId, error: &NetworkError) {
        let rest = match error.refusal().map(|refusal| refusal.kind()) {
            Some(RefusalKind::Busy { retry_after_ms }) => Duration::from_millis(retry_after_ms.into()),
            Some(RefusalKind::NotKept | RefusalKind::Malformed | RefusalKind::Failed) => NOT_KEPT_REST,
            None => REST,
        };
        self.tell(peer, error.to_string(), rest);
    }

    fn tell(&mut self, peer: PeerId, said: String, rest: Duration) {
        let known = self.peers.entry(peer).or_default();
        (known.rests_until, known.said) = (Some(Instant::now() + rest), Some(said));
    }

    /// Gives up if nobody has given anything for long.
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

    /// What each peer said last.
    fn answers(&self) -> String {
        let said = |(peer, known): (&PeerId, &Known)| {
            known.said.as_ref().map(|said| format!("{}: {said}", peer.short()))
        };
        let told: Vec<String> = self.peers.iter().filter_map(said).take(TOLD_MAX).collect();
        match told.is_empty() {
            true if self.transport.peers().is_empty() => "no peer is connected".into(),
            true => "none has refused".into(),
            false => told.join("; "),
        }
    }
}

impl Question {
    fn request(&self, number: BatchNumber, root: Digest) -> Request {
        match self {
            Question::Places { wanted, levels } => {
                let places = wanted.iter().map(Wanted::place).collect();
                let places = BoundedVec::new(places).expect("no more are taken");
                Request::Subtrees(SubtreesRequest { number, root, levels: *levels, places })
            }
            Question::Codes(hashes) => {
                let hashes = BoundedVec::new(hashes.clone()).expect("no more are taken");
                Request::Codes { number, hashes }
            }
        }
    }

    /// Adds an answer; the inner error is what its sender is to blame for. What was not answered is wanted again then.
    fn add(self, repair: &Mutex<Repair>, answer: &[u8]) -> Result<Result<(), String>, SyncError> {
        let mut repair = repair.lock();
        match self {
            Question::Places { wanted, levels } => add_places(&mut repair, wanted, levels, answer),
            Question::Codes(hashes) => add_codes(&mut repair, &hashes, answer),
        }
    }
}

fn add_places(
    repair: &mut Repair,
    mut wanted: Vec<Wanted>,
    levels: u8,
    answer: &[u8],
) -> Result<Result<(), String>, SyncError> {
    let opened = match codec::decode::<Subtrees>("subtrees", answer, ANSWER_BYTES_MAX) {
        Ok(subtrees) if subtrees.opened.len() == wanted.len() => subtrees.opened,
        Ok(_) => {
            repair.want_again(wanted);
            return Ok(Err("not as many subtrees as were asked for".into()));
        }
        Err(error) => {
            repair.want_again(wanted);
            return Ok(Err(error.to_string()));
        }
    };
    for (at, opened) in opened.iter().enumerate() {
        match repair.add(&wanted[at], opened, levels) {
            Ok(()) => {}
            Err(error) if error.is_bad_supply() => {
                repair.want_again(wanted.drain(at..));
                return Ok(Err(error.to_string()));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Ok(()))
}

fn add_codes(repair: &mut Repair, hashes: &[Digest], answer: &[u8]) -> Result<Result<(), String>, SyncError> {
    let codes = match codec::decode::<Codes>("codes", answer, ANSWER_BYTES_MAX) {
        Ok(codes) if codes.codes.len() == hashes.len() => codes.codes,
        Ok(_) => return Ok(Err("not as many codes as were asked for".into())),
        Err(error) => return Ok(Err(error.to_string())),
    };
    for code in &codes {
        match repair.add_code(code) {
            Ok(()) => {}
            Err(error) if error.is_bad_supply() => return Ok(Err(error.to_string())),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Ok(()))
}
