//! Attacks by transactions: junk from peers, and pools filled over HTTP with transactions that never execute or hardly
//! pay.

use std::{sync::Arc, time::Duration};

use alloy_primitives::{Address, B256};
use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::{Value, json};
use slipnet::{
    accounts::Account,
    rpc::{Rpc, quantity},
    signer::Signed,
};
use slipstream_network::Protocol;
use slipstream_types::{batch::RawTransaction, bounded::BoundedVec, codec};
use tokio::time::sleep;

use super::{
    attack::{Attack, AttackContext, AttackInfo, AttackSurface, FnAttack},
    stage::{Call, SigningParameters},
    wire::{QuicSettings, Wire},
};

pub(super) const ALL: &[&dyn Attack] = &[
    &JUNK_TRANSACTIONS,
    &BAD_SIGNATURES,
    &REPLACEMENTS,
    &GAS_HOGS,
    &LOW_TIPS,
    &ZERO_TIP_TAILS,
    &HEAVY_TRANSACTIONS,
    &NONCE_GAPS,
];

/// Transactions in one message between peers.
const MESSAGE_MAX: usize = 2_048;
/// Transactions in one HTTP body.
const BODY_MAX: usize = 100;
const SENDERS: usize = 320;

/// The payload of protocol TRANSACTIONS, as in docs/formats.md.
#[derive(Serialize)]
struct Message {
    transactions: BoundedVec<RawTransaction, MESSAGE_MAX>,
}

fn sink() -> Call {
    Call::transfer(Address::repeat_byte(0xdd))
}

const JUNK_TRANSACTIONS: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Pool,
        "junk-transactions",
        "eight peers that keep sending the same 2,048 transactions from accounts without funds",
    )
    .quick(),
    start: |field| {
        Box::pin(async move {
            let poor = Account::derive_many(&format!("{:032x}", rand::random::<u128>()), 32);
            let junk = |index: usize| {
                let signed = field.target.money().sign(
                    &poor[index % poor.len()],
                    (index / poor.len()) as u64,
                    1,
                    sink(),
                );
                RawTransaction::new(signed.raw.to_vec())
            };
            let transactions = BoundedVec::new((0..MESSAGE_MAX).map(junk).collect::<Result<_, _>>()?)?;
            let message = Arc::new(codec::encode("transactions", &Message { transactions })?);
            field
                .swarm(8, Duration::from_millis(100), move |field, index| {
                    let message = message.clone();
                    async move {
                        let wire = Wire::dial(
                            &field.target.peer,
                            AttackContext::address(index),
                            QuicSettings::default(),
                        )
                        .await?;
                        loop {
                            field.tally.tried();
                            let answer = wire.ask(Protocol::TRANSACTIONS, &message).await;
                            wire.connection.close_reason().map_or(Ok(()), Err)?;
                            if answer.is_ok() {
                                field.tally.done();
                            }
                            sleep(Duration::from_millis(20)).await;
                        }
                    }
                })
                .await
        })
    },
};

/// Sends transactions in one body; returns how many the node accepted.
async fn submit(rpc: &Rpc, transactions: &[Signed]) -> Result<usize> {
    let params: Vec<_> = transactions.iter().map(|signed| json!([signed.raw])).collect();
    let answers = rpc.batch("eth_sendRawTransaction", &params).await?;
    Ok(answers.iter().filter(|answer| answer.is_ok()).count())
}

/// An attacker's account, and its next nonce.
struct Sender {
    account: Account,
    nonce: u64,
    money: SigningParameters,
}

impl Sender {
    fn sign(&self, offset: u64, tip_wei: u128) -> Signed {
        self.money.sign(&self.account, self.nonce + offset, tip_wei, sink())
    }
}

/// One turn of a flood's sender: the transactions of one body.
type Round = fn(&mut Sender, u64) -> Vec<Signed>;

/// Lets the funded accounts send body after body, `workers` accounts at a time.
async fn flood(field: AttackContext, workers: usize, pause: Duration, round: Round) -> Result<()> {
    let rpc = field.target.rpc(0)?;
    let accounts = field.target.accounts(SENDERS)?;
    let params: Vec<_> = accounts.iter().map(|account| json!([account.address, "pending"])).collect();
    let nonces: Vec<Value> = rpc.batch_all("eth_getTransactionCount", &params).await?;
    let senders = accounts.into_iter().zip(nonces).map(|(account, nonce)| {
        Ok(Arc::new(tokio::sync::Mutex::new((
            Sender { account, nonce: quantity(&nonce)?, money: field.target.money() },
            0_u64,
        ))))
    });
    let senders: Arc<Vec<_>> = Arc::new(senders.collect::<Result<Vec<_>>>()?);
    field
        .swarm(workers, pause, move |field, worker| {
            let senders = senders.clone();
            async move {
                let rpc = field.target.rpc(worker)?;
                for sender in senders.iter().skip(worker).step_by(workers) {
                    let mut sender = sender.lock().await;
                    let (sender, turn) = &mut *sender;
                    let body = round(sender, *turn);
                    *turn += 1;
                    for _ in &body {
                        field.tally.tried();
                    }
                    for _ in 0..submit(&rpc, &body).await? {
                        field.tally.done();
                    }
                    sleep(pause).await;
                }
                Ok(())
            }
        })
        .await
}

const BAD_SIGNATURES: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Pool,
        "bad-signatures",
        "transactions over HTTP with false signatures, 100 in each body",
    ),
    start: |field| {
        Box::pin(field.swarm(8, Duration::from_millis(50), |field, index| async move {
            let rpc = field.target.rpc(index)?;
            let account = field.target.accounts(1)?.pop().context("the attackers have no account")?;
            let forge = |nonce| {
                let signed = field.target.money().sign(&account, nonce, 1, sink());
                let mut raw = signed.raw.to_vec();
                // Within s, the last field: the signature then recovers to a stranger or to no one.
                let place = raw.len() - 8;
                raw[place] ^= rand::random::<u8>() | 1;
                Signed { raw: raw.into(), hash: B256::ZERO }
            };
            let body: Vec<_> = (0..BODY_MAX as u64).map(forge).collect();
            for _ in 0..50 {
                field.tally.tried();
                submit(&rpc, &body).await?;
                field.tally.done();
                sleep(Duration::from_millis(20)).await;
            }
            Ok(())
        }))
    },
};

const REPLACEMENTS: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Pool,
        "replacements",
        "transactions behind a nonce gap that replace each other, each with a tip 12 % higher",
    ),
    start: |field| {
        Box::pin(flood(field, 4, Duration::from_millis(20), |sender, turn| {
            let dearer = |step: u64| 1.12_f64.powi((turn * 20 + step).min(300) as i32) as u128 + 10;
            (0..20).map(|step| sender.sign(1, dearer(step))).collect()
        }))
    },
};

const GAS_HOGS: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Pool,
        "gas-hogs",
        "transfers with the maximum gas limit of a transaction and a high tip",
    ),
    start: |field| {
        Box::pin(flood(field, 4, Duration::from_millis(20), |sender, _| {
            let call = Call { gas_limit: 1 << 24, ..sink() };
            let tip_wei = u128::from(sender.money.base_fee_wei);
            let body = vec![sender.money.sign(&sender.account, sender.nonce, tip_wei, call)];
            sender.nonce += 1;
            body
        }))
    },
};

/// Returns consecutive transactions, each with its tip.
fn in_order(sender: &mut Sender, count: u64, tip_wei: impl Fn(u64) -> u128) -> Vec<Signed> {
    let body = (0..count).map(|offset| sender.sign(offset, tip_wei(offset))).collect();
    sender.nonce += count;
    body
}

const LOW_TIPS: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Pool,
        "low-tips",
        "valid transfers from 320 senders with a tip of one wei, as fast as the attackers can sign",
    )
    .quick(),
    start: |field| {
        Box::pin(flood(field, 4, Duration::from_millis(10), |sender, _| in_order(sender, 20, |_| 1)))
    },
};

const ZERO_TIP_TAILS: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Pool,
        "zero-tip-tails",
        "senders with 99 transactions without a tip and a last one with a high tip, behind a nonce gap",
    ),
    start: |field| {
        Box::pin(flood(field, 4, Duration::from_millis(10), |sender, turn| {
            let last = BODY_MAX as u64 - 1;
            let tip = |offset| if offset == last { 1_000_000_000 } else { 0 };
            (0..=last).map(|offset| sender.sign(1 + turn * (last + 1) + offset, tip(offset))).collect()
        }))
    },
};

const HEAVY_TRANSACTIONS: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Pool,
        "heavy-transactions",
        "transactions of 120,000 bytes behind a nonce gap, without a tip",
    ),
    start: |field| {
        Box::pin(flood(field, 2, Duration::from_millis(20), |sender, turn| {
            let input = vec![rand::random::<u8>() | 1; 120_000].into();
            let call = Call { gas_limit: 5_000_000, input, ..sink() };
            vec![sender.money.sign(&sender.account, sender.nonce + 2_000 + turn, 0, call)]
        }))
    },
};

const NONCE_GAPS: FnAttack = FnAttack {
    info: AttackInfo::new(
        AttackSurface::Pool,
        "nonce-gaps",
        "transactions from 320 senders behind a nonce gap, which no node can execute",
    ),
    start: |field| {
        Box::pin(flood(field, 4, Duration::from_millis(10), |sender, turn| {
            (0..BODY_MAX as u64).map(|step| sender.sign(500 + turn * BODY_MAX as u64 + step, 1)).collect()
        }))
    },
};
