//! Tests peer exchange over real sockets: peers find each other, survive restarts, and liars are punished.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use quinn::{Endpoint, TransportConfig};
use slipstream_types::{Clock, Digest};
use tokio::time::{Instant, sleep};

use super::{
    Network,
    tests::{Raw, address_of, connected, dialling, framed, free_address, start},
    tls,
};
use crate::{
    ExchangeEvent, NetworkConfig, PeerAddress, PeerId, Protocol, Transport,
    exchange::{Answer, PeerRecord, Request},
    tests::{ECHO, LIMITS, eventually, key, loopback},
};

const CHAIN: Digest = Digest([7; 32]);
const NOW_MS: u64 = 1_700_000_000_000;

/// A clock that stands still.
struct Still;

impl Clock for Still {
    fn now_ms(&self) -> u64 {
        NOW_MS
    }
}

/// A node that advertises its address, and has these configured peers.
async fn node(n: u8, peers: Vec<PeerAddress>, saved: Option<&[u8]>) -> Arc<Network> {
    node_at(free_address(), n, peers, saved).await
}

async fn node_at(address: SocketAddr, n: u8, peers: Vec<PeerAddress>, saved: Option<&[u8]>) -> Arc<Network> {
    let config = NetworkConfig { listen: address, advertise: vec![address], ..dialling(peers) };
    let (network, _) = start(n, &config).await;
    network.begin_exchange(CHAIN, Arc::new(Still), saved).unwrap();
    network
}

fn count(network: &Network, event: ExchangeEvent) -> u64 {
    let events = network.exchange().unwrap().events;
    events.into_iter().find(|(it, _)| *it == event).map_or(0, |(_, count)| count)
}

fn knows(network: &Network) -> usize {
    let status = network.exchange().unwrap();
    status.heard + status.reached
}

// Goal: a node with one configured peer finds the others through it, and keeps connections of its own choice. After a
// restart it finds them again, even with the first one gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_third_finds_the_second_by_the_first_and_again_without() {
    let a = node(1, vec![], None).await;
    let b = node(2, vec![address_of(&a)], None).await;
    eventually("the first knows the second", || knows(&a) == 1).await;
    let place = free_address();
    let c = node_at(place, 3, vec![address_of(&a)], None).await;
    connected(&c, &b).await;
    assert_eq!(c.request(b.local(), ECHO, vec![1], LIMITS).await.unwrap(), [1]);
    eventually("it was its choice", || c.exchange().unwrap().chosen == [b.local()]).await;
    assert_eq!(c.exchange().unwrap().advertised, [place]);
    eventually("the second heard of it", || knows(&b) == 2).await;

    let saved = c.addresses().unwrap().unwrap();
    assert!(c.addresses().is_none(), "nothing new, nothing to write");
    let gone = address_of(&a);
    tokio::join!(a.shutdown(), c.shutdown());
    eventually("the second is alone", || b.peers().is_empty()).await;
    let again = node_at(place, 3, vec![gone], Some(&saved)).await;
    connected(&again, &b).await;
    assert!(!again.peers().contains(&gone.id));
}

// Goal: a damaged book, or one of another chain, does not keep a node from starting.
#[tokio::test]
async fn a_book_that_cannot_be_used_is_left_alone() {
    for saved in [&b""[..], &[0; 100]] {
        let a = node(1, vec![], Some(saved)).await;
        assert_eq!(knows(&a), 0);
    }
    let (silent, _) = start(2, &loopback()).await;
    assert!(silent.exchange().is_none() && silent.addresses().is_none(), "no chain, no exchange");
}

// Goal: nodes of two chains do not tell each other about peers. A node that listens everywhere does not dial this
// machine on a stranger's word.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_chains_and_addresses_of_the_house_are_not_dialled() {
    let a = node(1, vec![], None).await;
    let b = node(2, vec![address_of(&a)], None).await;
    eventually("the first knows the second", || knows(&a) == 1).await;
    let (other, _) = start(3, &dialling(vec![address_of(&a)])).await;
    other.begin_exchange(Digest([8; 32]), Arc::new(Still), None).unwrap();
    let everywhere = SocketAddr::new([0, 0, 0, 0].into(), free_address().port());
    let (public, _) = start(4, &NetworkConfig { listen: everywhere, ..dialling(vec![address_of(&a)]) }).await;
    public.begin_exchange(CHAIN, Arc::new(Still), None).unwrap();
    eventually("it was told", || count(&public, ExchangeEvent::NotKept) >= 2).await;
    sleep(Duration::from_millis(300)).await;
    for node in [&other, &public] {
        assert_eq!((node.peers(), knows(node)), (vec![a.local()], 0));
    }
    assert!(a.peers().contains(&b.local()));
}

/// A peer's answer to a question: the status, and the payload.
async fn asked(raw: &Raw, payload: &[u8]) -> (u8, Vec<u8>) {
    let framed = framed(Protocol::PEERS, payload.len() as u32, payload);
    let (mut send, mut receive) = raw.connection.open_bi().await.unwrap();
    // The question may be refused before it is read.
    let _ = send.write_all(&framed).await;
    let _ = send.finish();
    let answer = receive.read_to_end(8_192).await.unwrap();
    (answer[0], answer[5..].to_vec())
}

fn question(chain: Digest, of: u8, at: SocketAddr) -> Vec<u8> {
    let record = PeerRecord::issue(&key(of), &chain, &[at], NOW_MS).unwrap();
    Request::new(chain, Some(&record)).encode().unwrap()
}

// Goal: junk, other chains, other peers' records and too many questions are refused by their kind, and none of it is
// kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn questions_are_bounded_and_checked() {
    let a = node(1, vec![], None).await;
    let host: SocketAddr = "127.0.0.9:0".parse().unwrap();
    let raw = Raw::connect_from(host, 5, address_of(&a), TransportConfig::default()).await;
    let at: SocketAddr = "127.0.0.9:7400".parse().unwrap();
    let mut flipped = question(CHAIN, 5, at);
    *flipped.last_mut().unwrap() ^= 1;
    let other_chain = Digest([8; 32]);
    for (payload, status) in [
        (vec![1; 257], 3),
        (vec![], 3),
        (vec![2; 40], 3),
        (question(other_chain, 5, at), 2),
        (question(CHAIN, 6, at), 3),
        (flipped, 3),
    ] {
        assert_eq!(asked(&raw, &payload).await.0, status, "{payload:?}");
    }
    assert_eq!((knows(&a), count(&a, ExchangeEvent::Forged)), (0, 1));
    let (status, answer) = asked(&raw, &question(CHAIN, 5, at)).await;
    let answer = Answer::decode(&answer).unwrap();
    assert_eq!((status, answer.others.len(), knows(&a)), (0, 0, 1));
    let own = answer.own.unwrap().check(&CHAIN).unwrap();
    assert_eq!((own.id(), own.addresses()), (a.local(), &[a.local_address()][..]));
    let mut refused = 0;
    for _ in 0..20 {
        refused += usize::from(asked(&raw, &question(CHAIN, 5, at)).await.0 == 1);
    }
    assert!((4..=11).contains(&refused), "{refused} of 20");
    assert_eq!(count(&a, ExchangeEvent::TooOften), refused as u64);
}

// Goal: packets from another address do not move a connection. Its peer is shown and counted at the address where it
// proved its key; the other address belongs to no peer. The peer reconnects from there with a new connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_cannot_be_forged_after_the_handshake() {
    let a = node(1, vec![], None).await;
    let [own, other]: [SocketAddr; 2] = ["127.0.0.2:0", "127.0.0.3:0"].map(|at| at.parse().unwrap());
    let raw = Raw::connect_from(own, 5, address_of(&a), TransportConfig::default()).await;
    let shown = || a.peer_stats().iter().map(|peer| peer.address.unwrap().ip()).collect::<Vec<_>>();
    eventually("it is in", || shown() == [own.ip()]).await;
    let forged: SocketAddr = "127.0.0.3:7400".parse().unwrap();
    raw.move_to(forged);
    let answered = async {
        // Sent from an address of its record, it would count as met there, and be passed on to others.
        let question = question(CHAIN, 5, forged);
        let (mut send, mut receive) = raw.connection.open_bi().await.ok()?;
        send.write_all(&framed(Protocol::PEERS, question.len() as u32, &question)).await.ok()?;
        send.finish().ok()?;
        receive.read_to_end(8_192).await.ok()
    };
    let watched = async {
        while !a.peers().is_empty() {
            assert_eq!(shown(), [own.ip()]);
            sleep(Duration::from_millis(5)).await;
        }
    };
    let (answered, ()) = tokio::join!(answered, watched);
    assert_eq!((answered, knows(&a)), (None, 0), "nothing was heard there");
    let again = Raw::connect_from(other, 5, address_of(&a), TransportConfig::default()).await;
    eventually("it is in again", || shown() == [other.ip()]).await;
    drop(again);
}

/// A server that answers each question with these bytes, and counts its answers.
fn liar(n: u8, answer: Vec<u8>) -> (PeerAddress, Arc<AtomicU64>) {
    let answers = Arc::<AtomicU64>::default();
    let counted = answers.clone();
    let identity = tls::Identity::new(&key(n)).unwrap();
    let config = quinn::ServerConfig::with_crypto(identity.server().unwrap());
    let endpoint = Endpoint::server(config, "127.0.0.1:0".parse().unwrap()).unwrap();
    let address = endpoint.local_addr().unwrap();
    tokio::spawn(async move {
        while let Some(incoming) = endpoint.accept().await {
            let Ok(connection) = incoming.await else { continue };
            let (answer, counted) = (answer.clone(), counted.clone());
            tokio::spawn(async move {
                while let Ok((mut send, mut receive)) = connection.accept_bi().await {
                    let _ = receive.read_to_end(1_024).await;
                    let length = (answer.len() as u32).to_le_bytes();
                    let _ = send.write_all(&[&[0], length.as_slice(), &answer].concat()).await;
                    let _ = send.finish();
                    counted.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    (PeerAddress { id: key(n).public(), address }, answers)
}

// Goal: a peer that answers in another version is not asked again, and keeps its connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_version_is_no_lie() {
    let mut later = Answer::new(None, std::iter::empty()).unwrap().encode().unwrap();
    later[0] += 1;
    let (peer, answers) = liar(8, later);
    let a = node(1, vec![peer], None).await;
    eventually("it was asked", || answers.load(Ordering::SeqCst) > 0).await;
    sleep(Duration::from_millis(300)).await;
    assert_eq!((count(&a, ExchangeEvent::Forged), a.peers()), (0, vec![peer.id]));
}

// Goal: a peer that passes on forged records is banned, unless it is configured. Its words are dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_tells_of_forged_records_is_cut_off() {
    let at: SocketAddr = "127.0.0.1:1".parse().unwrap();
    let other = PeerRecord::issue(&key(9), &Digest([8; 32]), &[at], NOW_MS).unwrap();
    let forged = Answer::new(None, [other].into_iter()).unwrap().encode().unwrap();
    let (liar, _) = liar(8, forged);
    let a = node(1, vec![liar], None).await;
    eventually("it was told", || count(&a, ExchangeEvent::Forged) == 1).await;
    assert_eq!((knows(&a), a.peers()), (0, vec![liar.id]), "who is configured stays");

    // The same liar, reported by an honest peer.
    let b = node(2, vec![], None).await;
    let raw = Raw::connect(8, address_of(&b)).await;
    asked(&raw, &question(CHAIN, 8, liar.address)).await;
    assert_eq!(knows(&b), 1);
    drop(raw);
    eventually("it was dialled, and told", || count(&b, ExchangeEvent::Forged) == 1).await;
    eventually("it is cut off", || b.peers().is_empty()).await;
    assert!(matches!(
        b.request(liar.id, ECHO, vec![], LIMITS).await,
        Err(crate::NetworkError::Banned { .. })
    ));
}

// Goal: a flood of identities, each from its own block, does not displace an earlier peer that is useful.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_identities_does_not_displace_who_was_here() {
    let config = NetworkConfig { peers_max: 12, outbound: 2, ..loopback() };
    let (a, _) = start(1, &config).await;
    a.begin_exchange(CHAIN, Arc::new(Still), None).unwrap();
    let from = async |host: String, n: u8| {
        let address = SocketAddr::new(host.parse().unwrap(), 0);
        Raw::connect_from(address, n, address_of(&a), TransportConfig::default()).await
    };
    let honest = from("127.200.0.1".into(), 2).await;
    let honest_id: PeerId = key(2).public();
    eventually("it is in", || a.peers().contains(&honest_id)).await;
    let (mut flood, began) = (Vec::new(), Instant::now());
    for n in 0..120u8 {
        flood.push(from(format!("127.{}.0.1", n + 1), 100 + n).await);
        if n % 10 == 0 {
            let (mut send, mut receive) = honest.send(&framed(ECHO, 2, b"ok")).await;
            send.finish().unwrap();
            assert_eq!(receive.read_to_end(100).await.unwrap(), b"\x00\x02\x00\x00\x00ok");
        }
        // Turns end after some seconds.
        if n % 40 == 39 {
            sleep(Duration::from_secs(3)).await;
        }
    }
    assert!(began.elapsed() > Duration::from_secs(6));
    assert!(a.peers().contains(&honest_id) && honest.connection.close_reason().is_none());
    assert!(a.peers().len() <= 12 - 3, "places are kept for those that this node chooses");
    let evicted = a.rejections().into_iter().filter(|(reason, _)| reason.name() == "connection_evicted");
    assert!(evicted.map(|(_, count)| count).sum::<u64>() > 0, "others went round");
}
