//! Fills the [`Ledger`] from the node: balances before, receipts of every batch, balances after.

use std::collections::{HashMap, HashSet};

use alloy_primitives::{Address, B256, TxKind, U256, keccak256};
use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{
    audit::{Audit, Ledger, Place, Unit},
    plan::Plan,
    setup::Call,
    track::Contents,
    workload::Workload,
};
use crate::{
    accounts::Account,
    contracts,
    rpc::{Rpc, quantity},
};

/// Balances, and slots, that are compared besides those of the load's accounts, evenly spread: each is a question to the node.
const CHECKS_MAX: usize = 20_000;
/// What an ERC-20 says of each transfer.
const TRANSFER_EVENT: &[u8] = b"Transfer(address,address,uint256)";

/// What the load knows of its transactions.
pub(super) struct Known<'a> {
    pub(super) plan: &'a Plan,
    /// Places in the plan, also of transactions that were signed again.
    pub(super) hashes: &'a HashMap<B256, u32>,
    /// What only fills a nonce.
    pub(super) plugs: &'a HashSet<B256>,
}

/// The books of a run while they are kept.
pub(super) struct Auditor {
    rpc: Rpc,
    accounts: HashSet<Address>,
    tokens: HashSet<Address>,
    lists: Option<Address>,
    ledger: Ledger,
    audit: Audit,
}

impl Auditor {
    /// Notes the balances before the run, while nobody sends.
    pub(super) async fn open(
        rpc: Rpc,
        accounts: &[Account],
        nonces: &[u64],
        tokens: Vec<Address>,
        lists: Option<Address>,
    ) -> Result<Auditor> {
        let mut ledger = Ledger::default();
        let holders: Vec<Address> = accounts.iter().map(|account| account.address).collect();
        for (holder, nonce) in holders.iter().zip(nonces) {
            ledger.open(Place { holder: *holder, unit: Unit::Nonce }, U256::from(*nonce));
        }
        let units = std::iter::once(Unit::Wei).chain(tokens.iter().map(|token| Unit::Token(*token)));
        let places: Vec<Place> = units
            .flat_map(|unit| holders.iter().map(move |holder| Place { holder: *holder, unit }))
            .collect();
        let found = read(&rpc, &places, "latest").await?;
        for (place, amount) in places.into_iter().zip(found) {
            ledger.open(place, amount);
        }
        Ok(Auditor {
            rpc,
            accounts: holders.into_iter().collect(),
            tokens: tokens.into_iter().collect(),
            lists,
            ledger,
            audit: Audit::default(),
        })
    }

    /// Notes how many tokens a contract has before the run: a pair pays out of its own.
    pub(super) async fn open_contract(&mut self, holder: Address) -> Result<()> {
        let places: Vec<Place> =
            self.tokens.iter().map(|token| Place { holder, unit: Unit::Token(*token) }).collect();
        let found = read(&self.rpc, &places, "latest").await?;
        for (place, amount) in places.into_iter().zip(found) {
            self.ledger.open(place, amount);
        }
        Ok(())
    }

    /// Reads all receipts, then all balances after the last batch that was read.
    pub(super) async fn close(
        mut self,
        known: &Known<'_>,
        contents: &Contents,
        accepted: u64,
    ) -> Result<Audit> {
        let mut seen = HashSet::new();
        for (number, hashes) in contents.full() {
            let params = json!([format!("{number:#x}")]);
            let receipts: Vec<Value> = self.rpc.call("eth_getBlockReceipts", params).await?;
            if receipts.len() != hashes.len() {
                self.audit.receipts_wrong += 1;
            }
            for receipt in &receipts {
                self.post(known, receipt, &mut seen)
                    .with_context(|| format!("a receipt of batch {number}"))?;
            }
        }
        let planned = seen.iter().filter(|hash| known.hashes.contains_key(*hash)).count() as u64;
        self.audit.lost = accepted.saturating_sub(planned);
        self.compare(&format!("{:#x}", contents.head())).await?;
        Ok(self.audit)
    }

    /// Posts one receipt.
    fn post(&mut self, known: &Known<'_>, receipt: &Value, seen: &mut HashSet<B256>) -> Result<()> {
        let hash: B256 = field(receipt, "transactionHash")?;
        let from: Address = field(receipt, "from")?;
        let index = known.hashes.get(&hash).map(|index| *index as usize);
        if index.is_none() && !known.plugs.contains(&hash) {
            self.audit.foreign += u64::from(self.accounts.contains(&from));
            return Ok(());
        }
        if !seen.insert(hash) {
            self.audit.duplicates += 1;
            return Ok(());
        }
        self.audit.receipts += 1;
        let has_succeeded = receipt["status"] == "0x1";
        self.audit.receipts_failed += u64::from(!has_succeeded);
        let fee =
            U256::from(quantity(&receipt["gasUsed"])?) * U256::from(quantity(&receipt["effectiveGasPrice"])?);
        self.ledger.debit(Place { holder: from, unit: Unit::Wei }, fee);
        self.ledger.credit(Place { holder: from, unit: Unit::Nonce }, U256::from(1));
        let transfers = transfers(receipt)?;
        for (token, sender, receiver, amount) in &transfers {
            if self.tokens.contains(token) {
                self.ledger.transfer(Unit::Token(*token), *sender, *receiver, *amount);
            }
        }
        let Some(index) = index else { return Ok(()) };
        let call = known.plan.call(index)?;
        if let (TxKind::Call(to), true) = (call.to, has_succeeded && !call.value.is_zero()) {
            self.ledger.transfer(Unit::Wei, from, to, call.value);
        }
        if has_succeeded {
            for slot in known.plan.written_slots(index) {
                let holder = self.lists.context("slots of no contract")?;
                self.ledger.credit(Place { holder, unit: Unit::Slot(slot.into()) }, U256::from(1));
            }
        }
        let kind = known.plan.kind(index);
        let is_right = from == known.plan.sender_address(index)
            && (!has_succeeded || did_what_it_should(kind, &call, from, receipt, &transfers));
        self.audit.receipts_wrong += u64::from(!is_right);
        Ok(())
    }

    /// Compares what the node has after this batch with the books.
    async fn compare(&mut self, batch: &str) -> Result<()> {
        let (own, others): (Vec<Place>, Vec<Place>) =
            self.ledger.places().partition(|place| self.accounts.contains(&place.holder));
        let step = others.len().div_ceil(CHECKS_MAX).max(1);
        let places: Vec<Place> = own.into_iter().chain(others.into_iter().step_by(step)).collect();
        let found = read(&self.rpc, &places, batch).await?;
        for (place, amount) in places.into_iter().zip(found) {
            self.ledger.check(place, amount, &mut self.audit);
        }
        Ok(())
    }
}

/// Reads balances, in their order.
async fn read(rpc: &Rpc, places: &[Place], batch: &str) -> Result<Vec<U256>> {
    let question = |place: &Place| {
        let holder = place.holder;
        match place.unit {
            Unit::Wei => ("eth_getBalance", json!([holder, batch])),
            Unit::Nonce => ("eth_getTransactionCount", json!([holder, batch])),
            Unit::Slot(slot) => ("eth_getStorageAt", json!([holder, slot, batch])),
            Unit::Token(token) => {
                ("eth_call", json!([{ "to": token, "input": contracts::balance_of(holder) }, batch]))
            }
        }
    };
    let mut amounts = vec![U256::ZERO; places.len()];
    // A request holds calls of one method.
    let mut by_method: HashMap<&str, (Vec<usize>, Vec<Value>)> = HashMap::new();
    for (index, place) in places.iter().enumerate() {
        let (method, params) = question(place);
        let entry = by_method.entry(method).or_default();
        entry.0.push(index);
        entry.1.push(params);
    }
    for (method, (indices, params)) in by_method {
        let answers: Vec<Value> = rpc.batch_all(method, &params).await?;
        for (index, answer) in indices.into_iter().zip(answers) {
            let text = answer.as_str().and_then(|text| text.strip_prefix("0x"));
            let amount = text.and_then(|digits| U256::from_str_radix(digits, 16).ok());
            amounts[index] = amount.with_context(|| format!("{method} answered {answer}"))?;
        }
    }
    Ok(amounts)
}

/// Token, sender, receiver and amount of a receipt's transfers.
fn transfers(receipt: &Value) -> Result<Vec<(Address, Address, Address, U256)>> {
    let event = keccak256(TRANSFER_EVENT).to_string();
    let logs = receipt["logs"].as_array().context("a receipt without logs")?;
    let ours = logs.iter().filter(|log| log["topics"][0] == event.as_str());
    let address = |topic: &Value| -> Result<Address> {
        let topic: B256 = topic.as_str().unwrap_or_default().parse().context("the topic of a transfer")?;
        Ok(Address::from_word(topic))
    };
    ours.map(|log| {
        let amount: U256 = field(log, "data")?;
        Ok((field(log, "address")?, address(&log["topics"][1])?, address(&log["topics"][2])?, amount))
    })
    .collect()
}

/// Whether a transaction that succeeded shows in its receipt what it was sent for.
fn did_what_it_should(
    kind: Workload,
    call: &Call,
    from: Address,
    receipt: &Value,
    transfers: &[(Address, Address, Address, U256)],
) -> bool {
    use alloy_sol_types::SolCall;
    match kind {
        Workload::Transfers | Workload::HotSpot => receipt["gasUsed"] == "0x5208",
        Workload::Erc20 => {
            let Ok(asked) = contracts::Token::transferCall::abi_decode(&call.input) else { return false };
            let [(token, sender, receiver, amount)] = transfers else { return false };
            (TxKind::Call(*token), *sender, *receiver, *amount) == (call.to, from, asked.to, asked.value)
        }
        // In from the trader, and out to it.
        Workload::Amm => {
            let TxKind::Call(pair) = call.to else { return false };
            let Ok(asked) = contracts::Amm::swapCall::abi_decode(&call.input) else { return false };
            let [(token, payer, payee, amount), (_, pair_out, trader, _)] = transfers else { return false };
            (*token, *payer, *payee, *amount) == (asked.tokenIn, from, pair, asked.amountIn)
                && (*pair_out, *trader) == (pair, from)
        }
        Workload::Storage | Workload::AccessLists => transfers.is_empty(),
        Workload::Deploy => receipt["contractAddress"].is_string(),
    }
}

fn field<T: std::str::FromStr>(value: &Value, name: &str) -> Result<T> {
    let text = value[name].as_str();
    text.and_then(|text| text.parse().ok()).with_context(|| format!("{name} is {}", value[name]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::plan::tests::plan;

    /// An auditor of the plan's accounts at a node that does not exist: all that is tested here needs no node.
    fn auditor(plan: &Plan) -> Auditor {
        let mut ledger = Ledger::default();
        for index in 0..4 {
            let holder = plan.sender_address(index);
            ledger.open(Place { holder, unit: Unit::Wei }, U256::from(1_000_000));
        }
        Auditor {
            rpc: Rpc::new("http://127.0.0.1:1").unwrap(),
            accounts: (0..4).map(|index| plan.sender_address(index)).collect(),
            tokens: [Address::repeat_byte(1)].into(),
            lists: Some(Address::repeat_byte(5)),
            ledger,
            audit: Audit::default(),
        }
    }

    fn receipt(hash: B256, from: Address, status: &str, logs: Value) -> Value {
        json!({
            "transactionHash": hash, "from": from, "status": status, "gasUsed": "0x5208",
            "effectiveGasPrice": "0x2", "logs": logs, "contractAddress": null,
        })
    }

    fn wei(holder: Address) -> Place {
        Place { holder, unit: Unit::Wei }
    }

    #[test]
    fn a_transfer_costs_its_value_and_its_fee_and_a_failed_one_only_its_fee() {
        let plan = plan("hot-spot");
        let hashes = HashMap::from([(B256::repeat_byte(1), 1), (B256::repeat_byte(2), 2)]);
        let plugs = HashSet::from([B256::repeat_byte(3)]);
        let known = Known { plan: &plan, hashes: &hashes, plugs: &plugs };
        let (mut auditor, mut seen) = (auditor(&plan), HashSet::new());
        let mut post = |byte, index, status| {
            let receipt = receipt(B256::repeat_byte(byte), plan.sender_address(index), status, json!([]));
            auditor.post(&known, &receipt, &mut seen).unwrap();
        };
        post(1, 1, "0x1");
        post(2, 2, "0x0");
        post(3, 3, "0x1");
        // Twice the same, and one of an account of the load that another program sent.
        post(1, 1, "0x1");
        post(9, 1, "0x1");
        let expected = |index| auditor.ledger.expected(wei(plan.sender_address(index))).unwrap();
        assert_eq!(expected(0), U256::from(1_001_000));
        assert_eq!(expected(1), U256::from(1_000_000 - 1_000 - 42_000));
        assert_eq!((expected(2), expected(3)), (U256::from(958_000), U256::from(958_000)));
        let Audit { receipts, receipts_failed, receipts_wrong, duplicates, foreign, .. } = auditor.audit;
        assert_eq!((receipts, receipts_failed, receipts_wrong, duplicates, foreign), (3, 1, 0, 1, 1));
    }

    #[test]
    fn a_token_transfer_of_another_amount_is_wrong() {
        let plan = plan("erc20");
        let hashes = HashMap::from([(B256::repeat_byte(1), 1), (B256::repeat_byte(2), 2)]);
        let known = Known { plan: &plan, hashes: &hashes, plugs: &HashSet::new() };
        let (mut auditor, mut seen) = (auditor(&plan), HashSet::new());
        let word = |address: Address| address.into_word();
        for (index, surplus) in [(1, 0), (2, 1)] {
            use alloy_sol_types::SolCall;
            let (from, call) = (plan.sender_address(index), plan.call(index).unwrap());
            let asked = contracts::Token::transferCall::abi_decode(&call.input).unwrap();
            let logs = json!([{
                "address": Address::repeat_byte(1),
                "topics": [keccak256(TRANSFER_EVENT), word(from), word(asked.to)],
                "data": B256::from(asked.value + U256::from(surplus)),
            }]);
            let receipt = receipt(B256::repeat_byte(index as u8), from, "0x1", logs);
            auditor.post(&known, &receipt, &mut seen).unwrap();
            assert_eq!(auditor.audit.receipts_wrong, surplus);
        }
        assert_eq!(auditor.audit.receipts, 2);
    }

    #[test]
    fn every_written_slot_is_counted() {
        let plan = plan("storage");
        let hashes = HashMap::from([(B256::repeat_byte(1), 1)]);
        let known = Known { plan: &plan, hashes: &hashes, plugs: &HashSet::new() };
        let (mut auditor, mut seen) = (auditor(&plan), HashSet::new());
        let receipt = receipt(B256::repeat_byte(1), plan.sender_address(1), "0x1", json!([]));
        auditor.post(&known, &receipt, &mut seen).unwrap();
        let slots = auditor.ledger.places().filter(|place| matches!(place.unit, Unit::Slot(_)));
        let sum: U256 = slots.map(|place| auditor.ledger.expected(place).unwrap()).sum();
        assert_eq!(sum, U256::from(20));
    }
}
