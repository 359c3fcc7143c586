//! The part of `/metrics` that other crates count: the numbers of a [`NodeStatus`], and a few that only programs need.

use slipstream_consensus::{ConsensusStatus, Silence};
use slipstream_storage::StorageError;
use slipstream_sync::SyncStatus;

use crate::{
    document::NodeStatus,
    health::{HEARD_WITHIN_MS, Health, Reason},
    metrics::{Metrics, gauge, raise},
    peers::{sample_exchange, sample_peers},
    resources::ProcessStatus,
    source::StatusSource,
    spread::sample_mesh,
};

impl StatusSource {
    /// Updates the sampled metrics.
    pub fn sample(&self, metrics: &Metrics) -> Result<(), StorageError> {
        sample_status(&self.read()?, metrics);
        let io = self.store.io_counts();
        raise(&metrics.storage_keys_read, io.keys);
        raise(&metrics.storage_blocks_read, io.blocks);
        raise(&metrics.storage_syncs, io.syncs);
        raise(&metrics.storage_written_bytes, io.bytes_written);
        raise(&metrics.log_lines_lost, self.log.lines_lost());
        for (reason, count) in self.transport.rejections() {
            raise(&metrics.network_turned_away.with_label_values(&[reason.name()]), count);
        }
        metrics.pool_journal_bytes.set(gauge(self.forwarder.journal_bytes()));
        for (reason, count) in self.pool.refused() {
            raise(&metrics.pool_refused.with_label_values(&[reason.name()]), count);
        }
        Ok(())
    }
}

/// Samples everything that a status has.
pub(super) fn sample_status(status: &NodeStatus, metrics: &Metrics) {
    metrics.head_number.set(gauge(status.head.number.get()));
    metrics.unknown_forks.set(gauge(status.rules.unknown.len() as u64));
    sample_health(&status.health, metrics);
    metrics.progress_ratio.set(status.progress.percent / 100.0);
    metrics.certificate_number.set(gauge(status.waypoint.number.get()));
    metrics.epoch_number.set(gauge(status.epoch.number.0));
    metrics.epoch_validators.set(gauge(status.epoch.validators.len() as u64));
    metrics.sync_target_number.set(gauge(status.sync.target.get()));
    metrics.sync_phase.reset();
    metrics.sync_phase.with_label_values(&[status.sync.phase.name()]).set(1);
    raise(&metrics.sync_batches, status.sync.batches);
    raise(&metrics.sync_batches_replayed, status.sync.batches_replayed);
    raise(&metrics.sync_batches_announced, status.sync.batches_announced);
    raise(&metrics.sync_transactions, status.sync.transactions);
    raise(&metrics.sync_received_bytes, status.sync.bytes_received);
    sample_foresight(status, metrics);
    sample_consensus(status.consensus.as_ref(), metrics);
    let silence = status.health.silence.as_ref().map(|it| it.silence.name());
    for name in Silence::NAMES {
        metrics.consensus_silence.with_label_values(&[name]).set((silence == Some(name)).into());
    }
    sample_pipeline(&status.sync, metrics);
    raise(&metrics.serve_answers, status.serve.answers);
    raise(&metrics.serve_bytes, status.serve.bytes);
    raise(&metrics.serve_cache_hits, status.serve.cache_hits);
    raise(&metrics.serve_cache_misses, status.serve.cache_misses);
    metrics.serve_cache_bytes.set(gauge(status.serve.cache_bytes));
    raise(&metrics.serve_refused_busy, status.serve.refused_busy);
    sample_resources(status, metrics);
    sample_mesh(&status.mesh, metrics);
    sample_peers(&status.peers, &status.configured_peers, status.shared_keys.len(), metrics);
    if let Some(exchange) = &status.exchange {
        sample_exchange(exchange, metrics);
    }
    metrics.pool_pending.set(gauge(status.pool.pending as u64));
    metrics.pool_queued.set(gauge(status.pool.queued as u64));
    metrics.pool_bytes.set(gauge(status.pool.bytes as u64));
    metrics.pool_tip_min_wei.set(gauge(status.pool.tip_min_wei));
}

/// Samples readiness and its blocker. An unknown value is NaN, because it is hard to alert on a series that comes and
/// goes.
fn sample_health(health: &Health, metrics: &Metrics) {
    metrics.head_age_seconds.set(health.head_age_seconds.unwrap_or(f64::NAN));
    metrics.sync_eta_seconds.set(health.eta_seconds.unwrap_or(f64::NAN));
    metrics.ready.set(health.ready.into());
    let found = health.blocker.as_ref().map(|blocker| blocker.reason);
    for &reason in Reason::ALL {
        metrics.blocker.with_label_values(&[reason.name()]).set((found == Some(reason)).into());
    }
}

/// Samples consensus as this validator sees it.
fn sample_consensus(consensus: Option<&ConsensusStatus>, metrics: &Metrics) {
    // The node may have been a validator in the previous epoch.
    metrics.consensus_votes.reset();
    let Some(status) = consensus else {
        return [
            &metrics.consensus_primary,
            &metrics.consensus_unsettled,
            &metrics.consensus_quorum,
            &metrics.consensus_validators_heard,
        ]
        .into_iter()
        .for_each(|it| it.set(0));
    };
    let votes = status.voting.map_or((0, 0), |voting| (voting.prepares, voting.commits));
    for (kind, count) in [("prepare", votes.0), ("commit", votes.1)] {
        metrics.consensus_votes.with_label_values(&[kind]).set(gauge(count as u64));
    }
    metrics.consensus_quorum.set(gauge(status.quorum as u64));
    metrics.consensus_validators_heard.set(gauge(status.heard_within(HEARD_WITHIN_MS) as u64));
    metrics.consensus_view.set(gauge(status.view));
    metrics.consensus_primary.set(status.is_primary.into());
    metrics.consensus_unsettled.set((status.complains || status.changing).into());
    raise(&metrics.consensus_divergences, status.divergences);
    raise(&metrics.consensus_refused, status.refused);
    raise(&metrics.consensus_unwanted, status.unwanted);
    metrics.consensus_evidence.set(gauge(status.evidence.len() as u64));
}

/// Samples the node's use of its machine.
fn sample_resources(status: &NodeStatus, metrics: &Metrics) {
    let ProcessStatus { memory_bytes, virtual_bytes, cpu_seconds, threads, open_files, .. } = status.process;
    metrics.build_info.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
    metrics.process_memory_bytes.set(gauge(memory_bytes));
    metrics.process_virtual_bytes.set(gauge(virtual_bytes));
    raise(&metrics.process_cpu_seconds, cpu_seconds);
    metrics.process_threads.set(gauge(threads));
    metrics.process_open_files.set(gauge(open_files));
    metrics.process_open_files_max.set(status.process.open_files_max.map_or(-1, gauge));
    metrics.process_start_seconds.set(status.process.started_ms as f64 / 1e3);
    if let Some(speed) = &status.speed {
        for (work, gas) in speed.gas_per_second.iter() {
            metrics.execute_gas_per_second.with_label_values(&[work.name()]).set(gauge(gas));
        }
        metrics.execute_batch_seconds_max.set(speed.batch_seconds_max);
    }
    if let Some(disk) = &status.disk {
        metrics.storage_disk_free_bytes.set(gauge(disk.free_bytes));
        metrics.storage_disk_free_min_bytes.set(gauge(disk.min_bytes));
        metrics.storage_disk_free_inodes.set(disk.free_inodes.map_or(-1, gauge));
        let used = disk.used.unwrap_or_default();
        for (part, bytes) in [
            ("database", used.database_bytes),
            ("snapshots", used.snapshots_bytes),
            ("journal", used.journal_bytes),
            ("other", used.other_bytes),
        ] {
            metrics.storage_disk_used_bytes.with_label_values(&[part]).set(gauge(bytes));
        }
    }
    metrics.storage_snapshots.set(gauge(status.snapshots.len() as u64));
    metrics.storage_snapshot_number.set(gauge(status.snapshots.first().map_or(0, |number| number.get())));
}

/// Samples the reads that were done before execution needed them.
fn sample_foresight(status: &NodeStatus, metrics: &Metrics) {
    let (hints, foretold, hot) = (status.sync.hints, status.sync.foretold, status.hot_cache);
    raise(&metrics.hints_named, hints.named);
    raise(&metrics.hints_used, hints.used);
    raise(&metrics.hints_reads, hints.reads);
    raise(&metrics.hints_values_wrong, hints.values_wrong);
    raise(&metrics.predictors_named, foretold.named);
    raise(&metrics.predictors_used, foretold.used);
    raise(&metrics.predictors_reads, foretold.reads);
    raise(&metrics.hot_cache_hits, hot.hits);
    raise(&metrics.hot_cache_misses, hot.misses);
    metrics.hot_cache_bytes.set(gauge(hot.bytes as u64));
    raise(&metrics.execute_stalls, status.stalls.stalls);
    raise(&metrics.execute_stalled_seconds, status.stalls.seconds);
}

/// Samples where sync spends its time, and its progress.
fn sample_pipeline(sync: &SyncStatus, metrics: &Metrics) {
    for stage in &sync.stages {
        let label = [stage.stage.name()];
        raise(&metrics.sync_stage_busy_seconds.with_label_values(&label), stage.busy_seconds);
        raise(&metrics.sync_stage_bytes.with_label_values(&label), stage.bytes);
        metrics.sync_stage_queue_bytes.with_label_values(&label).set(gauge(stage.queue_bytes));
    }
    metrics.sync_requests.set(gauge(sync.requests as u64));
    raise(&metrics.sync_hedges, sync.hedges);
    raise(&metrics.sync_audited, sync.audited);
    raise(&metrics.sync_audits_skipped, sync.audits_skipped);
    metrics.sync_alarm.set(sync.alarm.is_some().into());
    if let Some(repair) = &sync.repair {
        metrics.sync_repair_bytes.set(gauge(repair.bytes));
        metrics.sync_repair_rows.set(gauge(repair.rows_put + repair.rows_removed + repair.codes));
    }
    metrics.sync_restore_ratio.set(sync.snapshot.as_ref().map_or(0.0, |snapshot| snapshot.share));
    let backfill = sync.backfill.as_ref();
    metrics.sync_backfill_batches_left.set(gauge(backfill.map_or(0, |backfill| backfill.batches_left)));
    let states = sync.past_states.as_ref();
    metrics
        .sync_past_states_left
        .set(gauge(states.map_or(0, |states| states.lowest.since(states.wanted_from))));
    metrics.sync_backfill_bytes_per_second.set(backfill.map_or(0.0, |backfill| backfill.bytes_per_second));
    let eta = backfill.map_or(Some(0.0), |backfill| backfill.eta_seconds);
    metrics.sync_backfill_eta_seconds.set(eta.unwrap_or(f64::NAN));
}
