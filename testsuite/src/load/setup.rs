//! [`Chain`]: what a sender must know of a chain, and the contracts that a workload needs on it before the load starts.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use alloy_primitives::{Address, B256, Bytes, TxKind, U256, utils::parse_ether};
use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    plan::Targets,
    workload::{Mix, Workload},
};
use crate::{
    accounts::Account,
    contracts,
    rpc::{BATCH_CALLS_MAX, Rpc, quantity},
    signer::{Envelope, Fees, Request, Signed, sign},
};

/// The time limit for preparing transactions. They are committed within seconds; the rest is for loaded machines.
const RECEIPT_DEADLINE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);
/// The most accounts per minting transaction: below EIP-7825's gas limit of a transaction.
const MINTS_MAX: usize = 200;
const GAS_PER_MINT: u64 = 40_000;
const DEPLOY_GAS: u64 = 3_000_000;

/// A chain through one node's API, with the data for signing.
#[derive(Clone)]
pub struct Chain {
    rpc: Rpc,
    facts: ChainFacts,
}

/// The data that a process needs to sign for a chain.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct ChainFacts {
    pub(super) chain_id: u64,
    pub(super) max_fee_wei: u128,
    pub(super) tip_wei: u128,
}

impl ChainFacts {
    /// Signs a transaction of the account.
    pub(super) fn sign(self, account: &Account, nonce: u64, call: Call) -> Signed {
        let Call { to, value, gas_limit, input, envelope } = call;
        let ChainFacts { chain_id, max_fee_wei, tip_wei } = self;
        let fees = Fees { max_fee_wei, tip_wei };
        sign(account, Request { chain_id, nonce, to, value, gas_limit, fees, input, envelope })
    }
}

impl Chain {
    /// Reads the chain id and the base fee from the node.
    pub async fn connect(rpc: Rpc) -> Result<Chain> {
        let chain_id = quantity(&rpc.call("eth_chainId", json!([])).await?)?;
        let block: Value = rpc.call("eth_getBlockByNumber", json!(["latest", false])).await?;
        let base_fee_wei = u128::from(quantity(&block["baseFeePerGas"])?);
        // The base fee of a chain is fixed. Twice that leaves room for a tip, which decides the order.
        let tip_wei = (base_fee_wei / 10).max(1);
        let max_fee_wei = 2 * base_fee_wei + tip_wei;
        Ok(Chain { rpc, facts: ChainFacts { chain_id, max_fee_wei, tip_wei } })
    }

    /// Connects through the first of these nodes that answers, and moves it to the front. Skips nodes that are down or
    /// do not respond.
    ///
    /// # Errors
    /// If none answers: the error of the first one.
    pub(super) async fn connect_first(nodes: &mut [Rpc]) -> Result<Chain> {
        let mut failed = None;
        for place in 0..nodes.len() {
            match Chain::connect(nodes[place].clone()).await {
                Ok(chain) => {
                    nodes[..=place].rotate_right(1);
                    return Ok(chain);
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        Err(failed.context("a load needs the API of at least one node")?)
    }

    /// Returns the API of the node whose commits count.
    pub fn rpc(&self) -> &Rpc {
        &self.rpc
    }

    /// Returns the data for signing.
    pub(super) fn facts(&self) -> ChainFacts {
        self.facts
    }

    /// Returns the number of the last batch.
    pub async fn head(&self) -> Result<u64> {
        self.rpc.head().await
    }

    /// Returns the next nonce of each account.
    pub async fn nonces(&self, accounts: &[Account]) -> Result<Vec<u64>> {
        let params: Vec<_> = accounts.iter().map(|account| json!([account.address, "pending"])).collect();
        let counts: Vec<Value> = self.rpc.batch_all("eth_getTransactionCount", &params).await?;
        counts.iter().map(quantity).collect()
    }

    /// Signs a transaction of the account.
    pub fn sign(&self, account: &Account, nonce: u64, call: Call) -> Signed {
        self.facts.sign(account, nonce, call)
    }

    /// Sends transactions and waits until all are committed. Returns an error if one of them failed.
    pub async fn execute(&self, transactions: &[Signed]) -> Result<Vec<Value>> {
        let params: Vec<_> = transactions.iter().map(|signed| json!([signed.raw])).collect();
        let _: Vec<B256> = self.rpc.batch_all("eth_sendRawTransaction", &params).await?;
        let params: Vec<_> = transactions.iter().map(|signed| json!([signed.hash])).collect();
        let mut receipts = Vec::with_capacity(transactions.len());
        let deadline = Instant::now() + RECEIPT_DEADLINE;
        while receipts.len() < params.len() {
            // Receipts are read in order from the first missing one on: commits are roughly in order.
            let rest = &params[receipts.len()..];
            let answers: Vec<Value> = self
                .rpc
                .batch_all("eth_getTransactionReceipt", &rest[..rest.len().min(BATCH_CALLS_MAX)])
                .await?;
            let found = answers.into_iter().take_while(|receipt| !receipt.is_null());
            let before = receipts.len();
            receipts.extend(found);
            if receipts.len() == before {
                let missing = &transactions[before].hash;
                ensure!(Instant::now() < deadline, "transaction {missing} was not committed within a minute");
                tokio::time::sleep(POLL).await;
            }
        }
        match receipts.iter().find(|receipt| receipt["status"] != "0x1") {
            Some(failed) => bail!("transaction {} failed during the preparation", failed["transactionHash"]),
            None => Ok(receipts),
        }
    }

    /// Creates a contract and returns its address.
    pub async fn deploy(&self, account: &Account, init_code: Bytes) -> Result<Address> {
        let nonce = self.nonces(std::slice::from_ref(account)).await?[0];
        let call = Call { to: TxKind::Create, gas_limit: DEPLOY_GAS, input: init_code, ..Call::default() };
        let receipts = self.execute(&[self.sign(account, nonce, call)]).await?;
        let address = receipts[0]["contractAddress"].as_str().and_then(|address| address.parse().ok());
        address.context("the receipt of a deployment names no contract")
    }

    /// Sends ether from the first account to those that have hardly any.
    pub(super) async fn fund(&self, accounts: &[Account]) -> Result<()> {
        let params: Vec<_> = accounts.iter().map(|account| json!([account.address, "latest"])).collect();
        let balances: Vec<U256> = self.rpc.batch_all("eth_getBalance", &params).await?;
        let (least, gift) = (parse_ether("1")?, parse_ether("10")?);
        let poor: Vec<_> =
            accounts.iter().zip(&balances).skip(1).filter(|(_, balance)| **balance < least).collect();
        if balances[0] < gift * U256::from(poor.len() + 1) {
            bail!(
                "account {} has {} wei, too little to fund {} accounts: use the accounts of the chain's genesis \
                 (--manifest, or the --seed that the devnet was made with)",
                accounts[0].address,
                balances[0],
                poor.len() + 1
            );
        }
        let nonce = self.nonces(&accounts[..1]).await?[0];
        let gifts = poor.iter().zip(nonce..).map(|((account, _), nonce)| {
            let call = Call { to: account.address.into(), value: gift, gas_limit: 21_000, ..Call::default() };
            self.sign(&accounts[0], nonce, call)
        });
        self.execute(&gifts.collect::<Vec<_>>()).await?;
        Ok(())
    }

    /// Deploys an ERC-20 and mints a balance for each account.
    async fn token(&self, accounts: &[Account], name: &str, symbol: &str) -> Result<Address> {
        let minter = &accounts[0];
        let token = self.deploy(minter, contracts::token_init_code(name, symbol)).await?;
        let nonce = self.nonces(&accounts[..1]).await?[0];
        let amount = parse_ether("1000000000")?;
        let mints = accounts.chunks(MINTS_MAX).zip(nonce..).map(|(part, nonce)| {
            let to: Vec<_> = part.iter().map(|account| account.address).collect();
            let gas_limit = 100_000 + GAS_PER_MINT * to.len() as u64;
            let call = Call {
                to: token.into(),
                gas_limit,
                input: contracts::mint_many(to, amount),
                ..Call::default()
            };
            self.sign(minter, nonce, call)
        });
        self.execute(&mints.collect::<Vec<_>>()).await?;
        Ok(token)
    }

    /// Deploys a pair and its tokens. Every account approves the pair for both, and the first one provides the
    /// liquidity.
    async fn pair(&self, accounts: &[Account]) -> Result<(Address, [Address; 2])> {
        let tokens =
            [self.token(accounts, "Slip", "SLP").await?, self.token(accounts, "Stream", "STR").await?];
        let amm = self.deploy(&accounts[0], contracts::amm_init_code(tokens[0], tokens[1])).await?;
        let nonces = self.nonces(accounts).await?;
        let approve = |token: Address| Call {
            to: token.into(),
            gas_limit: 80_000,
            input: contracts::approve(amm, U256::MAX),
            ..Call::default()
        };
        let mut transactions = Vec::new();
        for (account, nonce) in accounts.iter().zip(&nonces) {
            transactions.push(self.sign(account, *nonce, approve(tokens[0])));
            transactions.push(self.sign(account, nonce + 1, approve(tokens[1])));
        }
        let amount = parse_ether("100000000")?;
        let input = contracts::add_liquidity(amount, amount);
        let call = Call { to: amm.into(), gas_limit: 500_000, input, ..Call::default() };
        transactions.push(self.sign(&accounts[0], nonces[0] + 2, call));
        self.execute(&transactions).await?;
        Ok((amm, tokens))
    }
}

/// The part of a transaction that differs from call to call.
#[derive(Clone, Debug)]
pub struct Call {
    /// The recipient, or the creation of a contract.
    pub to: TxKind,
    /// The amount in wei.
    pub value: U256,
    /// The most gas that it may use.
    pub gas_limit: u64,
    /// Call data or init code.
    pub input: Bytes,
    /// The type of the transaction.
    pub envelope: Envelope,
}

impl Call {
    /// Returns a call of an address with this gas limit.
    pub fn to(address: Address, gas_limit: u64) -> Call {
        Call { to: address.into(), gas_limit, ..Call::default() }
    }
}

impl Default for Call {
    fn default() -> Self {
        Self {
            to: TxKind::Create,
            value: U256::ZERO,
            gas_limit: 21_000,
            input: Bytes::new(),
            envelope: Envelope::DynamicFee,
        }
    }
}

/// Deploys and mints what the mix needs.
pub(super) async fn prepare(
    chain: &Chain,
    mix: &Mix,
    accounts: &[Account],
    access_lists: Option<PathBuf>,
) -> Result<Targets> {
    let mut targets = Targets { access_lists, ..Targets::default() };
    if mix.has(Workload::Erc20) {
        targets.token = Some(chain.token(accounts, "Slip", "SLP").await?);
    }
    if mix.has(Workload::Amm) {
        targets.pair = Some(chain.pair(accounts).await?);
    }
    if mix.has(Workload::Storage) || mix.has(Workload::AccessLists) {
        targets.lists = Some(chain.deploy(&accounts[0], contracts::lists_init_code()).await?);
    }
    Ok(targets)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::fake_node;

    /// Starts a node that answers the calls of [`Chain::connect`].
    async fn node() -> Rpc {
        let result = |request: &str| match request.contains("eth_chainId") {
            true => json!("0x5"),
            false => json!({ "baseFeePerGas": "0x64" }),
        };
        fake_node::start(move |request| fake_node::result(result(request))).await
    }

    /// Goal: if a load's first node is down, commits are read from the next one that answers. If none does, the error
    /// is the first node's.
    #[tokio::test]
    async fn the_first_node_that_answers_is_read() {
        // Nobody can listen at port 0.
        let gone = Rpc::new("http://127.0.0.1:0").unwrap();
        let (one, other) = (node().await, node().await);
        let mut nodes = [gone.clone(), one.clone(), other.clone()];
        let chain = Chain::connect_first(&mut nodes).await.unwrap();
        assert_eq!((chain.rpc().url(), chain.facts().chain_id), (one.url(), 5));
        assert_eq!(nodes.each_ref().map(Rpc::url), [one.url(), gone.url(), other.url()]);
        let error = Chain::connect_first(&mut [gone.clone(), gone]).await.err().unwrap();
        assert!(format!("{error:#}").contains("127.0.0.1:0"), "{error:#}");
        assert!(Chain::connect_first(&mut []).await.is_err());
    }
}
