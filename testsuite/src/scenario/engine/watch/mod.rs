//! [`Watch`]: observes, all the time, the nodes' accusations against each other, their alarms, and their opinions of
//! peers that lie to them.
//!
//! A ban or a proof is blame, unless a fault made its target lie then. So is a pause, unless the other node said that
//! it is busy, or a fault of that time explains the pause's reason. See [`Excuses`](super::blame::Excuses) and
//! [`HonestNodes`]. Lying peers are not nodes of the scenario: accusations against them are no blame.

mod known;
mod thoughts;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::join_all;
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use self::known::HonestNodes;
use super::blame::Cause;
use crate::{devnet::Node, report::LiarOpinion, rpc::Rpc, scenario::criteria::Convictions};

const POLL: Duration = Duration::from_millis(500);
/// The timeout of an answer: a paused or stuck node must not delay the next look at the others.
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// The observations.
pub(super) struct Observations {
    /// Accusations of honest nodes against honest nodes, each once.
    pub(super) blamed: Vec<String>,
    /// Alarms, each once.
    pub(super) alarms: Vec<String>,
    /// Nodes that never answered.
    pub(super) unseen: Vec<String>,
    pub(super) convictions: Convictions,
    /// The nodes' opinions of peers that lied to them.
    pub(super) liars: Vec<LiarOpinion>,
}

/// Observes honest nodes until it is ended or dropped.
pub(super) struct Watch {
    /// When the clock started.
    begin: Instant,
    known: Arc<Mutex<HonestNodes>>,
    task: JoinHandle<()>,
}

impl Watch {
    /// Starts to observe, without nodes so far. Times count from `begin`; `catch_up_ms` is the longest catch-up time
    /// that the scenario allows.
    pub(super) fn start(begin: Instant, catch_up_ms: u64) -> Watch {
        let known = Arc::<Mutex<HonestNodes>>::default();
        known.lock().excuses.give(catch_up_ms);
        let shared = known.clone();
        let task = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(POLL);
            loop {
                ticks.tick().await;
                let nodes = shared.lock().nodes.clone();
                // All nodes are asked at once: one that hangs does not delay the others.
                let looks = nodes.into_iter().map(|(name, rpc)| look(shared.clone(), begin, name, rpc));
                join_all(looks).await;
            }
        });
        Watch { begin, known, task }
    }

    /// Observes one more node from now on.
    pub(super) fn add(&self, node: &Node) {
        let id = node.peer_address().split('@').next().unwrap_or_default().to_owned();
        self.look_at(node.name(), id, node.rpc().clone());
    }

    /// Observes the node with this name and public key from now on.
    pub(super) fn look_at(&self, name: &str, id: String, rpc: Rpc) {
        let mut known = self.known.lock();
        known.names.insert(id, name.to_owned());
        known.unseen.insert(name.to_owned());
        known.nodes.push((name.to_owned(), rpc));
    }

    /// Registers that an event begins to affect this node: what it explains is no blame.
    pub(super) fn begin_excuse(&self, event: usize, name: &str, cause: Cause) {
        self.known.lock().excuses.begin(event, name, cause, passed_ms(self.begin));
    }

    /// Registers that an event is over: its excuses end soon.
    pub(super) fn end_excuses(&self, event: usize) {
        self.known.lock().excuses.end(event, passed_ms(self.begin));
    }

    /// Registers that a node got peers with this lie; the tag names their source.
    pub(super) fn meet(&self, node: &str, lie: &str, (tag, servers): (&str, &[String])) {
        let now = self.begin.elapsed();
        let mut known = self.known.lock();
        servers.iter().for_each(|server| known.thoughts.meet(node, lie, (tag, server.as_str()), now));
    }

    /// Registers that the peers of this tag leave, or all of them. Later opinions of these peers come from their
    /// departure, and do not count.
    pub(super) fn part(&self, tag: Option<&str>) {
        self.known.lock().thoughts.part(tag);
    }

    /// Ends the observation, and returns its results.
    pub(super) fn end(self) -> Observations {
        self.task.abort();
        let mut known = self.known.lock();
        let [blamed, alarms, unseen] =
            [&known.blamed, &known.alarms, &known.unseen].map(|seen| seen.iter().cloned().collect());
        let convictions = std::mem::take(&mut known.convictions);
        let liars = std::mem::take(&mut known.thoughts).opinions();
        Observations { blamed, alarms, unseen, convictions, liars }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Asks a node once. A node that does not answer shows no accusations; others check whether it lives.
async fn look(known: Arc<Mutex<HonestNodes>>, begin: Instant, name: String, rpc: Rpc) {
    let asked_ms = passed_ms(begin);
    let page = tokio::time::timeout(ANSWER_MAX, rpc.page("/v1/status")).await;
    if let Ok(Ok(status)) = page {
        let mut known = known.lock();
        known.look(&name, &status, asked_ms, passed_ms(begin));
        known.thoughts.look(&name, &status, begin.elapsed());
    }
}

fn passed_ms(begin: Instant) -> u64 {
    u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    /// Goal: nodes that hang do not delay other looks. One after the other, forty of them would take forty seconds.
    #[tokio::test]
    async fn who_stands_delays_no_look() {
        let listen = async || TcpListener::bind("127.0.0.1:0").await.unwrap();
        let rpc = |listener: &TcpListener| Rpc::new(&listener.local_addr().unwrap().to_string()).unwrap();
        let (stands, answers) = (listen().await, listen().await);
        let watch = Watch::start(Instant::now(), 60_000);
        {
            let mut known = watch.known.lock();
            known.nodes = vec![("stands".to_owned(), rpc(&stands)); 40];
            known.nodes.push(("answers".to_owned(), rpc(&answers)));
            let liar = ("event-0", "aa@127.64.0.1:9");
            known.thoughts.meet("answers", "forged_heads", liar, Duration::ZERO);
        }
        tokio::spawn(async move {
            let page = json!({ "bans": [{ "id": "aa", "by": "node", "reason": "no quorum" }] }).to_string();
            let page = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{page}", page.len());
            // A look that is too late on a busy machine is given up, and another follows.
            while let Ok((mut stream, _)) = answers.accept().await {
                let mut request = vec![0; 4_096];
                if stream.read(&mut request).await.is_ok_and(|read| read > 0) {
                    let _ = stream.write_all(page.as_bytes()).await;
                }
            }
        });
        let begin = Instant::now();
        while watch.known.lock().seen_ms.is_empty() {
            assert!(begin.elapsed() < Duration::from_secs(30), "nobody was looked at");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let seen = watch.end();
        assert_eq!(seen.liars[0].reason.as_deref(), Some("no quorum"));
        assert!(seen.liars[0].banned_after_seconds.is_some());
    }
}
