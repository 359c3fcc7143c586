//! The parts of a validator that a simulator uses: its [`Seams`], its messages, and the records that it reads.

use slipstream_eve::Record;
use slipstream_storage::{StorageError, Store};
use slipstream_types::{BatchNumber, Digest};

use crate::{error::RecordError, validator};
pub use crate::{
    planted::{Defences, NotPlantable, Planted},
    seams::{Machine, Seams, Work},
    validator::{Ordered, OutcomeParts, Request, Response, decode_request, decode_response, domain, encode},
};

/// The record that binds the votes of the validator on this store.
///
/// # Errors
/// If it cannot be read.
pub fn votes(store: &Store) -> Result<Option<Record>, RecordError> {
    validator::votes(store)
}

/// The tokens of the outcomes of a batch that are kept in the store.
///
/// # Errors
/// If it cannot be read.
pub fn kept(store: &Store, number: BatchNumber) -> Result<Vec<Digest>, StorageError> {
    validator::kept_tokens(store, number)
}
