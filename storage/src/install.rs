//! Makes a written head the store's current one, and informs everything that follows the head.

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
        // The replaced head may still be held. Its tree is dropped here, because a commit does not take it if a
        // speculation has its own.
        drop(replaced.and_then(|replaced| replaced.tree.lock().take()));
        self.store.0.head_sender.send_replace(number);
    }

    /// Installs the head that commits reached from batch `before`, and prepares the snapshot that may soon be due.
    pub(crate) fn install_after(&self, before: BatchNumber, current: &Arc<HeadState>) {
        self.install(Arc::clone(current));
        self.prepare_snapshot(before, current.record.number);
    }
}
