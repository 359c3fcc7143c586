//! The valid range of each numeric key, in one table.

use std::ops::RangeInclusive;

use slipstream_sync::protocol::{RANGE_BATCHES_MAX, RANGE_BYTES_MAX};
use slipstream_types::limits::{BATCH_TRANSACTIONS_MAX, TRANSACTION_BYTES_MAX};

use crate::{NodeConfig, error::RuleViolation};

/// The smallest limit on request bodies that admits the largest transaction, which a request has in hexadecimal.
pub(crate) const BODY_BYTES_MIN: u64 = 2 * TRANSACTION_BYTES_MAX as u64 + 1_024;

/// More memory than any machine has, and far below an overflow when counted in bytes.
const MEMORY_MIB_MAX: u64 = 1 << 24;
/// More threads than any machine needs, and few enough for a system to start them.
const THREADS_MAX: u64 = 1_024;
/// A pool with this number of transactions takes tens of GiB.
const POOL_TRANSACTIONS_MAX: u64 = 10_000_000;

/// Refuses a number outside its key's range.
pub(crate) fn check(config: &NodeConfig) -> Result<(), RuleViolation> {
    for (key, value, range) in own_numbers(config) {
        if !range.contains(&value) {
            let (least, most) = (range.start(), range.end());
            return Err(RuleViolation::new(key, format!("must be from {least} to {most}, not {value}")));
        }
    }
    let (batch_ms, empty_ms) = (config.consensus.batch_interval_ms, config.consensus.empty_batch_interval_ms);
    if empty_ms > 0 && empty_ms < batch_ms {
        let problem = format!(
            "must be 0, or at least the {batch_ms} of consensus.batch_interval_ms, not {empty_ms}: an empty batch waits at least as long as any other"
        );
        return Err(RuleViolation::new("consensus.empty_batch_interval_ms", problem));
    }
    Ok(())
}

/// Returns every key that has a range, with its smallest and its largest value.
pub(crate) fn all() -> Vec<(&'static str, RangeInclusive<u64>)> {
    let config = NodeConfig::default();
    let numbers = own_numbers(&config).into_iter().chain(config.network.ranges());
    numbers.map(|(key, _, range)| (key, range)).collect()
}

/// Returns key, value and range. Omits keys that work with any number, and the keys of `network`, which checks its own
/// numbers.
fn own_numbers(config: &NodeConfig) -> Vec<(&'static str, u64, RangeInclusive<u64>)> {
    let NodeConfig { broadcast, storage, executor, sync, consensus, api, log, .. } = config;
    let pool = &consensus.pool;
    let count = |value: usize| value as u64;
    vec![
        ("broadcast.degree", broadcast.degree.into(), 1..=1_024),
        ("broadcast.send_cap", broadcast.send_cap.into(), 1..=64),
        ("storage.block_cache_mib", storage.block_cache_mib, 0..=MEMORY_MIB_MAX),
        ("storage.tree_memory_mib", storage.tree_memory_mib, 0..=MEMORY_MIB_MAX),
        ("storage.snapshots_kept", count(storage.snapshots_kept), 0..=1_000),
        ("storage.disk_free_min_mib", storage.disk_free_min_mib, 0..=MEMORY_MIB_MAX),
        ("executor.prefetch_threads", count(executor.prefetch_threads), 0..=THREADS_MAX),
        ("executor.readahead_batches", count(executor.readahead_batches), 0..=4_096),
        ("executor.readahead_mib", count(executor.readahead_mib), 0..=MEMORY_MIB_MAX),
        ("executor.hot_cache_mib", count(executor.hot_cache_mib), 0..=MEMORY_MIB_MAX),
        ("executor.threads", count(executor.threads), 0..=THREADS_MAX),
        ("sync.range_batches_max", sync.range_batches_max.get().into(), 1..=RANGE_BATCHES_MAX.into()),
        ("sync.range_bytes_max", sync.range_bytes_max.get().into(), 65_536..=RANGE_BYTES_MAX.into()),
        ("sync.request_deadline_ms", sync.request_deadline_ms.get(), 100..=600_000),
        ("sync.buffer_mib", sync.buffer_mib.get().into(), 1..=MEMORY_MIB_MAX),
        ("sync.serve_cache_mib", sync.serve_cache_mib.into(), 0..=MEMORY_MIB_MAX),
        (
            "sync.serve_peer_work_ms_per_second",
            sync.serve_peer_work_ms_per_second.get().into(),
            10..=1_000_000,
        ),
        ("consensus.batch_interval_ms", consensus.batch_interval_ms, 0..=60_000),
        ("consensus.empty_batch_interval_ms", consensus.empty_batch_interval_ms, 0..=86_400_000),
        (
            "consensus.batch_transactions_max",
            count(consensus.batch_transactions_max.get()),
            1..=count(BATCH_TRANSACTIONS_MAX),
        ),
        ("consensus.view_timeout_ms", consensus.view_timeout_ms.get(), 100..=600_000),
        ("consensus.rotate_after", consensus.rotate_after, 0..=1_000_000_000),
        ("consensus.protect_after", consensus.protect_after, 0..=1_000_000_000),
        ("consensus.protect_wait_ms", consensus.protect_wait_ms, 0..=60_000),
        ("consensus.pool.transactions_max", count(pool.transactions_max), 1..=POOL_TRANSACTIONS_MAX),
        ("consensus.pool.bytes_max", count(pool.bytes_max), count(TRANSACTION_BYTES_MAX)..=1 << 40),
        ("consensus.pool.per_sender_max", pool.per_sender_max, 1..=POOL_TRANSACTIONS_MAX),
        ("consensus.pool.price_bump_percent", pool.price_bump_percent, 1..=1_000),
        ("consensus.pool.journal_mib", pool.journal_mib, 0..=1_024),
        ("api.max_body_bytes", count(api.max_body_bytes), BODY_BYTES_MIN..=1 << 30),
        ("api.max_connections", count(api.max_connections.get()), 1..=65_536),
        ("api.max_connections_per_address", count(api.max_connections_per_address.get()), 1..=65_536),
        ("api.call_time_max_ms", api.call_time_max_ms.get(), 10..=20_000),
        ("api.send_sync_time_max_ms", api.send_sync_time_max_ms.get(), 1..=20_000),
        ("api.trace_time_max_ms", api.trace_time_max_ms.get(), 10..=20_000),
        ("api.trace_mib_max", api.trace_mib_max.get(), 1..=4_096),
        ("log.file.mib_max", log.file.mib_max.get().into(), 1..=65_536),
        ("log.file.files_kept", log.file.files_kept.into(), 0..=1_000),
    ]
}
