//! The wallet: twenty transfers a second, each over its own connection, measured from schedule to receipt.

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
use crate::campaign::siege::stage::{Call, SigningParameters};

const INTERVAL: Duration = Duration::from_millis(50);
/// The time between two polls for a receipt.
const POLL: Duration = Duration::from_millis(20);
/// The time until a refused transfer is sent again.
const RETRY: Duration = Duration::from_millis(200);
/// The time after which a transfer without a receipt is given up.
const PATIENCE: Duration = Duration::from_secs(60);
/// The wait for transfers in flight when the wallet pauses.
const PAUSE_PATIENCE: Duration = Duration::from_secs(3);
/// The wallet tips the base fee divided by this, like real wallets.
const TIP_DIVISOR: u64 = 10;

/// An account without a transfer in flight, and its next nonce.
struct Purse {
    account: Account,
    nonce: u64,
}

/// A wallet with many accounts, so that one slow transfer does not delay the next.
pub(in crate::campaign::siege) struct Wallet {
    url: String,
    money: SigningParameters,
    waits: Waits,
    /// One permit for each account without a transfer in flight.
    idle: Semaphore,
    accounts: usize,
    /// While the node restarts, nothing is sent.
    is_paused: AtomicBool,
    purses: Mutex<VecDeque<Purse>>,
    /// The transfers that the node accepted, and when.
    acknowledged: Mutex<Vec<(Instant, B256)>>,
}

impl Wallet {
    /// Makes a wallet of these accounts at one node.
    pub(super) async fn new(
        accounts: Vec<Account>,
        money: SigningParameters,
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

    /// Sends transfers until it is stopped.
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

    /// Returns the hashes of the transfers that were accepted within `window`.
    pub(in crate::campaign::siege) fn acknowledged(&self, window: (Instant, Instant)) -> Vec<B256> {
        let all = self.acknowledged.lock();
        all.iter().filter(|(at, _)| (window.0..window.1).contains(at)).map(|(_, hash)| *hash).collect()
    }

    /// Stops sending, and waits a while for the transfers in flight.
    pub(in crate::campaign::siege) async fn pause(&self) {
        self.is_paused.store(true, Ordering::Relaxed);
        let deadline = Instant::now() + PAUSE_PATIENCE;
        while self.idle.available_permits() < self.accounts && Instant::now() < deadline {
            tokio::time::sleep(POLL).await;
        }
    }

    /// Starts sending again.
    pub(in crate::campaign::siege) fn resume(&self) {
        self.is_paused.store(false, Ordering::Relaxed);
    }

    /// Makes one transfer; returns whether it got its receipt.
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

    /// Queries the chain's nonce of an account whose last transfer has an unknown fate.
    async fn nonce(&self, account: &Account) -> Result<u64> {
        let rpc = Rpc::from_address(WALLET, &self.url)?;
        quantity(&rpc.call("eth_getTransactionCount", json!([account.address, "latest"])).await?)
    }

    /// Sends the transfer until it is accepted, then polls until it has a receipt.
    async fn bring(&self, signed: &Signed) {
        // A wallet opens its page, sends and closes. For such a wallet, a node that refuses new connections is down.
        let Ok(mut rpc) = Rpc::from_address(WALLET, &self.url) else { return std::future::pending().await };
        loop {
            let sent: Result<B256> = rpc.call("eth_sendRawTransaction", json!([signed.raw])).await;
            let refusal = match sent {
                Ok(_) => break self.acknowledged.lock().push((Instant::now(), signed.hash)),
                Err(error) => error,
            };
            match refusal.downcast_ref::<RpcError>() {
                // An earlier attempt arrived, but its answer did not.
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
