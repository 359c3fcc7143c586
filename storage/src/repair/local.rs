//! [`LocalRows`]: the rows of a state as they are on disk, with the code that their accounts name.

use std::{collections::BTreeSet, ops::ControlFlow, sync::Arc};

use parking_lot::Mutex;
use slipstream_types::{
    Digest, Path, keccak256,
    tree::{Leaf, Leaves},
};

use crate::{
    backend::{Column, Direction, Reader},
    chunk,
    error::StorageError,
    schema,
    span::Span,
    state::RowSource,
};

/// Codes that are looked up at once; this bounds memory too.
const CODES_AT_ONCE: usize = 256;

/// The rows of one state column, as one reader sees them.
pub(super) struct LocalRows {
    reader: Arc<dyn Reader>,
    column: Column,
    /// Code hashes that accounts name, from all rows that were read as leaves.
    codes: Mutex<BTreeSet<Digest>>,
}

impl LocalRows {
    pub(super) fn new(reader: Arc<dyn Reader>, column: Column) -> Arc<LocalRows> {
        Arc::new(LocalRows { reader, column, codes: Mutex::default() })
    }

    /// Visits the rows of a span in the order of their paths.
    pub(super) fn each(
        &self,
        span: Span,
        mut visit: impl FnMut(Path, &[u8]) -> Result<(), StorageError>,
    ) -> Result<(), StorageError> {
        self.reader.scan(self.column, &span.first.0, Direction::Up, &mut |key, row| {
            let path = Path(schema::decode_digest(key)?.0);
            if path > span.last {
                return Ok(ControlFlow::Break(()));
            }
            visit(path, row).map(ControlFlow::Continue)
        })
    }

    /// Returns the hashes of the code that accounts name.
    pub(super) fn codes(&self) -> BTreeSet<Digest> {
        self.codes.lock().clone()
    }
}

impl RowSource for LocalRows {
    fn leaves(&self, first: &Path, last: &Path) -> Result<Vec<Leaf>, StorageError> {
        let (mut leaves, mut codes) = (Leaves::default(), BTreeSet::new());
        self.each(Span { first: *first, last: *last }, |path, row| {
            codes.extend(chunk::code_hash(row));
            leaves.push(path, row);
            Ok(())
        })?;
        self.codes.lock().append(&mut codes);
        Ok(leaves.finish())
    }
}

/// Returns those of the given codes that are missing, or whose bytes do not match their hash.
pub(super) fn bad_codes(
    reader: &dyn Reader,
    hashes: &BTreeSet<Digest>,
) -> Result<BTreeSet<Digest>, StorageError> {
    let hashes: Vec<Digest> = hashes.iter().copied().collect();
    let mut bad = BTreeSet::new();
    for some in hashes.chunks(CODES_AT_ONCE) {
        let keys: Vec<&[u8]> = some.iter().map(|hash| &hash.0[..]).collect();
        let stored = reader.multi_get(Column::Codes, &keys)?;
        let is_bad = |code: &Option<Vec<u8>>, hash: &Digest| {
            code.as_ref().is_none_or(|code| Digest::from(keccak256(code)) != *hash)
        };
        bad.extend(some.iter().zip(&stored).filter(|(hash, code)| is_bad(code, hash)).map(|(hash, _)| *hash));
    }
    Ok(bad)
}
