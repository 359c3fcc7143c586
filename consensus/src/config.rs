//! Tuning of a validator and of its pool. Nothing here shapes a format or a result.

use std::num::{NonZeroU64, NonZeroUsize};

use serde::{Deserialize, Serialize};

/// The `consensus` section of a node's configuration. The pool is used in every role, the rest by validators.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ConsensusConfig {
    /// Longest time from the beginning of one batch to that of the next, while transactions wait. Where batches are committed sooner,
    /// the primary waits for twice the time that they take, and for half of this interval at least. It begins a full batch at once.
    /// With 0 it begins each batch as soon as there is a transaction.
    pub batch_interval_ms: u64,
    /// Longest time without a batch; then an empty one is made, so that the chain's time goes on. 0 makes batches only for
    /// transactions: then set `sync.head_age_max_s` on all nodes, as it says there. Else at least `batch_interval_ms`.
    pub empty_batch_interval_ms: u64,
    /// Transactions in one batch. A pool that holds as many is proposed from without waiting.
    pub batch_transactions_max: NonZeroUsize,
    /// How long the primary may take for one batch before this validator wants the next one in its place; twice as long after each
    /// view without a batch. A quorum that wants it ends the view. A quarter of it bounds how long a batch may take. Many times
    /// what a batch takes: a view change costs a moment without batches.
    pub view_timeout_ms: NonZeroU64,
    /// Batches after which the next validator becomes the primary, so that all have their share of fees and of the work, and none leaves
    /// out whom it likes for long. A time in which a batch is due and none is decided counts too: some seconds of it end a term. A rotation costs
    /// some round trips without a batch, the work that was ahead, and one batch that is executed sequentially: once in a minute or
    /// two under load it is not noticed. 0 keeps a primary for as long as it makes batches.
    pub rotate_after: u64,
    /// Eve's extra protection: after so many batches without a divergence a validator waits for the outcomes of all validators
    /// before it votes, and suspects the execution if one differs, so that a fault that most share is not certified at once. 0
    /// never waits.
    pub protect_after: u64,
    /// How long it waits for them. It adds to the latency of every batch where a validator is down.
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
            rotate_after: 1_000,
            protect_after: 0,
            protect_wait_ms: 50,
            pool: PoolConfig::default(),
        }
    }
}

/// Bounds of the transaction pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PoolConfig {
    /// Transactions in the pool: ten full batches.
    pub transactions_max: usize,
    /// Bytes of all transactions in the pool.
    pub bytes_max: usize,
    /// Transactions of one sender, and how far ahead of its account a nonce may be. Generous, because load tests send from few
    /// accounts.
    pub per_sender_max: u64,
    /// How much more a replacement must pay than what it replaces, in both of its fees.
    pub price_bump_percent: u64,
    /// MiB of `transactions.journal` in the data directory: what `eth_sendRawTransaction` took is in it before it is acknowledged,
    /// and goes on its way again after a restart. It holds about 300,000 transfers: one sender's take a sixteenth at most, and of a
    /// full one those that wait for a nonce or for funds an eighth. 0 keeps nothing.
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
