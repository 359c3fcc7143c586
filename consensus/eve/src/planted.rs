//! [`Fault`]: defences that tests take away, to see that the simulation and the model notice.
//!
//! Only a program built with the feature `planted`, and this crate's own tests, can leave one out. In any other [`lacks`] is a constant
//! `false`.
#![cfg_attr(
    not(feature = "planted"),
    expect(unreachable_pub, reason = "seen outside with the feature alone")
)]

/// The defence that a fault takes away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Nothing is recorded.
    ForgetRecord,
    /// The last prepare is not on record.
    ForgetPrepare,
    /// What is kept over a restart binds no prepare.
    ForgetKeptPrepares,
    /// The view is not on record.
    ForgetView,
    /// Decisions go unrecorded while they are uncommitted.
    ForgetDecisions,
    /// Outcomes that were told are not kept over a restart.
    #[cfg(any(test, feature = "planted"))]
    ForgetOutcomes,
    /// One prepare too few is enough.
    FewPrepares,
    /// One commit too few is enough.
    FewCommits,
    /// One vote counts twice.
    CountTwice,
    /// One executor's word is enough.
    OneToken,
    /// Votes of other views count.
    AnyView,
    /// A view begins without what was prepared before.
    IgnorePrepared,
    /// Of two outcomes of one number, a view adopts the one that the lower view prepared. So few views prepare two that a test makes them.
    AdoptLower,
    /// Of two outcomes of one number, a view adopts the one that the last seat shows.
    AdoptLast,
    /// The core believes a validator's claim that an outcome is prepared.
    BelievePrepared,
    /// What is decided is committed with whatever outcome is here.
    CommitAnything,
    /// Nobody is convicted.
    ForgetEvidence,
    /// Nothing is repeated.
    NeverTell,
}

#[cfg(any(test, feature = "planted"))]
thread_local! {
    pub(crate) static PLANTED: std::cell::Cell<Option<Fault>> = const { std::cell::Cell::new(None) };
}

/// Takes the defence away from all cores that this thread feeds, until it is called again.
#[cfg(feature = "planted")]
pub fn plant(fault: Option<Fault>) {
    PLANTED.set(fault);
}

/// Whether the defence is taken away; never outside tests.
pub(crate) fn lacks(fault: Fault) -> bool {
    #[cfg(any(test, feature = "planted"))]
    return PLANTED.get() == Some(fault);
    #[cfg(not(any(test, feature = "planted")))]
    {
        _ = fault;
        false
    }
}
