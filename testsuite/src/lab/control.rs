//! The protocol between commands and a devnet's keeper: one line of JSON each way over a Unix socket.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::UnixStream,
};

use super::Entry;
use crate::{
    manifest::Role,
    relay::{Region, RelayStats},
};

/// The longest line: the state of 1,000 nodes is shorter. Without a limit a broken peer would fill the memory.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// The timeout of a request: commands send theirs at once, and the keeper handles one after the other.
const LINE_DEADLINE: Duration = Duration::from_secs(2);
/// The timeout of an answer: starting a node takes up to a minute, and stopping takes ten seconds per node.
const ANSWER_DEADLINE: Duration = Duration::from_secs(180);

/// A command's request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum Request {
    /// Return the state.
    State,
    /// Stop this node; the others continue.
    Stop(String),
    /// Start this node again.
    Start(String),
    /// Stop everything, and end.
    Down,
}

/// The keeper's answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum Answer {
    /// The request was carried out.
    Done,
    /// The state.
    State(Box<State>),
    /// The request was refused, for this reason.
    Refused(String),
}

/// A running devnet.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct State {
    /// The seed of all keys.
    pub seed: String,
    /// The path of the manifest, for other tools.
    pub manifest: PathBuf,
    /// Its nodes, validators first.
    pub nodes: Vec<NodeState>,
    /// The statistics of the links between them, if there are any.
    pub relays: Option<RelayStats>,
}

/// A node of a running devnet.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeState {
    /// Its name.
    pub name: String,
    /// Its role.
    pub role: Role,
    /// Its process id, if it runs.
    pub pid: Option<u32>,
    /// Its assumed region.
    pub region: Option<Region>,
    /// The URL of its API.
    pub api: String,
    /// The address at which peers reach it.
    pub network: String,
    /// The path of its log.
    pub log: PathBuf,
}

/// Sends a request to the keeper of a devnet.
///
/// # Errors
/// If the keeper does not run or answer, or refuses.
pub(super) async fn ask(entry: &Entry, request: &Request) -> Result<Answer> {
    ensure!(
        entry.is_running()?,
        "the devnet {name} is not running: `slipnet up -d {name}` starts it with its files",
        name = entry.name()
    );
    let exchange = async {
        let mut stream = UnixStream::connect(entry.socket()).await?;
        write_line(&mut stream, request).await?;
        read_line(&mut stream, ANSWER_DEADLINE).await
    };
    let answer = exchange.await.with_context(|| {
        format!(
            "the keeper of {} does not answer: it may still be starting nodes; its output is in {}",
            entry.name(),
            entry.log().display()
        )
    })?;
    match answer {
        Answer::Refused(reason) => bail!("{}: {reason}", entry.name()),
        answer => Ok(answer),
    }
}

/// Requests a devnet's state.
///
/// # Errors
/// As [`ask`].
pub(super) async fn state(entry: &Entry) -> Result<State> {
    match ask(entry, &Request::State).await? {
        Answer::State(state) => Ok(*state),
        other => bail!("the keeper of {} answered {other:?} instead of its state", entry.name()),
    }
}

/// Reads a command's request.
///
/// # Errors
/// If no request comes in time, or the request is invalid.
pub(super) async fn read_request(stream: &mut UnixStream) -> Result<Request> {
    read_line(stream, LINE_DEADLINE).await
}

/// Answers a command. A command that has gone meanwhile gets no answer.
pub(super) async fn answer(stream: &mut UnixStream, answer: &Answer) {
    let _ = write_line(stream, answer).await;
}

async fn write_line(stream: &mut UnixStream, value: &impl Serialize) -> Result<()> {
    let line = serde_json::to_string(value)? + "\n";
    Ok(stream.write_all(line.as_bytes()).await?)
}

async fn read_line<T: DeserializeOwned>(stream: &mut UnixStream, deadline: Duration) -> Result<T> {
    let mut line = String::new();
    let mut reader = BufReader::new(stream.take(LINE_BYTES_MAX));
    let read = tokio::time::timeout(deadline, reader.read_line(&mut line));
    read.await.with_context(|| format!("no line within {} s", deadline.as_secs()))??;
    ensure!(line.ends_with('\n'), "the line ends after {} bytes", line.len());
    Ok(serde_json::from_str(&line)?)
}

/// Removes the socket of a killed keeper, so that the next one can listen.
pub(super) fn remove_socket(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every request and answer arrives unchanged; invalid and endless lines are errors.
    #[tokio::test]
    async fn lines_carry_requests_and_answers() {
        let (mut command, mut keeper) = UnixStream::pair().unwrap();
        for request in [Request::State, Request::Stop("a".into()), Request::Start("b".into()), Request::Down]
        {
            write_line(&mut command, &request).await.unwrap();
            assert_eq!(read_request(&mut keeper).await.unwrap(), request);
        }
        let refused = Answer::Refused("no node c".into());
        answer(&mut keeper, &refused).await;
        assert_eq!(read_line::<Answer>(&mut command, LINE_DEADLINE).await.unwrap(), refused);

        command.write_all(b"{\"fly\":1}\n").await.unwrap();
        assert!(read_request(&mut keeper).await.unwrap_err().to_string().contains("unknown variant `fly`"));
        command.write_all(b"\"sta").await.unwrap();
        drop(command);
        assert!(read_request(&mut keeper).await.unwrap_err().to_string().contains("ends after 4 bytes"));
    }
}
