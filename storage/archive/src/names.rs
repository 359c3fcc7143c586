//! The names of objects. docs/formats.md lists them.

use slipstream_types::{BatchNumber, Digest, LedgerInfo, Waypoint};

use crate::error::ArchiveError;

pub(crate) const GENESIS: &str = "genesis";
pub(crate) const PIECES: &str = "pieces";
pub(crate) const CODES: &str = "codes";
pub(crate) const SNAPSHOTS: &str = "snapshots";
pub(crate) const RETIRED: &str = "retired";
pub(crate) const INDEX: &str = "index";
pub(crate) const CLOCK: &str = "clock";

/// A random number. Each export draws one, and so does each retirement of a manifest, so that all write different
/// names.
pub(crate) type RunId = u64;

/// Digits of a batch number in a name, so that names sort as their batches do.
const NUMBER_DIGITS: usize = 20;

pub(crate) fn genesis(hash: &Digest) -> String {
    format!("{GENESIS}/{}", hex::encode(hash.0))
}

/// The first byte also comes before the hash, for stores that divide their load by names.
pub(crate) fn piece(hash: &Digest, run: RunId) -> String {
    format!("{PIECES}/{:02x}/{}-{run:016x}", hash.0[0], hex::encode(hash.0))
}

pub(crate) fn pack(digest: &Digest, run: RunId) -> String {
    format!("{CODES}/{}-{run:016x}", hex::encode(digest.0))
}

/// Returns the hash and the run at the end of a piece's or pack's name; `None` for other names.
pub(crate) fn hash_and_run(name: &str) -> Option<(Digest, RunId)> {
    let (hash, run) = name.rsplit('/').next()?.split_once('-')?;
    let run = (run.len() == 16).then(|| u64::from_str_radix(run, 16).ok()).flatten()?;
    Some((digest(hash)?, run))
}

/// Returns the folder of a retired manifest.
pub(crate) fn retired(run: RunId) -> String {
    format!("{RETIRED}/{run:016x}")
}

/// Returns the run in the name of a retired manifest.
pub(crate) fn run_of_retired(name: &str) -> Option<RunId> {
    let run = name.rsplit('/').nth(1).filter(|run| run.len() == 16)?;
    u64::from_str_radix(run, 16).ok()
}

pub(crate) fn draw_run() -> Result<RunId, ArchiveError> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|error| ArchiveError::Random(error.to_string()))?;
    Ok(RunId::from_le_bytes(bytes))
}

/// Names a manifest by the waypoint of its batch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct SnapshotName {
    pub(crate) number: BatchNumber,
    pub(crate) hash: Digest,
}

impl SnapshotName {
    pub(crate) fn of(info: &LedgerInfo) -> SnapshotName {
        let Waypoint { number, hash } = Waypoint::of(info);
        SnapshotName { number, hash }
    }

    pub(crate) fn waypoint(&self) -> Waypoint {
        Waypoint { number: self.number, hash: self.hash }
    }

    /// Returns the name of its object in a folder.
    pub(crate) fn within(&self, folder: &str) -> String {
        let number = self.number.get();
        format!("{folder}/{number:0width$}-{}", hex::encode(self.hash.0), width = NUMBER_DIGITS)
    }

    /// Parses the name of a manifest; `None` for other names.
    pub(crate) fn parse(name: &str) -> Option<SnapshotName> {
        let (number, hash) = name.rsplit('/').next()?.split_once('-')?;
        let is_number = number.len() == NUMBER_DIGITS && number.bytes().all(|byte| byte.is_ascii_digit());
        let number = is_number.then(|| number.parse().ok()).flatten()?;
        Some(SnapshotName { number: BatchNumber::new(number), hash: digest(hash)? })
    }
}

fn digest(digits: &str) -> Option<Digest> {
    let mut bytes = [0; 32];
    let is_lower = digits.bytes().all(|byte| !byte.is_ascii_uppercase());
    (is_lower && hex::decode_to_slice(digits, &mut bytes).is_ok()).then_some(Digest(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        let hash = Digest([0xab; 32]);
        let name = SnapshotName { number: BatchNumber::new(1_234), hash };
        let text = name.within(SNAPSHOTS);
        assert_eq!(text, format!("snapshots/00000000000000001234-{}", "ab".repeat(32)));
        assert_eq!(SnapshotName::parse(&text), Some(name));
        assert_eq!(piece(&hash, 5), format!("pieces/ab/{}-0000000000000005", "ab".repeat(32)));
        assert_eq!(hash_and_run(&piece(&hash, 5)), Some((hash, 5)));
        assert_eq!(hash_and_run(&pack(&hash, u64::MAX)), Some((hash, u64::MAX)));
        for other in ["", "x", "snapshots/1-ab", "pieces/ab/ab-5", "snapshots/00000000000000001234-AB"] {
            assert_eq!((SnapshotName::parse(other), hash_and_run(other)), (None, None), "{other}");
        }
        let upper = text.replace("ab", "AB");
        assert_eq!(SnapshotName::parse(&upper), None, "one object has one name");
    }
}
