//! Keeps the pool's accounts in step with the committed batches.

use std::collections::HashMap;

use slipstream_storage::StorageError;
use slipstream_types::{Address, BatchNumber, BlobKind, Delta, Rules, StateKey, StateValue};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    Pool,
    account_queue::{AccountState, Entry, Terms},
    dropped::DropReason,
    index::Arrival,
};

/// Maximum number of batches whose deltas are opened one by one. A pool that is further behind reads its senders' accounts instead.
const DELTAS_MAX: u64 = 16;

impl Pool {
    /// Applies the batch after the one that the pool has reached. Returns false, and does nothing, if `number` is
    /// another.
    pub fn on_batch(&self, number: BatchNumber, delta: &Delta) -> bool {
        let mut state = self.shared.state.lock();
        if state.head.next() != number {
            return false;
        }
        for (address, account) in accounts(delta) {
            state.index.advance(&address, account);
        }
        state.head = number;
        true
    }

    /// Brings the pool up to the store's head: by the deltas in between if they are stored, else by reading every
    /// sender's account. If a fork begins after the head, it judges every transaction anew. Blocks on the store; safe
    /// to call from several threads.
    pub fn catch_up(&self) -> Result<(), StorageError> {
        self.advance()?;
        let head = self.shared.store.head()?.header;
        let rules = self.shared.chain.rules_at(head.number.next(), head.timestamp_ms);
        if *self.shared.rules.read() != rules {
            self.judge_by(rules);
        }
        Ok(())
    }

    /// Keeps the transactions that the rules still allow, ranked by what they pay under them.
    fn judge_by(&self, rules: Rules) {
        let mut state = self.shared.state.lock();
        *self.shared.rules.write() = rules;
        let at = Instant::now();
        for (entry, account) in state.index.drain() {
            let Entry { terms: Terms { hash, authorities, .. }, is_local, is_journaled, payload, .. } = entry;
            let kept = self.terms(&payload).and_then(|terms| {
                let terms = Terms { authorities, ..terms };
                state.index.insert(terms, payload, account, Arrival { at, is_local })
            });
            match kept {
                Ok(()) if is_journaled => state.index.mark_journaled(&hash),
                Ok(()) => {}
                Err(error) => {
                    state.dropped.insert(hash, DropReason::NotExecutable, at);
                    self.count_refused(error.reason(), 1);
                }
            }
        }
    }

    fn advance(&self) -> Result<(), StorageError> {
        loop {
            let from = self.shared.state.lock().head;
            let head = self.shared.store.head()?.header.number;
            if head <= from {
                return Ok(());
            }
            if head.since(from) > DELTAS_MAX {
                return self.refresh();
            }
            // If another caller advanced the pool first, the loop looks again where the pool is.
            let Some(blob) = self.shared.store.blob(BlobKind::Delta, from.next())? else {
                return self.refresh();
            };
            let Ok(delta) = Delta::open(&blob) else {
                return self.refresh();
            };
            self.on_batch(from.next(), &delta);
        }
    }

    /// Reads the accounts of all senders at the head.
    fn refresh(&self) -> Result<(), StorageError> {
        let senders = self.shared.state.lock().index.senders();
        let view = self.shared.store.view()?;
        let keys: Vec<_> = senders.iter().map(|sender| StateKey::Account(*sender)).collect();
        let rows = view.rows(&keys)?;
        let number = view.head().number;
        let mut read: HashMap<Address, AccountState> =
            senders.into_iter().zip(rows.into_iter().map(|row| account(row.as_ref()))).collect();
        let mut state = self.shared.state.lock();
        if number <= state.head {
            return Ok(());
        }
        // A sender that arrived while the lock was free was read at a head that may be older than this one.
        for sender in state.index.senders() {
            let account = match read.remove(&sender) {
                Some(account) => account,
                None => view.account(&sender)?.unwrap_or_default().into(),
            };
            state.index.advance(&sender, account);
        }
        state.head = number;
        Ok(())
    }
}

/// The accounts that a batch changed. A deleted account counts as empty.
fn accounts(delta: &Delta) -> impl Iterator<Item = (Address, AccountState)> + '_ {
    delta.entries().iter().filter_map(|entry| match entry.key {
        StateKey::Account(address) => Some((address, account(entry.value.as_ref()))),
        StateKey::Slot(..) => None,
    })
}

fn account(value: Option<&StateValue>) -> AccountState {
    match value {
        Some(StateValue::Account(account)) => (*account).into(),
        Some(StateValue::Slot(_)) | None => AccountState::default(),
    }
}

/// Follows the store's head until shutdown. A node runs one of these, in every role.
pub async fn maintain(pool: Pool, shutdown: CancellationToken) {
    let mut head = pool.shared.store.watch_head();
    loop {
        let behind = pool.clone();
        match tokio::task::spawn_blocking(move || behind.catch_up()).await {
            Ok(Ok(())) => {}
            // The pool stays behind, which costs rejected candidates but no wrong result; the next batch tries again.
            Ok(Err(error)) => {
                tracing::warn!(%error, "the transaction pool cannot follow the head; the next batch tries again")
            }
            // A bug: it ends this task, and with it the node.
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_cancelled) => return,
            },
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            changed = head.changed() => if changed.is_err() { return },
        }
    }
}
