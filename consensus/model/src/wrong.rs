//! [`Wrong`]: a violation of a property.

use std::fmt;

/// The property that is violated.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Kind {
    /// Two batches of one number can be certified, or are committed.
    Forked,
    /// A validator commits a batch that it has not executed, or by an invalid certificate.
    Unfounded,
    /// An honest validator signs two statements where it may sign one, or one of a view that it left.
    TwoFaced,
    /// An honest validator is convicted.
    Convicted,
    /// A quorum can prepare another batch after one could be certified.
    Forgotten,
    /// No honest validator keeps an outcome that a quorum prepared.
    Lost,
}

impl Kind {
    /// The property's name in reports.
    pub(crate) fn property(self) -> &'static str {
        match self {
            Kind::Forked => "no two batches of one number",
            Kind::Unfounded => "what is committed was executed and certified",
            Kind::TwoFaced => "no honest validator contradicts itself",
            Kind::Convicted => "no honest validator is convicted",
            Kind::Forgotten => "what may be decided is carried on",
            Kind::Lost => "what is decided is kept",
        }
    }
}

/// The property of states from which the chain makes progress.
pub(crate) const GOES_ON: &str = "the chain goes on";

/// A violation, with its description.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Wrong {
    pub(crate) kind: Kind,
    pub(crate) text: String,
}

impl Wrong {
    pub(crate) fn new(kind: Kind, text: String) -> Wrong {
        Wrong { kind, text }
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
