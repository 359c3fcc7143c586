//! [`Fetches`]: fetches outcomes that the others agreed on, where this validator has another or none.
//!
//! The batch may have been executed here in an earlier view. Otherwise this validator asks the others in turns and
//! trusts none of them. On this validator's own state, the batch must give the ledger info that a quorum signed. If the
//! gap is longer than the held chain, sync closes it.

use std::{collections::BTreeMap, time::Duration};

use slipstream_eve::SignedOrder;
use slipstream_types::{BatchNumber, Certificate};

use super::{
    driver::{Driver, core_now},
    executed::Executed,
    execution::Failure,
    inputs::{Tag, Timer, WorkResult},
    lanes::{LaneAnswer, Parcel},
    message::{self, OUTCOME_BYTES_MAX, OutcomeParts, Request, Response},
    uncommitted_chain::HELD_MAX,
};
use crate::{
    error::{ConsensusError, ProposalError},
    planted::Planted,
};

/// Time without an answer after which another validator is asked too.
const ASK_AFTER: Duration = Duration::from_secs(1);
/// Pause before another validator is asked if one lacks the outcome, or before a retry on another head.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// The progress of a fetch.
#[derive(Debug)]
enum Stage {
    Wanted,
    /// Waits for an answer until [`Timer::Fetch`].
    Asked,
    Found(Box<FetchedOutcome>),
    Adopting,
}

/// The order and outcome to check.
type FetchedOutcome = (Option<SignedOrder>, OutcomeParts);

struct Fetch {
    certificate: Certificate,
    stage: Stage,
}

/// The decided batches whose outcome is not here, by number; the first is fetched first.
pub(super) struct Fetches {
    open: BTreeMap<BatchNumber, Fetch>,
    others: Vec<u16>,
}

impl Fetches {
    /// Asks `others` in turns that begin after this validator's seat, so that not all ask the same one.
    pub(super) fn new(seat: u16, mut others: Vec<u16>) -> Fetches {
        let behind = others.partition_point(|other| *other < seat);
        others.rotate_left(behind);
        Fetches { open: BTreeMap::new(), others }
    }

    /// Notes that the outcome of a decided batch is wanted.
    pub(super) fn add(&mut self, certificate: Certificate) {
        let number = certificate.info.number;
        if self.open.len() < HELD_MAX {
            self.open.entry(number).or_insert(Fetch { certificate, stage: Stage::Wanted });
        }
    }

    /// Drops the fetches of committed batches.
    pub(super) fn settle(&mut self, committed: BatchNumber) {
        self.open.retain(|number, _| *number > committed);
    }

    /// Turns to another validator: the last one asked is too slow, or lacks the outcome.
    pub(super) fn ask_next(&mut self) {
        if let Some(fetch) = self.open.values_mut().next()
            && matches!(fetch.stage, Stage::Asked)
        {
            fetch.stage = Stage::Wanted;
        }
    }

    fn set(&mut self, number: BatchNumber, stage: Stage) {
        if let Some(fetch) = self.open.get_mut(&number) {
            fetch.stage = stage;
        }
    }
}

impl Driver {
    /// Looks for the first wanted outcome here, then asks another validator for it.
    pub(super) fn ask_for_outcome(&mut self) {
        let Some((&number, fetch)) = self.fetches.open.iter_mut().next() else {
            return self.timers.cancel(Timer::Fetch);
        };
        if !matches!(fetch.stage, Stage::Wanted) {
            return;
        }
        let token = fetch.certificate.info.digest();
        if let Some(parts) = self.kept.get(number, &token) {
            fetch.stage = Stage::Found(Box::new((parts.order.clone(), parts.outcome())));
            return;
        }
        fetch.stage = Stage::Asked;
        self.timers.set(Timer::Fetch, ASK_AFTER);
        let Some(&seat) = self.fetches.others.first() else { return };
        self.fetches.others.rotate_left(1);
        // A number and a digest cannot fail to encode.
        let Ok(payload) = message::encode(&Request::Outcome { number, token }) else { return };
        let (tag, payload) = (Tag::Fetch(number), std::sync::Arc::new(payload));
        self.lanes.post(seat, Parcel { tag, number, payload, answer_bytes_max: OUTCOME_BYTES_MAX });
    }

    /// Takes the result of a request to another validator.
    pub(super) fn landed(&mut self, LaneAnswer { seat, tag, answer }: LaneAnswer<Tag>) {
        let Tag::Fetch(number) = tag else { return };
        let waits = |stage: &Stage| matches!(stage, Stage::Wanted | Stage::Asked);
        if self.fetches.open.get(&number).is_none_or(|fetch| !waits(&fetch.stage)) {
            return;
        }
        match answer.map(|bytes| message::decode_response(&bytes)) {
            Some(Ok(Response::Outcome(parts))) if parts.header.number == number => {
                self.fetches.set(number, Stage::Found(Box::new((None, *parts))));
            }
            answer => {
                tracing::debug!(validator = seat, %number, ?answer, "a validator does not show the outcome");
                self.timers.set(Timer::Fetch, RETRY_PAUSE);
            }
        }
    }

    /// Begins to check the found outcome, if the batch before it is here. Returns whether it began.
    pub(super) fn begin_adoption(&mut self) -> bool {
        let Some((&number, fetch)) = self.fetches.open.iter_mut().next() else { return false };
        let Some(chain) = self.held.before(number) else { return false };
        if !matches!(fetch.stage, Stage::Found(_)) {
            return false;
        }
        let Stage::Found(shown) = std::mem::replace(&mut fetch.stage, Stage::Adopting) else { return false };
        let (ledger, info) = (self.ledger.clone(), fetch.certificate.info.clone());
        let adopt = move || {
            let (order, parts) = *shown;
            let executed = ledger.adopt(&chain, order, parts)?;
            if executed.parts.info != info && !ledger.lacks(Planted::UncheckedOutcome) {
                return Err(ProposalError::NotTheOutcome { number, field: "ledger info" }.into());
            }
            ledger.keep(&executed.parts)?;
            Ok(Box::new(executed))
        };
        self.executions.add("adopt", move || WorkResult::Adopted(number, adopt()));
        true
    }

    /// Takes the result of checking a fetched outcome: it is the agreed one, or it is wrong.
    pub(super) fn adopted(
        &mut self,
        number: BatchNumber,
        result: Result<Box<Executed>, Failure>,
    ) -> Result<(), ConsensusError> {
        match result {
            Ok(executed) => {
                let executed = std::sync::Arc::new(*executed);
                self.keep(&executed);
                self.held.push(executed);
                self.fetches.open.remove(&number);
                self.core.handle_fetched(number, core_now());
            }
            Err(failure) => {
                if let (_, Some(error)) = failure.no_outcome()? {
                    self.refuse(number, &error);
                }
                self.fetches.set(number, Stage::Asked);
                self.timers.set(Timer::Fetch, RETRY_PAUSE);
            }
        }
        Ok(())
    }
}
