//! Tuning of a validator and of its pool. Nothing here shapes a format or a result.

use std::num::{NonZeroU64, NonZeroUsize};

use serde::{Deserialize, Serialize};

/// The `consensus` section of a node's configuration. The pool is used in every role, the rest by validators.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConsensusConfig {
    /// Shortest time between two batches, in milliseconds. The default keeps commit latency well under a second while a
    /// batch still pays for its fsync and its round of votes.
    pub batch_interval_ms: u64,
    /// Longest time without a batch, in milliseconds: then an empty one is made, so that the chain's time goes on. 0 makes
    /// batches only for transactions.
    pub empty_batch_interval_ms: u64,
    /// Transactions in one batch, at most. A pool that holds as many is proposed from without waiting.
    pub batch_transactions_max: NonZeroUsize,
    /// How long a primary may take for one batch, in milliseconds, before this validator wants another one. Twice as long after
    /// each view without a batch.
    pub view_timeout_ms: NonZeroU64,
    /// Batches after which the next validator becomes the primary. 0 keeps a primary for as long as it makes batches.
    pub rotate_after: u64,
    /// Batches without a divergence after which a validator waits for the outcomes of all validators before it votes. 0 never waits.
    pub protect_after: u64,
    /// How long it waits for them, in milliseconds.
    pub protect_wait_ms: u64,
    /// The transaction pool.
    pub pool: PoolConfig,
}

impl Default for ConsensusConfig {
    fn default() -> Self {
        Self {
            batch_interval_ms: 100,
            empty_batch_interval_ms: 1_000,
            batch_transactions_max: NonZeroUsize::new(10_000).expect("not zero"),
            view_timeout_ms: NonZeroU64::new(2_000).expect("not zero"),
            rotate_after: 0,
            protect_after: 0,
            protect_wait_ms: 50,
            pool: PoolConfig::default(),
        }
    }
}

/// Bounds of the transaction pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PoolConfig {
    /// Transactions in the pool, at most: ten full batches.
    pub transactions_max: usize,
    /// Bytes of all envelopes in the pool, at most.
    pub bytes_max: usize,
    /// Transactions of one sender, and how far ahead of its account a nonce may be. Generous, because load tests send from
    /// few accounts.
    pub per_sender_max: u64,
    /// How much more a replacement must pay than the transaction it replaces, in percent of both of its fees.
    pub price_bump_percent: u64,
    /// MiB of the file in the data directory that keeps what users gave this node, over a restart. 0 keeps nothing.
    pub journal_mib: u64,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            transactions_max: 100_000,
            bytes_max: 256 << 20,
            per_sender_max: 4_096,
            price_bump_percent: 10,
            journal_mib: 64,
        }
    }
}
