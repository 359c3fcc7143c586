//! `slipstream run`.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    panic,
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use clap::Args;
use miette::Result;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::{
    consts::{SIGINT, SIGTERM, SIGXFSZ},
    flag,
};
use slipstream_base::{
    DATABASE, Log, NodeError,
    failure_notes::{self, FAILURE_FILE, PANIC_FILE},
    keys,
    lock::LockError,
};
use slipstream_config::{LogConfig, NodeConfig};
use slipstream_network::NetworkError;
use slipstream_storage::StorageError;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

use super::{
    advice::{advised, failed},
    exit::{self, CommandFailure, Exit, OrFail as _},
    output::offer,
    source::ConfigArgs,
};
use slipstream_node::Node;

/// How long blocking threads may take to end after everything else has ended.
const BLOCKING_PATIENCE: Duration = Duration::from_secs(2);
/// How long a restarting node waits for the remains of the previous one: a call that still reads the store, or
/// connections that are closing.
const RESTART_PATIENCE: Duration = Duration::from_secs(30);
const RESTART_PAUSE: Duration = Duration::from_millis(250);

#[derive(Debug, Args)]
pub(super) struct RunArgs {
    #[command(flatten)]
    source: ConfigArgs,
}

pub(super) fn run(args: &RunArgs) -> Result<()> {
    let config = args.source.load()?;
    let log = start_log(&config.log)?;
    if args.source.is_instance() {
        make_key(&config)?;
    }
    log_panics(config.data_dir.clone());
    raise_open_files();
    raise_file_size()?;
    // Reports through the log, which never blocks: the node must end even if nobody reads its output.
    let result = run_logged(&config, &log).map_err(|report| exit::tell(&report, &log));
    log.close();
    exit::at_once(&result)
}

/// Generates the key of an instance that lacks one. `init` wrote only one key for the configuration file, and two nodes
/// must not share a key.
fn make_key(config: &NodeConfig) -> Result<()> {
    if config.key_file.exists() {
        return Ok(());
    }
    if config.data_dir.join(DATABASE).exists() {
        let (key, data) = (config.key_file.display(), config.data_dir.display());
        let text = format!(
            "the key file {key} is missing, but {data} holds the store of the node that used it: put the key back, or move {data} away"
        );
        return Err(CommandFailure::new(Exit::Config, text).into());
    }
    let key = keys::create(&config.key_file).or_fail()?;
    tracing::info!(file = %config.key_file.display(), peer = %key.public(), "made a key for this instance");
    Ok(())
}

/// The number of threads of the async runtime: half the cores. Long work has its own threads. With a thread per core,
/// most messages woke two threads. On two cores, a validator with 20 short batches a second then used a fifth more CPU.
fn runtime_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).max(1))
}

fn run_logged(config: &NodeConfig, log: &Log) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(runtime_threads())
        .enable_all()
        .build()
        .map_err(|source| NodeError::Io { action: "start the async runtime", source })
        .or_fail()?;
    let result = runtime.block_on(until_signal(config, log));
    // Threads that still read the disk are abandoned; they write nothing more.
    runtime.shutdown_timeout(BLOCKING_PATIENCE);
    result
}

/// The log filter from the configuration, or from `RUST_LOG` if that is set, and its text. Both must be valid, so that
/// an error in the configuration shows even while the variable overrides it.
fn log_filter(log: &LogConfig) -> std::result::Result<(EnvFilter, String), NodeError> {
    let configured = configured_filter(log)?;
    match std::env::var_os(EnvFilter::DEFAULT_ENV).filter(|text| !text.is_empty()) {
        Some(text) => {
            let text = text.to_string_lossy().into_owned();
            Ok((parse_filter("the environment variable RUST_LOG", &text)?, text))
        }
        None => Ok((configured, log.filter.clone())),
    }
}

/// The log filter from the configuration.
pub(super) fn configured_filter(log: &LogConfig) -> std::result::Result<EnvFilter, NodeError> {
    parse_filter("log.filter in the configuration", &log.filter)
}

fn parse_filter(place: &'static str, text: &str) -> std::result::Result<EnvFilter, NodeError> {
    slipstream_base::parse_filter(text).map_err(|source| NodeError::LogFilter { place, source })
}

/// Raises the limit on open files to the system's maximum. The usual 1,024 are meant for programs that use `select`; a
/// database and a few hundred connections need more.
pub(super) fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    if raised.current == limit.current {
        return;
    }
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => tracing::debug!(from = limit.current, to = limit.maximum, "raised the limit on open files"),
        Err(error) => {
            tracing::warn!(%error, limit = limit.current, "cannot raise the limit on open files; see `ulimit -n`");
        }
    }
}

/// Raises the limit on file size to the system's maximum. Beyond the limit a write fails, instead of a signal that ends
/// the process silently.
fn raise_file_size() -> Result<()> {
    flag::register(SIGXFSZ, Arc::default())
        .map_err(|source| NodeError::Io { action: "listen for signals", source })
        .or_fail()?;
    let limit = getrlimit(Resource::Fsize);
    let _ = setrlimit(Resource::Fsize, Rlimit { current: limit.maximum, ..limit });
    if let Some(bytes) = getrlimit(Resource::Fsize).current {
        tracing::warn!(
            bytes,
            "this process may not write longer files, but the store's files reach a few hundred MiB: raise `ulimit -f`, or \
             LimitFSIZE of systemd"
        );
    }
    Ok(())
}

fn start_log(config: &LogConfig) -> Result<Log> {
    let (filter, text) = log_filter(config).or_fail()?;
    let log = Log::open(config).or_fail()?;
    log.install(filter, text, config.format);
    Ok(log)
}

/// Logs panics and notes them in a file for later. The standard library's handler would write to standard error itself,
/// and block on its reader.
fn log_panics(data_dir: PathBuf) {
    panic::set_hook(Box::new(move |panic| {
        let backtrace = Backtrace::capture();
        let backtrace = (backtrace.status() == BacktraceStatus::Captured).then_some(backtrace);
        let thread = std::thread::current();
        let shown = backtrace.as_ref().map(ToString::to_string).unwrap_or_default();
        let text = format!("thread {}: {panic}\n{shown}", thread.name().unwrap_or("without a name"));
        failure_notes::note(&data_dir, PANIC_FILE, &text);
        tracing::error!(thread = thread.name(), backtrace = backtrace.map(display), "{panic}");
    }));
}

/// Runs a node until SIGINT, SIGTERM or the failure of a task. If the state is wrong, the node restarts and repairs the
/// state during the start.
async fn until_signal(config: &NodeConfig, log: &Log) -> Result<()> {
    let mut signals = Signals::listen(log).or_fail()?;
    let mut ended = run_once(config, log, &mut signals, Duration::ZERO).await?;
    while let CleanEnd::ToBeRepaired = ended {
        ended = run_once(config, log, &mut signals, RESTART_PATIENCE).await?;
    }
    Ok(())
}

/// How a node ended without a failure.
enum CleanEnd {
    BySignal,
    /// The node's state is wrong. The next start repairs the state.
    ToBeRepaired,
}

/// Runs a node until it ends. Waits up to `patience` for a directory and a port that the previous node may still hold.
async fn run_once(
    config: &NodeConfig,
    log: &Log,
    signals: &mut Signals,
    patience: Duration,
) -> Result<CleanEnd> {
    let mut node = tokio::select! {
        started = start(config, log, patience) => advised(started, config.role)?,
        name = signals.next() => {
            tracing::info!(signal = name, "stopped before the node was up; committed batches are kept");
            return Ok(CleanEnd::BySignal);
        }
    };
    offer(node.ready_line());
    tracing::info!(role = config.role.name(), api = %node.api_address(), network = %node.peer_address(), "ready");
    let failure = tokio::select! {
        failure = node.failure() => failure,
        name = signals.next() => {
            tracing::info!(signal = name, "stopping; a second signal stops at once");
            advised(node.stop().await, config.role)?;
            tracing::info!("stopped");
            return Ok(CleanEnd::BySignal);
        }
    };
    if node.is_to_be_repaired(config, &failure).await {
        tracing::error!(error = %failure, "the state is wrong: the node restarts and repairs it");
        if let Err(error) = node.stop().await {
            tracing::warn!(%error, "another task failed as well");
        }
        return Ok(CleanEnd::ToBeRepaired);
    }
    let failed = failed(&failure, config.role);
    failure_notes::note(&config.data_dir, FAILURE_FILE, &failed.to_string());
    let failed = failed.log("stopping, because a task failed");
    // Later failures are only logged: the operator needs to see the first one.
    let _ = node.stop().await;
    Err(failed.into())
}

/// Starts a node. Retries while a previous node of this process may still be ending.
async fn start(config: &NodeConfig, log: &Log, patience: Duration) -> std::result::Result<Node, NodeError> {
    let began = Instant::now();
    loop {
        match Node::start(config, log.clone()).await {
            Err(error) if is_held(&error) && began.elapsed() < patience => {
                tracing::debug!(%error, "the previous node is still ending");
                tokio::time::sleep(RESTART_PAUSE).await;
            }
            started => return started,
        }
    }
}

/// Whether a node that is ending may hold what the new node needs: its directory or its UDP port. QUIC keeps the port
/// for three timeouts of its most distant connection.
fn is_held(error: &NodeError) -> bool {
    matches!(
        error,
        NodeError::Storage(StorageError::Locked { .. })
            | NodeError::Lock(LockError::Held { .. })
            | NodeError::Network(NetworkError::AddressInUse { .. })
    )
}

struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// Set if a log file exists: the sender of the signal has rotated that file. Also set in a service, because systemd
    /// sends the signal on a reload. Otherwise the signal ends the process as usual, because its terminal is gone.
    hangup: Option<Signal>,
    log: Log,
}

impl Signals {
    /// Listens for the first signal. The second signal ends the process in the signal handler itself. If a node does
    /// not stop, all its threads may be waiting for a disk. The store is written atomically, so nothing committed is
    /// lost.
    fn listen(log: &Log) -> std::result::Result<Signals, NodeError> {
        let failed = |source| NodeError::Io { action: "listen for signals", source };
        let listen = |kind| signal(kind).map_err(failed);
        let signals = Signals {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: (log.has_file() || is_service()).then(|| listen(SignalKind::hangup())).transpose()?,
            log: log.clone(),
        };
        let came = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // The shutdown is registered first: in the other order, the first signal would count as the second.
            flag::register_conditional_shutdown(signal, Exit::Failure as i32, came.clone())
                .map_err(failed)?;
            flag::register(signal, came.clone()).map_err(failed)?;
        }
        Ok(signals)
    }

    /// Waits for a signal that ends the node, and returns its name.
    async fn next(&mut self) -> &'static str {
        let Signals { interrupt, terminate, hangup, log } = self;
        loop {
            let hung_up = async {
                match hangup {
                    Some(hangup) => hangup.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = interrupt.recv() => return "SIGINT",
                _ = terminate.recv() => return "SIGTERM",
                _ = hung_up => {
                    log.reopen();
                    let said = if log.has_file() { "reopened the log file" } else { "there is no log file to reopen" };
                    tracing::info!(signal = "SIGHUP", "{said}");
                }
            }
        }
    }
}

/// Whether systemd started this very process, rather than one of its ancestors.
fn is_service() -> bool {
    std::env::var("SYSTEMD_EXEC_PID").is_ok_and(|pid| pid == std::process::id().to_string())
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use slipstream_base::genesis_file;
    use slipstream_testkit::{genesis, keys};

    use super::*;

    /// Goal: a restarting node waits until its predecessor has released the UDP port; a node that a person starts does
    /// not wait.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_node_that_begins_anew_waits_for_its_udp_port() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("genesis.json");
        genesis_file::save(&file, &genesis(&keys([1]), 1)).unwrap();
        let key_file = dir.path().join("node.key");
        slipstream_base::keys::create(&key_file).unwrap();
        // A separate address: no other test takes the port once it is free.
        let before = UdpSocket::bind("127.83.7.1:0").unwrap();
        let mut config = NodeConfig {
            data_dir: dir.path().join("data"),
            genesis: Some(file),
            key_file,
            ..NodeConfig::default()
        };
        config.network.listen = before.local_addr().unwrap();
        config.api.listen = "127.0.0.1:0".parse().unwrap();
        let log = Log::open(&config.log).unwrap();

        let refused = start(&config, &log, Duration::ZERO).await.err().unwrap();
        assert!(is_held(&refused), "{refused}");
        let leave = async {
            tokio::time::sleep(2 * RESTART_PAUSE).await;
            drop(before);
        };
        let (node, ()) = tokio::join!(start(&config, &log, RESTART_PATIENCE), leave);
        node.unwrap().stop().await.unwrap();
    }
}
