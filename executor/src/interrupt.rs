//! [`Interrupt`]: ends an execution that nobody waits for any more.

use std::{fmt, sync::Arc};

/// A condition that is polled while a call or a batch runs. Once it is true, the execution ends with
/// [`ExecuteError::Interrupted`](crate::ExecuteError::Interrupted).
///
/// The EVM polls the condition at every read of the state, at every call of another contract, and after 64 jumps or
/// 50,000 gas. Between two jumps, at most one contract's code can run. A precompile never ends early.
#[derive(Clone, Default)]
pub struct Interrupt(Option<Arc<dyn Fn() -> bool + Send + Sync>>);

impl Interrupt {
    /// Makes an interrupt that lets every execution run to its gas limit.
    pub fn never() -> Self {
        Self::default()
    }

    /// Ends an execution as soon as `is_due` returns true. The EVM polls `is_due` thousands of times a second, so it
    /// must be quick.
    pub fn when(is_due: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(is_due)))
    }

    /// Whether the execution should end now.
    pub fn is_due(&self) -> bool {
        self.0.as_ref().is_some_and(|is_due| is_due())
    }

    pub(crate) fn is_never(&self) -> bool {
        self.0.is_none()
    }
}

impl fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_never() { "Interrupt::never" } else { "Interrupt::when" })
    }
}
