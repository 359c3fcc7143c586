//! [`Trace`]: a digest of everything that happened, in its order: two runs of a seed are the same if theirs are.

use std::fmt;

use sha2::{Digest as _, Sha256};
use slipnet::output::note;

/// What happened so far.
pub(super) struct Trace {
    hash: Sha256,
    verbose: bool,
}

impl Trace {
    pub(super) fn new(verbose: bool) -> Trace {
        Trace { hash: Sha256::new(), verbose }
    }

    /// Takes down an event: its text, and the bytes that it was about.
    pub(super) fn note(&mut self, at: u64, what: fmt::Arguments<'_>, bytes: &[u8]) {
        let text = what.to_string();
        if self.verbose {
            note(&format!("{:>10.3} s  {text} [{} bytes]", at as f64 / 1e6, bytes.len()));
        }
        for part in [&at.to_le_bytes()[..], text.as_bytes(), bytes] {
            self.hash.update((part.len() as u64).to_le_bytes());
            self.hash.update(part);
        }
    }

    pub(super) fn finish(self) -> [u8; 32] {
        self.hash.finalize().into()
    }
}
