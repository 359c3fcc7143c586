//! The wallet: twenty transfers a second, each over a connection of its own, from schedule to receipt.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use alloy_primitives::{Address, B256};
use anyhow::Result;
use parking_lot::Mutex;
use serde_json::{Value, json};
use slipnet::{
    accounts::Account,
    rpc::{Rpc, RpcError, quantity},
    signer::Signed,
};
use tokio::sync::Semaphore;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{WALLET, Waits};
use crate::campaign::siege::stage::{Call, Money};

const INTERVAL: Duration = Duration::from_millis(50);
/// Between two looks for a receipt.
const POLL: Duration = Duration::from_millis(20);
/// Before a transfer that was refused is sent again.
const RETRY: Duration = Duration::from_millis(200);
/// A transfer without a receipt is given up after this.
const PATIENCE: Duration = Duration::from_secs(60);
/// For transfers under way when the wallet pauses.
const PAUSE_PATIENCE: Duration = Duration::from_secs(3);
/// Share of the base fee that the wallet tips, as wallets do.
const TIP_DIVISOR: u64 = 10;

/// An account without a transfer under way, and its next nonce.
struct Purse {
    account: Account,
    nonce: u64,
}

/// A wallet with many accounts, so that one slow transfer does not hold the next.
pub(in crate::campaign::siege) struct Wallet {
    url: String,
    money: Money,
    waits: Waits,
    /// One for each account without a transfer under way.
    idle: Semaphore,
    accounts: usize,
    /// While the node is started again, nothing is sent.
    is_paused: AtomicBool,
    purses: Mutex<VecDeque<Purse>>,
    /// Transfers that the node accepted, by when it said so.
    acknowledged: Mutex<Vec<(Instant, B256)>>,
}

impl Wallet {
    /// A wallet of these accounts at one node.
    pub(super) async fn new(
        accounts: Vec<Account>,
        money: Money,
        rpc: &Rpc,
        waits: Waits,
    ) -> Result<Arc<Wallet>> {
        let params: Vec<_> = accounts.iter().map(|account| json!([account.address, "pending"])).collect();
        let nonces: Vec<Value> = rpc.batch_all("eth_getTransactionCount", &params).await?;
        let nonces: Vec<u64> = nonces.iter().map(quantity).collect::<Result<_>>()?;
        let purses: VecDeque<_> =
            accounts.into_iter().zip(nonces).map(|(account, nonce)| Purse { account, nonce }).collect();
        Ok(Arc::new(Wallet {
            url: rpc.url().to_owned(),
            money,
            waits,
            idle: Semaphore::new(purses.len()),
            accounts: purses.len(),
            is_paused: AtomicBool::new(false),
            purses: Mutex::new(purses),
            acknowledged: Mutex::default(),
        }))
    }

    /// Sends until it is stopped.
    pub(super) async fn run(self: Arc<Self>, tasks: TaskTracker, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(INTERVAL);
        loop {
            let scheduled = ticks.tick().await.into_std();
            if self.is_paused.load(Ordering::Relaxed) {
                continue;
            }
            let wallet = self.clone();
            tasks.spawn(stop.clone().run_until_cancelled_owned(async move {
                let place = wallet.waits.begin(scheduled);
                if wallet.transfer().await {
                    wallet.waits.end(place, Instant::now());
                }
            }));
        }
    }

    /// Hashes of the transfers that were accepted within a time.
    pub(in crate::campaign::siege) fn acknowledged(&self, window: (Instant, Instant)) -> Vec<B256> {
        let all = self.acknowledged.lock();
        all.iter().filter(|(at, _)| (window.0..window.1).contains(at)).map(|(_, hash)| *hash).collect()
    }

    /// Sends nothing any more, and waits for a while until what is under way has arrived.
    pub(in crate::campaign::siege) async fn pause(&self) {
        self.is_paused.store(true, Ordering::Relaxed);
        let deadline = Instant::now() + PAUSE_PATIENCE;
        while self.idle.available_permits() < self.accounts && Instant::now() < deadline {
            tokio::time::sleep(POLL).await;
        }
    }

    /// Lets the wallet send again.
    pub(in crate::campaign::siege) fn resume(&self) {
        self.is_paused.store(false, Ordering::Relaxed);
    }

    /// One transfer; whether it got its receipt.
    async fn transfer(&self) -> bool {
        let Ok(_idle) = self.idle.acquire().await else { return false };
        let purse = self.purses.lock().pop_front();
        let Some(mut purse) = purse else { return false };
        let call = Call::transfer(Address::repeat_byte(0x77));
        let tip_wei = u128::from(self.money.base_fee_wei / TIP_DIVISOR).max(1);
        let signed = self.money.sign(&purse.account, purse.nonce, tip_wei, call);
        let received = tokio::time::timeout(PATIENCE, self.bring(&signed)).await.is_ok();
        if received {
            purse.nonce += 1;
        } else {
            purse.nonce = self.nonce(&purse.account).await.unwrap_or(purse.nonce);
        }
        self.purses.lock().push_back(purse);
        received
    }

    /// The chain's nonce of an account whose last transfer has an unknown end.
    async fn nonce(&self, account: &Account) -> Result<u64> {
        let rpc = Rpc::from_address(WALLET, &self.url)?;
        quantity(&rpc.call("eth_getTransactionCount", json!([account.address, "latest"])).await?)
    }

    /// Sends until it is accepted, then asks until there is a receipt.
    async fn bring(&self, signed: &Signed) {
        // A wallet opens its page, sends and closes. To such a wallet, a node that refuses new connections is gone.
        let Ok(mut rpc) = Rpc::from_address(WALLET, &self.url) else { return std::future::pending().await };
        loop {
            let sent: Result<B256> = rpc.call("eth_sendRawTransaction", json!([signed.raw])).await;
            let refusal = match sent {
                Ok(_) => break self.acknowledged.lock().push((Instant::now(), signed.hash)),
                Err(error) => error,
            };
            match refusal.downcast_ref::<RpcError>() {
                // An earlier attempt arrived, whose answer did not.
                Some(known) if known.message.contains("already known") => break,
                Some(used) if used.message.contains("nonce too low") => break,
                Some(_) => {}
                None => rpc = Rpc::from_address(WALLET, &self.url).unwrap_or(rpc),
            }
            tokio::time::sleep(RETRY).await;
        }
        loop {
            let receipt: Result<Value> = rpc.call("eth_getTransactionReceipt", json!([signed.hash])).await;
            match receipt {
                Ok(receipt) if !receipt.is_null() => return,
                Ok(_) => {}
                Err(_) => rpc = Rpc::from_address(WALLET, &self.url).unwrap_or(rpc),
            }
            tokio::time::sleep(POLL).await;
        }
    }
}
