//! The keeper: the parent process of a detached devnet's nodes.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use tokio::net::{UnixListener, UnixStream};

use super::{
    Entry, NodeState, State,
    control::{self, Answer, Request},
};
use crate::{
    devnet::{Devnet, Node},
    manifest, output,
    plan::Plan,
    relay::Links,
    signals::interrupted,
};

/// The interval at which ended nodes are detected.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// The time limit for a restarted node to answer.
const READY_DEADLINE: Duration = Duration::from_secs(120);

struct Keeper {
    plan: Plan,
    devnet: Devnet,
    links: Option<Links>,
}

/// Keeps the devnet of an entry until a `down` request or SIGTERM.
///
/// # Errors
/// If another keeper has the devnet, if the devnet does not start, or if a node stops badly.
pub(super) async fn keep(entry: &Entry) -> Result<()> {
    // Leaves the shell's session, whose end would end the keeper too. The call fails if the keeper already leads a
    // session.
    let _ = rustix::process::setsid();
    let lock = entry.lock().await?;
    ensure!(lock.is_some(), "another keeper already runs the devnet {}", entry.name());
    let socket = entry.socket();
    control::remove_socket(&socket)?;
    let plan = entry.plan()?;
    // One listener is used throughout: a signal between two listeners would be lost.
    let mut stop = std::pin::pin!(interrupted());
    let (devnet, links) = tokio::select! {
        started = plan.start() => started?,
        () = &mut stop => bail!("interrupted while starting"),
    };
    let listener =
        UnixListener::bind(&socket).with_context(|| format!("cannot listen on {}", socket.display()))?;
    let mut keeper = Keeper { plan, devnet, links };
    output::note("the devnet is ready");
    let mut check = tokio::time::interval(CHECK_INTERVAL);
    let asked = loop {
        tokio::select! {
            () = &mut stop => break None,
            _ = check.tick() => keeper.note_ended()?,
            came = listener.accept() => {
                // The command has gone, or file descriptors are short: the next connection may succeed.
                let Ok((mut stream, _)) = came else { continue };
                if keeper.serve(&mut stream).await {
                    break Some(stream);
                }
            }
        }
    };
    output::note("stopping");
    let stopped = keeper.stop().await;
    fs::remove_file(&socket).with_context(|| format!("cannot remove {}", socket.display()))?;
    if let Some(mut stream) = asked {
        let answer = match &stopped {
            Ok(()) => Answer::Done,
            Err(error) => Answer::Refused(format!("{error:#}")),
        };
        control::answer(&mut stream, &answer).await;
    }
    stopped
}

impl Keeper {
    /// Serves one command. Returns whether it was `down`, which is answered after everything has stopped.
    async fn serve(&mut self, stream: &mut UnixStream) -> bool {
        let answer = match control::read_request(stream).await {
            Ok(Request::Down) => return true,
            Ok(request) => self.handle(request).await,
            Err(error) => Err(error),
        };
        let answer = answer.unwrap_or_else(|error| Answer::Refused(format!("{error:#}")));
        control::answer(stream, &answer).await;
        false
    }

    async fn handle(&mut self, request: Request) -> Result<Answer> {
        self.note_ended()?;
        match request {
            Request::State => return Ok(Answer::State(Box::new(self.state()))),
            Request::Stop(name) => {
                let index = self.find(&name)?;
                let node = self.devnet.node_mut(index);
                ensure!(node.pid().is_some(), "{name} is not running");
                node.stop().await?;
                output::note(&format!("{name} was stopped"));
            }
            Request::Start(name) => {
                let index = self.find(&name)?;
                ensure!(
                    !self.devnet.started_by_hand().contains(&name),
                    "{name} was started by hand and is running: stop it where it was started"
                );
                let node = self.devnet.node_mut(index);
                ensure!(node.pid().is_none(), "{name} is already running");
                node.start()?;
                node.wait_ready(Instant::now() + READY_DEADLINE).await?;
                output::note(&format!("{name} was started"));
            }
            Request::Down => bail!("the keeper's loop stops devnets"),
        }
        // The old manifest has outdated process ids. If no node is left, a new one cannot be made.
        if let Err(error) = self.devnet.write_manifest().await {
            output::note(&format!("the manifest stays as it was: {error:#}"));
        }
        Ok(Answer::Done)
    }

    fn find(&self, name: &str) -> Result<usize> {
        self.devnet.find(name).with_context(|| {
            let names: Vec<_> = self.devnet.nodes().iter().map(|node| node.name()).collect();
            format!("there is no node `{name}`; there are: {}", names.join(", "))
        })
    }

    fn note_ended(&mut self) -> Result<()> {
        for end in self.devnet.take_ended()? {
            output::note(&end.to_string());
        }
        Ok(())
    }

    fn state(&self) -> State {
        let node = |(index, node): (usize, &Node)| NodeState {
            name: node.name().to_owned(),
            role: node.role(),
            pid: node.pid(),
            region: self.plan.region(index),
            api: node.rpc().url().to_owned(),
            network: node.peer_address(),
            log: node.log(),
        };
        State {
            seed: self.plan.devnet.seed.clone(),
            manifest: self.devnet.dir().join(manifest::FILE),
            nodes: self.devnet.nodes().iter().enumerate().map(node).collect(),
            relays: self.links.as_ref().map(Links::stats),
        }
    }

    async fn stop(self) -> Result<()> {
        for name in self.devnet.started_by_hand() {
            output::note(&format!("{name} was started by hand and keeps running"));
        }
        self.devnet.stop().await
    }
}
