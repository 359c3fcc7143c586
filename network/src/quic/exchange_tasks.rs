//! The task of peer exchange: reports events to the chooser, and carries out its actions.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, warn};

use super::{
    dial,
    driver::Driver,
    exchange::OpenExchange,
    link::{Goodbye, Link, close},
};
use crate::{
    BannedBy, ContactFailure, ExchangeEvent, NetworkError, OWN_BAN_MAX, PeerAddress, PeerId, Protocol,
    RefusalKind, RequestLimits,
    exchange::{
        ANSWER_BYTES_MAX, Action, Answer, AskOutcome, DialOutcome, MessageError, Neighbour, PeerRecord,
        Request,
    },
    peers::Useful,
};

/// Time between two steps: it bounds the cost of a flood of connections to twenty scans of the table per second.
const STEP_EVERY: Duration = Duration::from_millis(50);
/// Limits of one question.
const LIMITS: RequestLimits =
    RequestLimits { deadline: Duration::from_secs(5), response_bytes_max: ANSWER_BYTES_MAX };
/// How long to ban a peer that passes on a record with a bad signature.
const FORGED_BAN: Duration = OWN_BAN_MAX;

impl Driver {
    /// Chooses peers until the network stops.
    pub(super) async fn exchange_peers(self: Arc<Self>) {
        let exchange = self.exchange.clone();
        let opened = exchange.opened().await;
        loop {
            let neighbours = self.neighbours();
            let (actions, chosen, wake_at) = {
                let mut chooser = opened.chooser.lock();
                let actions = chooser.step(&neighbours, opened.now());
                (actions, chooser.chosen(), chooser.wake_at())
            };
            self.peers.lock().choose(chosen);
            for action in actions {
                self.act(action);
            }
            sleep(STEP_EVERY).await;
            tokio::select! {
                biased;
                () = exchange.changed() => {}
                () = sleep_until(wake_at) => {}
            }
        }
    }

    fn neighbours(&self) -> Vec<Neighbour> {
        let (peers, now) = (self.peers.lock(), Instant::now());
        let neighbour = |(id, since, link): (PeerId, Instant, &Arc<Link>)| Neighbour {
            id,
            address: link.address,
            is_dialled: link.connection.side().is_client(),
            since,
            used: link.used(),
            served: link.served(now),
        };
        peers.iter().map(neighbour).collect()
    }

    fn act(self: &Arc<Self>, action: Action) {
        match action {
            Action::Dial(target) => self.spawn(self.clone().dial_chosen(target)),
            Action::Ask(peer) => self.spawn(self.clone().ask(peer)),
            Action::Drop(peer) => {
                if let Some(link) = self.peers.lock().disconnect(peer, Instant::now()) {
                    close(&link.connection, Goodbye::Shutdown, "the place goes to another peer");
                }
            }
        }
    }

    async fn dial_chosen(self: Arc<Self>, target: PeerAddress) {
        let came = match self.banned_until(target.id) {
            Some(_) => DialOutcome::Unreachable,
            None => match dial::dial(&self, target).await {
                Ok(_) => {
                    // If two attempts crossed, the other one's connection may have stayed.
                    while let Some(connection) = self.connection(target.id) {
                        connection.closed().await;
                        sleep(STEP_EVERY).await;
                    }
                    DialOutcome::Ended
                }
                Err(failure) => {
                    debug!(peer = %target, ?failure, "cannot reach a peer learned from others");
                    match failure {
                        ContactFailure::WrongKey(_) => DialOutcome::WrongKey,
                        ContactFailure::Unreachable(_) | ContactFailure::Ended(_) => DialOutcome::Unreachable,
                    }
                }
            },
        };
        let opened = self.exchange.opened().await;
        opened.chooser.lock().dialled(&target, came, opened.now());
        self.exchange.notify();
    }

    /// Asks a peer for other peers.
    async fn ask(self: Arc<Self>, peer: PeerId) {
        let opened = self.exchange.opened().await;
        let came = match self.question(opened, peer).await {
            Ok(answer) => self.take(opened, peer, answer),
            Err(NetworkError::Refused { refusal, .. }) => match refusal.kind() {
                RefusalKind::Busy { .. } | RefusalKind::Failed => AskOutcome::Later,
                RefusalKind::NotKept | RefusalKind::Malformed => AskOutcome::Unwilling,
            },
            Err(NetworkError::Malformed { .. } | NetworkError::TooLong { .. }) => AskOutcome::Unwilling,
            Err(_) => AskOutcome::Later,
        };
        opened.chooser.lock().asked(&peer, came, opened.now());
        self.exchange.notify();
    }

    async fn question(&self, opened: &OpenExchange, peer: PeerId) -> Result<Vec<u8>, NetworkError> {
        let own = self.exchange.own(opened, opened.now());
        let request = Request::new(opened.chain, own.as_ref()).encode();
        let malformed = NetworkError::Malformed { peer, what: "cannot encode the request for peers" };
        let request = request.map_err(|_| malformed)?;
        let link = self.peers.lock().get(peer).cloned().ok_or(NetworkError::UnknownPeer { peer })?;
        link.request(Protocol::PEERS, request, LIMITS).await
    }

    /// Takes in a peer's answer. Honest peers check the records that they pass on, so a single record with a bad
    /// signature is a lie of the sender.
    fn take(&self, opened: &OpenExchange, peer: PeerId, answer: Vec<u8>) -> AskOutcome {
        let teller = self.peers.lock().get(peer).map(|link| link.address.ip());
        let Some(teller) = teller else { return AskOutcome::Later };
        let records = match Answer::decode(&answer) {
            // A peer of a later version is no liar.
            Err(MessageError::Version(_)) => return AskOutcome::Unwilling,
            Err(MessageError::Codec(error)) => Err(error.to_string()),
            Ok(answer) => checked(opened, peer, answer),
        };
        match records {
            Ok(records) => {
                opened.chooser.lock().hear(records, teller, opened.now());
                AskOutcome::Answered
            }
            Err(reason) => {
                opened.chooser.lock().count(ExchangeEvent::Forged);
                self.punish(peer, &reason);
                AskOutcome::Unwilling
            }
        }
    }

    /// Bans a peer. A configured one is presumed broken rather than hostile.
    fn punish(&self, peer: PeerId, reason: &str) {
        let now = Instant::now();
        let is_configured = self.is_reserved(&peer);
        if self.ledger.lock().journal.tells(peer, now) {
            warn!(%peer, reason, is_configured, "a peer passed on invalid records");
        }
        if is_configured {
            return;
        }
        if let Some(link) = self.peers.lock().ban(peer, BannedBy::Node, reason, FORGED_BAN, now) {
            close(&link.connection, Goodbye::Banned, &format!("banned: {reason}"));
        }
    }
}

/// The unknown records of an answer, each checked.
fn checked(opened: &OpenExchange, peer: PeerId, answer: Answer) -> Result<Vec<PeerRecord>, String> {
    if answer.own.as_ref().is_some_and(|own| own.id() != peer) {
        return Err("it sent another peer's record as its own".into());
    }
    let told = answer.own.into_iter().chain(answer.others.into_inner());
    let is_news = |id, issued_ms| !opened.chooser.lock().has(&id, issued_ms);
    let news = told.filter(|record| is_news(record.id(), record.issued_ms()));
    news.map(|record| record.check(&opened.chain).map_err(|error| error.to_string())).collect()
}
