//! [`ArchiveEntry`]: what a listing says about a snapshot.

use object_store::ObjectMeta;
use slipstream_types::{BatchNumber, Waypoint};

use crate::names::SnapshotName;

/// A snapshot that an archive claims to have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArchiveEntry {
    pub(crate) name: SnapshotName,
    /// Bytes of its manifest.
    pub manifest_bytes: u64,
    /// When the manifest was written, by the archive's clock, in milliseconds since 1970.
    pub modified_ms: u64,
}

impl ArchiveEntry {
    /// Number of the snapshot's batch.
    pub fn number(&self) -> BatchNumber {
        self.name.number
    }

    /// Returns the waypoint that the snapshot satisfies if it is what its name says.
    pub fn waypoint(&self) -> Waypoint {
        self.name.waypoint()
    }

    pub(crate) fn of(meta: &ObjectMeta) -> Option<ArchiveEntry> {
        let name = SnapshotName::parse(meta.location.as_ref())?;
        Some(ArchiveEntry { name, manifest_bytes: meta.size, modified_ms: modified_ms(meta) })
    }
}

/// Returns when an object was written, by the archive's clock, in milliseconds since 1970.
pub(crate) fn modified_ms(meta: &ObjectMeta) -> u64 {
    u64::try_from(meta.last_modified.timestamp_millis()).unwrap_or_default()
}
