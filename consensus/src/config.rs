//! Tuning of a validator and its pool. Nothing here affects a format or a result.

use std::num::{NonZeroU64, NonZeroUsize};

use serde::{Deserialize, Serialize};

/// The `consensus` section of a node's configuration. Every role uses the pool; only validators use the rest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ConsensusConfig {
    /// Longest time from the beginning of one batch to the beginning of the next, while transactions wait. If batches
    /// are committed sooner, the primary waits for twice the time that they take, but for at least half of this
    /// interval. It begins a full batch at once. With 0 it begins each batch as soon as there is a transaction.
    pub batch_interval_ms: u64,
    /// Longest time without a batch. After it an empty batch is made, so that the chain's time advances. 0 makes
    /// batches only for transactions: then set `sync.head_age_max_s` on all nodes, as described there. Any other value
    /// must be at least `batch_interval_ms`.
    pub empty_batch_interval_ms: u64,
    /// Transactions in one batch. If the pool holds that many, the primary proposes without waiting.
    pub batch_transactions_max: NonZeroUsize,
    /// How long the primary may take for one batch before this validator wants the next validator as primary. The time
    /// doubles after each view without a batch. A view ends once a quorum wants that. A quarter of this time bounds how
    /// long a batch may take. Set it to many times what a batch takes: a view change costs a moment without batches.
    pub view_timeout_ms: NonZeroU64,
    /// Batches after which the next validator becomes the primary. So all have their share of fees and of the work, and
    /// none can omit certain senders' transactions for long. Time in which a batch is due and none is decided counts
    /// too: some seconds of it end a term. A rotation costs some round trips without a batch, the work that was ahead,
    /// and one batch that is executed sequentially. Once in a minute or two under load, that goes unnoticed. 0 keeps a
    /// primary for as long as it makes batches.
    pub rotate_after: u64,
    /// Eve's extra protection. After this many batches without a divergence, a validator waits for the outcomes of all
    /// validators before it votes. If one differs, it suspects the execution, so a fault that most validators share is
    /// not certified at once. 0 never waits.
    pub protect_after: u64,
    /// How long a validator waits for those outcomes. While a validator is down, this adds to the latency of every
    /// batch.
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
    /// Transactions of one sender, and how far a nonce may be ahead of its account. Generous, because load tests send
    /// from few accounts.
    pub per_sender_max: u64,
    /// How many percent more a replacement must pay than the transaction that it replaces, in both of its fees.
    pub price_bump_percent: u64,
    /// Size of `transactions.journal` in the data directory, in MiB. A transaction that `eth_sendRawTransaction`
    /// accepted is in it before it is acknowledged, and is sent on again after a restart. It holds about 300,000
    /// transfers. One sender's transactions take a sixteenth of it at most. When it is full, those that wait for a
    /// nonce or for funds take an eighth at most. 0 keeps nothing.
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
