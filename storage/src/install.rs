//! Makes a written head the store's: everything that follows the head learns of it.

use std::sync::Arc;

use slipstream_types::BatchNumber;

use crate::{shared::HeadState, writer::Writer};

impl Writer<'_> {
    /// Makes a written head the current one.
    pub(crate) fn install(&self, current: Arc<HeadState>) {
        let number = current.record.number;
        self.hold(&current);
        self.store.keep_within(&mut self.store.0.trees.lock(), &current);
        let replaced = self.store.0.current.write().replace(current);
        // It may be held. If nothing was made of its tree, because a speculation had its own, that tree would keep
        // its memory.
        drop(replaced.and_then(|replaced| replaced.tree.lock().take()));
        self.store.0.head_sender.send_replace(number);
    }

    /// Installs a head that commits led to from batch `before`, and prepares the snapshot that may soon be due.
    pub(crate) fn install_after(&self, before: BatchNumber, current: &Arc<HeadState>) {
        self.install(Arc::clone(current));
        self.prepare_snapshot(before, current.record.number);
    }
}
