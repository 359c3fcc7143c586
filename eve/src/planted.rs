//! [`Fault`]: defences that tests take away, to see that the simulation notices.

/// What is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// Nothing is recorded.
    ForgetRecord,
    /// The last prepare is not on record.
    ForgetPrepare,
    /// The view is not on record.
    ForgetView,
    /// Decisions that are not committed are not on record.
    ForgetDecisions,
    /// Outcomes that were told are not kept over a restart.
    #[cfg(test)]
    ForgetOutcomes,
    /// One prepare too few is enough.
    FewPrepares,
    /// One commit too few is enough.
    FewCommits,
    /// One executor's word is enough.
    OneToken,
    /// Votes of other views count.
    AnyView,
    /// A view begins without what was prepared before.
    IgnorePrepared,
    /// What a validator says to be prepared is believed.
    BelievePrepared,
    /// Nobody is convicted.
    ForgetEvidence,
    /// Nothing is repeated.
    NeverTell,
}

#[cfg(test)]
thread_local! {
    pub(crate) static PLANTED: std::cell::Cell<Option<Fault>> = const { std::cell::Cell::new(None) };
}

/// Whether the defence is taken away; never outside tests.
pub(crate) fn lacks(fault: Fault) -> bool {
    #[cfg(test)]
    return PLANTED.get() == Some(fault);
    #[cfg(not(test))]
    {
        _ = fault;
        false
    }
}
