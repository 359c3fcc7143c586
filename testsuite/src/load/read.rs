//! Reads in addition to the writes: the queries of wallets and pages ([`super::question`]) at a fixed rate, half over
//! HTTP and half over WebSocket.
//!
//! As with writes, the loop is open: the latency of a read counts from its due time, even if the previous read was
//! late. An unanswered read counts as at least ten seconds: a node that answers nothing must not look fast.

use std::time::{Duration, Instant};

use alloy_primitives::Address;
use anyhow::{Context, Result, anyhow, bail};
use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::{net::TcpStream, task::JoinSet};
use tokio_tungstenite::{WebSocketStream, client_async, tungstenite::Message};
use tokio_util::sync::CancellationToken;

use super::{
    percentiles::Latencies,
    protocol::{ReadJob, ReadOutcome, ReadWay},
    question::Questions,
    stretches::Stretches,
};
use crate::rpc::Rpc;

/// Readers of each node, alternating between the two transports. A slow answer holds up one of them.
const READERS: usize = 8;
/// The timeout of a read.
pub(super) const DEADLINE: Duration = Duration::from_secs(10);
/// The delay before a failed connection is opened again.
pub(super) const RECONNECT: Duration = Duration::from_millis(250);

/// Reads from the generator's share of the nodes until it is stopped or `duration` has passed.
pub(super) async fn run(
    job: &ReadJob,
    (worker, workers): (usize, usize),
    (begin, duration): (Instant, Duration),
    addresses: &[Address],
    stop: &CancellationToken,
) -> Result<Vec<ReadOutcome>> {
    let mut readers = JoinSet::new();
    if job.per_second > 0 {
        for (name, url) in job.nodes.iter().skip(worker).step_by(workers) {
            for place in 0..READERS {
                let way = if place % 2 == 0 { ReadWay::Http } else { ReadWay::WebSocket };
                let outcome = ReadOutcome {
                    node: name.clone(),
                    way,
                    latencies: Latencies::default(),
                    stretches: Stretches::of(duration),
                    failed: 0,
                    own: Latencies::default(),
                };
                let reader = Reader {
                    line: Line::new(way, url)?,
                    place,
                    per_second: job.per_second,
                    questions: Questions::new(addresses.to_vec(), job.contract),
                    outcome,
                };
                readers.spawn(reader.run(begin, duration, stop.clone()));
            }
        }
    }
    let mut outcomes = Vec::new();
    while let Some(outcome) = readers.join_next().await {
        outcomes.push(outcome.context("a reader panicked")?);
    }
    Ok(outcomes)
}

/// One of a node's readers: it makes every eighth read.
struct Reader {
    line: Line,
    place: usize,
    per_second: u32,
    questions: Questions,
    outcome: ReadOutcome,
}

impl Reader {
    async fn run(mut self, begin: Instant, duration: Duration, stop: CancellationToken) -> ReadOutcome {
        // When the previous answer arrived.
        let mut free_at = begin;
        for read in (self.place..).step_by(READERS) {
            let due = due(read, self.per_second);
            if due >= duration {
                break;
            }
            if stop.is_cancelled() {
                // This read was due but not sent: missing answers held it up.
                match begin + due > Instant::now() {
                    true => break,
                    false => self.miss(begin, due),
                }
                continue;
            }
            tokio::select! {
                biased;
                () = tokio::time::sleep_until((begin + due).into()) => {}
                () = stop.cancelled() => break,
            }
            let ready = (begin + due).max(free_at);
            self.outcome.own.record(Instant::now().saturating_duration_since(ready));
            let question = self.questions.next(read, read / READERS);
            let (method, params) = question.call();
            let answer = tokio::time::timeout(DEADLINE, self.line.call(method, params)).await;
            match answer.map(|answer| self.questions.learn(&question, &answer?)) {
                Ok(Ok(())) => {
                    let latency = (begin + due).elapsed();
                    self.outcome.latencies.record(latency);
                    self.outcome.stretches.record(due, latency);
                }
                Ok(Err(_)) => {
                    self.miss(begin, due);
                    tokio::time::sleep(RECONNECT).await;
                }
                Err(_) => self.miss(begin, due),
            }
            free_at = Instant::now();
        }
        self.outcome
    }

    /// Records that the read due at `due` has no answer. Later reads start afresh.
    fn miss(&mut self, begin: Instant, due: Duration) {
        let latency = (begin + due).elapsed().max(DEADLINE);
        self.outcome.failed += 1;
        self.outcome.latencies.record(latency);
        self.outcome.stretches.miss(due, latency);
        self.line.close();
        self.questions.forget();
    }
}

/// Returns when a read is due, after the start.
fn due(read: usize, per_second: u32) -> Duration {
    Duration::from_nanos((read as u64).saturating_mul(1_000_000_000) / u64::from(per_second.max(1)))
}

/// Returns the `HOST:PORT` of a node's API.
pub(super) fn host(rpc: &Rpc) -> String {
    rpc.url().trim_start_matches("http://").to_owned()
}

/// Opens a WebSocket to the API at `HOST:PORT`.
pub(super) async fn open_socket(host: &str) -> Result<WebSocketStream<TcpStream>> {
    let stream = TcpStream::connect(host).await?;
    stream.set_nodelay(true)?;
    let (opened, _) = client_async(format!("ws://{host}/ws"), stream).await?;
    Ok(opened)
}

/// The connection to a node.
enum Line {
    Http(Box<Rpc>),
    Socket { host: String, socket: Option<Box<WebSocketStream<TcpStream>>>, id: u64 },
}

impl Line {
    fn new(way: ReadWay, url: &str) -> Result<Line> {
        let rpc = Rpc::new(url)?;
        Ok(match way {
            ReadWay::Http => Line::Http(Box::new(rpc)),
            ReadWay::WebSocket => Line::Socket { host: host(&rpc), socket: None, id: 0 },
        })
    }

    /// Closes a failed connection.
    fn close(&mut self) {
        if let Line::Socket { socket, .. } = self {
            *socket = None;
        }
    }

    async fn call(&mut self, method: &str, params: Value) -> Result<Value> {
        let (host, socket, id) = match self {
            Line::Http(rpc) => return rpc.call(method, params).await,
            Line::Socket { host, socket, id } => (host, socket, id),
        };
        let open = match socket {
            Some(open) => open,
            None => socket.insert(Box::new(open_socket(host).await?)),
        };
        *id += 1;
        let request = json!({ "jsonrpc": "2.0", "id": *id, "method": method, "params": params });
        open.send(Message::text(request.to_string())).await?;
        loop {
            let message = open.next().await.ok_or_else(|| anyhow!("the node closed the socket"))??;
            let Message::Text(text) = message else { continue };
            let mut answer: Value = serde_json::from_str(&text)?;
            if answer["id"] != json!(*id) {
                continue;
            }
            if let Some(error) = answer.get("error") {
                bail!("{method}: {error}");
            }
            return Ok(answer["result"].take());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::net::TcpListener;
    use tokio_tungstenite::accept_async;

    use super::*;
    use crate::load::{
        protocol::{instant_of, monotonic_ns},
        sink::Sink,
    };

    #[test]
    fn reads_are_due_evenly() {
        assert_eq!((due(0, 10), due(25, 10)), (Duration::ZERO, Duration::from_millis(2_500)));
    }

    /// Goal: if a node closes the first socket after one answer, the reader opens another, and counts one failure.
    #[tokio::test]
    async fn a_socket_that_closes_is_opened_again() {
        static OPENED: AtomicUsize = AtomicUsize::new(0);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let is_first = OPENED.fetch_add(1, Ordering::Relaxed) == 0;
                let mut socket = accept_async(stream).await.unwrap();
                while let Some(Ok(Message::Text(text))) = socket.next().await {
                    let request: Value = serde_json::from_str(&text).unwrap();
                    let answer = json!({ "jsonrpc": "2.0", "id": request["id"], "result": "0x5" });
                    socket.send(Message::text(answer.to_string())).await.unwrap();
                    if is_first {
                        break;
                    }
                }
            }
        });
        let mut line = Line::new(ReadWay::WebSocket, &url).unwrap();
        assert_eq!(line.call("eth_blockNumber", json!([])).await.unwrap(), "0x5");
        assert!(line.call("eth_blockNumber", json!([])).await.is_err());
        line.close();
        assert_eq!(line.call("eth_blockNumber", json!([])).await.unwrap(), "0x5");
    }

    #[tokio::test]
    async fn a_node_that_fails_is_counted_and_holds_nobody_up() {
        // The sink answers with arrays, which are invalid answers to single calls.
        let sink = Sink::start().await.unwrap();
        let job =
            ReadJob { nodes: vec![("a".to_owned(), sink.url().to_owned())], per_second: 40, contract: None };
        let time = (Instant::now(), Duration::from_millis(200));
        let outcomes = run(&job, (0, 1), time, &[], &CancellationToken::new()).await.unwrap();
        assert_eq!(outcomes.len(), READERS);
        assert_eq!(outcomes.iter().map(|outcome| outcome.failed).sum::<u64>(), 8);
        assert_eq!(outcomes.iter().map(|outcome| outcome.own.len()).sum::<u64>(), 8);
        // All were due in the run's 200 ms. None was answered, and none counts as fast.
        let of = |outcome: &ReadOutcome| outcome.stretches.points(Duration::from_millis(200))[0];
        assert_eq!(outcomes.iter().map(|outcome| of(outcome).due_per_second).sum::<f64>(), 40.0);
        assert!(outcomes.iter().all(|outcome| of(outcome).answered_per_second == 0.0));
        assert!(outcomes.iter().all(|outcome| of(outcome).read_ms.unwrap().p50 > 9_900.0));
        // An immediate error does not count as a fast answer.
        assert!(outcomes.iter().all(|outcome| outcome.latencies.percentiles().unwrap().p50 > 9_900.0));
        let none = run(&job, (1, 2), time, &[], &CancellationToken::new()).await.unwrap();
        assert!(none.is_empty(), "the node belongs to the other generator");
    }
    /// Goal: reads that wait for a silent node when the run ends count as failed.
    #[tokio::test]
    async fn what_was_due_when_the_run_ended_has_failed() {
        let nodes = vec![("a".to_owned(), "127.0.0.1:1".to_owned())];
        let job = ReadJob { nodes, per_second: 40, contract: None };
        let stop = CancellationToken::new();
        stop.cancel();
        let begin = instant_of(monotonic_ns() - 100_000_000);
        let outcomes = run(&job, (0, 1), (begin, Duration::from_secs(60)), &[], &stop).await.unwrap();
        let failed: u64 = outcomes.iter().map(|outcome| outcome.failed).sum();
        // Reads are due every 25 ms; more of them are due by the time a slow machine gets here.
        assert!((5..1_000).contains(&failed), "{failed}");
    }
}
