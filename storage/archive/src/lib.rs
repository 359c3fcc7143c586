//! Snapshots in object storage: exporters write them, readers verify them, and snapshots share equal pieces.
//!
//! ```text
//!   Store ─ Snapshot ─▶ pieces, code packs ─ those that are not there ─▶ objects      s3://bucket/prefix, file:///dir
//!                                    └─ names of all ─▶ manifest, last ─▶ object
//!   Store ◀─ restore ◀─ every piece against its name ◀─ manifest against what is trusted ◀─ s3://, https://, file://
//! ```
//!
//! * [`Location`]: where an archive is; never with credentials.
//! * [`Archive`]: [`Archive::snapshots`] lists it, [`Archive::export`] adds a snapshot of a store,
//!   [`Archive::export_snapshot`] adds a given one, and [`Archive::prune`] removes old ones.
//! * [`ArchivedSnapshot`]: a snapshot whose manifest is of the trusted ledger. [`ArchivedSnapshot::verify`] reads all
//!   of it, and [`ArchivedSnapshot::import`] makes it the state of an empty store. A running node requests parts of
//!   it, as from a peer.
//!
//! A reader trusts nothing in an archive. A piece of state is named by the hash of its subtree, and the list of all
//! pieces gives the state root. Validators certify the root, and the genesis or a waypoint leads to them. Every
//! object is bounded before it is read.
//!
//! Invariants:
//! * A manifest is written after all objects that it names. An export that dies leaves no snapshot, only pieces that
//!   the next export uses.
//! * A piece's name is never reused: it ends with a random number that the writing export draws. So deleted objects
//!   stay deleted, and a late delete hits no newer object.
//! * An object stays while a snapshot names it or may name it, and for [`GRACE`] afterwards: [`Archive::prune`] has the
//!   proof.
//!
//! ```
//! use slipstream_archive::Location;
//!
//! let location: Location = "s3://snapshots/mainnet".parse().unwrap();
//! assert_eq!(location.to_string(), "s3://snapshots/mainnet");
//! assert!("s3://key:secret@snapshots/mainnet".parse::<Location>().is_err());
//! ```

mod bounded;
mod entry;
mod error;
mod export;
#[doc(hidden)]
pub mod fuzzed;
mod index;
mod location;
mod manifest;
mod names;
mod prune;
mod snapshot;
mod store;
mod supply;

pub use entry::ArchiveEntry;
pub use error::ArchiveError;
pub use export::ExportReport;
pub use location::{Location, LocationError};
pub use manifest::ArchiveSummary;
pub use prune::{ArchivePruneReport, DamagePolicy, DamagedManifest, GRACE};
pub use snapshot::ArchivedSnapshot;
pub use store::{Archive, Patience, Settings};
pub use supply::SupplyError;
