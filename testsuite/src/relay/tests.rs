//! Tests relays between real sockets on loopback. Lanes are tested in their own file, without a socket.

use super::*;

const LOOPBACK: &str = "127.0.0.1:0";

/// Returns a relay, a client, and the target's socket.
async fn rig(shape: Shape) -> (Relay, UdpSocket, UdpSocket) {
    let target = UdpSocket::bind(LOOPBACK).await.unwrap();
    let relay = Relay::start(LOOPBACK.parse().unwrap(), target.local_addr().unwrap(), shape).unwrap();
    let client = UdpSocket::bind(LOOPBACK).await.unwrap();
    client.connect(relay.address()).await.unwrap();
    (relay, client, target)
}

async fn take(socket: &UdpSocket) -> (Vec<u8>, SocketAddr) {
    let mut buffer = [0; 2_000];
    let wait = tokio::time::timeout(Duration::from_secs(60), socket.recv_from(&mut buffer));
    let (length, from) = wait.await.expect("a datagram comes within a minute").unwrap();
    (buffer[..length].to_vec(), from)
}

/// Goal: a datagram and its answer take at least the requested round trip, and the overhead is reported.
#[tokio::test]
async fn a_round_trip_takes_what_was_asked_for() {
    let (relay, client, target) = rig(Shape::round_trip(Duration::from_millis(60))).await;
    let begin = Instant::now();
    client.send(b"there").await.unwrap();
    let (text, from) = take(&target).await;
    assert_eq!(text, b"there");
    assert!(begin.elapsed() >= Duration::from_millis(30));
    target.send_to(b"back", from).await.unwrap();
    assert_eq!(take(&client).await.0, b"back");
    assert!(begin.elapsed() >= Duration::from_millis(60));
    let stats = relay.stats();
    assert_eq!((stats.datagrams, stats.bytes, stats.lost, stats.full), (2, 9, 0, 0));
    assert!(stats.overhead_us_max < 60_000_000, "{stats:?}");
}

/// Goal: a hundred datagrams with much jitter arrive in the order in which they left.
#[tokio::test]
async fn jitter_changes_no_order() {
    let shape = Shape { jitter: Duration::from_millis(5), ..Shape::default() };
    let (_relay, client, target) = rig(shape).await;
    for number in 0..100_u32 {
        client.send(&number.to_le_bytes()).await.unwrap();
    }
    for number in 0..100_u32 {
        assert_eq!(take(&target).await.0, number.to_le_bytes());
    }
}

/// Goal: nothing passes a cut link; a healed one works again; a new shape applies from the next datagram.
#[tokio::test]
async fn a_cut_link_heals() {
    let (relay, client, target) = rig(Shape::default()).await;
    client.send(b"1").await.unwrap();
    take(&target).await;
    relay.cut(true);
    client.send(b"2").await.unwrap();
    while relay.stats().cut == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    relay.cut(false);
    relay.reshape(Shape::round_trip(Duration::from_millis(40))).unwrap();
    let begin = Instant::now();
    client.send(b"3").await.unwrap();
    assert_eq!(take(&target).await.0, b"3");
    assert!(begin.elapsed() >= Duration::from_millis(20));
}

/// Goal: a target that moved is reached at its new address, and datagrams from the old one are ignored.
#[tokio::test]
async fn a_target_may_move() {
    let (relay, client, old) = rig(Shape::default()).await;
    client.send(b"1").await.unwrap();
    let (_, from_old) = take(&old).await;
    let new = UdpSocket::bind(LOOPBACK).await.unwrap();
    relay.retarget(new.local_addr().unwrap());
    client.send(b"2").await.unwrap();
    let (text, from) = take(&new).await;
    assert_eq!(text, b"2");
    let _ = old.send_to(b"lie", from_old).await;
    let _ = old.send_to(b"lie", from).await;
    new.send_to(b"truth", from).await.unwrap();
    assert_eq!(take(&client).await.0, b"truth");
}

/// Goal: an impossible shape is refused, and the error names the wrong value.
#[test]
fn impossible_shapes_are_refused() {
    let refused = |shape: Shape| shape.check().unwrap_err().to_string();
    assert!(refused(Shape { loss: 1.5, ..Shape::default() }).contains("from 0 to 1, not 1.5"));
    assert!(refused(Shape { loss: f64::NAN, ..Shape::default() }).contains("from 0 to 1"));
    let long = Shape { delay: Duration::from_secs(61), ..Shape::default() };
    assert!(refused(long).contains("at most 60 s"));
    let narrow = Shape { bandwidth_bytes_per_second: NonZeroU64::new(10), ..Shape::default() };
    assert!(refused(narrow).contains("at least 1000"));
}
