//! Collects the parts of a bundle from the node, if it runs, from its files, and from the machine.

use std::path::Path;

use slipstream_api::inspect::DbStats;
use slipstream_base::{
    DATABASE,
    bans_file::BANS_FILE,
    failure_notes::{FAILURE_FILE, PANIC_FILE},
    lock::{self, LockError},
    operator_token::{OperatorToken, TOKEN_FILE},
    orders_file::ORDERS_FILE,
};
use slipstream_config::NodeConfig;

use super::{
    bundle::{Bundle, KeptEnd},
    system,
};
use crate::{
    access,
    ask::{NodeUrl, ask, order, page},
    db, operator,
};

/// Maximum bytes from the end of the log file, and of RocksDB's own log.
const LOG_TAIL_BYTES: u64 = 2 << 20;
const ROCKSDB_TAIL_BYTES: u64 = 512 << 10;
/// Maximum bytes of a file with orders or bans; only a damaged one is longer.
const KEPT_BYTES: u64 = 4 << 20;

/// A node's public pages, and the names of their parts.
const PAGES: [(&str, &str); 5] = [
    ("/v1/status", "status.json"),
    ("/metrics", "metrics.txt"),
    ("/v1/db", "database.json"),
    ("/v1/snapshots", "snapshots.json"),
    ("/v1/consensus/evidence", "evidence.json"),
];

/// The process that holds the data directory.
pub(super) struct Holder {
    pub(super) pid: Option<u32>,
}

/// Finds the process that holds the data directory, without touching the directory.
pub(super) fn holder(config: &NodeConfig) -> Option<Holder> {
    match lock::check_free(&config.data_dir) {
        Err(LockError::Held { holder, .. }) => {
            let pid =
                holder.process.strip_prefix("pid ").and_then(|rest| rest.split(' ').next()?.parse().ok());
            Some(Holder { pid })
        }
        _ => None,
    }
}

/// Collects everything; missing parts are named with the reason.
pub(super) fn all(bundle: &mut Bundle, config: &NodeConfig, holder: Option<&Holder>) {
    match operator::running(config) {
        Ok(node) => live(bundle, config, &node),
        Err(report) => {
            bundle.miss("status, health, peers, metrics and the log's last lines", &report.to_string());
            offline(bundle, config);
        }
    }
    match serde_json::to_string_pretty(config) {
        Ok(text) => bundle.add("configuration.json", &text, KeptEnd::Beginning),
        Err(error) => bundle.miss("configuration.json", &error.to_string()),
    }
    let database = config.data_dir.join(DATABASE);
    if let Some(path) = &config.log.file.path {
        file_tail(bundle, "log-file.txt", path, LOG_TAIL_BYTES);
    }
    // This log has options, compactions, stalls and statistics.
    file_tail(bundle, "rocksdb.txt", &database.join("db/LOG"), ROCKSDB_TAIL_BYTES);
    for (name, bytes_max) in [
        (FAILURE_FILE, LOG_TAIL_BYTES),
        (PANIC_FILE, LOG_TAIL_BYTES),
        (ORDERS_FILE, KEPT_BYTES),
        (BANS_FILE, KEPT_BYTES),
    ] {
        let path = config.data_dir.join(name);
        // Reading a pipe would block until somebody writes into it.
        if path.is_file() {
            file_tail(bundle, name, &path, bytes_max);
        }
    }
    let mut dirs = vec![("the data directory", config.data_dir.as_path())];
    dirs.extend(config.log.file.path.as_ref().and_then(|path| Some(("the log", path.parent()?))));
    let pid = holder.and_then(|holder| holder.pid);
    bundle.add("system.txt", &system::facts(pid, &dirs), KeptEnd::Beginning);
    bundle.add("files.txt", &system::files(&config.data_dir), KeptEnd::Beginning);
}

/// Collects the running node's pages.
fn live(bundle: &mut Bundle, config: &NodeConfig, node: &NodeUrl) {
    for (path, name) in PAGES {
        match ask(node, path) {
            Ok(text) => bundle.add(name, &text, KeptEnd::Beginning),
            Err(report) => bundle.miss(name, &report.to_string()),
        }
    }
    // A node that is not ready gives the reason with another status code.
    match page(node, "/health") {
        Ok(text) => bundle.add("health.json", &text, KeptEnd::Beginning),
        Err(report) => bundle.miss("health.json", &report.to_string()),
    }
    let token = OperatorToken::load(&config.data_dir.join(TOKEN_FILE)).map_err(|error| error.to_string());
    let recent = token.and_then(|token| {
        order(node, "GET", "/v1/operator/log/recent", &token, "").map_err(|report| report.to_string())
    });
    match recent {
        Ok(text) => bundle.add("log.txt", &text, KeptEnd::End),
        Err(why) => bundle.miss("log.txt", &why),
    }
}

/// Collects the database's statistics while no node holds it.
fn offline(bundle: &mut Bundle, config: &NodeConfig) {
    let stats = access::take_database(config).and_then(|_lock| db::stats_of(config));
    match stats.map(|stats: DbStats| serde_json::to_string_pretty(&stats)) {
        Ok(Ok(text)) => bundle.add("database.json", &text, KeptEnd::Beginning),
        Ok(Err(error)) => bundle.miss("database.json", &error.to_string()),
        Err(report) => bundle.miss("database.json", &report.to_string()),
    }
}

fn file_tail(bundle: &mut Bundle, name: &str, path: &Path, bytes_max: u64) {
    match system::tail(path, bytes_max) {
        Ok(text) => bundle.add(name, &text, KeptEnd::End),
        Err(error) => bundle.miss(name, &format!("{}: {error}", path.display())),
    }
}
