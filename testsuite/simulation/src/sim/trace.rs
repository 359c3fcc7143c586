//! [`Trace`]: a digest of all events in order; two runs of a seed are the same if their digests are.

use std::fmt;

use sha2::{Digest as _, Sha256};
use slipnet::output::note;

use super::explain::{Kind, Recording};

/// The events so far, as a digest.
pub(super) struct Trace {
    hash: Sha256,
    verbose: bool,
    /// The events for a human reader, if requested.
    recording: Option<Recording>,
}

impl Trace {
    pub(super) fn new(verbose: bool) -> Trace {
        Trace { hash: Sha256::new(), verbose, recording: None }
    }

    /// Starts the recording for a human reader. The digest is unaffected.
    pub(super) fn record(&mut self) {
        self.recording = Some(Recording::default());
    }

    pub(super) fn is_recorded(&self) -> bool {
        self.recording.is_some()
    }

    /// Adds an event: its text, and the bytes that it is about.
    pub(super) fn note(&mut self, at: u64, what: fmt::Arguments<'_>, bytes: &[u8]) {
        self.take(at, Kind::Routine, what, bytes);
    }

    /// Adds an event that changes the course of a run, as [`Trace::note`] does.
    pub(super) fn mark(&mut self, at: u64, kind: Kind, what: fmt::Arguments<'_>) {
        self.take(at, kind, what, &[]);
    }

    /// Records something for the reader that no participant can see. It is not part of the digest.
    pub(super) fn tell(&mut self, at: u64, kind: Kind, what: fmt::Arguments<'_>) {
        if let Some(recording) = &mut self.recording {
            recording.add(at, kind, what.to_string());
        }
    }

    fn take(&mut self, at: u64, kind: Kind, what: fmt::Arguments<'_>, bytes: &[u8]) {
        let text = what.to_string();
        if self.verbose {
            note(&format!("{:>10.3} s  {text} [{} bytes]", at as f64 / 1e6, bytes.len()));
        }
        for part in [&at.to_le_bytes()[..], text.as_bytes(), bytes] {
            self.hash.update((part.len() as u64).to_le_bytes());
            self.hash.update(part);
        }
        if let Some(recording) = &mut self.recording {
            recording.add(at, kind, text);
        }
    }

    /// Returns the digest of the events so far.
    pub(super) fn digest(&self) -> [u8; 32] {
        self.hash.clone().finalize().into()
    }

    /// Ends the recording and returns it; `None` if it was not requested.
    pub(super) fn take_recording(&mut self) -> Option<Recording> {
        self.recording.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: an explained run is the run that failed: recording leaves its digest unchanged.
    #[test]
    fn a_recorded_trace_has_the_same_digest() {
        let traced = |is_recorded: bool| {
            let mut trace = Trace::new(false);
            if is_recorded {
                trace.record();
            }
            trace.note(1, format_args!("node 0 asks 1 (0)"), b"request");
            trace.tell(2, Kind::Lie, format_args!("server 1 lies"));
            trace.mark(3, Kind::World, format_args!("node 0 dies"));
            (trace.digest(), trace.take_recording())
        };
        let (plain, none) = traced(false);
        let (recorded, some) = traced(true);
        assert_eq!(plain, recorded);
        assert!(none.is_none());
        let texts: Vec<_> = some.unwrap().events.into_iter().map(|event| event.text).collect();
        assert_eq!(texts, ["server 1 lies", "node 0 dies"]);
    }
}
