//! The load: signed transfers in JSON-RPC arrays, the same for every chain. It requests only a chain's head and the
//! hashes of each batch, so that its cost for the chain is the same everywhere.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use alloy_primitives::{B256, U256};
use anyhow::{Context, Result, bail, ensure};
use rayon::prelude::*;
use serde_json::{Value, json};
use slipnet::{
    accounts::Account,
    load::Chain,
    quantiles::quantile,
    rpc::{Rpc, RpcError, quantity},
    signer::{Envelope, Fees, Request, Signed, sign},
};
use tokio::{sync::watch, task::JoinSet};

/// Connections. Each has one array in flight, and its own accounts, so that an account's nonces arrive in order.
const LANES: usize = 10;
/// Accounts that send: a multiple of [`LANES`] arrays.
pub(super) const ACCOUNTS: usize = 500;
/// Transfers of one array, unless they are sent singly.
pub(super) const ARRAY: usize = 50;
/// The polling interval of the head: the error of a latency.
const POLL: Duration = Duration::from_millis(2);
/// The pause before a refused transfer is sent again.
const REFUSED_PAUSE: Duration = Duration::from_millis(20);
/// The longest time for a chain to commit all transfers after the last one was due.
const DRAIN: Duration = Duration::from_secs(60);
/// A transfer's gas.
const GAS: u64 = 21_000;
/// The base fee of other chains varies: transfers pay at most this multiple of the current base fee.
const FEE_ROOM: u128 = 50;
/// The longest latency from due to committed, for a sustained rate.
pub(super) const LATENCY_MAX: Duration = Duration::from_secs(1);

/// When transfers are due.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pace {
    /// As fast as the chain accepts them, with at most `outstanding_max` uncommitted transfers.
    Flood { outstanding_max: usize },
    /// A fixed rate, whatever the chain does.
    Rate { per_second: f64 },
}

/// The load to offer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    pub(super) transfers: usize,
    /// Transfers of one request; 1 is a plain call.
    pub(super) array: usize,
    pub(super) pace: Pace,
}

/// The result of a load.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    /// The rate of the commits, without the first tenth and the last tenth of them.
    pub(super) tps: f64,
    /// Sorted latencies from due to committed, in milliseconds. In a flood: from sent to committed.
    pub(super) latencies_ms: Vec<f64>,
    /// Batches that contained any of the transfers.
    pub(super) batches: u64,
}

impl Outcome {
    pub(super) fn quantile_ms(&self, share: f64) -> f64 {
        quantile(&self.latencies_ms, share).expect("every transfer was committed")
    }

    /// Whether 99 of 100 transfers were committed within [`LATENCY_MAX`].
    pub(super) fn is_sustained(&self) -> bool {
        self.quantile_ms(0.99) <= LATENCY_MAX.as_secs_f64() * 1e3
    }
}

/// Offers transfers to the chain, and waits until all are committed.
///
/// # Errors
/// If the chain does not commit them, or does not answer.
pub(super) async fn offer(chain: &Chain, accounts: &[Account], offer: Offer) -> Result<Outcome> {
    ensure!(accounts.len() == ACCOUNTS, "the load has {ACCOUNTS} accounts");
    let signed = signed(chain, accounts, offer.transfers).await?;
    let places: HashMap<B256, usize> =
        signed.iter().enumerate().map(|(index, it)| (it.hash, index)).collect();
    let mut seen = Seen::new(chain.head().await?, signed.len());
    let begin = Instant::now();
    let (committed, watched) = watch::channel(0);
    let mut lanes = JoinSet::new();
    let arrays: Vec<(usize, Vec<Signed>)> = signed
        .chunks(offer.array)
        .enumerate()
        .map(|(index, array)| (index * offer.array, array.to_vec()))
        .collect();
    for lane in 0..LANES {
        let own = arrays.iter().skip(lane).step_by(LANES).cloned().collect();
        let rpc = Rpc::new(chain.rpc().url())?;
        lanes.spawn(send(rpc, own, offer.pace, begin, watched.clone()));
    }
    let mut sent = Vec::with_capacity(arrays.len());
    let mut deadline = None;
    while seen.committed < signed.len() {
        while let Some(lane) = lanes.try_join_next() {
            sent.extend(lane??);
        }
        if lanes.is_empty() {
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + DRAIN);
            ensure!(
                Instant::now() < deadline,
                "only {} of {} transfers were committed {} s after the last was sent",
                seen.committed,
                signed.len(),
                DRAIN.as_secs()
            );
        }
        tokio::time::sleep(POLL).await;
        seen.look(chain, &places).await?;
        committed.send_replace(seen.committed);
    }
    while let Some(lane) = lanes.join_next().await {
        sent.extend(lane??);
    }
    let mut due = vec![begin; signed.len()];
    for (first, at) in sent {
        due[first..(first + offer.array).min(signed.len())].fill(at);
    }
    seen.outcome(&due)
}

/// Sends a lane's arrays when they are due; returns the first transfer and the due time of each.
async fn send(
    rpc: Rpc,
    arrays: Vec<(usize, Vec<Signed>)>,
    pace: Pace,
    begin: Instant,
    mut committed: watch::Receiver<usize>,
) -> Result<Vec<(usize, Instant)>> {
    let mut sent = Vec::with_capacity(arrays.len());
    for (first, array) in arrays {
        let due = match pace {
            Pace::Rate { per_second } => {
                let due = begin + Duration::from_secs_f64(first as f64 / per_second);
                tokio::time::sleep_until(due.into()).await;
                due
            }
            Pace::Flood { outstanding_max } => {
                committed.wait_for(|committed| first < committed + outstanding_max).await?;
                Instant::now()
            }
        };
        sent.push((first, due));
        deliver(&rpc, &array).await?;
    }
    Ok(sent)
}

/// Sends an array until all of it is accepted.
async fn deliver(rpc: &Rpc, array: &[Signed]) -> Result<()> {
    let mut left: Vec<Value> = array.iter().map(|signed| json!([signed.raw])).collect();
    let until = Instant::now() + DRAIN;
    loop {
        let answers: Vec<Result<Value, RpcError>> = rpc.batch("eth_sendRawTransaction", &left).await?;
        let mut reason = None;
        let mut answers = answers.into_iter();
        left.retain(|_| match answers.next() {
            Some(Err(error)) if !error.message.contains("already known") => {
                reason = Some(error.message);
                true
            }
            _ => false,
        });
        let Some(reason) = reason else { return Ok(()) };
        if Instant::now() > until {
            bail!("{} refuses a transfer: {reason}", rpc.url());
        }
        tokio::time::sleep(REFUSED_PAUSE).await;
    }
}

/// Signs transfers, from each account in turn.
async fn signed(chain: &Chain, accounts: &[Account], count: usize) -> Result<Vec<Signed>> {
    let chain_id = quantity(&chain.rpc().call("eth_chainId", json!([])).await?)?;
    let block: Value = chain.rpc().call("eth_getBlockByNumber", json!(["latest", false])).await?;
    let base_fee_wei = u128::from(quantity(&block["baseFeePerGas"])?).max(1);
    let tip_wei = 1_000_000_000;
    let fees = Fees { max_fee_wei: FEE_ROOM * base_fee_wei + tip_wei, tip_wei };
    let nonces = chain.nonces(accounts).await?;
    let sign_one = |index: usize| {
        let (sender, round) = (index % accounts.len(), index / accounts.len());
        let receiver = accounts[(sender + 1 + round) % accounts.len()].address;
        let request = Request {
            chain_id,
            nonce: nonces[sender] + round as u64,
            to: receiver.into(),
            value: U256::from(1),
            gas_limit: GAS,
            fees,
            input: Default::default(),
            envelope: Envelope::DynamicFee,
        };
        sign(&accounts[sender], request)
    };
    Ok((0..count).into_par_iter().map(sign_one).collect())
}

/// The commits that were seen.
struct Seen {
    head: u64,
    committed: usize,
    batches: u64,
    /// The commit time of each transfer.
    at: Vec<Option<Instant>>,
}

impl Seen {
    fn new(head: u64, transfers: usize) -> Seen {
        Seen { head, committed: 0, batches: 0, at: vec![None; transfers] }
    }

    async fn look(&mut self, chain: &Chain, places: &HashMap<B256, usize>) -> Result<()> {
        let head = chain.head().await?;
        let now = Instant::now();
        for number in self.head + 1..=head {
            let params = json!([format!("{number:#x}"), false]);
            let block: Value = chain.rpc().call("eth_getBlockByNumber", params).await?;
            let hashes = block["transactions"].as_array().context("a block has no list of transactions")?;
            self.batches += u64::from(!hashes.is_empty());
            for hash in hashes {
                let hash: B256 = serde_json::from_value(hash.clone())?;
                let Some(place) = places.get(&hash) else { continue };
                self.committed += usize::from(self.at[*place].replace(now).is_none());
            }
        }
        self.head = head;
        Ok(())
    }

    fn outcome(self, due: &[Instant]) -> Result<Outcome> {
        let mut at: Vec<Instant> =
            self.at.iter().copied().collect::<Option<_>>().context("a transfer was not committed")?;
        let latency_ms =
            |(at, due): (&Instant, &Instant)| at.saturating_duration_since(*due).as_secs_f64() * 1e3;
        let mut latencies_ms: Vec<f64> = at.iter().zip(due).map(latency_ms).collect();
        latencies_ms.sort_by(f64::total_cmp);
        at.sort();
        let (from, to) = (at.len() / 10, at.len() - 1 - at.len() / 10);
        // The first batch after `from` was committed before the measured time.
        let first = at.partition_point(|it| *it <= at[from]);
        let seconds = (at[to] - at[from]).as_secs_f64();
        ensure!(seconds > 0.0, "all were committed at once: more transfers are needed");
        let last = at.partition_point(|it| *it <= at[to]);
        Ok(Outcome { tps: (last - first) as f64 / seconds, latencies_ms, batches: self.batches })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a rate counts the commits between two moments, without the batch at the first one.
    #[test]
    fn rates_are_between_commits() {
        let begin = Instant::now();
        let mut seen = Seen::new(0, 100);
        for (index, at) in seen.at.iter_mut().enumerate() {
            // Batches of ten, a second apart.
            *at = Some(begin + Duration::from_secs(1 + index as u64 / 10));
        }
        let outcome = seen.outcome(&[begin; 100]).unwrap();
        assert_eq!(outcome.tps, 10.0);
        assert_eq!((outcome.quantile_ms(0.0), outcome.quantile_ms(1.0)), (1_000.0, 10_000.0));
        assert!(!outcome.is_sustained());
    }
}
