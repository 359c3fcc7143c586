//! The parts of a [`Core`](crate::Core)'s state: its view, that view's term, decisions, executions and other validators.

use std::collections::{BTreeMap, BTreeSet};

use slipstream_types::{BatchNumber, Certificate, Digest, LedgerInfo};

use crate::{
    effect::Work,
    message::{NewView, Prepared, Seat, SignedOrder, Status, View, ViewChange},
    slot::Slot,
};

/// The view that the validator is in, or goes to.
#[derive(Clone, Debug)]
pub(crate) struct CurrentView {
    pub(crate) number: View,
    pub(crate) phase: Phase,
    /// Whether this validator wants another primary.
    pub(crate) complains: bool,
    /// Views since the last decision.
    pub(crate) attempts: u32,
}

/// Whether the view has begun.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Phase {
    /// The validator left the views below, and waits for this one to begin.
    Changing,
    /// The view has begun.
    Active {
        /// Whether its primary omits transactions that it should order, as this validator's driver sees it.
        is_neglected: bool,
    },
}

impl Phase {
    /// A view that has begun, and whose primary omits nothing.
    pub(crate) const BEGUN: Phase = Phase::Active { is_neglected: false };
}

/// The state of one view, which no other view inherits: votes and statements count only in their own view.
#[derive(Clone, Default, Debug)]
pub(crate) struct Term {
    /// Number of decisions in the view. A stall counts as several decisions.
    pub(crate) decided: u64,
    /// The statements on each number above the last decision.
    pub(crate) slots: BTreeMap<BatchNumber, Slot>,
    /// Digests of this view's orders, which the next orders name as their parents.
    pub(crate) links: BTreeMap<BatchNumber, Digest>,
    /// The outcome that this view must decide first.
    pub(crate) adopted: Option<Prepared>,
    /// The first order of this view that no honest primary would have sent.
    pub(crate) refused: Option<BatchNumber>,
    /// Whether orders of this view were dropped. A primary that has forgotten its orders orders nothing else in this
    /// view.
    pub(crate) spent: bool,
    pub(crate) protection: Option<Protection>,
}

/// Extra protection of a batch: the wait for all executors' tokens.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Protection {
    pub(crate) number: BatchNumber,
    pub(crate) is_over: bool,
}

/// The decided batches.
#[derive(Clone, Debug)]
pub(crate) struct Decisions {
    /// The last batch that is known to be decided. It may not be committed yet.
    pub(crate) last: BatchNumber,
    /// The highest certificate of this epoch that this validator has. Sync may have committed more.
    pub(crate) proof: Option<Certificate>,
    pub(crate) recent: BTreeMap<BatchNumber, Certificate>,
    /// Decided batches that wait for their outcome before they are handed out for commit.
    pub(crate) pending: BTreeMap<BatchNumber, Certificate>,
    pub(crate) fetching: Option<BatchNumber>,
    /// A pending batch to fetch: its order is no longer expected, or this validator has another outcome of it.
    pub(crate) overdue: Option<BatchNumber>,
}

/// The orders and the outcomes of their execution.
#[derive(Clone, Debug)]
pub(crate) struct Execution {
    /// Orders to execute, by number.
    pub(crate) orders: BTreeMap<BatchNumber, SignedOrder>,
    /// Outcomes by number. Each is executed on the one before, the first on the head. A fetched outcome has no order.
    pub(crate) outcomes: BTreeMap<BatchNumber, (Option<SignedOrder>, LedgerInfo)>,
    pub(crate) working: Option<Work>,
    /// Grows with every rollback.
    pub(crate) generation: u64,
    /// Batches up to this one are executed sequentially.
    pub(crate) careful_to: BatchNumber,
}

/// The other validators' reports on themselves.
#[derive(Clone, Default, Debug)]
pub(crate) struct Others {
    /// The last status of each.
    pub(crate) heard: BTreeMap<Seat, Status>,
    /// The last view change of each, and this validator's own.
    pub(crate) changes: BTreeMap<Seat, ViewChange>,
    /// The beginning of the present view, or of the last one that began.
    pub(crate) new_view: Option<NewView>,
}

/// The events since the last tick of [`Timer::Tell`](crate::Timer::Tell), and the state at that tick.
#[derive(Clone, Debug)]
pub(crate) struct Tick {
    /// Seats that got orders or a new view since the tick.
    pub(crate) answered: BTreeSet<Seat>,
    /// Seats that got this validator's status since the tick, in reply to theirs.
    pub(crate) greeted: BTreeSet<Seat>,
    /// Number of costly messages of each seat since the tick.
    pub(crate) costs: BTreeMap<Seat, u8>,
    /// Seats whose messages failed verification since the tick.
    pub(crate) muted: BTreeSet<Seat>,
    /// The last decision at the tick.
    pub(crate) decided: BatchNumber,
    /// Whether a batch was due at the tick, but none had been decided since the tick before.
    pub(crate) stood: bool,
    /// The first pending batch without an order at the tick.
    pub(crate) awaited: Option<BatchNumber>,
}

/// The contradictions and divergences that this validator saw.
#[derive(Clone, Default, Debug)]
pub(crate) struct SeenFaults {
    /// Author, view and number of each proven contradiction.
    pub(crate) convicted: BTreeSet<(Seat, View, BatchNumber)>,
    /// How often the others agreed on an outcome other than this validator's.
    pub(crate) divergences: u64,
    /// Decisions since the last divergence.
    pub(crate) clean: u64,
}
