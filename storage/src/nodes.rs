//! Reads the accumulator's nodes.

use slipstream_types::{
    BatchNumber, Digest,
    accumulator::{Accumulator, NodePosition},
};

use crate::{
    backend::{Column, Reader},
    error::StorageError,
    schema,
};

pub(crate) fn read_node(reader: &dyn Reader, position: NodePosition) -> Result<Option<Digest>, StorageError> {
    reader
        .get(Column::Nodes, &schema::node_key(position))?
        .map(|bytes| schema::decode_digest(&bytes))
        .transpose()
}

/// Runs a computation over accumulator nodes on a reader. The computation's lookups cannot fail; the reader's can, and
/// their error is returned.
pub(crate) fn with_nodes<T>(
    reader: &dyn Reader,
    compute: impl FnOnce(&dyn Fn(NodePosition) -> Option<Digest>) -> T,
) -> Result<T, StorageError> {
    let failure = std::cell::RefCell::new(None);
    let result = compute(&|position| {
        read_node(reader, position).unwrap_or_else(|error| {
            failure.replace(Some(error));
            None
        })
    });
    failure.into_inner().map_or(Ok(result), Err)
}

/// Loads the accumulator over the headers 0 to `number`; `None` if nodes of it are missing.
pub(crate) fn load_accumulator(
    reader: &dyn Reader,
    number: BatchNumber,
) -> Result<Option<Accumulator>, StorageError> {
    with_nodes(reader, |node| Accumulator::load(number.leaves(), node))
}
