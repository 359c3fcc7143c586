//! [`Density`]: how densely rows lie at the end of a chunk, and how that divides the rest of its range.
//!
//! Paths are hashes, but all rows of one account lie side by side after the hash of its address. So one range may
//! have most of a state's rows, those of a large contract. If it were requested as a whole, each chunk would begin
//! where the one before ended, and cost a round trip of its own. If it is divided, its chunks are fetched in
//! parallel.

use slipstream_types::{Path, state::PATH_ACCOUNT_BYTES};

use crate::span::{Span, predecessor};

/// If a chunk ends early while its takeover has fewer ranges than this, the rest of the range is divided. A range delta
/// begins with half as many. More ranges would add files and requests without hiding more round trips.
pub(crate) const RANGES_WANTED: usize = 32;
/// With fewer rows, a chunk says little about the rows after it.
const ROWS_MIN: usize = 256;
/// Ranges are sized to fill at most this many sixteenths of a chunk. Rows are uneven, and a range slightly larger than a
/// chunk costs a second round trip.
const CHUNK_SIXTEENTHS: u128 = 15;

/// The paths of the middle row of a chunk and of its last one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Density {
    middle: Path,
    last: Path,
}

impl Density {
    /// The density of a chunk of `rows` rows; `path` returns the path of a row by its index. `None` if the rows are
    /// too few.
    pub(crate) fn of(rows: usize, path: impl Fn(usize) -> Path) -> Option<Density> {
        (rows >= ROWS_MIN).then(|| Density { middle: path(rows / 2), last: path(rows - 1) })
    }

    /// Divides the rest of the chunk's range into about `parts` ranges. None of them should have far less than half a
    /// chunk. The ranges end at multiples of a power of two. So takeovers that divide alike ask for the same ranges,
    /// and a server makes each answer once.
    pub(crate) fn divide(&self, rest: Span, parts: usize) -> Vec<Span> {
        let mut spans = Vec::new();
        let mut first = rest.first;
        for start in self.starts(rest, parts) {
            if let Some(last) = predecessor(start) {
                spans.push(Span { first, last });
                first = start;
            }
        }
        spans.push(Span { first, last: rest.last });
        spans
    }

    /// Returns where the ranges after the first one begin.
    fn starts(&self, rest: Span, parts: usize) -> Vec<Path> {
        // Within one account only the bytes after its own part differ. The dense part ends with the account.
        let at = if account(&self.middle) == account(&self.last) { PATH_ACCOUNT_BYTES } else { 0 };
        let mut dense = rest;
        dense.last.0[..at].copy_from_slice(&self.last.0[..at]);
        dense.last.0[at..].fill(0xff);
        dense.last = dense.last.min(rest.last);
        if parts < 2 || rest.first.0[..at] != self.last.0[..at] {
            return Vec::new();
        }
        let position = |path: &Path| u128::from_be_bytes(std::array::from_fn(|index| path.0[at + index]));
        let (from, to) = (position(&dense.first), position(&dense.last));
        let chunk = position(&self.last).saturating_sub(position(&self.middle)).saturating_mul(2);
        let fits = (chunk / 16 * CHUNK_SIXTEENTHS).max(1);
        let least = (to.saturating_sub(from) / parts as u128).saturating_add(1);
        let (true, Some(least)) = (to.saturating_sub(from) > chunk, least.checked_next_power_of_two()) else {
            return Vec::new();
        };
        let step = least.max(1 << fits.ilog2());
        let next = |position: u128| {
            let next = (position / step).checked_add(1)?.checked_mul(step)?;
            (next <= to).then_some(next)
        };
        let start = |position: u128| {
            let mut path = Path::MIN;
            path.0[..at].copy_from_slice(&self.last.0[..at]);
            path.0[at..at + size_of::<u128>()].copy_from_slice(&position.to_be_bytes());
            path
        };
        let within = std::iter::successors(next(from), |position| next(*position)).map(start);
        let behind = dense.last.successor().filter(|path| *path <= rest.last);
        within.chain(behind).collect()
    }
}

fn account(path: &Path) -> &[u8] {
    &path.0[..PATH_ACCOUNT_BYTES]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A path of the account 0x11…, at `position` 65,536ths of its rows.
    fn slot(position: u16) -> Path {
        let mut path = Path([0x11; 32]);
        path.0[PATH_ACCOUNT_BYTES..].fill(0);
        path.0[PATH_ACCOUNT_BYTES..][..2].copy_from_slice(&position.to_be_bytes());
        path
    }

    fn rest(first: Path) -> Span {
        let mut last = Path::MAX;
        last.0[0] = 0x1f;
        Span { first, last }
    }

    #[track_caller]
    fn check(spans: &[Span], rest: Span) {
        assert_eq!((spans[0].first, spans[spans.len() - 1].last), (rest.first, rest.last));
        assert!(spans.iter().all(|span| span.first <= span.last), "{spans:?}");
        assert!(spans.windows(2).all(|pair| pair[0].last.successor() == Some(pair[1].first)), "{spans:?}");
    }

    #[test]
    fn the_rest_of_an_account_is_divided_into_chunks() {
        // A chunk has an eighth of the account's rows and a little more.
        let density = Density { middle: slot(0x1100), last: slot(0x2200) };
        let rest = rest(slot(0x2200).successor().unwrap());
        let spans = density.divide(rest, 16);
        check(&spans, rest);
        let starts: Vec<Path> = spans.iter().map(|span| span.first).collect();
        let behind = [0x3000, 0x4000, 0x5000, 0x6000, 0x7000].map(slot);
        assert_eq!(starts[1..6], behind[..], "{starts:?}");
        assert_eq!(spans.len(), 15, "the last one is what lies behind the account: {starts:?}");
        // With fewer parts they are longer.
        let spans = density.divide(rest, 5);
        check(&spans, rest);
        assert_eq!(spans.len(), 5, "{spans:?}");
        assert_eq!(density.divide(rest, 1), [rest]);
    }

    #[test]
    fn accounts_are_divided_evenly() {
        let path = |position: u8| Path([position; 32]);
        let density = Density { middle: path(2), last: path(4) };
        let all = Span { first: path(4).successor().unwrap(), last: path(0x3f) };
        let spans = density.divide(all, 16);
        check(&spans, all);
        assert_eq!((spans.len(), spans[1].first.0[0], spans[2].first.0[0]), (15, 8, 12), "{spans:?}");
    }

    /// Goal: whatever the ends, the ranges cover the rest without a gap, and are not many more than requested.
    #[test]
    fn any_rest_stays_whole() {
        let paths =
            [Path::MIN, slot(0), slot(1), slot(0xffff), Path([0x11; 32]), Path([0xfe; 32]), Path::MAX];
        for (middle, last) in paths.iter().flat_map(|middle| paths.iter().map(move |last| (*middle, *last))) {
            let Some(first) = last.successor().filter(|_| middle <= last) else { continue };
            for end in paths.into_iter().filter(|end| *end >= first) {
                for parts in [0, 1, 2, 3, 16] {
                    let rest = Span { first, last: end };
                    let spans = Density { middle, last }.divide(rest, parts);
                    check(&spans, rest);
                    assert!(spans.len() <= parts + 2, "{middle:?}, {rest:?}: {spans:?}");
                }
            }
        }
    }

    #[test]
    fn few_rows_tell_nothing() {
        assert!(Density::of(ROWS_MIN - 1, |_| Path::MIN).is_none());
        let density = Density::of(ROWS_MIN, |index| slot(index as u16)).unwrap();
        assert_eq!((density.middle, density.last), (slot(128), slot(255)));
    }
}
