//! [`Failures`]: orders that could not be carried out. The node and the later orders go on, and the run ends with an error at its end.

use std::{
    fmt::Display,
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use anyhow::{Error, Result, bail};

use crate::output;

/// How many there were, and the first of them: each is told when it happens.
#[derive(Debug, Default)]
pub(super) struct Failures {
    count: AtomicUsize,
    first: OnceLock<String>,
}

impl Failures {
    /// Tells at once what failed.
    pub(super) fn note(&self, what: impl Display, error: &Error) {
        let text = format!("{what} failed: {error:#}");
        output::note(&format!("{text}; the node and the later orders go on"));
        self.count.fetch_add(1, Ordering::Relaxed);
        let _ = self.first.set(text);
    }

    /// The outcome of the run.
    ///
    /// # Errors
    /// If anything failed.
    pub(super) fn end(&self) -> Result<()> {
        match (self.count.load(Ordering::Relaxed), self.first.get()) {
            (0, _) | (_, None) => Ok(()),
            (1, Some(first)) => bail!("an order could not be carried out: {first}"),
            (count, Some(first)) => bail!("orders failed {count} times, first: {first}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    /// Goal: the end of a run says how many orders failed, and which was the first.
    #[test]
    fn the_end_tells_of_the_first_failure() {
        let failures = Failures::default();
        failures.end().unwrap();
        failures.note("order 1s..,wipe", &anyhow!("no room").context("cannot clear data"));
        let first = "order 1s..,wipe failed: cannot clear data: no room";
        assert_eq!(
            failures.end().unwrap_err().to_string(),
            format!("an order could not be carried out: {first}")
        );
        failures.note("order 2s..,bit-flip=1", &anyhow!("no row"));
        assert_eq!(failures.end().unwrap_err().to_string(), format!("orders failed 2 times, first: {first}"));
    }
}
