//! Attacks by connections between peers: handshakes, identities, datagrams.

use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use slipnet::devnet::SyncMode;
use slipstream_network::{PeerAddress, Protocol};
use tokio::{net::UdpSocket, time::sleep};

use super::{
    attack::{Attack, AttackContext, AttackInfo, AttackSurface, FnAttack, Target},
    relay::Relay,
    wire::{QuicSettings, Wire},
};

pub(super) const ALL: &[&dyn Attack] = &[
    &STALLED_HANDSHAKES,
    &HANDSHAKE_FLOOD,
    &IDENTITIES,
    &ONE_NETWORK,
    &CYCLING_IDENTITIES,
    &BUSY_IDENTITIES,
    &FORGED_ADDRESSES,
    &GARBAGE_DATAGRAMS,
    &BAN_EVASION,
];

/// Longer than any attack: held connections end with the process.
const FOREVER: Duration = Duration::from_secs(3_600);

const STALLED_HANDSHAKES: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Quic,
        "stalled-handshakes",
        "128 handshakes from one address that stall once the node has answered",
    )
    .joined(SyncMode::Auto)
    .quick(),
    start: |field| {
        Box::pin(field.swarm(128, Duration::from_millis(100), |field, _| async move {
            // The node drops each handshake after a timeout; then the next handshake starts.
            let relay = Relay::stalls(&field.target.peer, AttackContext::address(0)).await?;
            let _ = tokio::time::timeout(Duration::from_secs(5), relay.carry(|_| async { Ok(()) })).await;
            Ok(())
        }))
    },
};

const HANDSHAKE_FLOOD: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Quic,
        "handshake-flood",
        "handshakes under new keys, each dropped once it is complete",
    )
    .joined(SyncMode::Auto),
    start: |field| {
        Box::pin(field.swarm(16, Duration::from_millis(20), |field, index| async move {
            Wire::dial(&field.target.peer, AttackContext::address(index), QuicSettings::default())
                .await
                .map(drop)
        }))
    },
};

const IDENTITIES: FnAttack = FnAttack {
    info: AttackInfo::new(AttackSurface::Quic, "identities", "128 identities, each from its own network, that take the connections left for strangers and keep them").joined(SyncMode::Auto),
    start: |field| Box::pin(field.swarm(128, Duration::from_millis(500), |field, index| {
            hold(field, AttackContext::address(index))
        })),
};

const ONE_NETWORK: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Quic,
        "identities-one-network",
        "128 identities from one network that take the connections left for strangers and keep them",
    )
    .joined(SyncMode::Auto),
    start: |field| {
        Box::pin(field.swarm(128, Duration::from_millis(500), |field, index| {
            hold(field, AttackContext::neighbour(index))
        }))
    },
};

const CYCLING_IDENTITIES: FnAttack = FnAttack {
    info: AttackInfo::new(AttackSurface::Quic, "identities-cycling", "128 identities at a time, each held for three seconds, then replaced by a fresh key from a new network (64 provider blocks)").joined(SyncMode::Auto),
    start: |field| {
let turns = Arc::new(AtomicUsize::new(0));
        Box::pin(field.swarm(128, Duration::from_millis(500), move |field, _| {
            let address = AttackContext::elsewhere(turns.fetch_add(1, Ordering::Relaxed));
            async move {
                let held = tokio::time::timeout(Duration::from_secs(3), hold(field, address)).await;
                held.unwrap_or(Ok(()))
            }
        }))
},
};

const BUSY_IDENTITIES: FnAttack = FnAttack {
    info: AttackInfo::new(AttackSurface::Quic, "identities-busy", "128 identities, each from its own network (64 provider blocks), that keep the connections left for strangers and send a request every second").joined(SyncMode::Auto),
    start: |field| Box::pin(field.swarm(128, Duration::from_millis(500), |field, index| async move {
            let wire =
                Wire::dial(&field.target.peer, AttackContext::elsewhere(index), QuicSettings::default())
                    .await?;
            loop {
                wire.summary().await?;
                field.tally.done();
                sleep(Duration::from_secs(1)).await;
            }
        })),
};

const FORGED_ADDRESSES: FnAttack = FnAttack {
    info: AttackInfo::new(AttackSurface::Quic, "forged-addresses", "16 identities, each from its own network, whose first packets forge the address of a joining node, and that keep its connections").joined(SyncMode::Auto).quick(),
    start: |field| Box::pin(field.swarm(16, Duration::from_millis(500), |field, index| async move {
            let Target { peer, neighbour, .. } = &*field.target;
            let relay = Relay::forges(peer, AttackContext::address(index), *neighbour).await?;
            relay.carry(|wire| speak(&field, wire)).await
        })),
};

/// Connects, and keeps the connection for as long as the node does.
async fn hold(field: AttackContext, address: IpAddr) -> Result<()> {
    let wire = Wire::dial(&field.target.peer, address, QuicSettings::default()).await?;
    keep_place(&field, wire).await
}

/// Sends a request, and keeps the connection.
async fn speak(field: &AttackContext, wire: Wire) -> Result<()> {
    wire.summary().await?;
    keep_place(field, wire).await
}

async fn keep_place(field: &AttackContext, wire: Wire) -> Result<()> {
    field.tally.done();
    wire.connection.closed().await;
    Ok(())
}

const GARBAGE_DATAGRAMS: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Quic,
        "garbage-datagrams",
        "10,000 datagrams of noise a second, half of them resembling Initial packets of QUIC",
    ),
    start: |field| {
        Box::pin(field.swarm(10, Duration::from_millis(1), |field, index| async move {
            let peer: PeerAddress = field.target.peer.parse()?;
            let socket = UdpSocket::bind((AttackContext::address(index), 0)).await?;
            loop {
                let mut noise: [u8; 1_200] = std::array::from_fn(|_| rand::random());
                for turn in 0..10 {
                    if turn % 2 == 0 {
                        // An Initial packet of QUIC 1, with connection ids of eight bytes.
                        noise[..6].copy_from_slice(&[0xc3, 0, 0, 0, 1, 8]);
                        noise[14] = 8;
                        noise[6] = noise[6].wrapping_add(1);
                    } else {
                        noise[0] = 0x40 | turn;
                    }
                    field.tally.tried();
                    if socket.send_to(&noise, peer.address).await.is_ok() {
                        field.tally.done();
                    }
                }
                sleep(Duration::from_millis(10)).await;
            }
        }))
    },
};

const BAN_EVASION: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Quic,
        "ban-evasion",
        "identities that send malformed or forbidden requests until the node shuts them out, and return under new keys",
    ),
    start: |field| {
        Box::pin(field.swarm(16, Duration::from_millis(50), |field, index| async move {
            let wire = Wire::dial(&field.target.peer, AttackContext::address(index), QuicSettings::default())
                .await?;
            let junk: [u8; 512] = std::array::from_fn(|_| rand::random());
            let protocols = [Protocol::SYNC, Protocol::CONSENSUS, Protocol::TRANSACTIONS, Protocol(200)];
            for turn in 0..400 {
                field.tally.tried();
                // The junk request gets a refusal; only a closed connection ends the loop.
                if wire.ask(protocols[turn % protocols.len()], &junk).await.is_err()
                    && wire.connection.close_reason().is_some()
                {
                    break;
                }
                wire.broadcast(&junk).await.context("the connection ended")?;
                sleep(Duration::from_millis(5)).await;
            }
            Ok(())
        }))
    },
};

/// Keeps the attacker's connections until the process exits.
pub(super) async fn keep<T>(held: T) {
    sleep(FOREVER).await;
    drop(held);
}
