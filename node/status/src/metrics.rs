//! Prometheus metrics. The doc line of a field is its help text. The registry belongs to the node, not to the process.
//!
//! Sync, pool and peers keep their own counts. A scrape reads these from the status, so nothing is counted twice, and a
//! counter only ever increases.

use std::ops::Sub;

use prometheus::{
    Counter, CounterVec, Encoder, Gauge, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, TextEncoder,
    core::{Atomic, Collector, GenericCounter},
};

/// Buckets from half a millisecond, for a cached answer, to eight seconds, for an EVM call at its gas limit.
const RPC_SECONDS: [f64; 8] = [0.0005, 0.002, 0.008, 0.03, 0.125, 0.5, 2.0, 8.0];

/// Constructs a metric from its name, its help and its labels.
trait Metric: Collector + Clone + 'static {
    fn make(name: &str, help: &str, labels: &[&str]) -> prometheus::Result<Self>;
}

macro_rules! metric {
    ($type:ty, |$name:ident, $help:ident, $labels:pat_param| $make:expr) => {
        impl Metric for $type {
            fn make($name: &str, $help: &str, $labels: &[&str]) -> prometheus::Result<Self> {
                $make
            }
        }
    };
}

metric!(IntGauge, |name, help, _| IntGauge::new(name, help));
metric!(Gauge, |name, help, _| Gauge::new(name, help));
metric!(IntCounter, |name, help, _| IntCounter::new(name, help));
metric!(Counter, |name, help, _| Counter::new(name, help));
metric!(CounterVec, |name, help, labels| CounterVec::new(Opts::new(name, help), labels));
metric!(IntGaugeVec, |name, help, labels| IntGaugeVec::new(Opts::new(name, help), labels));
metric!(IntCounterVec, |name, help, labels| IntCounterVec::new(Opts::new(name, help), labels));
metric!(HistogramVec, |name, help, labels| {
    HistogramVec::new(HistogramOpts::new(name, help).buckets(RPC_SECONDS.to_vec()), labels)
});

macro_rules! metrics {
    ($(#[doc = $help:literal] $name:literal $field:ident: $type:ty $([$($label:literal),*])?;)*) => {
        /// The metrics of one node.
        pub struct Metrics {
            registry: Registry,
            $(#[doc = $help] pub $field: $type,)*
        }

        impl Metrics {
            /// The names of all metrics.
            #[cfg(test)]
            pub(crate) const NAMES: &'static [&'static str] = &[$($name),*];

            /// Creates all metrics and registers them in a new registry.
            pub fn new() -> prometheus::Result<Metrics> {
                let registry = Registry::new();
                $(
                    let $field = <$type as Metric>::make($name, $help.trim(), &[$($($label),*)?])?;
                    registry.register(Box::new($field.clone()))?;
                )*
                Ok(Metrics { registry, $($field,)* })
            }
        }
    };
}

metrics! {
    /// 1, with the program's version.
    "slipstream_build_info" build_info: IntGaugeVec ["version"];
    /// Bytes of memory that the process holds.
    "process_resident_memory_bytes" process_memory_bytes: IntGauge;
    /// Bytes of address space that the process has taken.
    "process_virtual_memory_bytes" process_virtual_bytes: IntGauge;
    /// Seconds of CPU time since the process started, summed over all cores.
    "process_cpu_seconds_total" process_cpu_seconds: Counter;
    /// Open files of the process, including sockets.
    "process_open_fds" process_open_files: IntGauge;
    /// Open files that the system allows the process.
    "process_max_fds" process_open_files_max: IntGauge;
    /// Threads of the process.
    "process_threads" process_threads: IntGauge;
    /// When the node started, in seconds since 1970.
    "process_start_time_seconds" process_start_seconds: Gauge;
    /// Number of the last committed batch.
    "slipstream_head_number" head_number: IntGauge;
    /// Forks that peers' schedules have and this node's schedule lacks.
    "slipstream_unknown_forks" unknown_forks: IntGauge;
    /// Seconds since the timestamp of the last committed batch, by this node's clock; NaN before the first batch.
    "slipstream_head_age_seconds" head_age_seconds: Gauge;
    /// 1 while the node is ready, according to GET /health.
    "slipstream_ready" ready: IntGauge;
    /// 1 for the reason why the node is not ready.
    "slipstream_blocker" blocker: IntGaugeVec ["reason"];
    /// Number of the newest batch with a stored certificate.
    "slipstream_certificate_number" certificate_number: IntGauge;
    /// Epoch of the batch after the head.
    "slipstream_epoch" epoch_number: IntGauge;
    /// Validators in that epoch.
    "slipstream_epoch_validators" epoch_validators: IntGauge;
    /// Highest certified batch that peers have announced since start, or the waypoint's.
    "slipstream_sync_target_number" sync_target_number: IntGauge;
    /// 1 for the current phase of the sync daemon.
    "slipstream_sync_phase" sync_phase: IntGaugeVec ["phase"];
    /// Batches committed by following, since start.
    "slipstream_sync_batches_total" sync_batches: IntCounter;
    /// Batches executed by following, since start.
    "slipstream_sync_batches_replayed_total" sync_batches_replayed: IntCounter;
    /// Batches that arrived completely over the mesh, so that nothing was fetched, since start.
    "slipstream_sync_batches_announced_total" sync_batches_announced: IntCounter;
    /// Transactions in the batches committed by following, since start.
    "slipstream_sync_transactions_total" sync_transactions: IntCounter;
    /// Bytes of verified answers and announcements, since start.
    "slipstream_sync_received_bytes_total" sync_received_bytes: IntCounter;
    /// Keys and code read ahead because hints named them, since start.
    "slipstream_hints_named_total" hints_named: IntCounter;
    /// Of these, requested by execution.
    "slipstream_hints_used_total" hints_used: IntCounter;
    /// Keys and code that execution of hinted batches requested, since start.
    "slipstream_hints_reads_total" hints_reads: IntCounter;
    /// Rows with wrong values in hints, so that a batch was executed again, since start.
    "slipstream_hints_values_wrong_total" hints_values_wrong: IntCounter;
    /// Keys and code read ahead because predictors named them, for batches without hints, since start.
    "slipstream_predictors_named_total" predictors_named: IntCounter;
    /// Of these, requested by execution.
    "slipstream_predictors_used_total" predictors_used: IntCounter;
    /// Keys and code that execution of these batches requested, since start.
    "slipstream_predictors_reads_total" predictors_reads: IntCounter;
    /// Reads of execution that the hot cache answered, since start.
    "slipstream_hot_cache_hits_total" hot_cache_hits: IntCounter;
    /// Reads of execution that missed the hot cache, since start.
    "slipstream_hot_cache_misses_total" hot_cache_misses: IntCounter;
    /// Approximate memory of the hot cache, in bytes.
    "slipstream_hot_cache_bytes" hot_cache_bytes: IntGauge;
    /// Reads of execution that waited for the disk, the database or a read-ahead thread, since start.
    "slipstream_execute_stalls_total" execute_stalls: IntCounter;
    /// Seconds that executing threads waited for these reads, since start.
    "slipstream_execute_stalled_seconds_total" execute_stalled_seconds: Counter;
    /// Gas per second that this machine executes on one core, as measured, by kind of work.
    "slipstream_execute_gas_per_second" execute_gas_per_second: IntGaugeVec ["work"];
    /// Seconds that this machine needs for a batch that spends the gas limit on the slowest kind of work; 0 until measured.
    "slipstream_execute_batch_max_seconds" execute_batch_seconds_max: Gauge;
    /// Seconds that each stage of the sync pipeline was busy, since start; concurrent jobs each count.
    "slipstream_sync_stage_busy_seconds_total" sync_stage_busy_seconds: CounterVec ["stage"];
    /// Bytes that each stage of the sync pipeline processed, since start.
    "slipstream_sync_stage_bytes_total" sync_stage_bytes: IntCounterVec ["stage"];
    /// Bytes queued for each stage of the sync pipeline.
    "slipstream_sync_stage_queue_bytes" sync_stage_queue_bytes: IntGaugeVec ["stage"];
    /// Requests to peers in flight.
    "slipstream_sync_requests" sync_requests: IntGauge;
    /// Requests repeated to a second peer because the first was late, since start.
    "slipstream_sync_hedges_total" sync_hedges: IntCounter;
    /// Batches applied by their deltas and re-executed in the background, since start.
    "slipstream_sync_audited_total" sync_audited: IntCounter;
    /// Batches selected for an audit and skipped because too many waited, since start.
    "slipstream_sync_audits_skipped_total" sync_audits_skipped: IntCounter;
    /// 1 while there is an alarm: an audit found a certified batch that execution does not reproduce.
    "slipstream_sync_alarm" sync_alarm: IntGauge;
    /// Bytes that the last repair of the state transferred; 0 if there was none.
    "slipstream_sync_repair_bytes" sync_repair_bytes: IntGauge;
    /// Rows and codes that the last repair of the state changed.
    "slipstream_sync_repair_rows" sync_repair_rows: IntGauge;
    /// Completed share of the node's present work, 0 to 1: the head over the newest certified batch, or the rows of a restore.
    "slipstream_progress_ratio" progress_ratio: Gauge;
    /// Completed share of the running or last restore, 0 to 1; 0 if there was none.
    "slipstream_sync_restore_ratio" sync_restore_ratio: Gauge;
    /// Batches of the history window still to be fetched in the background; 0 if none is missing.
    "slipstream_sync_backfill_batches_left" sync_backfill_batches_left: IntGauge;
    /// Compressed bytes of history stored per second; 0 while the backfill is idle.
    "slipstream_sync_backfill_bytes_per_second" sync_backfill_bytes_per_second: Gauge;
    /// Seconds until the history window is complete; 0 if nothing is missing, NaN while the backfill is idle.
    "slipstream_sync_backfill_eta_seconds" sync_backfill_eta_seconds: Gauge;
    /// Past states within the window that a peer has and this node lacks.
    "slipstream_sync_past_states_left" sync_past_states_left: IntGauge;
    /// Seconds to the target at the present rate; 0 at the head of a chain that advances, NaN while unknown.
    "slipstream_sync_eta_seconds" sync_eta_seconds: Gauge;
    /// Answers to peers that sync from this node, since start.
    "slipstream_serve_answers_total" serve_answers: IntCounter;
    /// Bytes of these answers.
    "slipstream_serve_bytes_total" serve_bytes: IntCounter;
    /// Parts of answers that were cached, or were being built for another peer.
    "slipstream_serve_cache_hits_total" serve_cache_hits: IntCounter;
    /// Parts of answers that had to be built.
    "slipstream_serve_cache_misses_total" serve_cache_misses: IntCounter;
    /// Bytes of the cached parts.
    "slipstream_serve_cache_bytes" serve_cache_bytes: IntGauge;
    /// Requests refused because their peer exceeded its rate.
    "slipstream_serve_refused_busy_total" serve_refused_busy: IntCounter;
    /// Keys read from the store, singly or in groups, since start.
    "slipstream_storage_keys_read_total" storage_keys_read: IntCounter;
    /// Data blocks read from the store's files because the block cache lacked them, since start.
    "slipstream_storage_blocks_read_total" storage_blocks_read: IntCounter;
    /// Syncs of the store's log since start: each durable write waits for one.
    "slipstream_storage_syncs_total" storage_syncs: IntCounter;
    /// Bytes that the store wrote since start: to its log, and to files of rows by flushes and compactions.
    "slipstream_storage_written_bytes_total" storage_written_bytes: IntCounter;
    /// Bytes free on the file system of the database.
    "slipstream_storage_disk_free_bytes" storage_disk_free_bytes: IntGauge;
    /// Free bytes below which the node stops; 0 means no limit.
    "slipstream_storage_disk_free_min_bytes" storage_disk_free_min_bytes: IntGauge;
    /// Files that can still be created on the file system of the database; -1 if it does not count them.
    "slipstream_storage_disk_free_inodes" storage_disk_free_inodes: IntGauge;
    /// Bytes that the data directory uses on disk, by part.
    "slipstream_storage_disk_used_bytes" storage_disk_used_bytes: IntGaugeVec ["part"];
    /// Snapshots that are kept and served.
    "slipstream_storage_snapshots" storage_snapshots: IntGauge;
    /// Batch of the newest snapshot; 0 if there is none.
    "slipstream_storage_snapshot_number" storage_snapshot_number: IntGauge;
    /// Log lines that could not be written, or were dropped because their reader was slow, since start.
    "slipstream_log_lines_lost_total" log_lines_lost: IntCounter;
    /// Connected peers.
    "slipstream_network_peers" network_peers: IntGauge;
    /// Peers from network.peers or added by the operator, by state: connected, connecting, unreachable, wrong key, ended or banned.
    "slipstream_network_configured_peers" network_configured_peers: IntGaugeVec ["state"];
    /// 1 while this peer, from network.peers or added by the operator, is connected.
    "slipstream_network_configured_peer_up" network_configured_peer_up: IntGaugeVec ["peer"];
    /// Connected peers that the node chose itself, by peer exchange.
    "slipstream_network_chosen_peers" network_chosen_peers: IntGauge;
    /// Peers in the address book: heard of, or reached.
    "slipstream_network_addresses" network_addresses: IntGaugeVec ["part"];
    /// Peer exchange events, by kind, since start.
    "slipstream_network_exchange_total" network_exchange: IntCounterVec ["event"];
    /// Keys that more than one node used within the last minute.
    "slipstream_network_shared_keys" network_shared_keys: IntGauge;
    /// Bytes sent on the currently open connections.
    "slipstream_network_open_sent_bytes" network_sent_bytes: IntGauge;
    /// Bytes received on the currently open connections.
    "slipstream_network_open_received_bytes" network_received_bytes: IntGauge;
    /// Refusals of the network to its peers, by reason, since start.
    "slipstream_network_turned_away_total" network_turned_away: IntCounterVec ["reason"];
    /// Bytes of all messages that the mesh sent, since start.
    "slipstream_mesh_sent_bytes_total" mesh_sent_bytes: IntCounter;
    /// Bytes of mesh messages about unknown batches, since start.
    "slipstream_mesh_useless_bytes_total" mesh_useless_bytes: IntCounter;
    /// Payloads for which the mesh had no room, since start.
    "slipstream_mesh_refused_total" mesh_refused: IntCounter;
    /// Bytes of chunks of new batches, by part: sent, or received and useful, duplicate or useless, since start.
    "slipstream_mesh_chunk_bytes_total" mesh_chunk_bytes: IntCounterVec ["part", "kind"];
    /// New batches that the mesh delivered: complete, or incomplete so that the body is fetched, since start.
    "slipstream_mesh_batches_total" mesh_batches: IntCounterVec ["outcome"];
    /// Payloads assembled, by the seconds from the batch's certificate to their last byte, as histogram buckets, since start.
    "slipstream_mesh_decode_seconds_bucket" mesh_decode_bucket: IntCounterVec ["codec", "le"];
    /// All assembled payloads, since start.
    "slipstream_mesh_decode_seconds_count" mesh_decode_count: IntCounterVec ["codec"];
    /// The sum of these times, since start.
    "slipstream_mesh_decode_seconds_sum" mesh_decode_sum: CounterVec ["codec"];
    /// Requests to a peer for missing chunks, since start.
    "slipstream_mesh_pulls_total" mesh_pulls: IntCounter;
    /// Peers muted for a while because they sent mostly useless messages, since start.
    "slipstream_mesh_muted_total" mesh_muted: IntCounter;
    /// Peers banned because they sent what no honest node sends, since start.
    "slipstream_mesh_banned_total" mesh_banned: IntCounter;
    /// False payloads that validators signed, since start.
    "slipstream_mesh_false_plans_total" mesh_false_plans: IntCounter;
    /// Current view of this validator; the view determines the primary.
    "slipstream_consensus_view" consensus_view: IntGauge;
    /// 1 while this node is the primary, which orders the batches.
    "slipstream_consensus_primary" consensus_primary: IntGauge;
    /// 1 for the reason why this node, configured as a validator, signs nothing; 0 for the others.
    "slipstream_consensus_silence" consensus_silence: IntGaugeVec ["reason"];
    /// 1 while this validator wants another primary, or waits for the next view to begin.
    "slipstream_consensus_unsettled" consensus_unsettled: IntGauge;
    /// Validators known to have prepared the next batch, or committed to it.
    "slipstream_consensus_votes" consensus_votes: IntGaugeVec ["kind"];
    /// Votes needed to decide a batch.
    "slipstream_consensus_quorum" consensus_quorum: IntGauge;
    /// Validators heard from within the last 10 seconds, including this one.
    "slipstream_consensus_validators_heard" consensus_validators_heard: IntGauge;
    /// Batches that the other validators decided with another outcome than this one's, in this epoch since start.
    "slipstream_consensus_divergences_total" consensus_divergences: IntCounter;
    /// Messages and orders of other validators that this one refused, in this epoch since start.
    "slipstream_consensus_refused_total" consensus_refused: IntCounter;
    /// Orders of other validators that this one did not need and did not unpack, in this epoch since start.
    "slipstream_consensus_unwanted_total" consensus_unwanted: IntCounter;
    /// Proofs that a validator made two statements where it may make one.
    "slipstream_consensus_evidence" consensus_evidence: IntGauge;
    /// Executable transactions in the pool.
    "slipstream_pool_pending" pool_pending: IntGauge;
    /// Transactions in the pool that wait for a lower nonce or for funds.
    "slipstream_pool_queued" pool_queued: IntGauge;
    /// Bytes of all transactions in the pool.
    "slipstream_pool_bytes" pool_bytes: IntGauge;
    /// Lowest tip in wei per gas that the pool accepts; 0 unless the pool was full recently.
    "slipstream_pool_tip_min_wei" pool_tip_min_wei: IntGauge;
    /// Bytes of the journal of transactions that users submitted to this node.
    "slipstream_pool_journal_bytes" pool_journal_bytes: IntGauge;
    /// Transactions refused or dropped, by reason, since start; "known" ones were already here.
    "slipstream_pool_refused_total" pool_refused: IntCounterVec ["reason"];
    /// Open WebSockets.
    "slipstream_ws_sockets" ws_sockets: IntGauge;
    /// WebSockets closed, by reason, since start.
    "slipstream_ws_closed_total" ws_closed: IntCounterVec ["reason"];
    /// Current subscriptions of all WebSockets, by kind.
    "slipstream_ws_subscriptions" ws_subscriptions: IntGaugeVec ["kind"];
    /// Notifications produced for them, by kind, since start.
    "slipstream_ws_notifications_total" ws_notifications: IntCounterVec ["kind"];
    /// Callers refused by the API, by the missing resource: connection, call, socket, room, operator token.
    "slipstream_api_refused_total" api_refused: IntCounterVec ["missing"];
    /// JSON-RPC calls by method and outcome (ok or error); unknown methods count as "unknown".
    "slipstream_rpc_requests_total" rpc_requests: IntCounterVec ["method", "outcome"];
    /// Duration of JSON-RPC calls, by method.
    "slipstream_rpc_seconds" rpc_seconds: HistogramVec ["method"];
}

impl Metrics {
    /// All metrics in Prometheus' text format.
    pub fn encode(&self) -> prometheus::Result<String> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

/// Raises a counter to a total that is kept elsewhere.
pub fn raise<P: Atomic>(counter: &GenericCounter<P>, total: P::T)
where
    P::T: Sub<Output = P::T>,
{
    let now = counter.get();
    if total > now {
        counter.inc_by(total - now);
    }
}

pub(crate) fn gauge(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, path::Path};

    use super::*;

    #[test]
    fn text_format_with_help_and_closed_labels() {
        let metrics = Metrics::new().unwrap();
        metrics.head_number.set(7);
        raise(&metrics.sync_batches, 5);
        raise(&metrics.sync_batches, 3);
        let busy = metrics.sync_stage_busy_seconds.with_label_values(&["commit"]);
        [1.5, 1.25].into_iter().for_each(|total| raise(&busy, total));
        metrics.rpc_requests.with_label_values(&["eth_call", "ok"]).inc();
        let text = metrics.encode().unwrap();
        for line in [
            "# HELP slipstream_head_number Number of the last committed batch.",
            "# TYPE slipstream_head_number gauge",
            "slipstream_head_number 7",
            "slipstream_sync_batches_total 5",
            "slipstream_sync_stage_busy_seconds_total{stage=\"commit\"} 1.5",
            "slipstream_rpc_requests_total{method=\"eth_call\",outcome=\"ok\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }

    /// The names of metrics in a text.
    fn named(text: &str) -> BTreeSet<&str> {
        let words =
            text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_' && letter != ':');
        words.filter(|word| word.starts_with("slipstream_") || word.starts_with("process_")).collect()
    }

    /// Goal: rules, panels and documentation name only existing metrics, and each metric is documented.
    #[test]
    fn rules_dashboard_and_documentation_name_metrics_that_exist() {
        let read = |file: &str| {
            std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file)).unwrap()
        };
        let known: BTreeSet<&str> = Metrics::NAMES.iter().copied().collect();
        let exists = |name: &str| {
            let parts = ["_bucket", "_count", "_sum"].into_iter().filter_map(|part| name.strip_suffix(part));
            known.contains(name) || parts.into_iter().any(|histogram| known.contains(histogram))
        };
        for file in ["packaging/prometheus/rules.yml", "packaging/grafana/slipstream.json", "docs/metrics.md"]
        {
            let text = read(file);
            let names = named(&text);
            assert!(names.len() > 10, "{file}: {names:?}");
            let unknown: Vec<_> = names.into_iter().filter(|name| !exists(name)).collect();
            assert!(unknown.is_empty(), "{file} names metrics that do not exist: {unknown:?}");
        }
        let text = read("docs/metrics.md");
        let shortened: Vec<&str> =
            text.split("`…").skip(1).filter_map(|rest| rest.split('`').next()).collect();
        let documented =
            |name: &str| named(&text).contains(name) || shortened.iter().any(|end| name.ends_with(end));
        let missing: Vec<_> = known.iter().filter(|name| !documented(name)).collect();
        assert!(missing.is_empty(), "docs/metrics.md does not name {missing:?}");
    }
}
