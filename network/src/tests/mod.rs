//! A test suite that every [`Transport`] must pass.

mod probe;

use std::{any::Any, sync::Arc, time::Duration};

use slipstream_types::SecretKey;
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, timeout},
};

pub(crate) use self::probe::{
    ECHO, NOTHING, PANIC, Probe, REFUSE, SHORT, SHORT_BYTES_MAX, TRACKED, WAIT, ZEROS,
};
use crate::{
    MESSAGE_BYTES_MAX, MemoryHub, Network, NetworkConfig, NetworkError, PeerAddress, PeerWatch, Priority,
    Protocol, REFUSAL_BYTES_MAX, RefusalKind, RequestLimits, Transport,
};

/// Polls until a condition holds. The limit is far above what a loaded machine needs.
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < Duration::from_secs(120), "did not happen: {what}");
        sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) fn key(n: u8) -> SecretKey {
    SecretKey::from_seed([n; 32])
}

pub(crate) const LIMITS: RequestLimits =
    RequestLimits { deadline: Duration::from_secs(60), response_bytes_max: MESSAGE_BYTES_MAX };

pub(crate) fn loopback() -> NetworkConfig {
    NetworkConfig { listen: "127.0.0.1:0".parse().unwrap(), ..NetworkConfig::default() }
}

/// Two connected nodes.
struct Pair {
    a: Arc<dyn Transport>,
    b: Arc<dyn Transport>,
    probe_a: Arc<Probe>,
    probe_b: Arc<Probe>,
    /// Restores the connection after a ban has ended, if the transport does not reconnect by itself.
    reconnect: Box<dyn Fn() + Send + Sync>,
    _keep: Box<dyn Any + Send>,
}

async fn memory_pair() -> Pair {
    let (hub, probe_a, probe_b) = (MemoryHub::new(), Probe::new(), Probe::new());
    let (id_a, id_b) = (key(1).public(), key(2).public());
    let (a, b) = (hub.join(id_a, probe_a.clone()), hub.join(id_b, probe_b.clone()));
    assert!(hub.connect(id_a, id_b));
    let wires = hub.clone();
    let reconnect = Box::new(move || {
        wires.connect(id_a, id_b);
    });
    Pair { a, b, probe_a, probe_b, reconnect, _keep: Box::new(hub) }
}

async fn quic_pair() -> Pair {
    let (probe_a, probe_b) = (Probe::new(), Probe::new());
    let a = Network::start(&loopback(), &key(1), probe_a.clone()).await.unwrap();
    let peers = vec![PeerAddress { id: a.local(), address: a.local_address() }.into()];
    let config = NetworkConfig { peers, ..loopback() };
    let b = Network::start(&config, &key(2), probe_b.clone()).await.unwrap();
    let pair = Pair { a, b, probe_a, probe_b, reconnect: Box::new(|| {}), _keep: Box::new(()) };
    pair.connected().await;
    pair
}

impl Pair {
    async fn connected(&self) {
        let (a, b) = (self.a.local(), self.b.local());
        eventually("connected", || self.a.peers() == [b] && self.b.peers() == [a]).await;
    }

    async fn disconnected(&self) {
        eventually("disconnected", || self.a.peers().is_empty() && self.b.peers().is_empty()).await;
    }

    async fn ask_b(
        &self,
        protocol: Protocol,
        payload: &[u8],
        limits: RequestLimits,
    ) -> Result<Vec<u8>, NetworkError> {
        self.a.request(self.b.local(), protocol, payload.to_vec(), limits).await
    }
}

async fn answers_in_both_directions(pair: Pair) {
    for size in [0, 1, 70_000, 3 << 20] {
        let payload: Vec<u8> = (0..size).map(|n| (n % 251) as u8).collect();
        assert_eq!(pair.ask_b(ECHO, &payload, LIMITS).await.unwrap(), payload);
        assert_eq!(pair.b.request(pair.a.local(), ECHO, payload.clone(), LIMITS).await.unwrap(), payload);
    }
    assert_eq!(pair.probe_a.finished(), 4);
    let stats = pair.a.peer_stats();
    assert_eq!(stats.iter().map(|s| s.id).collect::<Vec<_>>(), [pair.b.local()]);
    assert!(stats[0].bytes_sent > 6 << 20 && stats[0].bytes_received > 6 << 20, "{stats:?}");
}

async fn requests_overlap(pair: Pair) {
    let waiting = (0..10u8).map(|n| {
        let (a, peer) = (pair.a.clone(), pair.b.local());
        tokio::spawn(async move { a.request(peer, WAIT, vec![n], LIMITS).await })
    });
    let waiting: Vec<_> = waiting.collect();
    eventually("all ten at the handler", || pair.probe_b.started() == 10).await;
    pair.probe_b.gate.add_permits(10);
    for (n, request) in waiting.into_iter().enumerate() {
        assert_eq!(request.await.unwrap().unwrap(), [n as u8]);
    }
}

async fn a_refusal_says_why(pair: Pair) {
    // The limit on the answer does not apply to refusals: the reason always arrives.
    let limits = RequestLimits { response_bytes_max: 0, ..LIMITS };
    match pair.ask_b(REFUSE, b"state\nof batch 7", limits).await {
        Err(error @ NetworkError::Refused { .. }) => {
            assert!(!error.is_retryable());
            assert!(error.to_string().ends_with("refused: not kept: not here: state of batch 7"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    match pair.ask_b(REFUSE, &[b'x'; 5_000], limits).await {
        Err(NetworkError::Refused { refusal, .. }) => assert_eq!(refusal.text().len(), REFUSAL_BYTES_MAX),
        other => panic!("{other:?}"),
    }
    // The kind is the intended one, whatever the text says.
    for (payload, kind) in [
        ("busy not kept", RefusalKind::Busy { retry_after_ms: 700 }),
        ("not kept", RefusalKind::NotKept),
        ("malformed busy: ", RefusalKind::Malformed),
        ("failed", RefusalKind::Failed),
    ] {
        let error = pair.ask_b(REFUSE, payload.as_bytes(), limits).await.unwrap_err();
        let refusal = error.refusal().unwrap();
        assert_eq!((refusal.kind(), refusal.text()), (kind, format!("not here: {payload}").as_str()));
        assert_eq!(error.is_retryable(), payload.starts_with("busy"), "{error}");
    }
}

async fn a_deadline_ends_the_wait_but_not_the_work(pair: Pair) {
    // Long enough for the request to arrive: one that has not arrived is cancelled.
    let limits = RequestLimits { deadline: Duration::from_secs(2), ..LIMITS };
    let error = pair.ask_b(WAIT, b"", limits).await.unwrap_err();
    assert!(matches!(error, NetworkError::Deadline { .. }) && error.is_retryable(), "{error}");
    eventually("the handler has it", || pair.probe_b.started() == 1).await;
    assert_eq!(pair.probe_b.finished(), 0);
    pair.probe_b.gate.add_permits(1);
    eventually("the handler ends", || pair.probe_b.finished() == 1).await;
    assert_eq!(pair.ask_b(ECHO, b"still there", LIMITS).await.unwrap(), b"still there");
}

async fn lengths_are_limited(pair: Pair) {
    let limits = RequestLimits { response_bytes_max: 1_000, ..LIMITS };
    let zeros = |n: usize| n.to_le_bytes();
    assert_eq!(pair.ask_b(ZEROS, &zeros(1_000), limits).await.unwrap().len(), 1_000);
    match pair.ask_b(ZEROS, &zeros(1_001), limits).await {
        Err(NetworkError::TooLong { bytes, bytes_max, .. }) => assert_eq!((bytes, bytes_max), (1_001, 1_000)),
        other => panic!("{other:?}"),
    }
    let started = pair.probe_b.started();
    let request = pair.ask_b(ECHO, &vec![0; MESSAGE_BYTES_MAX + 1], LIMITS).await;
    assert!(matches!(request, Err(NetworkError::TooLong { .. })), "{request:?}");
    // The handler's own limits apply, too.
    for (protocol, bytes) in [(SHORT, SHORT_BYTES_MAX + 1), (NOTHING, 1)] {
        let request = pair.ask_b(protocol, &vec![0; bytes], LIMITS).await;
        assert!(matches!(request, Err(NetworkError::Refused { .. })), "{request:?}");
    }
    assert_eq!(pair.probe_b.started(), started);
    assert_eq!(pair.ask_b(SHORT, &[0; SHORT_BYTES_MAX], LIMITS).await.unwrap().len(), SHORT_BYTES_MAX);
    pair.a.send(pair.b.local(), vec![0; MESSAGE_BYTES_MAX + 1].into(), Priority::First);
    pair.a.send(pair.b.local(), b"after".to_vec().into(), Priority::First);
    eventually("the short one arrives", || pair.probe_b.broadcasts.lock().len() == 1).await;
}

async fn an_unknown_peer_is_an_error(pair: Pair) {
    for stranger in [key(9).public(), pair.a.local()] {
        let error = pair.a.request(stranger, ECHO, vec![], LIMITS).await.unwrap_err();
        assert!(matches!(error, NetworkError::UnknownPeer { peer } if peer == stranger), "{error}");
    }
}

async fn broadcasts_arrive_in_order(pair: Pair) {
    for n in 0..20u8 {
        pair.a.send(pair.b.local(), vec![n].into(), Priority::Second);
    }
    pair.a.send(key(9).public(), vec![99].into(), Priority::First);
    eventually("all are there", || pair.probe_b.broadcasts.lock().len() == 20).await;
    let expected: Vec<_> = (0..20).map(|n| (pair.a.local(), vec![n])).collect();
    assert_eq!(*pair.probe_b.broadcasts.lock(), expected);
    assert!(pair.probe_a.broadcasts.lock().is_empty());
}

// Goal: a handler that hangs costs old broadcasts and nothing else.
async fn a_slow_receiver_misses_the_oldest(pair: Pair) {
    pair.probe_b.broadcast_gate.forget_permits(Semaphore::MAX_PERMITS);
    for n in 0..3_000u32 {
        pair.a.send(pair.b.local(), n.to_le_bytes().to_vec().into(), Priority::First);
        if n % 100 == 0 {
            assert_eq!(pair.ask_b(ECHO, b"meanwhile", LIMITS).await.unwrap(), b"meanwhile");
        }
    }
    pair.probe_b.broadcast_gate.add_permits(3_000);
    let last = 2_999u32.to_le_bytes().to_vec();
    eventually("the newest arrives", || {
        pair.probe_b.broadcasts.lock().last().is_some_and(|(_, b)| *b == last)
    })
    .await;
    let numbers: Vec<u32> = {
        let broadcasts = pair.probe_b.broadcasts.lock();
        broadcasts.iter().map(|(_, bytes)| u32::from_le_bytes(bytes[..].try_into().unwrap())).collect()
    };
    assert!(numbers.is_sorted(), "{numbers:?}");
    assert!(numbers.len() < 3_000, "nothing was dropped");
}

async fn a_ban_ends_the_connection_until_it_expires(pair: Pair) {
    let (id_a, id_b) = (pair.a.local(), pair.b.local());
    let banned_ask = tokio::spawn({
        let b = pair.b.clone();
        async move { b.request(id_a, WAIT, vec![], LIMITS).await }
    });
    let own_ask = tokio::spawn({
        let a = pair.a.clone();
        async move { a.request(id_b, WAIT, vec![], LIMITS).await }
    });
    eventually("in flight", || pair.probe_a.started() == 1 && pair.probe_b.started() == 1).await;
    let ban = Duration::from_secs(5);
    let until = Instant::now() + ban;
    assert!(!pair.a.is_banned(&id_b));
    pair.a.ban(id_b, "a proven lie", ban);
    // The machine may be suspended for as long as the ban.
    let is_over = || Instant::now() >= until;
    assert!(pair.a.is_banned(&id_b) || is_over());
    assert!(!pair.a.is_banned(&id_a));
    for request in [banned_ask, own_ask] {
        let error = request.await.unwrap().unwrap_err();
        assert!(matches!(error, NetworkError::Closed { .. }) && error.is_retryable(), "{error}");
    }
    pair.disconnected().await;
    let error = pair.a.request(id_b, ECHO, vec![], LIMITS).await.unwrap_err();
    assert!(matches!(error, NetworkError::Banned { .. }) || is_over(), "{error}");
    (pair.reconnect)();
    loop {
        // Checked before the time: at a later time a connection may be legitimate.
        let is_in = !pair.a.peers().is_empty();
        if is_over() {
            break;
        }
        assert!(!is_in, "let in before the ban ended");
        sleep(Duration::from_millis(10)).await;
    }
    (pair.reconnect)();
    pair.connected().await;
    assert!(!pair.a.is_banned(&id_b));
    assert_eq!(pair.ask_b(ECHO, b"again", LIMITS).await.unwrap(), b"again");
}

/// Goal: by waiting for reports alone, each side sees the other one go and come.
async fn changes_of_the_peers_are_reported(pair: Pair) {
    let mut sides = [&pair.a, &pair.b].map(|side| (side, side.peer_changes().watch()));
    let ban = Duration::from_millis(200);
    pair.a.ban(pair.b.local(), "a test", ban);
    for (side, watch) in &mut sides {
        until_reported(watch, || side.peers().is_empty()).await;
    }
    sleep(2 * ban).await;
    (pair.reconnect)();
    for (side, watch) in &mut sides {
        until_reported(watch, || !side.peers().is_empty()).await;
    }
}

/// Waits until a condition holds, and looks only after reports.
async fn until_reported(watch: &mut PeerWatch, holds: impl Fn() -> bool) {
    let reported = async {
        while !holds() {
            watch.changed().await;
        }
    };
    timeout(Duration::from_secs(120), reported).await.expect("a change was not reported");
}

async fn a_panicking_handler_costs_one_request(pair: Pair) {
    let error = pair.ask_b(PANIC, b"", LIMITS).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    pair.connected().await;
    let mut answer = pair.ask_b(ECHO, b"alive", LIMITS).await;
    let started = Instant::now();
    while answer.is_err() && started.elapsed() < Duration::from_secs(60) {
        sleep(Duration::from_millis(20)).await;
        answer = pair.ask_b(ECHO, b"alive", LIMITS).await;
    }
    assert_eq!(answer.unwrap(), b"alive");
}

macro_rules! suite {
    ($($name:ident)*) => {
        mod memory {
            $(#[tokio::test(start_paused = true)]
            async fn $name() {
                super::$name(super::memory_pair().await).await;
            })*
        }
        mod quic {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(super::quic_pair().await).await;
            })*
        }
    };
}

suite! {
    answers_in_both_directions
    requests_overlap
    a_refusal_says_why
    a_deadline_ends_the_wait_but_not_the_work
    lengths_are_limited
    an_unknown_peer_is_an_error
    broadcasts_arrive_in_order
    a_slow_receiver_misses_the_oldest
    a_ban_ends_the_connection_until_it_expires
    changes_of_the_peers_are_reported
    a_panicking_handler_costs_one_request
}

/// Goal: a node without its hub learns that it has no peers any more.
#[tokio::test(start_paused = true)]
async fn a_hub_that_goes_reports_it() {
    let (hub, [a, b]) = (MemoryHub::new(), [1, 2].map(|n| key(n).public()));
    let transport = hub.join(a, Probe::new());
    hub.join(b, Probe::new());
    assert!(hub.connect(a, b));
    let mut watch = transport.peer_changes().watch();
    drop(hub);
    timeout(Duration::from_secs(1), watch.changed()).await.expect("it was not reported");
    assert!(transport.peers().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_hub_cuts_and_restarts_nodes() {
    let hub = MemoryHub::new();
    let (a, b, probe_b) = (key(1).public(), key(2).public(), Probe::new());
    let transport = hub.join(a, Probe::new());
    assert!(!hub.connect(a, b), "b does not exist yet");
    assert!(!hub.connect(a, a));
    hub.join(b, probe_b.clone());
    assert!(hub.connect(a, b) && hub.connect(b, a));
    let asking = tokio::spawn({
        let transport = transport.clone();
        async move { transport.request(b, WAIT, vec![], LIMITS).await }
    });
    eventually("in flight", || probe_b.started() == 1).await;
    let again = Probe::new();
    hub.join(b, again.clone());
    assert!(matches!(asking.await.unwrap(), Err(NetworkError::Closed { .. })));
    assert!(transport.peers().is_empty());
    assert!(hub.connect(b, a));
    transport.request(b, ECHO, vec![], LIMITS).await.unwrap();
    assert_eq!((probe_b.started(), again.started()), (1, 1));
    hub.disconnect(b, a);
    assert!(transport.peers().is_empty());
    drop(hub);
    assert!(matches!(
        transport.request(b, ECHO, vec![], LIMITS).await,
        Err(NetworkError::UnknownPeer { .. })
    ));
    eventually("no task holds the handlers", || Arc::strong_count(&probe_b) == 1).await;
}
