//! [`Span`]: a range of paths of a state.

use serde::{Deserialize, Serialize};
use slipstream_types::{Path, state::PATH_ACCOUNT_BYTES};

/// The paths from one to another, both included.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Span {
    /// The first path of the span, inclusive.
    pub first: Path,
    /// The last path of the span, inclusive.
    pub last: Path,
}

impl Span {
    /// The span of all paths.
    pub const ALL: Span = Span { first: Path::MIN, last: Path::MAX };

    /// The part that both spans have.
    pub(crate) fn both(self, other: Span) -> Option<Span> {
        let span = Span { first: self.first.max(other.first), last: self.last.min(other.last) };
        (span.first <= span.last).then_some(span)
    }

    /// Divides all paths into `2^bits` spans of the same width; `bits` is at most 8.
    pub fn divided(bits: u8) -> Vec<Span> {
        let width = 1u16 << (8 - bits);
        let span = |i: u16| {
            let (mut first, mut last) = (Path::MIN, Path::MAX);
            first.0[0] = (i * width) as u8;
            last.0[0] = ((i + 1) * width - 1) as u8;
            Span { first, last }
        };
        (0..1u16 << bits).map(span).collect()
    }

    /// Whether all its paths are of one account's rows. Its share of all paths then says nothing about its rows.
    pub fn is_within_account(self) -> bool {
        self.first.0[..PATH_ACCOUNT_BYTES] == self.last.0[..PATH_ACCOUNT_BYTES]
    }

    /// Its share of all paths, from 0 to 1.
    pub fn share(self) -> f64 {
        let position = |path: Path| {
            let mut first = [0; 8];
            first.copy_from_slice(&path.0[..8]);
            u64::from_be_bytes(first) as f64 / u64::MAX as f64
        };
        position(self.last) - position(self.first)
    }
}

/// Returns the path before this one; `None` for [`Path::MIN`].
pub(crate) fn predecessor(path: Path) -> Option<Path> {
    let mut previous = path.0;
    for byte in previous.iter_mut().rev() {
        let (difference, borrow) = byte.overflowing_sub(1);
        *byte = difference;
        if !borrow {
            return Some(Path(previous));
        }
    }
    None
}
