//! [`Trace`]: a digest of everything that happened, in its order: two runs of a seed are the same if theirs are.

use std::fmt;

use sha2::{Digest as _, Sha256};
use slipnet::output::note;

use super::explain::{Kind, Recording};

/// The events so far.
pub(super) struct Trace {
    hash: Sha256,
    verbose: bool,
    /// The part for a person to read, if somebody asked.
    recording: Option<Recording>,
}

impl Trace {
    pub(super) fn new(verbose: bool) -> Trace {
        Trace { hash: Sha256::new(), verbose, recording: None }
    }

    /// Keeps from now on the events that a person is to read. The digest stays as it is.
    pub(super) fn record(&mut self) {
        self.recording = Some(Recording::default());
    }

    pub(super) fn is_recorded(&self) -> bool {
        self.recording.is_some()
    }

    /// Takes down an event: its text, and the bytes that it was about.
    pub(super) fn note(&mut self, at: u64, what: fmt::Arguments<'_>, bytes: &[u8]) {
        self.take(at, Kind::Routine, what, bytes);
    }

    /// As [`Trace::note`], of an event that changes how a run goes on.
    pub(super) fn mark(&mut self, at: u64, kind: Kind, what: fmt::Arguments<'_>) {
        self.take(at, kind, what, &[]);
    }

    /// Tells a reader what no participant can see. It is not part of the digest.
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

    /// The digest of the events so far.
    pub(super) fn digest(&self) -> [u8; 32] {
        self.hash.clone().finalize().into()
    }

    /// The recording; `None` unless somebody asked. It ends here.
    pub(super) fn take_recording(&mut self) -> Option<Recording> {
        self.recording.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: explaining a run shows the run that failed: recording leaves its digest unchanged.
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
