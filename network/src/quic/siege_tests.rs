//! Attackers with keys, sockets and patience against a real node: the resources that they hold, and the effects on
//! honest peers.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use quinn::{Endpoint, RecvStream, SendStream, TransportConfig, VarInt};
use tokio::{
    net::UdpSocket,
    time::{Instant, sleep, timeout},
};

use super::{
    frames::code,
    tests::{Raw, address_of, connected, dialling, framed, free_address, reset_code, start},
    tls,
};
use crate::{
    NetworkConfig, PeerAddress, PeerRejection, Priority, Protocol, RequestLimits, Transport,
    tests::{ECHO, LIMITS, TRACKED, eventually, key, loopback},
};

const MIB: usize = 1 << 20;
/// The time for a whole message in tests with stalled ones. A sixth of it may pass without progress.
const MESSAGE_MS: u64 = 30_000;
/// Well before that time is over, and long after a sixth of it: a busy machine is late.
const SOON: Duration = Duration::from_secs(25);

/// A request in its wire format.
fn ask(protocol: Protocol, payload: &[u8]) -> Vec<u8> {
    framed(protocol, payload.len() as u32, payload)
}

/// Sends a request for an answer of `bytes` bytes, which the caller may read or not.
async fn ask_for(raw: &Raw, bytes: usize) -> (SendStream, RecvStream) {
    let (mut send, receive) = raw.connection.open_bi().await.unwrap();
    send.write_all(&ask(TRACKED, &bytes.to_le_bytes())).await.unwrap();
    send.finish().unwrap();
    (send, receive)
}

/// A client from an attacker's host that grants next to no flow-control credit.
async fn greedy(host: &str, n: u8, target: PeerAddress) -> Raw {
    let address = SocketAddr::new(host.parse().unwrap(), 0);
    let mut transport = TransportConfig::default();
    transport.stream_receive_window(VarInt::from_u32(1_000)).receive_window(VarInt::from_u32(64_000));
    transport.keep_alive_interval(Some(Duration::from_millis(200)));
    Raw::connect_from(address, n, target, transport).await
}

// Goal: a peer that asks for much and reads nothing fills only a share of the node's memory, under any number of keys.
// Others are answered meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_nobody_reads_are_bounded() {
    let (a, probe) = start(1, &loopback()).await;
    let (mut greedy_ones, mut held) = (Vec::new(), Vec::new());
    for n in 0..4 {
        let raw = greedy("127.0.0.9", 10 + n, address_of(&a)).await;
        for _ in 0..64 {
            held.push(ask_for(&raw, 16 * MIB).await);
        }
        greedy_ones.push(raw);
    }
    eventually("the answers were asked for", || probe.live_max.load(Ordering::SeqCst) >= 48 * MIB).await;
    let (b, _) = start(2, &dialling(vec![address_of(&a)])).await;
    connected(&a, &b).await;
    let honest = b.request(a.local(), TRACKED, (4 * MIB).to_le_bytes().to_vec(), LIMITS).await.unwrap();
    assert_eq!(honest.len(), 4 * MIB);
    let most = probe.live_max.load(Ordering::SeqCst);
    assert!(most <= 2 * 64 * MIB + 4 * MIB, "{} MiB were held", most / MIB);
    let refused =
        |(reason, count): &(PeerRejection, u64)| *reason == PeerRejection::AnswerNoRoom && *count > 0;
    eventually("the rest is refused", || a.rejections().iter().any(refused)).await;
}

// Goal: many hosts together fill only a share of the node's memory too, and configured peers have theirs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_to_all_hosts_are_bounded_and_leave_configured_peers_their_room() {
    let friend = PeerAddress { id: key(2).public(), address: free_address() };
    let config = NetworkConfig { bytes_in_flight_total_max: 128 * MIB, ..dialling(vec![friend]) };
    let (a, probe) = start(1, &config).await;
    let (mut greedy_ones, mut held) = (Vec::new(), Vec::new());
    for n in 0..6 {
        let raw = greedy(&format!("127.9.{n}.1"), 10 + n, address_of(&a)).await;
        for _ in 0..16 {
            held.push(ask_for(&raw, 16 * MIB).await);
        }
        greedy_ones.push(raw);
    }
    eventually("they have their part", || probe.live() >= 48 * MIB).await;
    let config = NetworkConfig { listen: friend.address, ..dialling(vec![address_of(&a)]) };
    let (friend, _) = start(2, &config).await;
    connected(&a, &friend).await;
    for _ in 0..10 {
        let ask = (4 * MIB).to_le_bytes().to_vec();
        assert_eq!(friend.request(a.local(), TRACKED, ask, LIMITS).await.unwrap().len(), 4 * MIB);
    }
    let most = probe.live_max.load(Ordering::SeqCst);
    assert!(most <= 96 * MIB + 8 * MIB, "{} MiB were held", most / MIB);
}

// Goal: a host that left its answers unread gets no further share under another key; other hosts do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_key_does_not_help_who_reads_nothing() {
    let config = NetworkConfig { transfer_timeout_ms: 18_000, ..loopback() };
    let (a, probe) = start(1, &config).await;
    let raw = greedy("127.0.0.9", 10, address_of(&a)).await;
    let _held = ask_for(&raw, 16 * MIB).await;
    eventually("it is made", || probe.finished() == 1).await;
    eventually("it is given up", || probe.live() == 0).await;
    let status = async |host: &str, n: u8| {
        let raw = Raw::connect_from(
            SocketAddr::new(host.parse().unwrap(), 0),
            n,
            address_of(&a),
            TransportConfig::default(),
        );
        let raw = raw.await;
        let (_send, mut receive) = ask_for(&raw, MIB).await;
        receive.read_to_end(2 * MIB).await.unwrap()[0]
    };
    assert_eq!(status("127.0.0.9", 11).await, 1, "busy");
    assert_eq!(status("127.0.0.10", 12).await, 0, "answered");
    assert_eq!(probe.finished(), 2, "nothing was made for it");
}

// Goal: an unread answer is aborted soon, well before the time for a whole message is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_not_read_is_given_up_soon() {
    let config = NetworkConfig { transfer_timeout_ms: MESSAGE_MS, ..loopback() };
    let (a, probe) = start(1, &config).await;
    let raw = greedy("127.0.0.9", 2, address_of(&a)).await;
    let (_send, mut receive) = ask_for(&raw, 16 * MIB).await;
    eventually("it is made", || probe.finished() == 1).await;
    let began = Instant::now();
    eventually("it is given up", || probe.live() == 0).await;
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    let mut rest = vec![0; 20_000];
    assert_eq!(reset_code(receive.read_exact(&mut rest).await.unwrap_err()), Some(code::TOO_SLOW));
}

// Goal: reading an answer byte by byte counts as not reading it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_read_byte_by_byte_is_given_up_soon() {
    let config = NetworkConfig { transfer_timeout_ms: MESSAGE_MS, ..loopback() };
    let (a, probe) = start(1, &config).await;
    let raw = greedy("127.0.0.9", 2, address_of(&a)).await;
    let (_send, mut receive) = ask_for(&raw, 16 * MIB).await;
    eventually("it is made", || probe.finished() == 1).await;
    let began = Instant::now();
    let mut sip = [0; 100];
    while receive.read_exact(&mut sip).await.is_ok() {
        sleep(Duration::from_millis(20)).await;
    }
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    eventually("it is let go of", || probe.live() == 0).await;
}

// Goal: an honest peer with many pieces in flight gets all of them, beside peers that read nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn honest_pieces_in_flight_are_all_answered() {
    // All are more than the peer's share, so that the last ones wait. A busy machine still moves the first in time.
    const PIECE: usize = 5 * MIB / 2;
    let (a, _) = start(1, &loopback()).await;
    let raw = greedy("127.0.0.9", 9, address_of(&a)).await;
    let mut held = Vec::new();
    for _ in 0..32 {
        held.push(ask_for(&raw, 16 * MIB).await);
    }
    let (b, _) = start(2, &dialling(vec![address_of(&a)])).await;
    connected(&a, &b).await;
    let pieces = (0..32).map(|_| {
        let (b, id) = (b.clone(), a.local());
        let limits = RequestLimits { response_bytes_max: 8 * MIB, ..LIMITS };
        tokio::spawn(async move { b.request(id, TRACKED, PIECE.to_le_bytes().to_vec(), limits).await })
    });
    for piece in pieces.collect::<Vec<_>>() {
        assert_eq!(piece.await.unwrap().unwrap().len(), PIECE);
    }
}

/// An attacker's host: it sends proper first packets from its own address and proves the address when asked. It never
/// continues the handshake.
async fn stall_handshakes(host: &str, target: PeerAddress, count: usize) -> Vec<Endpoint> {
    let mut endpoints = Vec::new();
    for _ in 0..count {
        let outside = UdpSocket::bind((host, 0)).await.unwrap();
        let inside = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let relay = inside.local_addr().unwrap();
        outside.connect(target.address).await.unwrap();
        tokio::spawn(async move {
            let (mut client, mut there, mut back) = (None::<SocketAddr>, vec![0; 2_000], vec![0; 2_000]);
            loop {
                tokio::select! {
                    Ok((length, from)) = inside.recv_from(&mut there) => {
                        client = Some(from);
                        let _ = outside.send(&there[..length]).await;
                    }
                    // Only a Retry passes, which is type 3 of the long headers.
                    Ok(length) = outside.recv(&mut back) => {
                        if length > 0 && back[0] & 0xb0 == 0xb0 && let Some(client) = client {
                            let _ = inside.send_to(&back[..length], client).await;
                        }
                    }
                    else => return,
                }
            }
        });
        let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        let identity = tls::Identity::new(&key(77)).unwrap();
        let config = quinn::ClientConfig::new(identity.client(target.id, Arc::default()).unwrap());
        let connecting = endpoint.connect_with(config, relay, tls::SERVER_NAME).unwrap();
        tokio::spawn(async move {
            let _ = connecting.await;
        });
        endpoints.push(endpoint);
    }
    endpoints
}

/// A node whose handshakes may take far longer than [`LET_IN`], even when a crowd cuts the time to a quarter.
fn besieged(friend: PeerAddress) -> NetworkConfig {
    NetworkConfig { handshake_timeout_ms: 240_000, idle_timeout_ms: 240_000, ..dialling(vec![friend]) }
}

/// The time for an honest peer to be admitted before the stalled handshakes end; a busy machine is late.
const LET_IN: Duration = Duration::from_secs(40);

// Goal: one host's endless handshakes shut out no other peer, stranger or configured.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_handshakes_of_one_host_keep_nobody_out() {
    let friend = PeerAddress { id: key(2).public(), address: free_address() };
    let config = besieged(friend);
    let (a, _) = start(1, &config).await;
    let attacker = stall_handshakes("127.0.0.2", address_of(&a), 100).await;
    sleep(Duration::from_millis(700)).await;
    let stranger = timeout(LET_IN, Raw::connect(3, address_of(&a))).await;
    assert!(stranger.is_ok(), "a stranger from another host");
    let config = NetworkConfig { listen: friend.address, ..dialling(vec![address_of(&a)]) };
    let began = Instant::now();
    let (friend, _) = start(2, &config).await;
    connected(&a, &friend).await;
    assert!(began.elapsed() < LET_IN, "{:?}", began.elapsed());
    drop(attacker);
}

// Goal: hosts of many networks stall as many handshakes as they can. They leave the places of configured peers alone,
// and make room for strangers from elsewhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_handshakes_of_many_hosts_keep_nobody_out() {
    let friend = PeerAddress { id: key(2).public(), address: free_address() };
    let config = besieged(friend);
    let (a, _) = start(1, &config).await;
    let mut attackers = Vec::new();
    for net in 1..=12 {
        attackers.extend(stall_handshakes(&format!("127.9.{net}.1"), address_of(&a), 10).await);
    }
    sleep(Duration::from_millis(700)).await;
    let connecting = Raw::connect_from(friend.address, 2, address_of(&a), TransportConfig::default());
    let friend = timeout(LET_IN, connecting).await.expect("it has a place");
    eventually("connected", || a.peers() == [key(2).public()]).await;
    let from = SocketAddr::new("127.77.0.1".parse().unwrap(), 0);
    let connecting = Raw::connect_from(from, 3, address_of(&a), TransportConfig::default());
    let stranger = timeout(LET_IN, connecting).await.expect("others make room for it");
    drop((friend, stranger));
}

// Goal: if an answer is longer than its requester accepts, only its head is sent, and nothing is kept.
#[tokio::test]
async fn an_answer_is_bounded_by_its_request() {
    let (a, probe) = start(1, &loopback()).await;
    let raw = Raw::connect(2, address_of(&a)).await;
    let (mut send, mut receive) = raw.connection.open_bi().await.unwrap();
    let mut request = ask(TRACKED, &MIB.to_le_bytes());
    request[1..5].copy_from_slice(&1_000u32.to_le_bytes());
    send.write_all(&request).await.unwrap();
    send.finish().unwrap();
    let head = [&[0], (MIB as u32).to_le_bytes().as_slice()].concat();
    assert_eq!(receive.read_to_end(2 * MIB).await.unwrap(), head);
    eventually("it is let go of", || probe.live() == 0).await;
}

// Goal: a host gets its places and no more, under any number of keys.
#[tokio::test]
async fn one_host_gets_some_places() {
    let (a, _) = start(1, &loopback()).await;
    let mut raws = Vec::new();
    for n in 0..9 {
        let address = "127.0.0.9:0".parse().unwrap();
        raws.push(Raw::connect_from(address, 10 + n, address_of(&a), TransportConfig::default()).await);
    }
    let end = raws.pop().unwrap().connection.closed().await.to_string();
    assert!(end.contains("no free place for another peer of that host"), "{end}");
    let other = Raw::connect(3, address_of(&a)).await;
    eventually("eight and another one", || a.peers().len() == 9).await;
    drop((raws, other));
}

// Goal: peers that took all places first make room for a peer from elsewhere, the newest first.
#[tokio::test]
async fn a_crowd_makes_room_for_a_peer_from_elsewhere() {
    let (a, _) = start(1, &NetworkConfig { peers_max: 4, ..loopback() }).await;
    let from = |host: &str, n: u8| {
        let address = SocketAddr::new(host.parse().unwrap(), 0);
        Raw::connect_from(address, n, address_of(&a), TransportConfig::default())
    };
    let mut crowd = Vec::new();
    for n in 0..4 {
        crowd.push(from("127.9.1.1", 10 + n).await);
        eventually("it is in", || a.peers().len() == crowd.len()).await;
    }
    let newcomer = from("127.9.2.1", 20).await;
    let end = crowd[3].connection.closed().await.to_string();
    assert!(end.contains("the place goes to a peer from another network"), "{end}");
    eventually("it is in", || a.peers().contains(&key(20).public())).await;
    let another = from("127.9.1.2", 30).await.connection.closed().await.to_string();
    assert!(another.contains("no free place"), "{another}");
    assert!(crowd[..3].iter().all(|raw| raw.connection.close_reason().is_none()));
    drop(newcomer);
}

// Goal: a flood of broadcasts costs only as much as the rate admits, and ends its connection. No broadcast of others is
// lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_broadcasts_ends_its_connection_and_nobody_elses() {
    let (a, probe) = start(1, &loopback()).await;
    let (b, _) = start(2, &dialling(vec![address_of(&a)])).await;
    connected(&a, &b).await;
    let raw = Raw::connect(3, address_of(&a)).await;
    let began = Instant::now();
    let flooding = async {
        loop {
            let Ok(mut stream) = raw.connection.open_uni().await else { break };
            let _ = stream.write_all(&[1, 0, 0, 0, 7]).await;
            let _ = stream.finish();
        }
        raw.connection.closed().await.to_string()
    };
    let speaking = async {
        for n in 0..40u8 {
            b.send(a.local(), vec![n].into(), Priority::First);
            sleep(Duration::from_millis(10)).await;
        }
    };
    let (end, ()) =
        timeout(Duration::from_secs(120), async { tokio::join!(flooding, speaking) }).await.unwrap();
    assert!(end.contains("flood"), "{end}");
    let of = |peer| {
        let broadcasts = probe.broadcasts.lock();
        broadcasts.iter().filter(|(from, _)| *from == peer).map(|(_, payload)| payload[0]).collect::<Vec<_>>()
    };
    eventually("all of the honest one", || of(b.local()).len() == 40).await;
    // The rate's allowance for that time, and one burst.
    let most = 8_192.0 + 2_048.0 * began.elapsed().as_secs_f64();
    assert!((of(key(3).public()).len() as f64) <= most);
    assert_eq!(of(b.local()), (0..40).collect::<Vec<_>>());
    assert!(a.peers().contains(&b.local()));
}

// Goal: streams that are opened and then stall hold no place for long, requests and broadcasts alike.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_stand_still_are_cut() {
    let config = NetworkConfig { transfer_timeout_ms: MESSAGE_MS, ..loopback() };
    let (a, probe) = start(1, &config).await;
    let raw = Raw::connect(2, address_of(&a)).await;
    let mut open = Vec::new();
    for _ in 0..super::endpoint::BROADCAST_STREAMS_MAX {
        let mut stream = raw.connection.open_uni().await.unwrap();
        stream.write_all(&[100, 0, 0, 0, 7]).await.unwrap();
        open.push(stream);
    }
    let mut requests = Vec::new();
    for _ in 0..64 {
        let (mut send, receive) = raw.connection.open_bi().await.unwrap();
        send.write_all(&ask(ECHO, &[7; 10])[..8]).await.unwrap();
        requests.push((send, receive));
    }
    let began = Instant::now();
    for (_send, receive) in &mut requests {
        assert_eq!(reset_code(receive.read_exact(&mut [0]).await.unwrap_err()), Some(code::TOO_SLOW));
    }
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    drop(requests);
    for stream in &mut open {
        stream.reset(code::CANCELLED).unwrap_or_default();
    }
    let mut stream = raw.connection.open_uni().await.unwrap();
    stream.write_all(&[1, 0, 0, 0, 42]).await.unwrap();
    stream.finish().unwrap();
    eventually("a sound one arrives", || !probe.broadcasts.lock().is_empty()).await;
    let (mut send, mut receive) = raw.connection.open_bi().await.unwrap();
    send.write_all(&ask(ECHO, b"ok")).await.unwrap();
    send.finish().unwrap();
    assert_eq!(receive.read_to_end(100).await.unwrap(), b"\x00\x02\x00\x00\x00ok");
}

// Goal: datagrams that are not QUIC, including empty ones, are ignored.
#[tokio::test]
async fn noise_on_the_port_is_ignored() {
    let (a, _) = start(1, &loopback()).await;
    let noise = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    for n in 0..500usize {
        let bytes: Vec<u8> = (0..n % 1_400).map(|at| (at * 31 + n) as u8).collect();
        noise.send_to(&bytes, a.local_address()).await.unwrap();
    }
    let (b, _) = start(2, &dialling(vec![address_of(&a)])).await;
    connected(&a, &b).await;
    assert_eq!(b.request(a.local(), ECHO, vec![1], LIMITS).await.unwrap(), [1]);
}
