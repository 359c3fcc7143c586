//! [`Violation`]: a violation of a property.

use std::fmt;

/// The property that is violated.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum ViolationKind {
    /// Two batches of one number can be certified, or are committed.
    Forked,
    /// A validator commits a batch that it has not executed, or by an invalid certificate.
    Unfounded,
    /// An honest validator signs two statements where it may sign one, or a statement of a view that it left.
    TwoFaced,
    /// An honest validator is convicted.
    Convicted,
    /// A quorum can prepare another batch of a number that may already be certified.
    Forgotten,
    /// No honest validator keeps an outcome that a quorum prepared.
    Lost,
}

impl ViolationKind {
    /// The property's name in reports.
    pub(crate) fn property(self) -> &'static str {
        match self {
            ViolationKind::Forked => "no two batches of one number",
            ViolationKind::Unfounded => "what is committed was executed and certified",
            ViolationKind::TwoFaced => "no honest validator contradicts itself",
            ViolationKind::Convicted => "no honest validator is convicted",
            ViolationKind::Forgotten => "what may be decided is carried on",
            ViolationKind::Lost => "what is decided is kept",
        }
    }
}

/// The property of states from which the chain makes progress.
pub(crate) const GOES_ON: &str = "the chain goes on";

/// A violation, with its description.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Violation {
    pub(crate) kind: ViolationKind,
    pub(crate) text: String,
}

impl Violation {
    pub(crate) fn new(kind: ViolationKind, text: String) -> Violation {
        Violation { kind, text }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
