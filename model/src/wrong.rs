//! [`Wrong`]: a violation of a property.

use std::fmt;

/// The property that is violated.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Kind {
    /// Two batches of one number can be certified, or are committed.
    Forked,
    /// An honest validator signs two statements where it may sign one, or one of a view that it left.
    TwoFaced,
    /// An honest validator is convicted.
    Convicted,
    /// A quorum can prepare another batch after one could be certified.
    Forgotten,
    /// Nobody honest keeps what was decided.
    Lost,
}

/// A violation, and what it is about.
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
