//! Tests that need a real network: keys, sockets, crossing attempts, and lost peers.

use std::{
    net::{SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use quinn::{Endpoint, ReadError, ReadExactError, RecvStream, SendStream, TransportConfig};
use rustls::version::TLS13;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use super::{Network, tls};
use crate::{
    NetworkConfig, NetworkError, PeerAddress, PeerId, Priority, Protocol, Transport,
    tests::{ECHO, LIMITS, Probe, WAIT, eventually, key, loopback},
};

pub(super) async fn start(n: u8, config: &NetworkConfig) -> (Arc<Network>, Arc<Probe>) {
    let probe = Probe::new();
    (Network::start(config, &key(n), probe.clone()).await.unwrap(), probe)
}

pub(super) fn address_of(network: &Network) -> PeerAddress {
    PeerAddress { id: network.local(), address: network.local_address() }
}

pub(super) fn dialling(peers: Vec<PeerAddress>) -> NetworkConfig {
    NetworkConfig { peers: peers.into_iter().map(Into::into).collect(), ..loopback() }
}

pub(super) async fn connected(a: &Network, b: &Network) {
    eventually("connected", || a.peers().contains(&b.local()) && b.peers().contains(&a.local())).await;
}

fn open_connections(network: &Network) -> usize {
    network.endpoint.lock().as_ref().map_or(0, Endpoint::open_connections)
}

/// A port that no process uses, each returned once. It lies below the ports that the system chooses itself, so no other
/// test is given it meanwhile.
pub(super) fn free_address() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id() % 200 * 100;
    let next = || 10_000 + (first + NEXT.fetch_add(1, Ordering::SeqCst)) % 20_000;
    let addresses = std::iter::repeat_with(|| SocketAddr::from(([127, 0, 0, 1], next() as u16)));
    addresses.take(1_000).find(|address| UdpSocket::bind(address).is_ok()).unwrap()
}

/// A UDP relay in front of `target`, one socket per client. While closed, it keeps datagrams (at first) or drops them.
pub(super) struct Relay {
    pub(super) address: SocketAddr,
    open: watch::Sender<bool>,
    pub(super) dropping: Arc<AtomicBool>,
    /// The latest client, once a datagram came from one.
    client: watch::Receiver<Option<SocketAddr>>,
}

impl Relay {
    pub(super) async fn start(target: SocketAddr, open: bool) -> Relay {
        let outside = Arc::new(tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap());
        let inside = Arc::new(tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap());
        inside.connect(target).await.unwrap();
        let address = outside.local_addr().unwrap();
        let (open, gate) = watch::channel(open);
        let dropping = Arc::new(AtomicBool::new(false));
        let (client, known) = watch::channel(None::<SocketAddr>);
        tokio::spawn({
            let (outside, inside, mut gate, dropping) =
                (outside.clone(), inside.clone(), gate.clone(), dropping.clone());
            async move {
                let mut buffer = vec![0; 65_536];
                loop {
                    let (length, from) = outside.recv_from(&mut buffer).await.unwrap();
                    client.send_replace(Some(from));
                    if !dropping.load(Ordering::SeqCst) && gate.wait_for(|open| *open).await.is_ok() {
                        let _ = inside.send(&buffer[..length]).await;
                    }
                }
            }
        });
        tokio::spawn({
            let (mut gate, dropping, known) = (gate, dropping.clone(), known.clone());
            async move {
                let mut buffer = vec![0; 65_536];
                loop {
                    // A refused datagram (no process listens at the target) appears as an error here.
                    let Ok(length) = inside.recv(&mut buffer).await else { continue };
                    let to = *known.borrow();
                    if !dropping.load(Ordering::SeqCst) && gate.wait_for(|open| *open).await.is_ok() {
                        let _ = outside.send_to(&buffer[..length], to.unwrap()).await;
                    }
                }
            }
        });
        Relay { address, open, dropping, client: known }
    }
}

/// A QUIC client that makes a proper handshake and then sends arbitrary bytes.
pub(super) struct Raw {
    pub(super) connection: quinn::Connection,
    endpoint: Endpoint,
}

impl Raw {
    pub(super) async fn connect(n: u8, target: PeerAddress) -> Raw {
        Raw::connect_with(n, target, TransportConfig::default()).await
    }

    pub(super) async fn connect_with(n: u8, target: PeerAddress, transport: TransportConfig) -> Raw {
        Raw::connect_from("127.0.0.1:0".parse().unwrap(), n, target, transport).await
    }

    pub(super) async fn connect_from(
        address: SocketAddr,
        n: u8,
        target: PeerAddress,
        transport: TransportConfig,
    ) -> Raw {
        let identity = tls::Identity::new(&key(n)).unwrap();
        let endpoint = Endpoint::client(address).unwrap();
        let mut config = quinn::ClientConfig::new(identity.client(target.id, Arc::default()).unwrap());
        config.transport_config(Arc::new(transport));
        let connection =
            endpoint.connect_with(config, target.address, tls::SERVER_NAME).unwrap().await.unwrap();
        Raw { connection, endpoint }
    }

    /// Continues from another address, like a forger of packet sources, or a client behind a NAT that lost its mapping.
    pub(super) fn move_to(&self, address: SocketAddr) {
        self.endpoint.rebind(UdpSocket::bind(address).unwrap()).unwrap();
    }

    /// Opens a request stream and sends some bytes.
    pub(super) async fn send(&self, bytes: &[u8]) -> (SendStream, RecvStream) {
        let (mut send, receive) = self.connection.open_bi().await.unwrap();
        send.write_all(bytes).await.unwrap();
        (send, receive)
    }
}

/// A request in its wire format, for an answer of any length.
pub(super) fn framed(protocol: Protocol, length: u32, payload: &[u8]) -> Vec<u8> {
    [&[protocol.0], [0xff; 4].as_slice(), length.to_le_bytes().as_slice(), payload].concat()
}

pub(super) fn reset_code(error: ReadExactError) -> Option<quinn::VarInt> {
    match error {
        ReadExactError::ReadError(ReadError::Reset(code)) => Some(code),
        _ => None,
    }
}

#[tokio::test]
async fn a_busy_port_is_named_with_what_to_do() {
    let (a, _) = start(1, &loopback()).await;
    let config = NetworkConfig { listen: a.local_address(), ..loopback() };
    match Network::start(&config, &key(2), Probe::new()).await {
        Err(error @ NetworkError::AddressInUse { .. }) => {
            let text = error.to_string();
            assert!(
                text.contains(&a.local_address().to_string()) && text.contains("network.listen"),
                "{text}"
            );
        }
        other => panic!("{:?}", other.err()),
    }
}

// Goal: a listener at a peer's address gets nothing if it lacks the peer's key.
#[tokio::test]
async fn a_wrong_key_is_not_connected() {
    let (a, _) = start(1, &loopback()).await;
    let wrong = PeerAddress { id: key(7).public(), address: a.local_address() };
    let (b, _) = start(2, &dialling(vec![wrong])).await;
    let until = Instant::now() + Duration::from_millis(800);
    while Instant::now() < until {
        assert!(b.peers().is_empty());
        sleep(Duration::from_millis(5)).await;
    }
    assert!(a.peers().is_empty());
}

#[tokio::test]
async fn a_client_without_a_key_is_refused() {
    #[derive(Debug)]
    struct AnyServer;
    impl rustls::client::danger::ServerCertVerifier for AnyServer {
        fn verify_server_cert(
            &self,
            _: &rustls::pki_types::CertificateDer<'_>,
            _: &[rustls::pki_types::CertificateDer<'_>],
            _: &rustls::pki_types::ServerName<'_>,
            _: &[u8],
            _: rustls::pki_types::UnixTime,
        ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
            Ok(rustls::client::danger::ServerCertVerified::assertion())
        }
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &rustls::pki_types::CertificateDer<'_>,
            _: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
        }
        fn verify_tls13_signature(
            &self,
            _: &[u8],
            _: &rustls::pki_types::CertificateDer<'_>,
            _: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
        }
        fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
            vec![rustls::SignatureScheme::ED25519]
        }
        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    }

    let (a, _) = start(1, &loopback()).await;
    let mut config =
        rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyServer))
            .with_no_client_auth();
    config.alpn_protocols = vec![tls::ALPN.to_vec()];
    let config = quinn::crypto::rustls::QuicClientConfig::try_from(config).unwrap();
    let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let connecting = endpoint
        .connect_with(quinn::ClientConfig::new(Arc::new(config)), a.local_address(), tls::SERVER_NAME)
        .unwrap();
    // The client may believe for a round trip that it is connected.
    if let Ok(connection) = connecting.await {
        let end = connection.closed().await;
        assert!(matches!(end, quinn::ConnectionError::ConnectionClosed(_)), "{end}");
    }
    assert!(a.peers().is_empty());
}

/// Goal: a signature proves a key. A node that shows another's key and signs with its own is refused, whether it dials
/// in or is dialled.
#[tokio::test]
async fn nobody_is_the_peer_whose_key_it_shows_without_having_it() {
    let (a, _) = start(1, &loopback()).await;
    let victim = key(2).public();
    let impostor = tls::Identity::posing_as(victim, &key(7));
    let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let dial = |identity: &tls::Identity, to: PeerAddress| {
        let config = quinn::ClientConfig::new(identity.client(to.id, Arc::default()).unwrap());
        endpoint.connect_with(config, to.address, tls::SERVER_NAME).unwrap()
    };
    // The client may believe for a round trip that it is connected.
    if let Ok(connection) = dial(&impostor, address_of(&a)).await {
        let ended = tokio::select! {
            end = connection.closed() => Ok(end),
            () = eventually("the impostor is taken for its victim", || a.peers().contains(&victim)) => Err(()),
        };
        assert!(matches!(ended, Ok(quinn::ConnectionError::ConnectionClosed(_))), "{ended:?}");
    }
    assert!(a.peers().is_empty());

    let server = quinn::ServerConfig::with_crypto(impostor.server().unwrap());
    let server = Endpoint::server(server, "127.0.0.1:0".parse().unwrap()).unwrap();
    let address = server.local_addr().unwrap();
    let serving = tokio::spawn(async move { server.accept().await.unwrap().await });
    let honest = tls::Identity::new(&key(3)).unwrap();
    let met = dial(&honest, PeerAddress { id: victim, address }).await;
    assert!(matches!(met, Err(quinn::ConnectionError::TransportError(_))), "{met:?}");
    assert!(serving.await.unwrap().is_err());
}

// Goal: if both sides dial and the attempts cross, exactly one connection stays, the same one on both sides.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crossing_attempts_end_with_one_connection() {
    for round in 0..6u8 {
        let (address_a, address_b) = (free_address(), free_address());
        // The relays hold both first packets until both nodes are up and dialling.
        let (to_a, to_b) = (Relay::start(address_a, false).await, Relay::start(address_b, false).await);
        let peer = |n, address| vec![PeerAddress { id: key(n).public(), address }.into()];
        let config_a =
            NetworkConfig { listen: address_a, peers: peer(20 + round, to_b.address), ..loopback() };
        let config_b = NetworkConfig { listen: address_b, peers: peer(10, to_a.address), ..loopback() };
        let ((a, _), (b, _)) = (start(10, &config_a).await, start(20 + round, &config_b).await);
        let is_held = |relay: &Relay| relay.client.borrow().is_some();
        eventually("both dial", || is_held(&to_a) && is_held(&to_b)).await;
        for relay in [&to_a, &to_b] {
            relay.open.send_replace(true);
        }
        connected(&a, &b).await;
        eventually("one connection each", || open_connections(&a) == 1 && open_connections(&b) == 1).await;
        sleep(Duration::from_millis(100)).await;
        assert_eq!((open_connections(&a), open_connections(&b)), (1, 1), "round {round}");
        for (from, to) in [(&a, &b), (&b, &a)] {
            let side = from.link(to.local()).unwrap().connection.side();
            assert_eq!(
                side.is_client(),
                from.local() < to.local(),
                "the lower id's attempt stays, round {round}"
            );
            assert_eq!(from.request(to.local(), ECHO, vec![round], LIMITS).await.unwrap(), [round]);
        }
        tokio::join!(a.shutdown(), b.shutdown());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_peer_is_found_again() {
    // A port that the system will not give to another process meanwhile.
    let config = NetworkConfig { listen: free_address(), ..loopback() };
    let (a, _) = start(1, &config).await;
    let (b, _) = start(2, &dialling(vec![address_of(&a)])).await;
    connected(&a, &b).await;
    a.shutdown().await;
    eventually("b knows", || b.peers().is_empty()).await;
    assert!(a.peers().is_empty());
    // The old handle still exists; the port is free nevertheless.
    let (again, _) = start(1, &config).await;
    connected(&again, &b).await;
    assert_eq!(b.request(again.local(), ECHO, vec![1], LIMITS).await.unwrap(), [1]);
}

#[tokio::test]
async fn strangers_do_not_take_reserved_places() {
    let friend = PeerAddress { id: key(2).public(), address: free_address() };
    let (a, _) = start(1, &NetworkConfig { peers_max: 2, ..dialling(vec![friend]) }).await;
    let (first, _) = start(3, &dialling(vec![address_of(&a)])).await;
    connected(&a, &first).await;
    let second = Raw::connect(4, address_of(&a)).await;
    let end = second.connection.closed().await.to_string();
    assert!(end.contains("no free place"), "{end}");
    let (friend, _) =
        start(2, &NetworkConfig { listen: friend.address, ..dialling(vec![address_of(&a)]) }).await;
    connected(&a, &friend).await;
    assert_eq!(a.peers().len(), 2);
}

// Goal: requests beyond the number that the peer handles at once wait; none is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_beyond_the_limit_wait() {
    let (a, probe) = start(1, &NetworkConfig { request_concurrency_max: 4, ..loopback() }).await;
    let (b, _) = start(2, &dialling(vec![address_of(&a)])).await;
    connected(&a, &b).await;
    let waiting: Vec<_> = (0..50u8)
        .map(|n| {
            let (b, id) = (b.clone(), a.local());
            tokio::spawn(async move { b.request(id, WAIT, vec![n], LIMITS).await })
        })
        .collect();
    eventually("the first four", || probe.started() == 4).await;
    sleep(Duration::from_millis(200)).await;
    assert_eq!(probe.started(), 4);
    // A requester that gives up does not free a slot whose handler still runs.
    waiting.iter().take(20).for_each(tokio::task::JoinHandle::abort);
    sleep(Duration::from_millis(200)).await;
    assert_eq!(probe.started(), 4);
    probe.gate.add_permits(100);
    for (n, request) in waiting.into_iter().enumerate().skip(20) {
        assert_eq!(request.await.unwrap().unwrap(), [n as u8]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_messages_pass_both_ways() {
    let (a, probe) = start(1, &loopback()).await;
    let (b, _) = start(2, &dialling(vec![address_of(&a)])).await;
    connected(&a, &b).await;
    let payload: Vec<u8> = (0..crate::MESSAGE_BYTES_MAX).map(|n| (n % 253) as u8).collect();
    b.send(a.local(), payload.clone().into(), Priority::First);
    assert!(b.request(a.local(), ECHO, payload.clone(), LIMITS).await.unwrap() == payload);
    eventually("the broadcast", || !probe.broadcasts.lock().is_empty()).await;
    assert!(probe.broadcasts.lock()[0] == (b.local(), payload));
}

// Goal: shutdown does not wait for handlers, drops them, and says goodbye.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_ends_everything_in_time() {
    let (a, probe) = start(1, &loopback()).await;
    let (b, _) = start(2, &dialling(vec![address_of(&a)])).await;
    connected(&a, &b).await;
    let asking = tokio::spawn({
        let (b, id): (Arc<Network>, PeerId) = (b.clone(), a.local());
        async move { b.request(id, WAIT, vec![], LIMITS).await }
    });
    eventually("in flight", || probe.started() == 1).await;
    let started = Instant::now();
    a.shutdown().await;
    // Two seconds, plus the delay of a busy machine; the handler would never end.
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    assert!(matches!(asking.await.unwrap(), Err(NetworkError::Closed { .. })));
    eventually("no task is left", || Arc::strong_count(&probe) == 1 && a.tasks.is_empty()).await;
    assert!(matches!(
        a.request(b.local(), ECHO, vec![], LIMITS).await,
        Err(NetworkError::UnknownPeer { .. })
    ));
    a.shutdown().await;
}

// Goal: a network that stops by itself reports it; one that is told to stop does not.
#[tokio::test]
async fn a_lost_endpoint_is_a_failure() {
    let (told, _) = start(1, &loopback()).await;
    told.shutdown().await;
    assert!(tokio::time::timeout(Duration::from_millis(50), told.failed()).await.is_err());
    let (lost, _) = start(2, &loopback()).await;
    assert!(tokio::time::timeout(Duration::from_millis(50), lost.failed()).await.is_err());
    lost.endpoint.lock().as_ref().unwrap().close(quinn::VarInt::from_u32(0), b"");
    let reason = tokio::time::timeout(Duration::from_secs(30), lost.failed()).await.unwrap();
    assert!(reason.contains("restart the node"), "{reason}");
}
