//! `slipstream run`.

use std::{io::IsTerminal, path::PathBuf, time::Duration};

use clap::Args;
use miette::{IntoDiagnostic, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use slipstream_config::{LogConfig, LogFormat, NodeConfig};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

use super::{advice::advised, print};
use crate::{Node, NodeError};

/// How long threads that block may take to end when everything else has.
const BLOCKING_PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// The configuration file; `slipstream init` writes one
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

pub(super) fn run(args: &RunArgs) -> Result<()> {
    let config = slipstream_config::load(&args.config).into_diagnostic()?;
    start_log(&config.log).into_diagnostic()?;
    raise_open_files();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|source| NodeError::Io { action: "start the async runtime", source })
        .into_diagnostic()?;
    let result = runtime.block_on(until_signal(&config));
    // A node that was told twice to stop does not wait for work that is still reading the disk.
    runtime.shutdown_timeout(BLOCKING_PATIENCE);
    advised(result, config.role)
}

/// The filter of the configuration, or of `RUST_LOG` if that is set.
pub(super) fn log_filter(log: &LogConfig) -> Result<EnvFilter, NodeError> {
    let filter = std::env::var(EnvFilter::DEFAULT_ENV).ok().filter(|text| !text.is_empty());
    let filter = filter.unwrap_or_else(|| log.filter.clone());
    EnvFilter::try_new(&filter).map_err(|error| NodeError::LogFilter { filter, reason: error.to_string() })
}

/// Takes as many open files as the system allows: the usual 1,024 are meant for programs that use `select`, and a database
/// and a few hundred connections need more.
fn raise_open_files() {
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

fn start_log(log: &LogConfig) -> Result<(), NodeError> {
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(log_filter(log)?)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    match log.format {
        LogFormat::Text => subscriber.init(),
        LogFormat::Json => subscriber.json().init(),
    }
    Ok(())
}

/// Runs a node until SIGINT, SIGTERM or the failure of a task.
async fn until_signal(config: &NodeConfig) -> Result<(), NodeError> {
    let listen = |kind| signal(kind).map_err(|source| NodeError::Io { action: "listen for signals", source });
    let mut signals =
        Signals { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? };
    let mut node = tokio::select! {
        started = Node::start(config) => started?,
        name = signals.next() => {
            tracing::info!(signal = name, "stopped before the node was up; what is committed is kept");
            return Ok(());
        }
    };
    print(&node.ready_line());
    tracing::info!(role = config.role.name(), api = %node.api_address(), network = %node.peer_address(), "ready");
    let failure = tokio::select! {
        failure = node.failure() => Some(failure),
        name = signals.next() => {
            tracing::info!(signal = name, "stopping; a second signal stops at once");
            None
        }
    };
    let stopped = tokio::select! {
        stopped = node.stop() => stopped,
        // The store is written atomically, so stopping hard loses nothing but the goodbye to peers.
        _ = signals.next() => Err(NodeError::Interrupted),
    };
    match failure {
        Some(failure) => {
            tracing::error!(%failure, "stopped");
            Err(failure.into())
        }
        None => stopped.inspect(|()| tracing::info!("stopped")),
    }
}

struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}
