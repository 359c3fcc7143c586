//! Lanes: each sends its accounts' transactions when they are due, in JSON-RPC batches, one batch in flight.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::json;

use super::plan::Plan;
use crate::rpc::{BATCH_CALLS_MAX, Rpc, RpcError};

/// Due transactions are gathered for this long, so that a low rate does not become one request per transaction.
const TICK: Duration = Duration::from_millis(10);
/// Transactions of one request: what a node answers in one array.
const BATCH_MAX: usize = BATCH_CALLS_MAX;
/// A refused transaction leaves a gap in its account's nonces, so it is sent again, this often and this much later.
const RETRIES_MAX: u32 = 20;
const RETRY_DELAY: Duration = Duration::from_millis(250);
/// Distinct reasons that are told apart; the rest is counted together.
const REASONS_MAX: usize = 16;

/// Counted while lanes run, for the progress.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) sent: AtomicU64,
}

/// What became of a lane's transactions at the nodes' doors.
#[derive(Default, Debug)]
pub(super) struct Outcome {
    /// Transactions that were sent at least once.
    pub(super) sent: u64,
    /// Taken by a node, at the first or a later attempt.
    pub(super) accepted: u64,
    /// Refused for good.
    pub(super) given_up: u64,
    /// Refusals by reason; a transaction that is sent again may be refused again.
    pub(super) rejected: BTreeMap<String, u64>,
}

impl Outcome {
    pub(super) fn add(&mut self, other: Outcome) {
        self.sent += other.sent;
        self.accepted += other.accepted;
        self.given_up += other.given_up;
        for (reason, count) in other.rejected {
            *self.rejected.entry(reason).or_default() += count;
        }
    }

    /// Counts an answer, and returns the attempt to make later if there is one.
    fn settle<T>(&mut self, attempt: Attempt, answer: Result<T, RpcError>) -> Option<Attempt> {
        let (message, again) = match verdict(answer, attempt.tried) {
            Verdict::Accepted => {
                self.accepted += 1;
                return None;
            }
            Verdict::Refused(message) => (message, false),
            Verdict::Again(message) => (message, attempt.tried < RETRIES_MAX),
        };
        self.reject(&message);
        if !again {
            self.given_up += 1;
            return None;
        }
        Some(Attempt { tried: attempt.tried + 1, not_before: Instant::now() + RETRY_DELAY, ..attempt })
    }

    fn reject(&mut self, message: &str) {
        let mut reason = reason(message);
        if self.rejected.len() >= REASONS_MAX && !self.rejected.contains_key(&reason) {
            reason = "other reasons".to_owned();
        }
        *self.rejected.entry(reason).or_default() += 1;
    }
}

/// A lane's place among the lanes.
#[derive(Clone, Copy)]
pub(super) struct Lane {
    pub(super) index: usize,
    pub(super) count: usize,
}

/// A transaction to send, and how often that was tried.
#[derive(Clone, Copy)]
struct Attempt {
    index: usize,
    tried: u32,
    not_before: Instant,
}

/// Sends everything of the lane, and returns when each transaction was taken or given up.
pub(super) async fn run_lane(
    rpc: Rpc,
    plan: Arc<Plan>,
    lane: Lane,
    begin: Instant,
    counters: Arc<Counters>,
) -> Outcome {
    let mut outcome = Outcome::default();
    let mut retries: VecDeque<Attempt> = VecDeque::new();
    let schedule = (0..plan.len()).filter(|index| plan.lane(*index, lane.count) == lane.index);
    let schedule = schedule.map(|index| Attempt { index, tried: 0, not_before: begin + plan.due(index) });
    let mut schedule = schedule.peekable();
    loop {
        let batch = take_due(&mut retries, &mut schedule);
        if batch.is_empty() {
            let times = retries.front().into_iter().chain(schedule.peek()).map(|attempt| attempt.not_before);
            match times.min() {
                Some(next) => tokio::time::sleep_until((next + TICK).into()).await,
                None => return outcome,
            }
            continue;
        }
        let fresh = batch.iter().filter(|attempt| attempt.tried == 0).count() as u64;
        outcome.sent += fresh;
        counters.sent.fetch_add(fresh, Ordering::Relaxed);
        let params: Vec<_> = batch.iter().map(|attempt| json!([plan.raw(attempt.index)])).collect();
        let answers = rpc.batch("eth_sendRawTransaction", &params).await.unwrap_or_else(|error| {
            let error = RpcError { code: 0, message: format!("request failed: {}", error.root_cause()) };
            vec![Err(error); batch.len()]
        });
        let again =
            batch.into_iter().zip(answers).filter_map(|(attempt, answer)| outcome.settle(attempt, answer));
        retries.extend(again);
    }
}

/// What is due now, at most one request's worth. Retries first: other transactions wait behind their nonces.
fn take_due(
    retries: &mut VecDeque<Attempt>,
    schedule: &mut std::iter::Peekable<impl Iterator<Item = Attempt>>,
) -> Vec<Attempt> {
    let now = Instant::now();
    let mut batch = Vec::new();
    while batch.len() < BATCH_MAX {
        let retry = retries.front().is_some_and(|attempt| attempt.not_before <= now);
        let next =
            if retry { retries.pop_front() } else { schedule.next_if(|attempt| attempt.not_before <= now) };
        let Some(attempt) = next else { break };
        batch.push(attempt);
    }
    batch
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Accepted,
    Refused(String),
    Again(String),
}

fn verdict<T>(answer: Result<T, RpcError>, tried: u32) -> Verdict {
    let Err(error) = answer else { return Verdict::Accepted };
    let message = error.message.to_lowercase();
    // Both mean that an earlier attempt arrived although its answer did not.
    if message.contains("already known") || (tried > 0 && message.contains("nonce too low")) {
        return Verdict::Accepted;
    }
    let hopeless = ["nonce too low", "insufficient funds", "chain id", "invalid", "decode"];
    match hopeless.iter().any(|text| message.contains(text)) {
        true => Verdict::Refused(error.message),
        false => Verdict::Again(error.message),
    }
}

/// The part of a message that is the same for all transactions: no numbers, no hashes.
fn reason(message: &str) -> String {
    let end = message.find(|c: char| c.is_ascii_digit()).unwrap_or(message.len());
    let text: String =
        message[..end].trim_end_matches(|c: char| !c.is_alphanumeric()).chars().take(80).collect();
    if text.is_empty() { "no reason given".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(message: &str) -> Result<(), RpcError> {
        Err(RpcError { code: -32000, message: message.to_owned() })
    }

    #[test]
    fn a_refusal_is_final_only_if_sending_again_cannot_help() {
        assert_eq!(verdict(Ok(()), 0), Verdict::Accepted);
        assert_eq!(verdict(error("already known"), 0), Verdict::Accepted);
        assert!(matches!(verdict(error("nonce too low: next 5"), 0), Verdict::Refused(_)));
        assert_eq!(verdict(error("nonce too low: next 5"), 1), Verdict::Accepted);
        assert!(matches!(verdict(error("txpool is full"), 0), Verdict::Again(_)));
    }

    #[test]
    fn a_transaction_is_sent_again_so_often_and_no_more() {
        let mut outcome = Outcome::default();
        let mut attempt = Attempt { index: 0, tried: 0, not_before: Instant::now() };
        while let Some(again) = outcome.settle(attempt, error("txpool is full")) {
            attempt = again;
        }
        assert_eq!((attempt.tried, outcome.given_up, outcome.accepted), (RETRIES_MAX, 1, 0));
        assert_eq!(outcome.rejected["txpool is full"], u64::from(RETRIES_MAX) + 1);
    }

    #[test]
    fn reasons_have_no_numbers_and_are_bounded() {
        assert_eq!(reason("nonce too low: next nonce 5, tx nonce 3"), "nonce too low: next nonce");
        assert_eq!(reason("0x12"), "no reason given");
        let mut outcome = Outcome::default();
        for letter in 'a'..='z' {
            outcome.reject(&letter.to_string().repeat(3));
        }
        assert_eq!(outcome.rejected.len(), REASONS_MAX + 1);
        assert_eq!(outcome.rejected.values().sum::<u64>(), 26);
    }
}
