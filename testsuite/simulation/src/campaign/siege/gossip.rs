//! Attacks by announcements of batches: old, far-future and forged ones.

use std::time::Duration;

use alloy_primitives::Address;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use slipnet::rpc::quantity;
use slipstream_broadcast::{Announced, Message, PayloadId, Wants};
use slipstream_types::{
    BatchNumber, Blob, Digest, Epoch,
    bounded::{BoundedBytes, BoundedVec},
};
use tokio::time::sleep;

use super::{
    attack::{Attack, AttackContext, AttackInfo, AttackSurface, FnAttack},
    stage::{Call, HEAVY_BYTES, HEAVY_GAS},
    wire::{QuicSettings, Wire},
};

pub(super) const ALL: &[&dyn Attack] = &[&STALE, &FUTURE, &FORGED, &NOISE, &UNTAKEN];

/// The number of identities that announce.
const CRIERS: usize = 8;
const PAUSE: Duration = Duration::from_millis(20);
/// One announcement in this many has a long body.
const HEAVY_EVERY: u64 = 10;
/// The number of identities that accept no broadcast, and of accounts that pay for the refused batches.
const HOLDERS: usize = 40;
const PAYERS: usize = 4;
const PAYMENT_INTERVAL: Duration = Duration::from_millis(250);

/// Returns a true announcement of a batch that the node has, from its own answers, and the batch's body.
async fn truth(wire: &Wire, number: u64) -> Result<(Announced, Blob)> {
    let range = wire.batch(number).await?;
    let batch = range.batches.first().context("the victim does not serve the requested batch")?;
    let body = batch.body.clone().context("the victim serves no body")?;
    let plans = BoundedVec::default();
    Ok((Announced { header: batch.header.clone(), certificate: range.certificate, plans }, body))
}

/// Announces under one identity until the node closes the connection. `change` alters true announcements; some get a
/// body whose plan is unsigned.
async fn cry(field: AttackContext, index: usize, change: fn(&mut Announced, u64)) -> Result<()> {
    let wire = Wire::dial(&field.target.peer, AttackContext::address(index), QuicSettings::default()).await?;
    let (light, _) = truth(&wire, field.target.head).await?;
    let (heavy, body) = truth(&wire, field.target.heavy_batch).await?;
    for turn in 0_u64.. {
        let is_heavy = turn % HEAVY_EVERY == 0;
        let mut announced = if is_heavy { heavy.clone() } else { light.clone() };
        change(&mut announced, field.target.head + turn);
        field.tally.tried();
        wire.broadcast(&Message::Batch(Box::new(announced)).encode()?).await?;
        if is_heavy {
            let id = PayloadId(Digest(rand::random()));
            let chunk = BoundedBytes::new(body.as_bytes().to_vec())?;
            wire.broadcast(&Message::Chunk { id, chunk }.encode()?).await?;
        }
        field.tally.done();
        sleep(PAUSE).await;
    }
    Ok(())
}

const STALE: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Gossip,
        "stale-announcements",
        "eight identities that announce old batches, 50 a second each, some with megabytes of data",
    ),
    start: |field| Box::pin(field.swarm(CRIERS, PAUSE, |field, index| cry(field, index, |_, _| {}))),
};

const FUTURE: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Gossip,
        "future-announcements",
        "the same with batches of later epochs, which no node can check yet",
    ),
    start: |field| {
        let later = |announcement: &mut Announced, number: u64| {
            let number = BatchNumber::new(number + 1_000);
            announcement.header.number = number;
            announcement.certificate.info.number = number;
            announcement.certificate.info.epoch = Epoch(number.get());
        };
        Box::pin(field.swarm(CRIERS, PAUSE, move |field, index| cry(field, index, later)))
    },
};

const FORGED: FnAttack = FnAttack {
    info: AttackInfo::new(AttackSurface::Gossip, "forged-announcements", "the same with the next batches under false signatures, and a new key whenever the node shuts one out").quick(),
    start: |field| {
let next = |announcement: &mut Announced, number: u64| {
            let number = BatchNumber::new(number + 1);
            announcement.header.number = number;
            announcement.certificate.info.number = number;
        };
        Box::pin(field.swarm(CRIERS, PAUSE, move |field, index| cry(field, index, next)))
},
};

const NOISE: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Gossip,
        "noise-broadcasts",
        "broadcasts of 4 MiB of noise, and a new key whenever the node shuts one out",
    ),
    start: |field| {
        Box::pin(field.swarm(4, PAUSE, |field, index| async move {
            let wire = Wire::dial(&field.target.peer, AttackContext::address(index), QuicSettings::default())
                .await?;
            let noise = vec![rand::random::<u8>(); 4 << 20];
            loop {
                field.tally.tried();
                wire.broadcast(&noise).await?;
                field.tally.done();
                sleep(PAUSE * 5).await;
            }
        }))
    },
};

const UNTAKEN: FnAttack = FnAttack {
    info: AttackInfo::new(AttackSurface::Gossip, "untaken-broadcasts", "40 identities that subscribe to all batches and read nothing, while four accounts pay for 2 MB of call data a second").quick(),
    start: |field| Box::pin(field.swarm(HOLDERS + PAYERS, PAUSE * 25, |field, index| async move {
            match index.checked_sub(HOLDERS) {
                None => take_nothing(&field, index).await,
                Some(payer) => pay(&field, payer).await,
            }
        })),
};

/// Wants everything, and reads nothing. Half of the identities do not let the node open a broadcast.
async fn take_nothing(field: &AttackContext, index: usize) -> Result<()> {
    let broadcasts = [100, 0][index % 2];
    let manner = QuicSettings { window: 1_000, window_of_all: 64_000, broadcasts };
    let wire = Wire::dial(&field.target.peer, AttackContext::address(index), manner).await?;
    let wants = Wants { body: true, hints: true };
    wire.broadcast(&Message::Wants { wants, asks: false }.encode()?).await?;
    field.tally.done();
    wire.connection.closed().await;
    Ok(())
}

/// Fills batches, so that the node has much to broadcast.
async fn pay(field: &AttackContext, payer: usize) -> Result<()> {
    let rpc = field.target.rpc(HOLDERS + payer)?;
    let account = field.target.accounts(PAYERS)?.swap_remove(payer);
    let pending = json!([account.address, "pending"]);
    let first = quantity(&rpc.call("eth_getTransactionCount", pending).await?)?;
    for nonce in first.. {
        let noise: Vec<u8> = (0..HEAVY_BYTES).map(|_| rand::random()).collect();
        let to = Address::repeat_byte(0xdd);
        let call = Call { gas_limit: HEAVY_GAS, input: noise.into(), ..Call::transfer(to) };
        let signed = field.target.money().sign(&account, nonce, 1_000_000, call);
        let _: Value = rpc.call("eth_sendRawTransaction", json!([signed.raw])).await?;
        sleep(PAYMENT_INTERVAL).await;
    }
    Ok(())
}
