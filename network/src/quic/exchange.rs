//! [`Exchange`]: peer exchange on the wire. `crate::exchange` makes the decisions.
//!
//! ```text
//!   a peer asks ─▶ ExchangeHandler ─▶ rate ─▶ its own record checked ─▶ Chooser: heard, met ─▶ some records
//!   connections, answers, time ─▶ Chooser ─▶ dial · ask · drop
//! ```

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, OnceLock},
    time::Duration,
};

use parking_lot::Mutex;
use slipstream_types::{Clock, CodecError, Digest, SecretKey};
use tokio::{sync::Notify, time::Instant};
use tracing::{info, warn};

use super::link::Link;
use crate::{
    BoxFuture, ExchangeEvent, ExchangeStatus, Handler, NetworkConfig, NetworkError, Payload, PeerId,
    Protocol, Refusal,
    bucket::Bucket,
    exchange::{
        ANSWER_BYTES_MAX, AddressBook, Answer, Chooser, ChooserRules, Draws, Moment, PeerRecord,
        REQUEST_BYTES_MAX, Reach, Request, UncheckedRecord,
    },
    origin::Origin,
    peers::Peers,
    registry::Registry,
};

/// Questions of one party (an IPv4 address or an IPv6 /48) per second, and at once. An honest peer asks at most once a
/// minute.
const PARTY_PER_SECOND: f64 = 0.5;
const PARTY_BURST: f64 = 16.0;
/// Questions of all peers: each costs at most one signature check, some 50 microseconds.
const ALL_PER_SECOND: f64 = 64.0;
const ALL_BURST: f64 = 256.0;
/// Retry delay for a peer that asks too often.
const TOO_OFTEN_PAUSE: Duration = Duration::from_secs(10);
/// Retry delay for a peer that asks while this node is starting.
const STARTING_PAUSE: Duration = Duration::from_secs(1);
/// Age at which a node signs its record again.
const OWN_AGE_MS: u64 = 3_600_000;

/// Peer exchange of one node.
pub(super) struct Exchange {
    key: SecretKey,
    rules: ChooserRules,
    reach: Reach,
    /// Places for chosen peers, and one for a feeler.
    places: usize,
    peers: Arc<Mutex<Peers<Arc<Link>>>>,
    opened: OnceLock<OpenExchange>,
    /// Notified when something happens that the next step depends on.
    changed: Notify,
}

/// The state that exists once the chain is known.
pub(super) struct OpenExchange {
    pub(super) chain: Digest,
    clock: Arc<dyn Clock>,
    pub(super) chooser: Mutex<Chooser>,
    own: Mutex<Option<PeerRecord>>,
    rates: Rates,
}

impl OpenExchange {
    pub(super) fn now(&self) -> Moment {
        Moment { instant: Instant::now(), ms: self.clock.now_ms() }
    }
}

impl Exchange {
    pub(super) fn new(
        config: &NetworkConfig,
        key: &SecretKey,
        listening: SocketAddr,
        peers: Arc<Mutex<Peers<Arc<Link>>>>,
    ) -> Exchange {
        let outbound = config.chosen_places();
        let configured = config.others(key.public()).map(|peer| peer.id).collect();
        let own = if config.advertise.is_empty() { vec![listening] } else { config.advertise.clone() };
        Exchange {
            key: key.clone(),
            rules: ChooserRules { outbound, configured, advertised: config.advertise.clone() },
            reach: Reach::of(&own).from(listening),
            places: outbound + usize::from(outbound > 0),
            peers,
            opened: OnceLock::new(),
            changed: Notify::new(),
        }
    }

    pub(super) fn open(
        &self,
        chain: Digest,
        clock: Arc<dyn Clock>,
        saved: Option<&[u8]>,
    ) -> Result<(), NetworkError> {
        let now = Moment { instant: Instant::now(), ms: clock.now_ms() };
        let local = self.key.public();
        let restored = saved.map(|saved| AddressBook::restore(saved, &chain, local, self.reach, now.ms));
        let book = match restored {
            Some(Ok(book)) => book,
            Some(Err(error)) => {
                warn!(%error, "cannot use the address book; beginning a new one");
                AddressBook::new(secret()?, local, self.reach)
            }
            None => AddressBook::new(secret()?, local, self.reach),
        };
        let (heard, reached) = book.len();
        info!(heard, reached, outbound = self.rules.outbound, "peer exchange begins");
        let chooser = Chooser::new(self.rules.clone(), book, Draws::new(secret()?), now);
        self.peers.lock().keep_places(self.places);
        let (chooser, own) = (Mutex::new(chooser), Mutex::default());
        // The first call opens it permanently.
        let _ = self.opened.set(OpenExchange { chain, clock, chooser, own, rates: Rates::new(now.instant) });
        self.notify();
        Ok(())
    }

    /// Wakes the task for its next step.
    pub(super) fn notify(&self) {
        self.changed.notify_one();
    }

    /// Waits for the next [`Exchange::notify`].
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Resolves when the chain is known.
    pub(super) async fn opened(&self) -> &OpenExchange {
        loop {
            match self.opened.get() {
                Some(opened) => return opened,
                None => self.changed().await,
            }
        }
    }

    pub(super) fn save(&self) -> Option<Result<Vec<u8>, CodecError>> {
        let opened = self.opened.get()?;
        opened.chooser.lock().save(&opened.chain, Instant::now())
    }

    pub(super) fn status(&self) -> Option<ExchangeStatus> {
        Some(self.opened.get()?.chooser.lock().status())
    }

    /// This node's own record, if it advertises addresses.
    pub(super) fn own(&self, opened: &OpenExchange, now: Moment) -> Option<PeerRecord> {
        let mut own = opened.own.lock();
        let is_old = |record: &PeerRecord| now.ms.abs_diff(record.issued_ms()) >= OWN_AGE_MS;
        if !self.rules.advertised.is_empty() && own.as_ref().is_none_or(is_old) {
            let issued = PeerRecord::issue(&self.key, &opened.chain, &self.rules.advertised, now.ms);
            *own = issued.inspect_err(|error| warn!(%error, "cannot advertise this node")).ok();
        }
        own.clone()
    }

    /// Answers a peer's question, and takes in its own record.
    fn answer(&self, peer: PeerId, payload: &[u8]) -> Result<Payload, Refusal> {
        let opened =
            self.opened.get().ok_or_else(|| Refusal::busy(STARTING_PAUSE, "this node is starting"))?;
        let address = self.peers.lock().get(peer).map(|link| link.address);
        let address = address.ok_or_else(|| Refusal::failed("the connection has ended"))?;
        let now = opened.now();
        let is_configured = self.rules.configured.contains(&peer);
        if !is_configured && !opened.rates.take(address.ip(), now.instant) {
            opened.chooser.lock().count(ExchangeEvent::TooOften);
            return Err(Refusal::busy(TOO_OFTEN_PAUSE, "too many requests for peers"));
        }
        let request = Request::decode(payload).map_err(|error| Refusal::malformed(error.to_string()))?;
        if request.chain != opened.chain {
            return Err(Refusal::not_kept("this node belongs to another chain"));
        }
        let told = request.own.map(|record| check_own(opened, peer, record)).transpose()?.flatten();
        let others = {
            let mut chooser = opened.chooser.lock();
            chooser.hear(told, address.ip(), now);
            chooser.met(&peer, address);
            chooser.count(ExchangeEvent::Answered);
            chooser.shown_to(&peer, address.ip(), now)
        };
        self.notify();
        let answer = Answer::new(self.own(opened, now).as_ref(), others.into_iter());
        let bytes = answer.and_then(|answer| answer.encode());
        bytes.map(Payload::from).map_err(|error| Refusal::failed(error.to_string()))
    }
}

/// Checks a peer's record of itself. Returns `None` if this node has the record already.
fn check_own(
    opened: &OpenExchange,
    peer: PeerId,
    record: UncheckedRecord,
) -> Result<Option<PeerRecord>, Refusal> {
    if record.id() != peer {
        return Err(Refusal::malformed("a peer must send its own record and no other"));
    }
    if opened.chooser.lock().has(&peer, record.issued_ms()) {
        return Ok(None);
    }
    record.check(&opened.chain).map(Some).map_err(|error| {
        opened.chooser.lock().count(ExchangeEvent::Forged);
        Refusal::malformed(error.to_string())
    })
}

fn secret() -> Result<[u8; 32], NetworkError> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret).map_err(|error| NetworkError::NoRandomness(error.to_string()))?;
    Ok(secret)
}

/// Limits how often peers may ask.
struct Rates {
    all: Mutex<Bucket>,
    parties: Registry<Mutex<Bucket>>,
}

impl Rates {
    fn new(now: Instant) -> Rates {
        let all = Mutex::new(Bucket::full(ALL_PER_SECOND, ALL_BURST, now));
        Rates { all, parties: Registry::default() }
    }

    fn take(&self, from: IpAddr, now: Instant) -> bool {
        let is_of_party = |origin: Origin| {
            let make = || Mutex::new(Bucket::full(PARTY_PER_SECOND, PARTY_BURST, now));
            let party = self.parties.of(origin.party(), make, |party| !party.lock().is_full(now));
            party.lock().take(1.0, now)
        };
        Origin::of_remote(from).is_none_or(is_of_party) && self.all.lock().take(1.0, now)
    }
}

/// A handler that answers peer exchange itself, and forwards everything else to another one.
pub(super) struct ExchangeHandler {
    pub(super) handler: Arc<dyn Handler>,
    pub(super) exchange: Arc<Exchange>,
}

impl Handler for ExchangeHandler {
    fn request<'a>(
        &'a self,
        peer: PeerId,
        protocol: Protocol,
        payload: Vec<u8>,
    ) -> BoxFuture<'a, Result<Payload, Refusal>> {
        match protocol {
            Protocol::PEERS => Box::pin(async move { self.exchange.answer(peer, &payload) }),
            _ => self.handler.request(peer, protocol, payload),
        }
    }

    fn request_bytes_max(&self, peer: PeerId, protocol: Protocol) -> usize {
        match protocol {
            Protocol::PEERS => REQUEST_BYTES_MAX,
            _ => self.handler.request_bytes_max(peer, protocol),
        }
    }

    fn answer_bytes_expected(&self, peer: PeerId, protocol: Protocol, payload: &[u8]) -> usize {
        match protocol {
            Protocol::PEERS => ANSWER_BYTES_MAX,
            _ => self.handler.answer_bytes_expected(peer, protocol, payload),
        }
    }

    fn message<'a>(&'a self, peer: PeerId, payload: Vec<u8>) -> BoxFuture<'a, ()> {
        self.handler.message(peer, payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_metered_by_party_and_in_all() {
        let now = Instant::now();
        let rates = Rates::new(now);
        let taken = |from: &str| (0..100).filter(|_| rates.take(from.parse().unwrap(), now)).count();
        assert_eq!(taken("8.8.8.8") as f64, PARTY_BURST);
        assert_eq!(taken("8.8.8.9") as f64, PARTY_BURST, "another host");
        assert_eq!(taken("2a00:1::1") as f64, PARTY_BURST);
        assert_eq!(taken("2a00:1:0:9::1"), 0, "the same network");
        assert_eq!(taken("127.0.0.1"), 100, "a devnet");
        let rest = (0..250).filter(|n| rates.take([9, 9, 9, *n].into(), now)).count();
        assert_eq!(rest as f64, ALL_BURST - 3.0 * PARTY_BURST - 100.0);
        assert!(rates.take("8.8.8.8".parse().unwrap(), now + Duration::from_secs(3)));
    }
}
