//! [`Load`]: wallets that send transfers to every machine, again and again until they are executed. The owner of the
//! validators contract changes the validators. An attacker's accounts send transactions that need not be included.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use alloy_primitives::TxKind;
use anyhow::Result;
use rand::Rng;
use slipnet::{
    accounts::Account,
    signer::{Envelope, Fees, Request, sign},
};
use slipstream_executor::{
    Transaction,
    validators::{add_call, remove_call},
};
use slipstream_storage::Store;
use slipstream_types::{Address, Bytes, ChainConfig, U256, Validator, validators_contract};
use tokio::time::sleep;

use super::{
    plan::Change,
    slow::{ENDLESS, HEAVY},
    world::World,
};

/// The number of wallets. The next account is the owner of the validators contract, and the ones after it are the
/// attacker's.
const WALLETS: usize = 3;
/// The number of the attacker's accounts. Each sends one transaction, so that none waits for another.
pub(super) const ATTACKERS: usize = 8;
/// How often wallets resend transactions that are not executed.
const AGAIN_EVERY: Duration = Duration::from_millis(900);
/// The most transactions of one wallet that are resent at once.
const AGAIN_MAX: usize = 24;
/// The share of the machines that a wallet reaches during faults.
const REACHED: f64 = 0.6;
/// The longest delay of a transaction to a machine, in milliseconds.
const WAY_MS_MAX: u64 = 40;
/// The gas limit of a change of the validators.
const CHANGE_GAS: u64 = 500_000;
/// The gas of a transfer.
const TRANSFER_GAS: u64 = 21_000;
/// The gas limit of a heavy transfer: high enough that machines learn its price.
const HEAVY_GAS: u64 = 200_000;
/// The gas limit of an endless transfer.
const ENDLESS_GAS: u64 = 5_000_000;
/// The attacker's tip per gas, which puts it before all others.
const ATTACK_TIP_WEI: u128 = 1_000;

/// The load of a world.
#[derive(Default)]
pub(super) struct Load {
    /// The sent transactions, by account and nonce.
    sent: [Vec<Transaction>; WALLETS + 1],
}

/// The accounts of every world.
pub(super) fn accounts() -> &'static [Account] {
    static ACCOUNTS: OnceLock<Vec<Account>> = OnceLock::new();
    ACCOUNTS.get_or_init(|| {
        (0..=(WALLETS + ATTACKERS) as u32).map(|index| Account::derive("validators", index)).collect()
    })
}

/// Returns the account that may change the validators.
pub(super) fn owner() -> Address {
    accounts()[WALLETS].address
}

impl World {
    /// Sends transfers until some time after the last fault.
    pub(super) async fn load(self: Arc<World>) {
        while self.elapsed() < self.plan.calm() + AGAIN_EVERY {
            let (wallet, pause_ms, is_heavy) = {
                let rng = &mut self.chance.lock().rng;
                let slowness = self.plan.slowness.as_ref();
                let is_heavy = slowness.is_some_and(|slowness| rng.random_bool(slowness.heavy_share));
                (rng.random_range(0..WALLETS), rng.random_range(1..2 * self.plan.load_ms), is_heavy)
            };
            sleep(Duration::from_millis(pause_ms)).await;
            let light = (Address::repeat_byte(0xee), TRANSFER_GAS);
            let (to, gas) = if is_heavy { (HEAVY, HEAVY_GAS) } else { light };
            let sent = self.send(wallet, TxKind::Call(to), U256::from(1), gas, Bytes::new());
            self.hold(sent);
        }
    }

    /// Sends endless transactions, also after the last fault.
    pub(super) async fn attack(self: Arc<World>) {
        let attacks = self.plan.slowness.as_ref().map_or(0, |slowness| slowness.attacks);
        for attacker in WALLETS + 1..=WALLETS + attacks {
            let pause_ms = {
                let most_ms = 2 * self.plan.calm_ms / attacks as u64;
                self.chance.lock().rng.random_range(0..most_ms)
            };
            sleep(Duration::from_millis(pause_ms)).await;
            let request =
                Request { gas_limit: ENDLESS_GAS, ..self.request(TxKind::Call(ENDLESS), ATTACK_TIP_WEI) };
            match self.signed(attacker, request) {
                Ok(transaction) => self.give(&transaction),
                error => self.hold(error.map(|_| ())),
            }
        }
    }

    /// Sends a transaction that adds or removes a validator.
    pub(super) fn change(self: &Arc<World>, change: Change) -> Result<()> {
        let input = match change {
            Change::Join(machine) => add_call(&Validator {
                public_key: self.machines[machine].id,
                fee_recipient: recipient(machine),
            }),
            Change::Leave(machine) => remove_call(&self.machines[machine].id),
        };
        self.send(WALLETS, TxKind::Call(validators_contract::ADDRESS), U256::ZERO, CHANGE_GAS, input)
    }

    fn send(
        self: &Arc<World>,
        account: usize,
        to: TxKind,
        value: U256,
        gas_limit: u64,
        input: Bytes,
    ) -> Result<()> {
        let nonce = self.load.lock().sent[account].len() as u64;
        // For every second transaction the fee cap decides the proposer's reward; for the others the tip does.
        let (above_base_wei, tip_wei) = if nonce.is_multiple_of(2) { (1, 3) } else { (3, 1) };
        let fees =
            Fees { max_fee_wei: u128::from(self.genesis.chain.base_fee_wei) + above_base_wei, tip_wei };
        let request = Request { nonce, value, gas_limit, fees, input, ..self.request(to, tip_wei) };
        let transaction = self.signed(account, request)?;
        self.load.lock().sent[account].push(transaction.clone());
        self.give(&transaction);
        Ok(())
    }

    /// Returns an account's first transfer, of value 0.
    fn request(&self, to: TxKind, tip_wei: u128) -> Request {
        let ChainConfig { chain_id, base_fee_wei, .. } = self.genesis.chain;
        let fees = Fees { max_fee_wei: u128::from(base_fee_wei) + tip_wei, tip_wei };
        let (value, input) = (U256::ZERO, Bytes::new());
        let envelope = Envelope::DynamicFee;
        Request { chain_id, nonce: 0, to, value, gas_limit: TRANSFER_GAS, fees, input, envelope }
    }

    fn signed(&self, account: usize, request: Request) -> Result<Transaction> {
        let signed = sign(&accounts()[account], request);
        Ok(Transaction::decode(&signed.raw, &self.genesis.chain)?)
    }

    /// Resends unexecuted transactions: wallets do not know what happened to them.
    pub(super) async fn send_again(self: Arc<World>) {
        loop {
            sleep(AGAIN_EVERY).await;
            for account in 0..=WALLETS {
                let executed = self.machines.iter().filter_map(|machine| machine.up());
                let executed = executed.filter_map(|up| self.executed(&up.store, account)).max();
                let waiting: Vec<Transaction> = {
                    let sent = &self.load.lock().sent[account];
                    sent.iter().skip(executed.unwrap_or_default() as usize).take(AGAIN_MAX).cloned().collect()
                };
                waiting.iter().for_each(|transaction| self.give(transaction));
            }
        }
    }

    /// Sends a transaction to all machines, or during faults to most of them.
    fn give(self: &Arc<World>, transaction: &Transaction) {
        let calm = self.is_calm();
        for machine in 0..self.machines.len() {
            let way_ms = {
                let rng = &mut self.chance.lock().rng;
                let reached = calm || rng.random_bool(REACHED);
                reached.then(|| rng.random_range(0..=WAY_MS_MAX))
            };
            let Some(way_ms) = way_ms else { continue };
            let (world, transaction) = (self.clone(), transaction.clone());
            tokio::spawn(async move {
                sleep(Duration::from_millis(way_ms)).await;
                // The pool may have the transaction already, or it is executed.
                _ = world.machines[machine].up().map(|up| up.pool.add(transaction));
            });
        }
    }

    /// Returns the account's next nonce in a store.
    fn executed(&self, store: &Store, account: usize) -> Option<u64> {
        let view = store.view().ok()?;
        Some(view.account(&accounts()[account].address).ok()??.nonce)
    }

    /// Returns the accounts that sent transactions that the store has not executed.
    pub(super) fn waiting(&self, store: &Store) -> Vec<usize> {
        let sent = |account: usize| self.load.lock().sent[account].len() as u64;
        (0..=WALLETS).filter(|account| self.executed(store, *account) != Some(sent(*account))).collect()
    }
}

/// Returns the account that gets the fees of a machine's batches.
pub(super) fn recipient(machine: usize) -> Address {
    Address::repeat_byte(0xf0 + machine as u8)
}
