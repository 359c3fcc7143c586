//! A lane sends its accounts' transactions when they are due, in JSON-RPC batches, with one batch in flight.
//!
//! The loop around [`NonceBook`] moves bytes; the book decides what is sent when, and with which nonce.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use alloy_primitives::B256;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{
    nonce::{Attempt, NonceBook, Purpose, Verdict},
    protocol::{Outcome, Tally},
    stock::Stock,
};
use crate::rpc::{BATCH_CALLS_MAX, Rpc, RpcError, quantity};

/// How long due transactions are gathered, so that a low rate does not become one request per transaction.
pub(super) const TICK: Duration = Duration::from_millis(10);
/// The most transactions of one request: those that a node answers in one array.
pub(super) const BATCH_MAX: usize = BATCH_CALLS_MAX;
/// The least time between two queries for nonces, so that a node that is down is not polled in a busy loop.
const ASK_INTERVAL: Duration = Duration::from_millis(250);
/// The most distinct reasons that are counted separately; the rest are counted together.
const REASONS_MAX: usize = 16;
/// The code of an error that did not come from a node.
const NO_ANSWER: i64 = 0;

/// A lane before it runs.
pub(super) struct Lane {
    /// Its index among the lanes of all generators, and the number of lanes.
    pub(super) place: (usize, usize),
    pub(super) stock: Arc<Stock>,
    /// Nodes that accept transactions. If one does not answer, the lane goes on to the next.
    pub(super) nodes: Vec<Rpc>,
    /// When the first transaction is due.
    pub(super) begin: Instant,
    /// The shared progress counter.
    pub(super) tally: Arc<Mutex<Tally>>,
}

/// A lane while it runs.
struct Running {
    lane: Lane,
    book: NonceBook,
    node: usize,
    outcome: Outcome,
    /// When the last answer arrived, to transactions or to a query for nonces.
    free_at: Duration,
    /// The earliest time of the next query for nonces.
    ask_at: Duration,
}

impl Lane {
    /// Sends all due transactions until it is stopped.
    pub(super) async fn run(self, stop: CancellationToken) -> Outcome {
        let stock = self.stock.clone();
        let (place, lanes) = self.place;
        let nonces = stock.nonces().iter().skip(place).step_by(lanes).copied();
        let mut running = Running {
            book: NonceBook::new(nonces),
            node: place % self.nodes.len(),
            outcome: Outcome::default(),
            free_at: Duration::ZERO,
            ask_at: Duration::ZERO,
            lane: self,
        };
        tokio::time::sleep_until(running.lane.begin.into()).await;
        let schedule = stock.indices().iter().copied();
        let mut schedule =
            schedule.filter(|index| stock.plan().lane(*index as usize, lanes) == place).peekable();
        while !stop.is_cancelled() {
            let now = running.now();
            while let Some(index) = schedule.next_if(|index| stock.plan().due(*index as usize) <= now) {
                let account = stock.plan().sender(index as usize) / lanes;
                running.book.push(account, index, stock.plan().due(index as usize));
            }
            running.ask(now).await;
            let sends = running.book.take(running.now(), BATCH_MAX);
            let is_idle = sends.is_empty();
            if !is_idle {
                running.deliver(sends).await;
            }
            running.tell(schedule.peek().is_none());
            if is_idle {
                let due = schedule.peek().map(|index| stock.plan().due(*index as usize) + TICK);
                running.wait(due, &stop).await;
            }
        }
        running.end()
    }
}

impl Running {
    fn now(&self) -> Duration {
        Instant::now().saturating_duration_since(self.lane.begin)
    }

    fn rpc(&self) -> &Rpc {
        &self.lane.nodes[self.node]
    }

    /// Sleeps until something is due.
    async fn wait(&self, due: Option<Duration>, stop: &CancellationToken) {
        let send = self.book.wake_to_send().map(|at| at + TICK);
        let ask = self.book.wake_to_ask().map(|at| at.max(self.ask_at));
        let next = due.into_iter().chain(send).chain(ask).min();
        let sleep = async {
            match next {
                Some(next) => tokio::time::sleep_until((self.lane.begin + next).into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = sleep => {}
        }
    }

    /// Queries the nonces of doubtful accounts: the chain does not execute their transactions, or another sender uses
    /// them.
    async fn ask(&mut self, now: Duration) {
        if now < self.ask_at {
            return;
        }
        let accounts = self.book.doubtful(now);
        if accounts.is_empty() {
            return;
        }
        self.ask_at = now + ASK_INTERVAL;
        let (place, lanes) = self.lane.place;
        let address = |account: &usize| self.lane.stock.address(account * lanes + place);
        let params: Vec<_> = accounts.iter().map(|account| json!([address(account), "latest"])).collect();
        let answers = self.rpc().batch("eth_getTransactionCount", &params).await;
        let now = self.now();
        // Transactions that became due meanwhile waited for the node, not for the generator.
        self.free_at = now;
        let Ok(answers) = answers else { return self.next_node() };
        for (account, answer) in accounts.into_iter().zip(answers) {
            if let Some(nonce) = answer.ok().and_then(|nonce| quantity(&nonce).ok()) {
                self.book.observe(account, nonce, now);
            }
        }
    }

    fn next_node(&mut self) {
        self.node = (self.node + 1) % self.lane.nodes.len();
    }

    /// Sends a batch, and processes its answers.
    async fn deliver(&mut self, sends: Vec<Attempt>) {
        let params: Vec<_> = sends.iter().map(|send| json!([self.raw(send)])).collect();
        let handed = self.now();
        for send in &sends {
            if let (Purpose::Planned(index), 0) = (send.purpose, send.tried) {
                let due = self.lane.stock.plan().due(index as usize);
                let ready = (due + TICK).max(self.free_at);
                self.outcome.own.record(handed.saturating_sub(ready));
                self.outcome.blocked.record(self.free_at.saturating_sub(due));
                self.outcome.tally.sent += 1;
            }
        }
        let answers = self.rpc().batch("eth_sendRawTransaction", &params).await;
        self.free_at = self.now();
        let answers: Vec<Result<Value, RpcError>> = answers.unwrap_or_else(|error| {
            self.next_node();
            let message = format!("request failed: {}", error.root_cause());
            vec![Err(RpcError { code: NO_ANSWER, message }); sends.len()]
        });
        for (send, answer) in sends.into_iter().zip(answers) {
            let verdict = verdict(&answer);
            if let (Err(error), false) = (&answer, verdict == Verdict::Accepted) {
                refuse(&mut self.outcome.refused, &error.message);
            }
            self.book.settle(send, verdict, self.free_at);
        }
    }

    /// Returns the presigned transaction, or signs it again if its nonce has changed.
    fn raw(&mut self, send: &Attempt) -> String {
        let (place, lanes) = self.lane.place;
        let (signed, hash) = match send.purpose {
            Purpose::Planned(index) => {
                let (signed, is_new) = self.lane.stock.planned(index, send.nonce);
                // A changed nonce is a new slot of the book; its first attempt reports the new hash.
                let replaced: Option<(u32, B256)> =
                    (is_new && send.tried == 0).then_some((index, signed.hash));
                self.outcome.replaced.extend(replaced);
                (signed, None)
            }
            Purpose::Plug => {
                let signed = self.lane.stock.plug(send.account * lanes + place, send.nonce);
                let hash = signed.hash;
                (signed, Some(hash))
            }
        };
        self.outcome.plugs.extend(hash.filter(|_| send.tried == 0));
        signed.raw.to_string()
    }

    fn tell(&self, has_pushed_all: bool) {
        let counts = self.book.counts();
        *self.lane.tally.lock() = Tally {
            sent: self.outcome.tally.sent,
            accepted: counts.accepted,
            given_up: counts.given_up,
            is_settled: has_pushed_all && self.book.is_settled(),
        };
    }

    fn end(self) -> Outcome {
        let counts = self.book.counts();
        let tally = Tally {
            sent: self.outcome.tally.sent,
            accepted: counts.accepted,
            given_up: counts.given_up,
            is_settled: self.book.is_settled(),
        };
        let (plugged, resent, displaced) = (counts.plugged, counts.resent, counts.displaced);
        let in_doubt = self.book.given_up_in_doubt().to_vec();
        Outcome { tally, plugged, resent, displaced, in_doubt, ..self.outcome }
    }
}

/// Sends the lane's transactions to the sink as fast as it answers, and counts them.
pub(super) async fn prove(stock: Arc<Stock>, place: (usize, usize), sink: Rpc, until: Instant) -> u64 {
    let (place, lanes) = place;
    let own = stock.indices().iter().filter(|index| stock.plan().lane(**index as usize, lanes) == place);
    let own: Vec<u32> = own.copied().take(BATCH_MAX).collect();
    let mut count = 0;
    while !own.is_empty() && Instant::now() < until {
        // Like a lane, it encodes the text again for each request.
        let params: Vec<_> = own.iter().map(|index| json!([stock.signed(*index).raw.to_string()])).collect();
        match sink.batch("eth_sendRawTransaction", &params).await {
            Ok(answers) => count += answers.len() as u64,
            Err(_) => tokio::time::sleep(TICK).await,
        }
    }
    count
}

fn verdict<T>(answer: &Result<T, RpcError>) -> Verdict {
    let Err(error) = answer else { return Verdict::Accepted };
    let message = error.message.to_lowercase();
    let says = |texts: &[&str]| texts.iter().any(|text| message.contains(text));
    if error.code == NO_ANSWER {
        return Verdict::Lost;
    }
    if says(&["already known"]) {
        return Verdict::Accepted;
    }
    if says(&["nonce too low", "replacement transaction underpriced"]) {
        return Verdict::NonceTaken;
    }
    let hopeless = [
        "insufficient funds",
        "chain id",
        "invalid",
        "decode",
        "exceeds block gas limit",
        "intrinsic gas",
        "max fee per gas less",
    ];
    if says(&hopeless) { Verdict::Never } else { Verdict::Later }
}

/// Counts a refusal by its reason.
fn refuse(refused: &mut BTreeMap<String, u64>, message: &str) {
    let mut reason = reason(message);
    if refused.len() >= REASONS_MAX && !refused.contains_key(&reason) {
        reason = "other reasons".to_owned();
    }
    *refused.entry(reason).or_default() += 1;
}

/// Returns the part of a message that is the same for all transactions: no numbers, no hashes.
fn reason(message: &str) -> String {
    let end = message.find(|c: char| c.is_ascii_digit()).unwrap_or(message.len());
    let text: String =
        message[..end].trim_end_matches(|c: char| !c.is_alphanumeric()).chars().take(80).collect();
    if text.is_empty() { "no reason given".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: i64, message: &str) -> Result<(), RpcError> {
        Err(RpcError { code, message: message.to_owned() })
    }

    #[test]
    fn a_refusal_is_final_only_if_sending_again_cannot_help() {
        assert_eq!(verdict(&Ok(())), Verdict::Accepted);
        assert_eq!(verdict(&error(-32000, "already known: 0x12")), Verdict::Accepted);
        assert_eq!(verdict(&error(-32000, "nonce too low: next nonce 5, tx nonce 3")), Verdict::NonceTaken);
        assert_eq!(verdict(&error(-32000, "txpool is full: 5 transactions, 9 bytes")), Verdict::Later);
        assert_eq!(verdict(&error(-32000, "nonce too high: transaction has 9")), Verdict::Later);
        assert_eq!(verdict(&error(-32000, "insufficient funds for gas * price + value")), Verdict::Never);
        assert_eq!(verdict(&error(NO_ANSWER, "request failed: connection refused")), Verdict::Lost);
    }

    #[test]
    fn reasons_have_no_numbers_and_are_bounded() {
        assert_eq!(reason("nonce too low: next nonce 5, tx nonce 3"), "nonce too low: next nonce");
        assert_eq!(reason("0x12"), "no reason given");
        let mut refused = BTreeMap::new();
        for letter in 'a'..='z' {
            refuse(&mut refused, &letter.to_string().repeat(3));
        }
        assert_eq!(refused.len(), REASONS_MAX + 1);
        assert_eq!(refused.values().sum::<u64>(), 26);
    }
}
