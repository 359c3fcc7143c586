//! Attacks by connected peers: requests whose answers are never read, expensive requests, and endless ones.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result};
use slipnet::devnet::SyncMode;
use slipstream_network::Protocol;
use slipstream_sync::protocol::{Parts, RangeDeltaRequest, Request};
use slipstream_types::{BatchNumber, Epoch, Path};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{
    attack::{Attack, AttackContext, AttackInfo, AttackSurface, FnAttack},
    quic::keep,
    wire::{QuicSettings, Wire, encoded, head, length, range},
};

pub(super) const ALL: &[&dyn Attack] = &[
    &UNREAD_ANSWERS,
    &RANGE_DELTAS,
    &CHUNK_AFTER_RESTART,
    &REQUEST_FLOOD,
    &EPOCHS_FLOOD,
    &OPEN_STREAMS,
    &SLOW_REQUESTS,
    &OVERSIZED_FRAMES,
    &TRUNCATED_FRAMES,
];

/// Concurrent requests that a node accepts from a peer by default.
const STREAMS: usize = 64;
const READ_BYTES_MAX: usize = 64 << 20;

const UNREAD_ANSWERS: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Quic,
        "unread-answers",
        "two identities from one address that request 64 answers of 16 MiB each and read nothing",
    )
    .quick(),
    start: |field| {
        Box::pin(field.swarm(2, Duration::from_millis(500), |field, _| async move {
            let manner = QuicSettings { window: 1_024, ..QuicSettings::default() };
            let wire = Wire::dial(&field.target.peer, AttackContext::address(0), manner).await?;
            let request = encoded(&range(1, 1_024, Parts::BODY.with(Parts::RECEIPTS)))?;
            let mut unread = Vec::new();
            for _ in 0..STREAMS {
                unread.push(wire.send(Protocol::SYNC, &request).await?);
                field.tally.tried();
                field.tally.done();
            }
            wire.connection.closed().await;
            Ok(())
        }))
    },
};

const RANGE_DELTAS: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Quic,
        "range-deltas",
        "four identities that each request 64 range deltas at a time, each from another batch",
    )
    .quick(),
    start: |field| {
        Box::pin(field.swarm(4, Duration::from_millis(100), |field, index| async move {
            let wire = Wire::dial(&field.target.peer, AttackContext::address(index), QuicSettings::default())
                .await?;
            let summary = wire.summary().await?;
            let to = summary.snapshots.first().context("the victim has no snapshot")?.number;
            let bases = 0..to.get();
            let requests = bases.map(|from| RangeDeltaRequest {
                from: BatchNumber::new(from),
                to,
                first: Path::MIN,
                last: Path::MAX,
                bytes_max: 4 << 20,
            });
            ask_all(&field, wire, requests.map(Request::RangeDelta).collect()).await
        }))
    },
};

/// Sends all requests, as many at a time as the node accepts, and reads the answers.
async fn ask_all(field: &AttackContext, wire: Wire, requests: Vec<Request>) -> Result<()> {
    let wire = Arc::new(wire);
    let mut asked = JoinSet::new();
    for request in requests {
        if asked.len() >= STREAMS {
            asked.join_next().await;
        }
        let (payload, wire, tally) = (encoded(&request)?, wire.clone(), field.tally.clone());
        asked.spawn(async move {
            tally.tried();
            let (_send, mut receive) = wire.send(Protocol::SYNC, &payload).await?;
            receive.read_to_end(READ_BYTES_MAX).await?;
            tally.done();
            anyhow::Ok(())
        });
    }
    while asked.join_next().await.is_some() {}
    Ok(())
}

const CHUNK_AFTER_RESTART: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Quic,
        "chunk-after-restart",
        "64 requests for chunks of each snapshot, right after a restart of the node",
    ),
    start: |field| {
        Box::pin(field.swarm(4, Duration::from_millis(200), |field, index| async move {
            let wire = Wire::dial(&field.target.peer, AttackContext::address(index), QuicSettings::default())
                .await?;
            let summary = wire.summary().await?;
            let numbers = summary.snapshots.iter().map(|offer| offer.number);
            let chunks = numbers.flat_map(|number| {
                (0..STREAMS as u8).map(move |place| Request::Chunk {
                    number,
                    first: Path([place * 4; 32]),
                    last: Path::MAX,
                    bytes_max: 1 << 20,
                })
            });
            ask_all(&field, wire, chunks.collect()).await
        }))
    },
};

const REQUEST_FLOOD: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Quic,
        "request-flood",
        "eight identities that request summaries, headers and origins, 64 at a time",
    ),
    start: |field| {
        Box::pin(field.swarm(8, Duration::from_millis(20), |field, index| async move {
            let wire = Wire::dial(&field.target.peer, AttackContext::address(index), QuicSettings::default())
                .await?;
            let last = BatchNumber::new(field.target.head);
            let some = [
                Request::Summary,
                Request::Headers { first: BatchNumber::new(1), last },
                Request::Origin { number: last },
                Request::Offer { number: last, passing: None },
            ];
            ask_all(&field, wire, some.iter().cycle().take(512).cloned().collect()).await
        }))
    },
};

const EPOCHS_FLOOD: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Quic,
        "epochs-flood",
        "eight identities that keep requesting the ends of all epochs, 64 at a time",
    )
    .joined(SyncMode::Auto),
    start: |field| {
        Box::pin(field.swarm(8, Duration::from_millis(20), |field, index| async move {
            let wire = Wire::dial(&field.target.peer, AttackContext::address(index), QuicSettings::default())
                .await?;
            ask_all(&field, wire, vec![Request::Epochs { first: Epoch(0) }; 512]).await
        }))
    },
};

const OPEN_STREAMS: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Quic,
        "open-streams",
        "eight identities that open all streams that the node allows, write one byte into each, and wait",
    ),
    start: |field| {
        Box::pin(field.swarm(8, Duration::from_millis(200), |field, index| async move {
            let wire = Wire::dial(&field.target.peer, AttackContext::address(index), QuicSettings::default())
                .await?;
            let mut open = (Vec::new(), Vec::new());
            // The node grants no further stream until it gives up an open one.
            while let Ok(stream) = timeout(Duration::from_secs(1), wire.connection.open_bi()).await {
                let (mut send, receive) = stream?;
                field.tally.tried();
                send.write_all(&[Protocol::SYNC.0]).await?;
                field.tally.done();
                open.0.push((send, receive));
            }
            while let Ok(stream) = timeout(Duration::from_secs(1), wire.connection.open_uni()).await {
                let mut send = stream?;
                send.write_all(&[1]).await?;
                open.1.push(send);
            }
            wire.connection.closed().await;
            drop(open);
            Ok(())
        }))
    },
};

const SLOW_REQUESTS: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Quic,
        "slow-requests",
        "eight identities with 64 requests each that announce megabytes and send one byte per second",
    ),
    start: |field| {
        Box::pin(field.swarm(8, Duration::from_millis(200), |field, index| async move {
            let wire = Wire::dial(&field.target.peer, AttackContext::address(index), QuicSettings::default())
                .await?;
            let mut open = Vec::new();
            for _ in 0..STREAMS {
                let (mut send, receive) = wire.connection.open_bi().await?;
                send.write_all(&head(Protocol::TRANSACTIONS, 4 << 20)).await?;
                field.tally.tried();
                open.push((send, receive));
            }
            loop {
                sleep(Duration::from_secs(1)).await;
                let mut given_up = 0;
                for (send, _) in &mut open {
                    match send.write_all(&[0]).await {
                        Ok(()) => field.tally.done(),
                        Err(_) => given_up += 1,
                    }
                }
                anyhow::ensure!(given_up < open.len(), "the node gave up all requests");
            }
        }))
    },
};

const OVERSIZED_FRAMES: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Quic,
        "oversized-frames",
        "requests and broadcasts that announce 4 GiB; some broadcasts announce 48 MiB and send half of it",
    ),
    start: |field| {
        Box::pin(field.swarm(8, Duration::from_millis(200), |field, index| async move {
            let wire = Wire::dial(&field.target.peer, AttackContext::address(index), QuicSettings::default())
                .await?;
            for turn in 0..32 {
                field.tally.tried();
                let (mut send, receive) = wire.connection.open_bi().await?;
                send.write_all(&head(Protocol(turn % 4), usize::MAX)).await?;
                drop((send, receive));
                let mut broadcast = wire.connection.open_uni().await?;
                if turn % 8 == 0 {
                    broadcast.write_all(&length(48 << 20)).await?;
                    // The rest never follows; the node may stop the stream at any time.
                    let _ = timeout(Duration::from_secs(2), broadcast.write_all(&vec![7; 24 << 20])).await;
                    tokio::spawn(keep(broadcast));
                } else {
                    broadcast.write_all(&length(usize::MAX)).await?;
                }
                field.tally.done();
            }
            Ok(())
        }))
    },
};

const TRUNCATED_FRAMES: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Quic,
        "truncated-frames",
        "requests and broadcasts that end before their announced length, or within their header",
    ),
    start: |field| {
        Box::pin(field.swarm(8, Duration::from_millis(50), |field, index| async move {
            let wire = Wire::dial(&field.target.peer, AttackContext::address(index), QuicSettings::default())
                .await?;
            for turn in 0..64 {
                field.tally.tried();
                let (mut send, mut receive) = wire.connection.open_bi().await?;
                send.write_all(&head(Protocol(1 + turn % 3), 1_000)[..1 + usize::from(turn % 9)]).await?;
                send.finish()?;
                // Any answer counts.
                let _ = timeout(Duration::from_secs(1), receive.read_to_end(1 << 20)).await;
                let mut broadcast = wire.connection.open_uni().await?;
                broadcast.write_all(&length(1_000)).await?;
                broadcast.write_all(&[1; 10]).await?;
                broadcast.finish()?;
                field.tally.done();
            }
            Ok(())
        }))
    },
};
