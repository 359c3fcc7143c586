//! Bringing what the proposer has to say to one other validator.
//!
//! A messenger has one request in flight. It finishes that one even if the quorum did without it, and then goes on with the
//! newest round, so a slow or silent validator costs one request and never holds up the others.

use std::{sync::Arc, time::Duration};

use slipstream_network::{NetworkError, PeerId, Protocol, RequestLimits};
use slipstream_types::{BatchNumber, Signature};
use tokio::sync::{mpsc, watch};

use super::{Validator, inquiry::Standing, said::Said};
use crate::protocol::messages::{self, RESPONSE_BYTES_MAX, Request, Response};

/// Pause before a validator that refused, is behind or is unreachable is asked again.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// Payload bytes a second of the slowest link that a validator may have. The deadline of a request grows by this, because a
/// proposal that cannot be sent within its deadline would be sent again from its first byte for ever, and a proposer may not
/// propose another one. A proposal of 24 MiB then has 25 s, which is within the receiver's transfer timeout.
const LINK_BYTES_PER_SECOND: u64 = 1_000_000;

/// What the messengers deliver for one batch.
pub(super) struct Round {
    pub(super) number: BatchNumber,
    pub(super) propose: Vec<u8>,
    /// The encoded decision, once there is one.
    pub(super) decide: watch::Receiver<Option<Vec<u8>>>,
    /// Each messenger sends at most one vote; the channel has room for all.
    pub(super) votes: mpsc::Sender<(u16, Signature)>,
}

pub(super) type Rounds = watch::Receiver<Option<Arc<Round>>>;

/// Brings the newest round to one other validator.
pub(super) struct Messenger {
    pub(super) validator: Arc<Validator>,
    pub(super) index: u16,
    pub(super) peer: PeerId,
    /// The refusals that were logged.
    pub(super) said: Said,
    /// Whether it was logged that the validator does not answer.
    pub(super) silent: bool,
}

impl Messenger {
    pub(super) async fn run(mut self, mut rounds: Rounds) {
        loop {
            let round = rounds.borrow_and_update().clone();
            if let Some(round) = round {
                self.deliver(&round, rounds.clone()).await;
            }
            if rounds.changed().await.is_err() {
                return;
            }
        }
    }

    /// `newer` changes when another round begins.
    async fn deliver(&mut self, round: &Round, mut newer: Rounds) {
        let mut decide = round.decide.clone();
        while decide.borrow().is_none() && matches!(newer.has_changed(), Ok(false)) {
            match self.ask(round.number, round.propose.clone()).await {
                Some(Response::Vote { index, signature }) if index == self.index => {
                    // Nobody listens once there is a quorum.
                    _ = round.votes.send((index, signature)).await;
                    break;
                }
                Some(response) => tracing::debug!(validator = self.index, ?response, "no vote"),
                None => {}
            }
            tokio::select! {
                () = tokio::time::sleep(RETRY_PAUSE) => {}
                _ = newer.changed() => return,
            }
        }
        let decision = tokio::select! {
            decision = async { decide.wait_for(Option::is_some).await.ok().and_then(|decision| decision.clone()) } => decision,
            _ = newer.changed() => return,
        };
        // The next proposal carries the certificate, so that a lost decision needs no retry.
        if let Some(decision) = decision {
            self.ask(round.number, decision).await;
        }
    }

    /// What the validator answered. A refusal is logged once per batch, silence once until it ends.
    async fn ask(&mut self, number: BatchNumber, payload: Vec<u8>) -> Option<Response> {
        let validator = self.index;
        let answer = request(&self.validator, self.peer, payload).await;
        // A validator that has no time says nothing of the batch.
        let silent = matches!(&answer, Err(error) if error.refusal().is_none() || error.is_retryable());
        let began = silent && !self.silent;
        self.silent = silent;
        match answer.map(|bytes| messages::decode_response(&bytes)) {
            Ok(Ok(response)) => return Some(response),
            Ok(Err(error)) if self.said.is_new(Some(number), &error.to_string()) => {
                tracing::warn!(validator, %number, %error, "a validator's answer is not one");
            }
            Err(error) if began => tracing::warn!(validator, %number, %error, "a validator does not answer"),
            Err(error) if !silent && self.said.is_new(Some(number), &error.to_string()) => {
                tracing::warn!(validator, %number, %error, "a validator refuses the batch");
            }
            Ok(Err(error)) => tracing::debug!(validator, %error, "a validator's answer is not one"),
            Err(error) => tracing::debug!(validator, %error, "a validator did not answer"),
        }
        None
    }
}

/// Asks one validator how it stands again and again, until nobody wants to know.
pub(super) async fn ask_standing(
    validator: Arc<Validator>,
    index: usize,
    peer: PeerId,
    answers: mpsc::Sender<(usize, Standing)>,
) {
    // An enum without content cannot fail to encode.
    let Ok(payload) = messages::encode(&Request::Standing) else { return };
    loop {
        let answer = request(&validator, peer, payload.clone()).await;
        if let Some(Response::Standing { certificate, now_ms }) =
            answer.ok().and_then(|bytes| messages::decode_response(&bytes).ok())
        {
            let certificate = certificate.map(|certificate| *certificate);
            if answers.send((index, Standing { certificate, now_ms })).await.is_err() {
                return;
            }
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

/// One request to another validator.
async fn request(validator: &Validator, peer: PeerId, payload: Vec<u8>) -> Result<Vec<u8>, NetworkError> {
    let deadline = deadline(validator.config.vote_timeout_ms.get(), payload.len());
    let limits = RequestLimits { deadline, response_bytes_max: RESPONSE_BYTES_MAX };
    validator.transport.request(peer, Protocol::CONSENSUS, payload, limits).await
}

/// Time to execute, and time to send so many bytes over the slowest link.
fn deadline(vote_timeout_ms: u64, payload_bytes: usize) -> Duration {
    let transfer_ms = payload_bytes as u64 * 1_000 / LINK_BYTES_PER_SECOND;
    Duration::from_millis(vote_timeout_ms.saturating_add(transfer_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    // The largest proposal fits through the slowest link, and a small one is asked again as soon as ever.
    #[test]
    fn deadlines_leave_time_for_the_transfer() {
        assert_eq!(deadline(2_000, 300), Duration::from_millis(2_000));
        assert_eq!(deadline(2_000, 24 << 20), Duration::from_millis(2_000 + 25_165));
    }
}
