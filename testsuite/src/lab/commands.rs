//! The commands for running devnets.

use std::{path::PathBuf, time::Duration};

use anyhow::{Result, bail, ensure};
use clap::Subcommand;
use serde_json::json;

use super::{
    Entry, NodeState, Registry, State,
    control::{self, Answer, Request},
    keeper,
    logs::{self, Log},
};
use crate::{
    leftovers,
    output::{print, print_line},
    progress::Progress,
    relay::RelayStats,
    rpc::Rpc,
    signals::interruptible,
};

/// The timeout of a node's head; a node that misses it is shown without one.
const HEAD_DEADLINE: Duration = Duration::from_secs(2);
/// The timeout of a keeper's state. A keeper that misses it is busy with the start of its devnet or of a node; the
/// other devnets are shown all the same.
const STATE_DEADLINE: Duration = Duration::from_secs(10);
/// The time limit for a keeper to end after its answer. It exceeds that of the nodes, which the keeper stops first.
const END_DEADLINE: Duration = Duration::from_secs(40);
const POLL: Duration = Duration::from_millis(20);

/// Commands for devnets that `slipnet up -d` started.
#[derive(Subcommand)]
pub enum LabCommand {
    /// Stops a devnet; its files stay, and `slipnet up -d NAME` continues with them.
    Down {
        /// The devnet; may be omitted if there is only one.
        #[arg(short = 'n', long, value_name = "NAME")]
        devnet: Option<String>,
    },
    /// Shows devnets with their nodes and heads.
    Status {
        /// The devnet; all of them if not given.
        #[arg(short = 'n', long, value_name = "NAME")]
        devnet: Option<String>,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Shows the last lines of logs.
    Logs {
        /// The nodes; without any, the keeper's log, which says how nodes ended.
        nodes: Vec<String>,
        /// The devnet; may be omitted if there is only one.
        #[arg(short = 'n', long, value_name = "NAME")]
        devnet: Option<String>,
        /// Follows new lines until ctrl-c.
        #[arg(short, long)]
        follow: bool,
        /// The most lines of each log.
        #[arg(long, default_value_t = 50)]
        lines: usize,
    },
    /// Stops a node of a devnet; the others continue.
    Stop {
        /// The node.
        node: String,
        /// The devnet; may be omitted if there is only one.
        #[arg(short = 'n', long, value_name = "NAME")]
        devnet: Option<String>,
    },
    /// Starts a node that was stopped or has ended, with the same ports and data.
    Start {
        /// The node.
        node: String,
        /// The devnet; may be omitted if there is only one.
        #[arg(short = 'n', long, value_name = "NAME")]
        devnet: Option<String>,
    },
    /// Removes the files of a stopped devnet, except a directory given with --dir. Also removes what killed runs have
    /// left behind.
    Clean {
        /// The devnet; may be omitted if there is only one.
        #[arg(short = 'n', long, value_name = "NAME", conflicts_with = "all")]
        devnet: Option<String>,
        /// Removes all stopped devnets.
        #[arg(long)]
        all: bool,
        /// Removes no devnet, only the temporary directories and small disks of killed runs.
        #[arg(long, conflicts_with_all = ["devnet", "all"])]
        runs: bool,
    },
    /// Runs as the parent process of a detached devnet's nodes.
    #[command(hide = true)]
    Keep {
        /// The devnet.
        name: String,
    },
}

impl LabCommand {
    /// Runs the command.
    ///
    /// # Errors
    /// If there is no such devnet or node, or the command fails.
    pub async fn run(self) -> Result<()> {
        let registry = Registry::of_user()?;
        let find = |devnet: Option<String>| registry.find(devnet.as_deref());
        match self {
            LabCommand::Down { devnet } => down(&find(devnet)?).await,
            LabCommand::Status { devnet, json } => {
                let entries = match devnet {
                    Some(name) => vec![registry.find(Some(&name))?],
                    None => registry.entries()?,
                };
                status(&entries, json).await
            }
            LabCommand::Logs { nodes, devnet, follow, lines } => {
                interruptible(show_logs(&find(devnet)?, &nodes, lines, follow)).await
            }
            LabCommand::Stop { node, devnet } => {
                control::ask(&find(devnet)?, &Request::Stop(node.clone())).await?;
                print_line(&format!("{node} has stopped"))
            }
            LabCommand::Start { node, devnet } => {
                control::ask(&find(devnet)?, &Request::Start(node.clone())).await?;
                print_line(&format!("{node} is running"))
            }
            LabCommand::Clean { devnet, all, runs } => {
                let swept = leftovers::sweep();
                swept.iter().try_for_each(|line| print_line(line))?;
                if runs {
                    return if swept.is_empty() {
                        print_line("killed runs left nothing behind")
                    } else {
                        Ok(())
                    };
                }
                let entries = if all { registry.entries()? } else { vec![find(devnet)?] };
                clean(&entries, all).await
            }
            LabCommand::Keep { name } => keeper::keep(&registry.entry(&name)?).await,
        }
    }
}

async fn down(entry: &Entry) -> Result<()> {
    Progress::detect().step(&format!("stopping {}", entry.name()));
    let answer = control::ask(entry, &Request::Down).await;
    let deadline = tokio::time::Instant::now() + END_DEADLINE;
    while entry.is_running()? && tokio::time::Instant::now() < deadline {
        tokio::time::sleep(POLL).await;
    }
    match answer? {
        Answer::Done => {
            let seconds = END_DEADLINE.as_secs();
            ensure!(!entry.is_running()?, "the keeper of {} did not end within {seconds} s", entry.name());
            print_line(&format!("{} has stopped; its files stay", entry.name()))
        }
        other => bail!("the keeper of {} answered {other:?} to down", entry.name()),
    }
}

/// The reason why a running devnet has no state to show.
type Silent = String;

/// Returns a devnet's state; `None` if it does not run.
async fn state_of(entry: &Entry) -> Result<Result<Option<State>, Silent>> {
    if !entry.is_running()? {
        return Ok(Ok(None));
    }
    Ok(match tokio::time::timeout(STATE_DEADLINE, control::state(entry)).await {
        Ok(Ok(state)) => Ok(Some(state)),
        Ok(Err(error)) => Err(format!("{error:#}")),
        Err(_) => Err(format!("its keeper did not answer within {} s", STATE_DEADLINE.as_secs())),
    })
}

/// Shows devnets; one that is starting does not hide the others.
async fn status(entries: &[Entry], as_json: bool) -> Result<()> {
    let mut devnets = Vec::new();
    for entry in entries {
        let state = state_of(entry).await?;
        let heads = match &state {
            Ok(Some(state)) => futures::future::join_all(state.nodes.iter().map(head)).await,
            Ok(None) | Err(_) => Vec::new(),
        };
        devnets.push((entry, state, heads));
    }
    if as_json {
        let devnets: Vec<_> = devnets
            .iter()
            .map(|(entry, state, heads)| {
                let (state, silent) = match state {
                    Ok(state) => (state.as_ref(), None),
                    Err(silent) => (None, Some(silent)),
                };
                let runs = state.is_some() || silent.is_some();
                json!({ "name": entry.name(), "runs": runs, "state": state, "silent": silent, "heads": heads })
            })
            .collect();
        return print_line(&serde_json::to_string_pretty(&devnets)?);
    }
    if devnets.is_empty() {
        return print_line("there is no devnet: `slipnet up -d` starts one");
    }
    let texts = devnets.iter().map(|(entry, state, heads)| match state {
        Ok(state) => described(entry.name(), state.as_ref(), heads),
        Err(silent) => format!("{}: starting or busy: {silent}\n", entry.name()),
    });
    print(&texts.collect::<Vec<_>>().join("\n"))
}

/// Returns the number of the node's newest batch, if it runs and answers.
async fn head(node: &NodeState) -> Option<u64> {
    node.pid?;
    let page = async { Rpc::new(&node.api).ok()?.page("/v1/status").await.ok() };
    tokio::time::timeout(HEAD_DEADLINE, page).await.ok()??["head"]["number"].as_u64()
}

/// Describes a devnet in words.
fn described(name: &str, state: Option<&State>, heads: &[Option<u64>]) -> String {
    let Some(state) = state else { return format!("{name}: not running\n") };
    let mut text = format!("{name}: running, seed {}, manifest {}\n", state.seed, state.manifest.display());
    for (node, head) in state.nodes.iter().zip(heads) {
        let head = head.map_or_else(|| "no answer".to_owned(), |head| format!("batch {head}"));
        let how = node.pid.map_or_else(|| "not running".to_owned(), |pid| format!("pid {pid}, {head}"));
        let region = node.region.map_or("", |region| region.name());
        text += &format!("  {:<12} {region:<4} {how:<28} api {}\n", node.name, node.api);
    }
    if let Some(relays) = &state.relays {
        let RelayStats { datagrams, lost, cut, full, overrun, overhead_us_p50, overhead_us_p99, .. } = relays;
        text += &format!(
            "  relays: {datagrams} datagrams, {lost} lost, {cut} cut, {full} dropped by full buffers, {overrun} overrun; own overhead p50 {overhead_us_p50} us, \
             p99 {overhead_us_p99} us\n"
        );
    }
    text
}

async fn show_logs(entry: &Entry, nodes: &[String], lines: usize, follow: bool) -> Result<()> {
    if nodes.is_empty() {
        return logs::show(vec![Log::new(&entry.log(), "")], lines, follow).await;
    }
    let dir = entry.plan()?.devnet.dir.unwrap_or_else(|| entry.net());
    let mut shown = Vec::new();
    for node in nodes {
        // A name must not be a path.
        let is_name =
            !node.is_empty() && node.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        let path: PathBuf = dir.join(node).join(crate::file_names::LOG);
        ensure!(is_name && path.is_file(), "there is no node `{node}` in {}", dir.display());
        let label = if nodes.len() > 1 { format!("{node} | ") } else { String::new() };
        shown.push(Log::new(&path, &label));
    }
    logs::show(shown, lines, follow).await
}

/// Removes devnets. Running ones are skipped if all were requested; one that was named must not run.
async fn clean(entries: &[Entry], passes_over: bool) -> Result<()> {
    for entry in entries {
        let name = entry.name();
        if passes_over && entry.is_running()? {
            print_line(&format!("{name} is running and stays"))?;
            continue;
        }
        let Some(lock) = entry.lock().await? else {
            bail!("{name} is running: `slipnet down --devnet {name}` stops it");
        };
        entry.remove(lock)?;
        print_line(&format!("{name} was removed"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{manifest::Role, relay::Region};

    /// Goal: a devnet's status shows for each node whether it runs and its addresses, and the relays' overhead.
    #[test]
    fn status_is_readable() {
        let node = |name: &str, pid| NodeState {
            name: name.to_owned(),
            role: Role::Validator,
            pid,
            region: Some(Region::Eu),
            api: "http://127.0.0.1:1".to_owned(),
            network: "key@127.0.0.1:2".to_owned(),
            log: PathBuf::from("/a/log"),
        };
        let state = State {
            seed: "s".to_owned(),
            manifest: PathBuf::from("/a/manifest.json"),
            nodes: vec![node("validator-0", Some(7)), node("validator-1", None)],
            relays: Some(RelayStats { datagrams: 9, overhead_us_p99: 800, ..RelayStats::default() }),
        };
        let text = described("a", Some(&state), &[Some(12), None]);
        assert!(text.contains("validator-0  eu   pid 7, batch 12"), "{text}");
        assert!(text.contains("validator-1  eu   not running"), "{text}");
        assert!(text.contains("9 datagrams") && text.contains("p99 800 us"), "{text}");
        assert_eq!(described("b", None, &[]), "b: not running\n");
    }
}
