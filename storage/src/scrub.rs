//! [`Store::scrub`]: the state's rows compared with the tree, a little at a time, while the store is in use.
//!
//! A store that was opened by its tree's upper part ([`crate::frontier`]) has read hardly any row. What a commit or a proof touches is compared
//! on the way; the rest comes round here.

use slipstream_types::Path;

use crate::{error::StorageError, state::Tree, store::Store};

/// Parts of about two dozen rows that one step compares: some ten milliseconds.
const PARTS: usize = 512;

/// How far a round came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scrubbed {
    /// Where the next step begins; none if the last rows were compared.
    pub next: Option<Path>,
    /// Rows that were read. Those that were compared before, because somebody touched them, are left out.
    pub rows: u64,
}

impl Scrubbed {
    /// The share of all paths that lie before the next step.
    pub fn share(&self) -> f64 {
        let bytes = |path: Path| path.0.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
        self.next.map_or(1.0, |next| f64::from(bytes(next)) / 2f64.powi(32))
    }
}

impl Store {
    /// Whether there are rows that were not compared with the tree since the store was opened.
    ///
    /// # Errors
    /// [`StorageError::NotInitialized`].
    pub fn is_unread(&self) -> Result<bool, StorageError> {
        Ok(self.current()?.tree.lock().as_ref().is_some_and(Tree::is_unread))
    }

    /// Compares some of the head's rows from a path on with the tree. It takes some ten milliseconds; who calls it decides how often.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`] names the rows that are not those of the state root; or what the disk says.
    pub fn scrub(&self, from: Path) -> Result<Scrubbed, StorageError> {
        let (_, tree) = self.current_with_tree()?;
        let compared = tree.compare(&from, PARTS)?;
        Ok(Scrubbed { next: compared.next, rows: compared.rows })
    }

    /// Takes down that a whole round found nothing: every row was compared with the tree since the store was opened.
    pub fn end_scrub(&self) {
        let writer = self.writer();
        if let Ok(current) = self.current()
            && let Some(tree) = &mut *current.tree.lock()
        {
            tree.set_read();
        }
        drop(writer);
    }
}
