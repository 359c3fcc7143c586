//! Fills the [`Ledger`] from the nodes: balances before, receipts of every batch, balances after.
//!
//! In a short run, receipts are read after its end, when the reads disturb nobody. In a long run they are read during
//! the run, a fixed number of batches behind the head. Nodes that prune would no longer have them at the end. A receipt
//! whose hash is not in the plan waits for the generators' final report: its transaction was signed again, plugs a
//! nonce, or is foreign.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    time::{Duration, Instant},
};

use alloy_primitives::{Address, B256, TxKind, U256};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedReceiver;

use super::{
    audit::{Audit, BalanceKey, Ledger, Unit},
    plan::{Plan, TRANSFER_GAS},
    receipt::Receipt,
    setup::Call,
    track::Full,
    workload::Workload,
};
use crate::{accounts::Account, contracts, rpc::Rpc};

/// The most balances and slots that are compared besides those of the load's accounts, evenly spread. Each costs one
/// call to the node.
const CHECKS_MAX: usize = 20_000;
/// How long the audit waits while no node has the data it asks for; then it fails.
const PATIENCE: Duration = Duration::from_secs(30);
/// The delay before all nodes are asked again.
const RETRY: Duration = Duration::from_millis(250);

/// The transactions that the load knows.
pub(super) struct Known<'a> {
    pub(super) plan: &'a Plan,
    /// Indices in the plan by hash, including transactions that were signed again.
    pub(super) hashes: &'a HashMap<B256, u32>,
    /// Hashes of transactions that only plug a nonce.
    pub(super) plugs: &'a HashSet<B256>,
}

/// The bookkeeping of a run in progress.
pub(super) struct Auditor {
    /// At least one node. Any of them may be down, behind, or have pruned data that another still has.
    nodes: Vec<Rpc>,
    /// The index of the node that last returned receipts.
    node: usize,
    accounts: HashSet<Address>,
    tokens: HashSet<Address>,
    lists: Option<Address>,
    ledger: Ledger,
    audit: Audit,
    /// The hashes of posted transactions.
    seen: HashSet<B256>,
    /// Receipts of the load's accounts with a hash that is unknown so far.
    unknown: Vec<Receipt>,
}

impl Auditor {
    /// Records the balances before the run, while nobody sends.
    pub(super) async fn open(
        nodes: Vec<Rpc>,
        accounts: &[Account],
        nonces: &[u64],
        tokens: Vec<Address>,
        lists: Option<Address>,
    ) -> Result<Auditor> {
        let mut ledger = Ledger::default();
        let holders: Vec<Address> = accounts.iter().map(|account| account.address).collect();
        for (holder, nonce) in holders.iter().zip(nonces) {
            ledger.open(BalanceKey { holder: *holder, unit: Unit::Nonce }, U256::from(*nonce));
        }
        let units = std::iter::once(Unit::Wei).chain(tokens.iter().map(|token| Unit::Token(*token)));
        let places: Vec<BalanceKey> = units
            .flat_map(|unit| holders.iter().map(move |holder| BalanceKey { holder: *holder, unit }))
            .collect();
        let found =
            read(nodes.first().context("an audit needs at least one node")?, &places, "latest").await?;
        for (place, amount) in places.into_iter().zip(found) {
            ledger.open(place, amount);
        }
        Ok(Auditor {
            nodes,
            node: 0,
            accounts: holders.into_iter().collect(),
            tokens: tokens.into_iter().collect(),
            lists,
            ledger,
            audit: Audit::default(),
            seen: HashSet::new(),
            unknown: Vec::new(),
        })
    }

    /// Records a contract's token balances before the run: a pair pays out of its own tokens.
    pub(super) async fn open_contract(&mut self, holder: Address) -> Result<()> {
        let places: Vec<BalanceKey> =
            self.tokens.iter().map(|token| BalanceKey { holder, unit: Unit::Token(*token) }).collect();
        let found = read(&self.nodes[0], &places, "latest").await?;
        for (place, amount) in places.into_iter().zip(found) {
            self.ledger.open(place, amount);
        }
        Ok(())
    }

    /// Reads the receipts of the batches that `full` announces, `behind` batches later, and the rest once it closes.
    pub(super) async fn follow(
        mut self,
        plan: &Plan,
        hashes: &HashMap<B256, u32>,
        (mut full, behind): (UnboundedReceiver<Full>, u64),
    ) -> Result<Auditor> {
        let plugs = HashSet::new();
        let known = Known { plan, hashes, plugs: &plugs };
        let mut waiting: VecDeque<Full> = VecDeque::new();
        while let Some(batch) = full.recv().await {
            waiting.push_back(batch);
            let is_due = |first: &Full| batch.number - first.number > behind;
            while let Some(first) = waiting.front().copied().filter(is_due) {
                waiting.pop_front();
                self.take(&known, first).await?;
            }
        }
        for batch in waiting {
            self.take(&known, batch).await?;
        }
        Ok(self)
    }

    /// Reads and posts the receipts of one batch.
    async fn take(&mut self, known: &Known<'_>, batch: Full) -> Result<()> {
        let Full { number, transactions } = batch;
        let receipts = self.receipts(number).await;
        let receipts = receipts
            .with_context(|| format!("no node of the load returns the receipts of batch {number}"))?;
        if receipts.len() != transactions {
            self.audit.figures.receipts_wrong += 1;
        }
        for receipt in &receipts {
            let receipt = Receipt::parse(receipt).with_context(|| format!("a receipt of batch {number}"))?;
            if known.hashes.contains_key(&receipt.hash) {
                self.post(known, &receipt)?;
            } else if self.accounts.contains(&receipt.from) {
                self.unknown.push(receipt);
            }
        }
        Ok(())
    }

    /// Reads a batch's receipts from the node that returned the last ones, or from the next node that has them. A
    /// paused node thus delays the audit only once.
    async fn receipts(&mut self, number: u64) -> Result<Vec<Value>> {
        let begin = Instant::now();
        loop {
            let mut last = None;
            for _ in 0..self.nodes.len() {
                let rpc = &self.nodes[self.node];
                match rpc.call("eth_getBlockReceipts", json!([format!("{number:#x}")])).await {
                    Ok(receipts) => return Ok(receipts),
                    Err(error) => last = Some(error),
                }
                self.node = (self.node + 1) % self.nodes.len();
            }
            wait(begin, last).await?;
        }
    }

    /// Reads balances after a batch from the first node that has them, in the order of `places`.
    async fn balances(&self, places: &[BalanceKey], batch: &str) -> Result<Vec<U256>> {
        let begin = Instant::now();
        loop {
            let mut last = None;
            for rpc in &self.nodes {
                match read(rpc, places, batch).await {
                    Ok(balances) => return Ok(balances),
                    Err(error) => last = Some(error),
                }
            }
            wait(begin, last).await?;
        }
    }

    /// Posts the receipts that waited for the generators' report, then compares all balances after batch `head`.
    /// Transactions that were given up in doubt but committed do not offset lost ones.
    pub(super) async fn close(
        mut self,
        known: &Known<'_>,
        head: u64,
        (accepted, in_doubt): (u64, &[u32]),
    ) -> Result<Audit> {
        for receipt in std::mem::take(&mut self.unknown) {
            self.post(known, &receipt)?;
        }
        self.audit.figures.lost = accepted.saturating_sub(self.committed_of_accepted(known, in_doubt));
        self.compare(&format!("{head:#x}")).await?;
        Ok(self.audit)
    }

    /// Counts the posted transactions that were not given up.
    fn committed_of_accepted(&self, known: &Known<'_>, in_doubt: &[u32]) -> u64 {
        let in_doubt: HashSet<u32> = in_doubt.iter().copied().collect();
        let places = self.seen.iter().filter_map(|hash| known.hashes.get(hash));
        places.filter(|place| !in_doubt.contains(*place)).count() as u64
    }

    fn post(&mut self, known: &Known<'_>, receipt: &Receipt) -> Result<()> {
        let Receipt { hash, from, has_succeeded, .. } = *receipt;
        let index = known.hashes.get(&hash).map(|index| *index as usize);
        if index.is_none() && !known.plugs.contains(&hash) {
            self.audit.figures.foreign += u64::from(self.accounts.contains(&from));
            return Ok(());
        }
        if !self.seen.insert(hash) {
            self.audit.figures.duplicates += 1;
            return Ok(());
        }
        self.audit.figures.receipts += 1;
        self.audit.figures.receipts_failed += u64::from(!has_succeeded);
        self.ledger.debit(BalanceKey { holder: from, unit: Unit::Wei }, receipt.fee());
        self.ledger.credit(BalanceKey { holder: from, unit: Unit::Nonce }, U256::from(1));
        for it in &receipt.transfers {
            if self.tokens.contains(&it.token) {
                self.ledger.transfer(Unit::Token(it.token), it.from, it.to, it.amount);
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
                self.ledger.credit(BalanceKey { holder, unit: Unit::Slot(slot.into()) }, U256::from(1));
            }
        }
        let kind = known.plan.kind(index);
        let is_right = from == known.plan.sender_address(index)
            && (!has_succeeded || did_what_it_should(kind, &call, receipt));
        self.audit.figures.receipts_wrong += u64::from(!is_right);
        Ok(())
    }

    /// Compares the nodes' balances after this batch with the ledger.
    async fn compare(&mut self, batch: &str) -> Result<()> {
        let (own, others): (Vec<BalanceKey>, Vec<BalanceKey>) =
            self.ledger.places().partition(|place| self.accounts.contains(&place.holder));
        let step = others.len().div_ceil(CHECKS_MAX).max(1);
        let places: Vec<BalanceKey> = own.into_iter().chain(others.into_iter().step_by(step)).collect();
        let found = self.balances(&places, batch).await;
        let found =
            found.with_context(|| format!("no node of the load returns the balances after batch {batch}"))?;
        for (place, amount) in places.into_iter().zip(found) {
            self.ledger.check(place, amount, &mut self.audit);
        }
        Ok(())
    }
}

/// Waits before all nodes are asked again. Returns the last error once the patience has run out.
async fn wait(begin: Instant, last: Option<anyhow::Error>) -> Result<()> {
    match last {
        Some(error) if begin.elapsed() > PATIENCE => Err(error),
        Some(_) => {
            tokio::time::sleep(RETRY).await;
            Ok(())
        }
        None => bail!("there is no node to ask"),
    }
}

/// Reads balances, in the order of `places`.
async fn read(rpc: &Rpc, places: &[BalanceKey], batch: &str) -> Result<Vec<U256>> {
    let question = |place: &BalanceKey| {
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
    // One request holds calls of a single method.
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

/// Whether the receipt of a successful transaction shows the transaction's intended effect.
fn did_what_it_should(kind: Workload, call: &Call, receipt: &Receipt) -> bool {
    use alloy_sol_types::SolCall;
    let (from, transfers) = (receipt.from, &receipt.transfers[..]);
    match kind {
        Workload::Transfers | Workload::HotSpot => receipt.gas_used == TRANSFER_GAS,
        Workload::Erc20 => {
            let Ok(asked) = contracts::Token::transferCall::abi_decode(&call.input) else { return false };
            let [it] = transfers else { return false };
            (TxKind::Call(it.token), it.from, it.to, it.amount) == (call.to, from, asked.to, asked.value)
        }
        // One transfer goes from the trader to the pair, and one back.
        Workload::Amm => {
            let TxKind::Call(pair) = call.to else { return false };
            let Ok(asked) = contracts::Amm::swapCall::abi_decode(&call.input) else { return false };
            let [paid, got] = transfers else { return false };
            (paid.token, paid.from, paid.to, paid.amount) == (asked.tokenIn, from, pair, asked.amountIn)
                && (got.from, got.to) == (pair, from)
        }
        Workload::Storage | Workload::AccessLists => transfers.is_empty(),
        Workload::Deploy => receipt.has_created,
    }
}

#[cfg(test)]
mod tests;
