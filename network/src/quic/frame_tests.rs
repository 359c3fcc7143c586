//! Frames that lie, that do not fit, or that never end, in both directions.

use std::{net::SocketAddr, time::Duration};

use quinn::{Endpoint, TransportConfig};
use tokio::time::{Instant, sleep};

use super::{
    frames::code,
    tests::{Raw, address_of, dialling, framed, reset_code, start},
    tls,
};
use crate::{
    NetworkConfig, NetworkError, PeerAddress, Refusal, RefusalKind, RequestLimits, Transport,
    tests::{ECHO, LIMITS, NOTHING, SHORT, SHORT_BYTES_MAX, eventually, key, loopback},
};

const MIB: usize = 1 << 20;

/// A node that aborts no stalled transfer during a test, however slow the machine is.
fn patient() -> NetworkConfig {
    NetworkConfig { transfer_timeout_ms: 1_200_000, ..loopback() }
}

fn request(length: u32, payload: &[u8]) -> Vec<u8> {
    framed(ECHO, length, payload)
}

#[tokio::test]
async fn a_length_that_lies_is_refused_unread() {
    let (a, probe) = start(1, &loopback()).await;
    let raw = Raw::connect(2, address_of(&a)).await;
    let (_send, mut receive) = raw.send(&request(u32::MAX, b"short")).await;
    let response = receive.read_to_end(2_000).await.unwrap();
    assert_eq!(response[0], 3, "malformed");
    assert!(String::from_utf8_lossy(&response[5..]).contains("4294967295"));

    let (mut send, mut receive) = raw.send(&request(3, b"four")).await;
    send.finish().unwrap();
    assert_eq!(reset_code(receive.read_exact(&mut [0]).await.unwrap_err()), Some(code::MALFORMED));
    let (mut send, mut receive) = raw.send(&request(4, b"two")).await;
    send.finish().unwrap();
    assert_eq!(reset_code(receive.read_exact(&mut [0]).await.unwrap_err()), Some(code::MALFORMED));
    // The same for broadcasts, which are stopped without an answer and do not block the next one.
    for bytes in [&u32::MAX.to_le_bytes()[..], &[1, 0, 0, 0, 7, 7], &[2, 0, 0, 0, 7], &[1, 0, 0, 0, 42]] {
        let mut stream = raw.connection.open_uni().await.unwrap();
        stream.write_all(bytes).await.unwrap();
        stream.finish().unwrap();
    }
    eventually("the sound one arrives", || !probe.broadcasts.lock().is_empty()).await;
    assert_eq!(*probe.broadcasts.lock(), [(key(2).public(), vec![42])]);
    assert_eq!(probe.started(), 0, "nothing unsound reached the handler");
}

// Goal: the broadcasts of several coded batches are in flight in one round trip, before any of them is acknowledged.
#[tokio::test]
async fn many_broadcasts_share_a_round_trip() {
    let (a, probe) = start(1, &patient()).await;
    let raw = Raw::connect(2, address_of(&a)).await;
    let mut streams = Vec::new();
    for _ in 0..200 {
        // All stay partly read, so none frees its stream for another.
        let stream = tokio::time::timeout(Duration::from_secs(60), raw.connection.open_uni()).await;
        let mut stream = stream.expect("a place for it").unwrap();
        stream.write_all(&2u32.to_le_bytes()).await.unwrap();
        streams.push(stream);
    }
    for mut stream in streams {
        stream.write_all(&[7, 7]).await.unwrap();
        stream.finish().unwrap();
    }
    eventually("all arrive", || probe.broadcasts.lock().len() == 200).await;
}

// Goal: a sender of one byte a minute loses its stream, and its slot is free for the next request.
#[tokio::test]
async fn a_slow_sender_is_cut() {
    let config = NetworkConfig { transfer_timeout_ms: 12_000, request_concurrency_max: 1, ..loopback() };
    let (a, _) = start(1, &config).await;
    let raw = Raw::connect(2, address_of(&a)).await;
    let (_send, mut receive) = raw.send(&request(1_000, b"the first bytes")).await;
    let started = Instant::now();
    assert_eq!(reset_code(receive.read_exact(&mut [0]).await.unwrap_err()), Some(code::TOO_SLOW));
    // A sixth of the time for a message, plus the delay of a busy machine; a byte a minute would take hours.
    assert!(started.elapsed() < Duration::from_secs(60));
    drop((_send, receive));
    let (mut send, mut receive) = raw.send(&request(2, b"ok")).await;
    send.finish().unwrap();
    assert_eq!(receive.read_to_end(100).await.unwrap(), b"\x00\x02\x00\x00\x00ok");
}

#[tokio::test]
async fn bytes_that_have_come_are_budgeted_per_peer() {
    let config = NetworkConfig { request_bytes_in_flight_max: 48 << 20, ..patient() };
    let (a, _) = start(1, &config).await;
    let raw = Raw::connect(2, address_of(&a)).await;
    let (mut first, _first) = raw.send(&request(40 << 20, &vec![5; (40 << 20) - 1])).await;
    let link = a.link(key(2).public()).unwrap();
    eventually("all but one byte of it came", || link.received.total() == (40 << 20) - 1).await;
    let payload = vec![5; 10 << 20];
    let (mut send, mut receive) = raw.connection.open_bi().await.unwrap();
    // The refusal arrives before it has sent everything.
    let _ = send.write_all(&request(10 << 20, &payload)).await;
    let response = receive.read_to_end(2_000).await.unwrap();
    let (head, retry_after) = (response[0], u32::from_le_bytes(response[5..9].try_into().unwrap()));
    assert_eq!((head, retry_after), (1, 500), "busy");
    // Short requests need no room, another peer has a budget of its own, and this one's budget is freed when it gives
    // up.
    let (mut send, mut receive) = raw.send(&request(2, b"ok")).await;
    send.finish().unwrap();
    assert_eq!(receive.read_to_end(100).await.unwrap()[0], 0);
    let other = Raw::connect(3, address_of(&a)).await;
    let (mut send, mut receive) = other.send(&request(2, b"ok")).await;
    send.finish().unwrap();
    assert_eq!(receive.read_to_end(100).await.unwrap()[0], 0);
    first.reset(code::CANCELLED).unwrap();
    let began = Instant::now();
    let answer = loop {
        let (mut send, mut receive) = raw.connection.open_bi().await.unwrap();
        let _ = send.write_all(&request(10 << 20, &payload)).await;
        let _ = send.finish();
        let answer = receive.read_to_end(11 << 20).await.unwrap();
        if answer[0] == 0 {
            break answer;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "its budget does not come back");
        sleep(Duration::from_millis(100)).await;
    };
    assert!(answer[5..] == payload);
}

// Goal: announced bytes that never arrive take no room; bytes that arrive do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_announced_takes_no_room() {
    let (a, probe) = start(1, &NetworkConfig { bytes_in_flight_total_max: 128 * MIB, ..patient() }).await;
    let (mut attackers, mut open) = (Vec::new(), Vec::new());
    for n in 0..3 {
        let from = SocketAddr::new(format!("127.9.{n}.1").parse().unwrap(), 0);
        let raw = Raw::connect_from(from, 10 + n, address_of(&a), TransportConfig::default()).await;
        for _ in 0..60 {
            open.push(raw.send(&request(48 << 20, b"the first bytes")).await);
        }
        let mut stream = raw.connection.open_uni().await.unwrap();
        stream.write_all(&(48u32 << 20).to_le_bytes()).await.unwrap();
        attackers.push((raw, stream));
    }
    sleep(Duration::from_millis(300)).await;
    let honest = Raw::connect(2, address_of(&a)).await;
    for length in [50, MIB, 40 * MIB] {
        let (mut send, mut receive) = honest.send(&request(length as u32, &vec![7; length])).await;
        send.finish().unwrap();
        assert_eq!(receive.read_to_end(length + 5).await.unwrap().len(), length + 5, "answered");
    }
    let mut stream = honest.connection.open_uni().await.unwrap();
    stream.write_all(&[(MIB as u32).to_le_bytes().as_slice(), &vec![7; MIB]].concat()).await.unwrap();
    stream.finish().unwrap();
    eventually("its broadcast is taken", || !probe.broadcasts.lock().is_empty()).await;
    assert!(a.rejections().iter().all(|(_, count)| *count == 0), "{:?}", a.rejections());
}

// Goal: after a stalled request its sender's long requests are refused for a while, under any key. Short ones are still
// read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_stalls_a_request_is_barred_from_long_ones() {
    let (a, _) = start(1, &NetworkConfig { transfer_timeout_ms: 18_000, ..loopback() }).await;
    let from = async |host: &str, n: u8| {
        let address = SocketAddr::new(host.parse().unwrap(), 0);
        Raw::connect_from(address, n, address_of(&a), TransportConfig::default()).await
    };
    let raw = from("127.0.0.9", 10).await;
    let (_send, mut receive) = raw.send(&request(MIB as u32, &vec![7; MIB - 1])).await;
    assert_eq!(reset_code(receive.read_exact(&mut [0]).await.unwrap_err()), Some(code::TOO_SLOW));
    let other = from("127.0.0.10", 12).await;
    let again = from("127.0.0.9", 11).await;
    for (raw, length, status) in [(&again, 16 << 10, 0), (&again, MIB, 1), (&other, MIB, 0)] {
        let (mut send, mut receive) = raw.connection.open_bi().await.unwrap();
        // The refusal arrives before the sender has sent everything.
        let _ = send.write_all(&request(length as u32, &vec![7; length])).await;
        let _ = send.finish();
        assert_eq!(receive.read_to_end(2 * MIB).await.unwrap()[0], status, "{length} bytes");
    }
}

/// A server with a proper key that answers every request with the given bytes.
async fn liar(n: u8, answer: &'static [u8]) -> (PeerAddress, Endpoint) {
    let identity = tls::Identity::new(&key(n)).unwrap();
    let config = quinn::ServerConfig::with_crypto(identity.server().unwrap());
    let endpoint = Endpoint::server(config, "127.0.0.1:0".parse().unwrap()).unwrap();
    let address = PeerAddress { id: key(n).public(), address: endpoint.local_addr().unwrap() };
    tokio::spawn({
        let endpoint = endpoint.clone();
        async move {
            let connection = endpoint.accept().await.unwrap().await.unwrap();
            while let Ok((mut send, mut receive)) = connection.accept_bi().await {
                let _ = receive.read_to_end(1_000).await;
                let _ = send.write_all(answer).await;
                let _ = send.finish();
            }
        }
    });
    (address, endpoint)
}

fn is_busy(error: &NetworkError, retry_after_ms: u32) -> bool {
    error.refusal().map(Refusal::kind) == Some(RefusalKind::Busy { retry_after_ms })
}

#[tokio::test]
async fn answers_that_lie_are_told_apart() {
    type Check = fn(&NetworkError) -> bool;
    let cases: [(&'static [u8], Check); 8] = [
        (b"\x00\xff\xff\xff\xff", |e| matches!(e, NetworkError::TooLong { bytes: 0xffff_ffff, .. })),
        (b"\x07\x00\x00\x00\x00", |e| matches!(e, NetworkError::Malformed { .. })),
        (b"\x00\x05\x00\x00\x00four", |e| matches!(e, NetworkError::Malformed { .. })),
        (b"\x00\x01\x00\x00\x00two", |e| matches!(e, NetworkError::Malformed { .. })),
        // A peer's requested wait is clamped, and its text is bounded.
        (b"\x01\x04\x00\x00\x00\xff\xff\xff\xff", |e| is_busy(e, 10_000)),
        (b"\x01\x07\x00\x00\x00\x00\x00\x00\x00why", |e| is_busy(e, 20)),
        (b"\x01\x03\x00\x00\x00\x00\x00\x00", |e| matches!(e, NetworkError::Malformed { .. })),
        (b"\x02\x01\x04\x00\x00", |e| matches!(e, NetworkError::TooLong { bytes_max: 1_024, .. })),
    ];
    for (n, (answer, expected)) in cases.into_iter().enumerate() {
        let (peer, endpoint) = liar(10 + n as u8, answer).await;
        let (b, _) = start(2, &dialling(vec![peer])).await;
        eventually("connected", || !b.peers().is_empty()).await;
        let limits = RequestLimits { response_bytes_max: 1_000, ..LIMITS };
        let error = b.request(peer.id, ECHO, vec![1], limits).await.unwrap_err();
        assert!(expected(&error), "{answer:?}: {error}");
        drop(endpoint);
    }
}

// Goal: a request that the handler refuses is refused by its head alone.
#[tokio::test]
async fn an_unwanted_request_is_refused_unread() {
    let (a, probe) = start(1, &loopback()).await;
    let raw = Raw::connect(2, address_of(&a)).await;
    for (protocol, length, status, text) in [
        (SHORT, SHORT_BYTES_MAX + 1, 3, "11 bytes exceeds the limit of 10"),
        (NOTHING, 1, 2, "does not accept this kind of request"),
    ] {
        let head = framed(protocol, length as u32, b"");
        let (_send, mut receive) = raw.send(&head).await;
        let response = receive.read_to_end(2_000).await.unwrap();
        assert_eq!(response[0], status);
        let refusal = String::from_utf8_lossy(&response[5..]).into_owned();
        assert!(refusal.contains(text), "{refusal}");
    }
    assert_eq!(probe.started(), 0);
}
