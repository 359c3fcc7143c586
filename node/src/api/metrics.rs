//! Prometheus metrics. The doc line of a field is its help text; the registry belongs to the node, not to the process.
//!
//! Sync, pool and peers keep counts of their own. A scrape reads them from the status, so nothing is counted twice; a counter only
//! ever moves up.

use std::ops::Sub;

use prometheus::{
    Counter, CounterVec, Encoder, Gauge, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, TextEncoder,
    core::{Atomic, Collector, GenericCounter},
};

/// Buckets from half a millisecond to eight seconds: a cached answer to an EVM call at its gas limit.
const RPC_SECONDS: [f64; 8] = [0.0005, 0.002, 0.008, 0.03, 0.125, 0.5, 2.0, 8.0];

/// How a metric is made from its name, its help and its labels.
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
        pub(crate) struct Metrics {
            registry: Registry,
            $(#[doc = $help] pub(crate) $field: $type,)*
        }

        impl Metrics {
            /// The names of all metrics.
            #[cfg(test)]
            pub(crate) const NAMES: &'static [&'static str] = &[$($name),*];

            /// Registers everything in a registry of its own.
            pub(crate) fn new() -> prometheus::Result<Metrics> {
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
    /// Seconds of CPU time since the process started, on all cores together.
    "process_cpu_seconds_total" process_cpu_seconds: Counter;
    /// Open files of the process, sockets among them.
    "process_open_fds" process_open_files: IntGauge;
    /// Open files that the system allows the process.
    "process_max_fds" process_open_files_max: IntGauge;
    /// Threads of the process.
    "process_threads" process_threads: IntGauge;
    /// When the node started, in seconds since 1970.
    "process_start_time_seconds" process_start_seconds: Gauge;
    /// Number of the last committed batch.
    "slipstream_head_number" head_number: IntGauge;
    /// Forks that peers' schedules have and this node's lacks.
    "slipstream_unknown_forks" unknown_forks: IntGauge;
    /// Seconds since the timestamp of the last committed batch, by this node's clock; NaN before the first batch.
    "slipstream_head_age_seconds" head_age_seconds: Gauge;
    /// 1 while the node is ready, as GET /health says.
    "slipstream_ready" ready: IntGauge;
    /// 1 for the reason why the node is not ready.
    "slipstream_blocker" blocker: IntGaugeVec ["reason"];
    /// Number of the batch that the newest stored certificate is for.
    "slipstream_certificate_number" certificate_number: IntGauge;
    /// Epoch of the batch after the head.
    "slipstream_epoch" epoch_number: IntGauge;
    /// Validators of that epoch.
    "slipstream_epoch_validators" epoch_validators: IntGauge;
    /// Highest certified batch that peers have shown since start, or that of the waypoint.
    "slipstream_sync_target_number" sync_target_number: IntGauge;
    /// 1 for the phase that the sync daemon is in.
    "slipstream_sync_phase" sync_phase: IntGaugeVec ["phase"];
    /// Batches committed by following, since start.
    "slipstream_sync_batches_total" sync_batches: IntCounter;
    /// Batches executed by following, since start.
    "slipstream_sync_batches_replayed_total" sync_batches_replayed: IntCounter;
    /// Batches that came whole by the mesh, so that nothing of them was fetched, since start.
    "slipstream_sync_batches_announced_total" sync_batches_announced: IntCounter;
    /// Transactions in the batches committed by following, since start.
    "slipstream_sync_transactions_total" sync_transactions: IntCounter;
    /// Bytes of verified answers and announcements, since start.
    "slipstream_sync_received_bytes_total" sync_received_bytes: IntCounter;
    /// Keys and code read ahead because hints named them, since start.
    "slipstream_hints_named_total" hints_named: IntCounter;
    /// Of these, asked for by execution.
    "slipstream_hints_used_total" hints_used: IntCounter;
    /// Keys and code that execution of hinted batches asked for, since start.
    "slipstream_hints_reads_total" hints_reads: IntCounter;
    /// Rows that hints told wrongly, so that a batch was executed again, since start.
    "slipstream_hints_values_wrong_total" hints_values_wrong: IntCounter;
    /// Keys and code read ahead because predictors named them, for batches without hints, since start.
    "slipstream_predictors_named_total" predictors_named: IntCounter;
    /// Of these, asked for by execution.
    "slipstream_predictors_used_total" predictors_used: IntCounter;
    /// Keys and code that execution of these batches asked for, since start.
    "slipstream_predictors_reads_total" predictors_reads: IntCounter;
    /// Reads of execution that the hot cache answered, since start.
    "slipstream_hot_cache_hits_total" hot_cache_hits: IntCounter;
    /// Reads of execution that the hot cache passed on, since start.
    "slipstream_hot_cache_misses_total" hot_cache_misses: IntCounter;
    /// About how much memory the hot cache takes.
    "slipstream_hot_cache_bytes" hot_cache_bytes: IntGauge;
    /// Reads of execution that waited for the disk, for the database or for a thread that reads ahead, since start.
    "slipstream_execute_stalls_total" execute_stalls: IntCounter;
    /// Seconds that executing threads waited for them, since start.
    "slipstream_execute_stalled_seconds_total" execute_stalled_seconds: Counter;
    /// Gas a second that this machine executes on one core, by kind of work, as it was measured.
    "slipstream_execute_gas_per_second" execute_gas_per_second: IntGaugeVec ["work"];
    /// Seconds that a batch takes here which spends the chain's gas limit on the slowest kind of work; 0 until it is measured.
    "slipstream_execute_batch_max_seconds" execute_batch_seconds_max: Gauge;
    /// Seconds that each stage of the sync pipeline worked, since start; several jobs at once count each.
    "slipstream_sync_stage_busy_seconds_total" sync_stage_busy_seconds: CounterVec ["stage"];
    /// Bytes that each stage of the sync pipeline worked off, since start.
    "slipstream_sync_stage_bytes_total" sync_stage_bytes: IntCounterVec ["stage"];
    /// Bytes that wait for each stage of the sync pipeline.
    "slipstream_sync_stage_queue_bytes" sync_stage_queue_bytes: IntGaugeVec ["stage"];
    /// Requests to peers that are under way.
    "slipstream_sync_requests" sync_requests: IntGauge;
    /// Requests given to a second peer because the first was late, since start.
    "slipstream_sync_hedges_total" sync_hedges: IntCounter;
    /// Batches applied by their deltas that were executed again in the background, since start.
    "slipstream_sync_audited_total" sync_audited: IntCounter;
    /// Batches drawn for an audit and left out because too many waited, since start.
    "slipstream_sync_audits_skipped_total" sync_audits_skipped: IntCounter;
    /// 1 while there is an alarm: an audit found a certified batch that execution does not give.
    "slipstream_sync_alarm" sync_alarm: IntGauge;
    /// Bytes that the last repair of the state moved; 0 if there was none.
    "slipstream_sync_repair_bytes" sync_repair_bytes: IntGauge;
    /// Rows and codes that the last repair of the state changed.
    "slipstream_sync_repair_rows" sync_repair_rows: IntGauge;
    /// Finished share of the node's present work, 0 to 1: the head over the newest certified batch, or the rows of a restore.
    "slipstream_progress_ratio" progress_ratio: Gauge;
    /// Share of the running or last restore that is done, 0 to 1; 0 if there was none.
    "slipstream_sync_restore_ratio" sync_restore_ratio: Gauge;
    /// Batches of the history's window that are not stored yet and are fetched beside the head; 0 if none is missing.
    "slipstream_sync_backfill_batches_left" sync_backfill_batches_left: IntGauge;
    /// Compressed bytes of history that are stored per second; 0 while the backfill rests.
    "slipstream_sync_backfill_bytes_per_second" sync_backfill_bytes_per_second: Gauge;
    /// Seconds until the history's window is complete; 0 if nothing is missing, NaN while the backfill rests.
    "slipstream_sync_backfill_eta_seconds" sync_backfill_eta_seconds: Gauge;
    /// Past states that the window wants, a peer knows and this node does not.
    "slipstream_sync_past_states_left" sync_past_states_left: IntGauge;
    /// Seconds to the target at the present rate; 0 at the head of a chain that goes on, NaN while nobody can tell.
    "slipstream_sync_eta_seconds" sync_eta_seconds: Gauge;
    /// Answers to peers that sync from this node, since start.
    "slipstream_serve_answers_total" serve_answers: IntCounter;
    /// Bytes of these answers.
    "slipstream_serve_bytes_total" serve_bytes: IntCounter;
    /// Parts of answers that were cached, or were being made for another peer.
    "slipstream_serve_cache_hits_total" serve_cache_hits: IntCounter;
    /// Parts of answers that had to be made.
    "slipstream_serve_cache_misses_total" serve_cache_misses: IntCounter;
    /// Bytes of the parts that are kept now.
    "slipstream_serve_cache_bytes" serve_cache_bytes: IntGauge;
    /// Requests refused because their peer had taken more than its rate allows.
    "slipstream_serve_refused_busy_total" serve_refused_busy: IntCounter;
    /// Keys that the store was asked for one by one or in groups, since start.
    "slipstream_storage_keys_read_total" storage_keys_read: IntCounter;
    /// Data blocks that the store read from its files because the block cache did not have them, since start.
    "slipstream_storage_blocks_read_total" storage_blocks_read: IntCounter;
    /// Syncs of the store's log since start: each durable write waits for one.
    "slipstream_storage_syncs_total" storage_syncs: IntCounter;
    /// Bytes that the store wrote since start: to its log, and to files of rows by flushes and compactions.
    "slipstream_storage_written_bytes_total" storage_written_bytes: IntCounter;
    /// Bytes free on the file system of the database.
    "slipstream_storage_disk_free_bytes" storage_disk_free_bytes: IntGauge;
    /// Below so many free bytes the node stops; 0 is no limit.
    "slipstream_storage_disk_free_min_bytes" storage_disk_free_min_bytes: IntGauge;
    /// Files that can still be made on the file system of the database; -1 where it does not count them.
    "slipstream_storage_disk_free_inodes" storage_disk_free_inodes: IntGauge;
    /// Bytes that the data directory takes on its disk, by part.
    "slipstream_storage_disk_used_bytes" storage_disk_used_bytes: IntGaugeVec ["part"];
    /// Snapshots that are kept and served.
    "slipstream_storage_snapshots" storage_snapshots: IntGauge;
    /// Batch of the newest of them; 0 if there is none.
    "slipstream_storage_snapshot_number" storage_snapshot_number: IntGauge;
    /// Lines of the log that could not be written, or that nobody read in time, since start.
    "slipstream_log_lines_lost_total" log_lines_lost: IntCounter;
    /// Connected peers.
    "slipstream_network_peers" network_peers: IntGauge;
    /// Peers of network.peers, and those that the operator added, by state: connected, connecting, unreachable, wrong key, ended or banned.
    "slipstream_network_configured_peers" network_configured_peers: IntGaugeVec ["state"];
    /// 1 while this peer of network.peers, or one that the operator added, is connected.
    "slipstream_network_configured_peer_up" network_configured_peer_up: IntGaugeVec ["peer"];
    /// Connected peers of the node's own choice, by peer exchange.
    "slipstream_network_chosen_peers" network_chosen_peers: IntGauge;
    /// Peers in the address book: heard of, or reached.
    "slipstream_network_addresses" network_addresses: IntGaugeVec ["part"];
    /// Events of peer exchange, by event, since start.
    "slipstream_network_exchange_total" network_exchange: IntCounterVec ["event"];
    /// Keys that more than one node used within the last minute.
    "slipstream_network_shared_keys" network_shared_keys: IntGauge;
    /// Bytes sent on the connections that are open now.
    "slipstream_network_open_sent_bytes" network_sent_bytes: IntGauge;
    /// Bytes received on the connections that are open now.
    "slipstream_network_open_received_bytes" network_received_bytes: IntGauge;
    /// Refusals of the network to its peers, by reason, since start.
    "slipstream_network_turned_away_total" network_turned_away: IntCounterVec ["reason"];
    /// Bytes of all messages that the mesh sent, since start.
    "slipstream_mesh_sent_bytes_total" mesh_sent_bytes: IntCounter;
    /// Bytes of messages of the mesh that were of no known batch, since start.
    "slipstream_mesh_useless_bytes_total" mesh_useless_bytes: IntCounter;
    /// Payloads for which the mesh had no room, since start.
    "slipstream_mesh_refused_total" mesh_refused: IntCounter;
    /// Bytes of chunks of new batches by part, sent or by what they were when they came: useful, duplicate or useless, since start.
    "slipstream_mesh_chunk_bytes_total" mesh_chunk_bytes: IntCounterVec ["part", "kind"];
    /// New batches that the mesh handed over: complete, or incomplete so that the body is fetched, since start.
    "slipstream_mesh_batches_total" mesh_batches: IntCounterVec ["outcome"];
    /// Payloads that were put together by the seconds from the batch's certificate to their last byte, as a histogram's buckets, since start.
    "slipstream_mesh_decode_seconds_bucket" mesh_decode_bucket: IntCounterVec ["codec", "le"];
    /// All of them, since start.
    "slipstream_mesh_decode_seconds_count" mesh_decode_count: IntCounterVec ["codec"];
    /// The sum of these times, since start.
    "slipstream_mesh_decode_seconds_sum" mesh_decode_sum: CounterVec ["codec"];
    /// Times that a peer was asked for missing chunks, since start.
    "slipstream_mesh_pulls_total" mesh_pulls: IntCounter;
    /// Peers that were muted for a while because they sent mostly useless messages, since start.
    "slipstream_mesh_muted_total" mesh_muted: IntCounter;
    /// Peers that were cut off because they sent what no honest node sends, since start.
    "slipstream_mesh_banned_total" mesh_banned: IntCounter;
    /// False payloads that validators signed, since start.
    "slipstream_mesh_false_plans_total" mesh_false_plans: IntCounter;
    /// View that this validator is in, by which the primaries take turns.
    "slipstream_consensus_view" consensus_view: IntGauge;
    /// 1 while this node is the primary, which orders the batches.
    "slipstream_consensus_primary" consensus_primary: IntGauge;
    /// 1 for the reason why this node, which is run as a validator, signs nothing; 0 for the others.
    "slipstream_consensus_silence" consensus_silence: IntGaugeVec ["reason"];
    /// 1 while this validator wants another primary, or waits for the next view to begin.
    "slipstream_consensus_unsettled" consensus_unsettled: IntGauge;
    /// Validators that prepare the next batch, or commit to it, as this validator knows.
    "slipstream_consensus_votes" consensus_votes: IntGaugeVec ["kind"];
    /// Votes that decide a batch.
    "slipstream_consensus_quorum" consensus_quorum: IntGauge;
    /// Validators that this one heard within the last 10 seconds, itself among them.
    "slipstream_consensus_validators_heard" consensus_validators_heard: IntGauge;
    /// Batches that the other validators agreed on with another outcome than this one's, in this epoch since start.
    "slipstream_consensus_divergences_total" consensus_divergences: IntCounter;
    /// Messages and orders of other validators that this one refused, in this epoch since start.
    "slipstream_consensus_refused_total" consensus_refused: IntCounter;
    /// Orders of other validators that this one did not want, and did not unpack, in this epoch since start.
    "slipstream_consensus_unwanted_total" consensus_unwanted: IntCounter;
    /// Proofs that a validator gave two statements where it may give one.
    "slipstream_consensus_evidence" consensus_evidence: IntGauge;
    /// Executable transactions in the pool.
    "slipstream_pool_pending" pool_pending: IntGauge;
    /// Transactions in the pool that wait for a lower nonce or for funds.
    "slipstream_pool_queued" pool_queued: IntGauge;
    /// Bytes of all transactions in the pool.
    "slipstream_pool_bytes" pool_bytes: IntGauge;
    /// Wei per gas that a transaction must offer at least; 0 unless the pool was full a while ago.
    "slipstream_pool_tip_min_wei" pool_tip_min_wei: IntGauge;
    /// Bytes of the file that keeps the transactions that users gave this node.
    "slipstream_pool_journal_bytes" pool_journal_bytes: IntGauge;
    /// Transactions that were refused or dropped, by reason, since start; "known" ones are here already.
    "slipstream_pool_refused_total" pool_refused: IntCounterVec ["reason"];
    /// WebSockets that are open now.
    "slipstream_ws_sockets" ws_sockets: IntGauge;
    /// WebSockets that were closed, by reason, since start.
    "slipstream_ws_closed_total" ws_closed: IntCounterVec ["reason"];
    /// Subscriptions of all WebSockets now, by kind.
    "slipstream_ws_subscriptions" ws_subscriptions: IntGaugeVec ["kind"];
    /// Notifications that were made for them, by kind, since start.
    "slipstream_ws_notifications_total" ws_notifications: IntCounterVec ["kind"];
    /// Callers that the API refused, by the missing thing: connection, call, socket, room, operator token.
    "slipstream_api_refused_total" api_refused: IntCounterVec ["missing"];
    /// JSON-RPC calls by method and outcome (ok or error); methods that do not exist count as "unknown".
    "slipstream_rpc_requests_total" rpc_requests: IntCounterVec ["method", "outcome"];
    /// Time that JSON-RPC calls took, by method.
    "slipstream_rpc_seconds" rpc_seconds: HistogramVec ["method"];
}

impl Metrics {
    /// All metrics in Prometheus' text format.
    pub(crate) fn encode(&self) -> prometheus::Result<String> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

/// Moves a counter up to a total that is kept elsewhere.
pub(crate) fn raise<P: Atomic>(counter: &GenericCounter<P>, total: P::T)
where
    P::T: Sub<Output = P::T>,
{
    let now = counter.get();
    if total > now {
        counter.inc_by(total - now);
    }
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
            std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file)).unwrap()
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
