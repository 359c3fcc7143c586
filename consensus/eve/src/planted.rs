//! [`Fault`]: defences that tests remove, to see that the simulation and the model notice.
//!
//! Only a program built with the feature `planted`, and this crate's own tests, can remove one. In any other, [`lacks`]
//! is a constant `false`.
#![cfg_attr(
    not(feature = "planted"),
    expect(unreachable_pub, reason = "seen outside with the feature alone")
)]

/// The defence that a fault removes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Nothing is recorded: the driver of these tests drops each record.
    #[cfg(test)]
    ForgetRecord,
    /// The last prepare is not on record.
    ForgetPrepare,
    /// Outcomes that are kept over a restart bind no prepare.
    ForgetKeptPrepares,
    /// The view is not on record.
    ForgetView,
    /// Decisions go unrecorded while they are uncommitted.
    ForgetDecisions,
    /// Announced outcomes are not kept over a restart.
    #[cfg(any(test, feature = "planted"))]
    ForgetOutcomes,
    /// A quorum of prepares needs one fewer.
    FewPrepares,
    /// A quorum of commits needs one fewer.
    FewCommits,
    /// One vote counts twice.
    CountTwice,
    /// One executor's token is enough.
    OneToken,
    /// Votes of other views count.
    AnyView,
    /// A view begins without the outcome that was prepared before.
    IgnorePrepared,
    /// Of two outcomes of one number, a view adopts that of the lower view. A number rarely has two prepared outcomes,
    /// so a test makes them.
    AdoptLower,
    /// Of two outcomes of one number, a view adopts the one that the last seat shows.
    AdoptLast,
    /// The core believes a validator's claim that an outcome is prepared.
    BelievePrepared,
    /// A decided batch is committed with whatever outcome is here.
    CommitAnything,
    /// Nobody is convicted: the driver of these tests drops each proof.
    #[cfg(test)]
    ForgetEvidence,
    /// Nothing is sent again.
    NeverTell,
}

#[cfg(any(test, feature = "planted"))]
thread_local! {
    pub(crate) static PLANTED: std::cell::Cell<Option<Fault>> = const { std::cell::Cell::new(None) };
}

/// Removes the defence from all cores that this thread feeds, until the next call.
#[cfg(feature = "planted")]
pub fn plant(fault: Option<Fault>) {
    PLANTED.set(fault);
}

/// Whether the defence is removed. Always `false` without tests and without the feature `planted`.
pub(crate) fn lacks(fault: Fault) -> bool {
    #[cfg(any(test, feature = "planted"))]
    return PLANTED.get() == Some(fault);
    #[cfg(not(any(test, feature = "planted")))]
    {
        _ = fault;
        false
    }
}
