//! [`StartState`]: the state that a validator finds in its store when it starts.

use std::{collections::HashMap, sync::Arc};

use slipstream_eve::{self as eve, Outcome, Record};
use slipstream_types::{Certificate, Digest};

use super::{
    executed::Executed,
    execution::Failure,
    kept::{self, FoundOutcome, KeptOutcomes},
    ledger::Ledger,
    message::Ordered,
    records::VOTES,
    tip::Tip,
    uncommitted_chain::{HELD_MAX, UncommittedChain},
};
use crate::{error::ConsensusError, planted::Planted};

/// See the module.
pub(super) struct StartState {
    /// The store's head.
    pub(super) tip: Tip,
    /// The certificate of the head.
    pub(super) certificate: Option<Certificate>,
    pub(super) record: Option<Record>,
    /// The outcomes of the held chain, for the core to continue with or to roll back.
    pub(super) outcomes: Vec<Outcome>,
    /// Batches executed above the head, including those on parents that are gone.
    pub(super) ordered: Vec<Ordered>,
    /// The part of these batches that binds the core.
    pub(super) bound: Vec<eve::KeptOutcome>,
    pub(super) held: UncommittedChain,
    pub(super) kept: KeptOutcomes,
}

impl StartState {
    /// # Errors
    /// If any part of the state cannot be read.
    pub(super) fn open(ledger: &Ledger) -> Result<StartState, ConsensusError> {
        let tip = ledger.tip()?;
        let certificate = ledger.store.certificate(tip.number())?;
        let mut record = VOTES.load(&ledger.store)?;
        if ledger.lacks(Planted::ForgottenVotes) {
            record = None;
        }
        let mut kept = KeptOutcomes::default();
        let mut found = kept::load(&ledger.store, tip.number())?;
        if ledger.lacks(Planted::ForgottenOutcomes) {
            found.clear();
        }
        let ordered = |found: &FoundOutcome| {
            Some(Ordered { order: found.order.clone()?, body: found.parts.body.clone(), hints: None })
        };
        let ordered = found.iter().filter_map(ordered).collect();
        let bound =
            |found: &FoundOutcome| Some(eve::KeptOutcome { order: found.order.clone()?, token: found.token });
        let bound = found.iter().filter_map(bound).collect();
        let chains = Chains::of(ledger, &tip, found)?;
        for executed in &chains.all {
            // Their number was within the bound when they were written.
            _ = kept.insert(executed.parts.clone());
        }
        let mut held = UncommittedChain::new(tip.number());
        let mut outcomes = Vec::new();
        let decided = record.iter().flat_map(|record| &record.decided);
        let decided: Vec<Digest> = decided.map(|certificate| certificate.info.digest()).collect();
        for executed in chains.best(&tip, &decided) {
            if let Some(order) = executed.parts.order.clone() {
                outcomes.push(Outcome { order, info: executed.parts.info.clone() });
            }
            held.push(executed);
        }
        Ok(StartState { tip, certificate, record, outcomes, ordered, bound, held, kept })
    }
}

/// Kept outcomes that build on the head, by number and view.
struct Chains {
    all: Vec<Arc<Executed>>,
}

impl Chains {
    /// Builds the chains of kept outcomes, by number and view. Leaves out those that do not build on the head: sync was
    /// faster with another batch.
    fn of(ledger: &Ledger, tip: &Tip, found: Vec<FoundOutcome>) -> Result<Chains, ConsensusError> {
        let mut behind: HashMap<Digest, Vec<Arc<Executed>>> = HashMap::from([(tip.digest, Vec::new())]);
        let mut all = Vec::new();
        for FoundOutcome { order, parts, .. } in found {
            let (number, parent) = (parts.header.number, parts.header.parent);
            let Some(chain) = behind.get(&parent).filter(|chain| chain.len() < HELD_MAX) else { continue };
            match ledger.adopt(chain, order, parts) {
                Ok(executed) => {
                    let executed = Arc::new(executed);
                    let longer = chain.iter().cloned().chain([executed.clone()]).collect();
                    behind.insert(executed.tip.digest, longer);
                    all.push(executed);
                }
                Err(Failure::Broken(error)) => return Err(error),
                Err(failure) => tracing::warn!(%number, ?failure, "a kept outcome is no longer valid"),
            }
        }
        Ok(Chains { all })
    }

    /// Returns the chain from the head on: at each number the decided outcome, else that of the newest view.
    fn best(&self, tip: &Tip, decided: &[Digest]) -> Vec<Arc<Executed>> {
        let mut chain: Vec<Arc<Executed>> = Vec::new();
        let mut last = tip.digest;
        let rank = |it: &&Arc<Executed>| {
            let view = it.parts.order.as_ref().map(|order| order.order.view);
            (decided.contains(&it.token()), view)
        };
        while let Some(next) = self.all.iter().filter(|it| it.tip.header.parent == last).max_by_key(rank) {
            last = next.tip.digest;
            chain.push(next.clone());
        }
        chain
    }
}
