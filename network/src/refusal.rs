//! [`Refusal`]: why a peer does not answer, with a kind for programs and a text for people.

use std::{ops::RangeInclusive, time::Duration};

/// Maximum bytes of a refusal's text; keeps a peer from filling the log.
pub const REFUSAL_BYTES_MAX: usize = 1_024;

/// The range of waits that a busy peer may request, in milliseconds. The minimum keeps the requester from spinning. The
/// maximum keeps one answer from disabling a peer for long.
const RETRY_AFTER_MS: RangeInclusive<u32> = 20..=10_000;

/// The meaning of a refusal, and the only part that the requester acts on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RefusalKind {
    /// The peer could answer, but has no time or room for this requester now. It costs the peer no score.
    #[error("busy for {retry_after_ms} ms")]
    Busy {
        /// When to retry, from 20 ms to 10 s: [`Refusal::busy`] clamps the peer's value.
        retry_after_ms: u32,
    },
    /// The peer does not keep or serve the requested content; others may.
    #[error("not kept")]
    NotKept,
    /// The peer cannot parse the request, or the request breaks the rules. A retry is useless.
    #[error("malformed")]
    Malformed,
    /// The peer tried and failed: its own fault.
    #[error("failed")]
    Failed,
}

/// A refusal of a request. The text is for the requester's log; the constructor clips and cleans it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{kind}: {text}")]
pub struct Refusal {
    kind: RefusalKind,
    text: String,
}

impl Refusal {
    /// A refusal for lack of time or room; the time is clamped to the accepted range, in whole milliseconds.
    pub fn busy(retry_after: Duration, text: impl AsRef<str>) -> Refusal {
        let wanted = u32::try_from(retry_after.as_millis()).unwrap_or(u32::MAX);
        let retry_after_ms = wanted.clamp(*RETRY_AFTER_MS.start(), *RETRY_AFTER_MS.end());
        Refusal::new(RefusalKind::Busy { retry_after_ms }, text.as_ref())
    }

    /// The refusal of a request for content that is not kept or served here.
    pub fn not_kept(text: impl AsRef<str>) -> Refusal {
        Refusal::new(RefusalKind::NotKept, text.as_ref())
    }

    /// A refusal of a request that breaks the format or the rules.
    pub fn malformed(text: impl AsRef<str>) -> Refusal {
        Refusal::new(RefusalKind::Malformed, text.as_ref())
    }

    /// A refusal because the answer could not be made here.
    pub fn failed(text: impl AsRef<str>) -> Refusal {
        Refusal::new(RefusalKind::Failed, text.as_ref())
    }

    /// The refusal of a request that is too long to be read; see
    /// [`Handler::request_bytes_max`](crate::Handler::request_bytes_max).
    pub(crate) fn too_long(bytes: usize, bytes_max: usize) -> Refusal {
        match bytes_max {
            0 => Refusal::not_kept("this node does not accept this kind of request from this peer"),
            _ => Refusal::malformed(format!("a request of {bytes} bytes exceeds the limit of {bytes_max}")),
        }
    }

    fn new(kind: RefusalKind, text: &str) -> Refusal {
        Refusal { kind, text: clipped(text) }
    }

    /// Its meaning for the requester.
    pub fn kind(&self) -> RefusalKind {
        self.kind
    }

    /// Its text for people: bounded, and without control characters.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The wait before a retry, if the peer is only busy.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.kind {
            RefusalKind::Busy { retry_after_ms } => Some(Duration::from_millis(u64::from(retry_after_ms))),
            RefusalKind::NotKept | RefusalKind::Malformed | RefusalKind::Failed => None,
        }
    }
}

/// A peer's text as it may be sent and logged: bounded, and without control characters that could forge a log line.
pub(crate) fn clipped(text: &str) -> String {
    clipped_to(text, REFUSAL_BYTES_MAX)
}

/// As [`clipped`], with another bound.
pub(crate) fn clipped_to(text: &str, bytes_max: usize) -> String {
    let mut kept = String::new();
    for character in text.chars().map(|c| if c.is_control() { ' ' } else { c }) {
        if kept.len() + character.len_utf8() > bytes_max {
            break;
        }
        kept.push(character);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_bounded_and_cannot_forge_a_log_line() {
        assert_eq!(Refusal::failed("no\nERROR stolen\r").text(), "no ERROR stolen ");
        assert_eq!(Refusal::failed("é".repeat(REFUSAL_BYTES_MAX)).text().len(), REFUSAL_BYTES_MAX);
    }

    #[test]
    fn a_busy_peer_neither_makes_its_asker_spin_nor_sends_it_away_for_long() {
        let clamped = |ms| Refusal::busy(Duration::from_millis(ms), "").retry_after().unwrap().as_millis();
        assert_eq!([0, 700, u64::MAX].map(clamped), [20, 700, 10_000]);
        let others = [Refusal::not_kept(""), Refusal::malformed(""), Refusal::failed("")];
        assert!(others.iter().all(|refusal| refusal.retry_after().is_none()));
        assert_eq!(Refusal::busy(Duration::from_secs(2), "later").to_string(), "busy for 2000 ms: later");
    }
}
