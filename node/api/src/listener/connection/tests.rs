//! Slow and silent clients, in paused time.

use std::sync::Arc;

use axum::{Router, extract::connect_info::Connected, middleware, routing::get, serve::IncomingStream};
use slipstream_fair::Origin;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
    time::{advance, sleep},
};

use super::{
    super::seats::{
        ANSWER_BYTES_PER_SECOND_MIN, ANSWER_GRACE, BODY_BYTES_PER_SECOND_MIN, BODY_GRACE, HEAD_BYTES_MAX,
        HEAD_MAX, IDLE_MAX, Limits, Seats,
    },
    *,
};
use crate::seated;

const PIPE_BYTES: usize = 1 << 10;

async fn connection() -> (Connection<DuplexStream>, DuplexStream, Arc<Seats>) {
    let seats = Seats::new(Limits { calls: 1, spare: 0, reserved: 0, per_address: 1 });
    let (server, client) = duplex(PIPE_BYTES);
    (Connection::new(server, seats.take(Origin::Trusted).unwrap(), CancellationToken::new()), client, seats)
}

/// One exchange as on the HTTP side: a request of `bytes` bytes is read, processed and answered.
async fn exchange(server: &mut Connection<DuplexStream>, client: &mut DuplexStream, bytes: usize) {
    client.write_all(&vec![b'x'; bytes]).await.unwrap();
    server.read_exact(&mut vec![0; bytes]).await.unwrap();
    server.seat().working();
    server.seat().answered(9);
    server.write_all(b"an answer").await.unwrap();
    server.flush().await.unwrap();
}

/// Reads until the connection is closed, and returns the time that this took.
async fn given_up(server: &mut Connection<DuplexStream>) -> Duration {
    let started = Instant::now();
    let mut buf = [0; 16];
    loop {
        match server.read(&mut buf).await {
            Ok(read) => assert!(read > 0, "the client went away"),
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::TimedOut);
                return started.elapsed();
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_client_loses_its_seat() {
    let (mut server, client, seats) = connection().await;
    assert_eq!(given_up(&mut server).await, HEAD_MAX);
    drop((server, client));
    let (stream, mut client) = duplex(PIPE_BYTES);
    let mut server = Connection::new(stream, seats.take(Origin::Trusted).unwrap(), CancellationToken::new());
    advance(HEAD_MAX - Duration::from_secs(1)).await;
    exchange(&mut server, &mut client, 9).await;
    assert_eq!(given_up(&mut server).await, IDLE_MAX, "who has asked once may think");
}

/// Goal: the head of a request gets a few seconds from its first byte, even when it arrives byte by byte.
#[tokio::test(start_paused = true)]
async fn a_request_byte_by_byte_is_given_up() {
    for asked_before in [false, true] {
        let (mut server, mut client, _seats) = connection().await;
        if asked_before {
            exchange(&mut server, &mut client, 9).await;
            advance(IDLE_MAX - Duration::from_secs(1)).await;
        }
        let slow = tokio::spawn(async move {
            while client.write_all(b"x").await.is_ok() {
                sleep(Duration::from_secs(1)).await;
            }
        });
        assert_eq!(given_up(&mut server).await, HEAD_MAX);
        drop(server);
        slow.await.unwrap();
    }
}

/// Goal: a dismissed connection ends at once while it has no request; otherwise it ends after its answer is read.
#[tokio::test(start_paused = true)]
async fn a_dismissed_connection_ends_when_it_may() {
    let (mut server, mut client, seats) = connection().await;
    client.write_all(b"request").await.unwrap();
    server.read_exact(&mut [0; 7]).await.unwrap();
    server.seat().call_read().unwrap();
    assert!(seats.take(Origin::Trusted).is_err(), "it works");
    let reading = tokio::time::timeout(Duration::from_secs(10), server.read(&mut [0; 16])).await;
    assert!(reading.is_err(), "it works");
    server.seat().answered(9);
    server.write_all(b"an answer").await.unwrap();
    server.flush().await.unwrap();
    assert!(seats.take(Origin::Trusted).is_err());
    let error = server.read(&mut [0; 16]).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
    drop(server);
    seats.take(Origin::Trusted).unwrap();
}

/// Goal: a body keeps its seat only while it arrives at the required rate, not while a byte arrives now and then.
#[tokio::test(start_paused = true)]
async fn a_body_that_trickles_is_given_up() {
    for rate in [1, BODY_BYTES_PER_SECOND_MIN / 2, 2 * BODY_BYTES_PER_SECOND_MIN] {
        let (mut server, client, _seats) = connection().await;
        let (mut reader, mut client) = (vec![0; 64 << 10], client);
        server.seat().head_read();
        let writer = tokio::spawn(async move {
            for _ in 0..40 {
                if client.write_all(&vec![b'x'; rate]).await.is_err() {
                    return;
                }
                sleep(Duration::from_secs(1)).await;
            }
        });
        let (started, mut read) = (Instant::now(), 0);
        let ended = loop {
            match server.read(&mut reader).await {
                Ok(0) => break None,
                Ok(bytes) => read += bytes,
                Err(error) => break Some(error.kind()),
            }
        };
        match rate > BODY_BYTES_PER_SECOND_MIN {
            true => assert_eq!((ended, read), (None, 40 * rate)),
            false => {
                assert_eq!(ended, Some(io::ErrorKind::TimedOut));
                assert!(started.elapsed() <= 3 * BODY_GRACE, "{:?}", started.elapsed());
            }
        }
        drop(server);
        writer.await.unwrap();
    }
}

/// Goal: an endless head takes no memory beyond its limit.
#[tokio::test(start_paused = true)]
async fn a_head_has_an_end() {
    let (mut server, mut client, _seats) = connection().await;
    let writer = tokio::spawn(async move { while client.write_all(&[b'x'; 512]).await.is_ok() {} });
    let (mut read, mut buf) = (0, [0; 512]);
    let error = loop {
        match server.read(&mut buf).await {
            Ok(bytes) => read += bytes,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    assert!((HEAD_BYTES_MAX..=HEAD_BYTES_MAX + buf.len()).contains(&read), "{read}");
    drop(server);
    writer.await.unwrap();
}

/// Goal: a client that reads a long answer just above the least rate of a window does not hold its memory for hours.
#[tokio::test(start_paused = true)]
async fn a_long_answer_has_to_be_read_at_a_rate() {
    let (mut server, mut client, _seats) = connection().await;
    let len = 8 << 20;
    let reader = tokio::spawn(async move {
        let mut chunk = vec![0; PIPE_BYTES];
        while client.read(&mut chunk).await.is_ok_and(|bytes| bytes > 0) {
            sleep(Duration::from_millis(200)).await;
        }
    });
    server.seat().answered(len);
    let started = Instant::now();
    let error = server.write_all(&vec![7; len]).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    let most = ANSWER_GRACE + Duration::from_secs((len / ANSWER_BYTES_PER_SECOND_MIN) as u64);
    assert!(started.elapsed() <= most + STALL_WINDOW, "{:?}", started.elapsed());
    drop(server);
    reader.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_stops_or_trickles_is_given_up() {
    for trickle in [false, true] {
        let (mut server, mut client, _seats) = connection().await;
        let reader = tokio::spawn(async move {
            let mut byte = [0];
            while trickle && client.read_exact(&mut byte).await.is_ok() {
                sleep(Duration::from_secs(1)).await;
            }
            sleep(Duration::from_secs(3_600)).await;
            drop(client);
        });
        let started = Instant::now();
        let error = server.write_all(&[0; 2 * PIPE_BYTES]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(started.elapsed().as_secs(), STALL_WINDOW.as_secs());
        reader.abort();
    }
}

/// Goal: a client that stops reading keeps the place of its call briefly, and its seat until another connection needs
/// it.
#[tokio::test(start_paused = true)]
async fn a_reader_that_stops_gives_its_place_back() {
    let seats = Seats::new(Limits { calls: 1, spare: 1, reserved: 0, per_address: 2 });
    let (stream, _client) = duplex(PIPE_BYTES);
    let mut server = Connection::new(stream, seats.take(Origin::Trusted).unwrap(), CancellationToken::new());
    let other = seats.take(Origin::Trusted).unwrap();
    server.seat().call_read().unwrap();
    server.seat().answered(4 * PIPE_BYTES);
    let writing = tokio::spawn(async move { server.write_all(&[0; 4 * PIPE_BYTES]).await });
    sleep(CALL_PATIENCE - Duration::from_millis(1)).await;
    assert!(other.call_read().is_err());
    sleep(Duration::from_millis(2)).await;
    other.call_read().unwrap();
    sleep(STALL_WINDOW / 2).await;
    assert!(!writing.is_finished(), "it may read on");
    assert!(seats.take(Origin::Trusted).is_err());
    let error = writing.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
    seats.take(Origin::Trusted).unwrap();
}

/// Goal: a client that reads some of its answer now and then keeps the place of its call.
#[tokio::test(start_paused = true)]
async fn a_reader_that_goes_on_keeps_its_place() {
    let seats = Seats::new(Limits { calls: 1, spare: 1, reserved: 0, per_address: 2 });
    let (stream, mut client) = duplex(PIPE_BYTES);
    let mut server = Connection::new(stream, seats.take(Origin::Trusted).unwrap(), CancellationToken::new());
    let other = seats.take(Origin::Trusted).unwrap();
    server.seat().call_read().unwrap();
    server.seat().answered(8 * PIPE_BYTES);
    let writing = tokio::spawn(async move { server.write_all(&[0; 8 * PIPE_BYTES]).await });
    for _ in 0..4 {
        sleep(CALL_PATIENCE - Duration::from_secs(1)).await;
        client.read_exact(&mut [0; PIPE_BYTES]).await.unwrap();
    }
    assert!(!writing.is_finished() && other.call_read().is_err());
    writing.abort();
}

/// Goal: a long answer to a slow but steady reader arrives, and the next answer forgets waits in it.
#[tokio::test(start_paused = true)]
async fn a_slow_reader_is_served() {
    let (mut server, mut client, _seats) = connection().await;
    let answer = vec![7; 4 * STALL_BYTES_MIN];
    let reader = tokio::spawn(async move {
        let mut chunk = vec![0; PIPE_BYTES];
        let mut read = 0;
        while read < 4 * STALL_BYTES_MIN + 2 * PIPE_BYTES {
            read += client.read(&mut chunk).await.unwrap();
            sleep(Duration::from_millis(200)).await;
        }
    });
    server.write_all(&answer).await.unwrap();
    assert!(server.stall.is_some());
    advance(2 * STALL_WINDOW).await;
    server.write_all(&[7; 2 * PIPE_BYTES]).await.unwrap();
    reader.await.unwrap();
}

/// Hands out one connection.
struct One(Option<Connection<DuplexStream>>);

impl axum::serve::Listener for One {
    type Io = Connection<DuplexStream>;
    type Addr = ();

    async fn accept(&mut self) -> (Connection<DuplexStream>, ()) {
        match self.0.take() {
            Some(connection) => (connection, ()),
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<()> {
        Ok(())
    }
}

impl Connected<IncomingStream<'_, One>> for Seat {
    fn connect_info(stream: IncomingStream<'_, One>) -> Self {
        stream.io().seat().clone()
    }
}

/// Goal: the end reaches every client at once. This includes a client that leaves a long answer unread, a silent one,
/// and one that reads nothing at all.
#[tokio::test(start_paused = true)]
async fn the_end_comes_to_everybody() {
    let seats = Seats::new(Limits { calls: 8, spare: 0, reserved: 0, per_address: 8 });
    let end = CancellationToken::new();
    let connect = || {
        let (server, client) = duplex(PIPE_BYTES);
        (Connection::new(server, seats.take(Origin::Trusted).unwrap(), end.clone()), client)
    };
    let ((mut silent, _quiet), (mut stuck, _deaf)) = (connect(), connect());
    let reading = tokio::spawn(async move { silent.read(&mut [0; 16]).await });
    let writing = tokio::spawn(async move {
        stuck.seat().working();
        stuck.seat().answered(1 << 20);
        stuck.write_all(&vec![b'x'; 1 << 20]).await
    });
    sleep(Duration::from_secs(1)).await;
    assert!(!reading.is_finished() && !writing.is_finished());
    let told = Instant::now();
    end.cancel();
    let refused = [reading.await.unwrap().map(|_| ()), writing.await.unwrap()].map(Result::unwrap_err);
    assert!(refused.iter().all(|error| error.kind() == io::ErrorKind::ConnectionAborted), "{refused:?}");
    assert_eq!(told.elapsed(), Duration::ZERO);
    // A connection that arrives later meets the end at its first wait.
    let (mut late, _client) = connect();
    assert_eq!(late.read(&mut [0; 16]).await.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
}

/// Goal: a client that sends more requests before it has read a long answer keeps the whole time for that answer. The
/// next request starts when little of it is left.
#[tokio::test(start_paused = true)]
async fn a_slow_reader_may_pipeline() {
    let len = 8 << 20;
    let seats = Seats::new(Limits { calls: 1, spare: 0, reserved: 0, per_address: 1 });
    let (server, mut client) = duplex(STALL_BYTES_MIN);
    let one =
        One(Some(Connection::new(server, seats.take(Origin::Trusted).unwrap(), CancellationToken::new())));
    let router = Router::new()
        .route("/long", get(async move || vec![b'x'; len]))
        .route("/short", get(async || "short"))
        .layer(middleware::from_fn(seated));
    let service = router.into_make_service_with_connect_info::<Seat>();
    let serving = tokio::spawn(async move { axum::serve(one, service).await });
    for path in ["long", "short", "short"] {
        client.write_all(format!("GET /{path} HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes()).await.unwrap();
    }
    let (started, mut read) = (Instant::now(), Vec::new());
    while read.windows(5).rev().take(STALL_BYTES_MIN).filter(|end| end == b"short").count() < 2 {
        let mut chunk = vec![0; ANSWER_BYTES_PER_SECOND_MIN / 4];
        let bytes = client.read(&mut chunk).await.unwrap();
        assert!(bytes > 0, "cut after {:?} and {} bytes", started.elapsed(), read.len());
        read.extend_from_slice(&chunk[..bytes]);
        sleep(Duration::from_millis(200)).await;
    }
    assert!(read.len() > len && started.elapsed() > ANSWER_GRACE + Duration::from_secs(10));
    serving.abort();
}
