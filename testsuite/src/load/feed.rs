//! [`HeadFeed`]: the heads that a node announces by `eth_subscribe` over WebSocket, in addition to those that
//! [`super::track`] polls.
//!
//! A head is due when any node of the load first shows its batch. If the announcement comes before the next poll, its
//! latency is zero. A broken connection is reopened; heads announced meanwhile are missed.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};
use futures::{SinkExt, StreamExt};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_tungstenite::tungstenite::Message;
use tokio_util::sync::CancellationToken;

use super::{
    percentiles::{Latencies, Percentiles},
    read::{self, DEADLINE, RECONNECT},
    stretches::{ReadPoint, Stretches},
    track::Heads,
};
use crate::rpc::{Rpc, quantity};

/// The most heads of one run that are kept. An hour of batches every 20 ms has 180,000.
const HEADS_MAX: usize = 1_000_000;
/// The time after a subscription begins, and before the watch ends, in which heads do not count as missed. They may
/// have existed before, or still be on the way.
const GRACE: Duration = Duration::from_secs(1);
/// How long a node has to accept the subscription. If it accepts later, the heads shown since this time count as
/// missed.
const SUBSCRIBED_WITHIN: Duration = Duration::from_secs(5);
/// The id of the only request.
const REQUEST: u64 = 1;

/// The heads that one node announced to its subscriber.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct HeadNews {
    /// The node's name, or the URL of its API.
    pub node: String,
    /// The time from when any node first showed a batch until this node announced it, in milliseconds. A missed batch
    /// counts at least ten seconds. `None` if no batch was due.
    pub news_ms: Option<Percentiles>,
    /// Batches that it did not announce.
    pub missed: u64,
    /// The figures by the time at which batches were due.
    #[serde(default)]
    pub points: Vec<ReadPoint>,
}

/// A running subscription to one node's heads.
pub(super) struct HeadFeed {
    task: JoinHandle<HeadAnnouncements>,
}

/// The heads that a node announced, with their times.
#[derive(Clone, Default, Debug)]
pub(super) struct HeadAnnouncements {
    name: String,
    /// When the node first accepted a subscription, after the start of the run.
    since: Option<Duration>,
    heads: BTreeMap<u64, Duration>,
}

impl HeadFeed {
    /// Subscribes, and resubscribes after failures, until it is stopped.
    pub(super) fn start((name, rpc): (String, Rpc), begin: Instant, stop: CancellationToken) -> HeadFeed {
        let told = HeadAnnouncements { name, ..HeadAnnouncements::default() };
        HeadFeed { task: tokio::spawn(listen(told, read::host(&rpc), begin, stop)) }
    }

    /// Returns all announcements, after the run was stopped.
    pub(super) async fn result(self) -> Result<HeadAnnouncements> {
        self.task.await.context("a subscriber to heads panicked")
    }
}

async fn listen(
    mut told: HeadAnnouncements,
    host: String,
    begin: Instant,
    stop: CancellationToken,
) -> HeadAnnouncements {
    loop {
        // `hear` ends only with an error of the node or of the connection.
        tokio::select! {
            () = stop.cancelled() => return told,
            _ = hear(&mut told, &host, begin) => {}
        }
        tokio::select! {
            () = stop.cancelled() => return told,
            () = tokio::time::sleep(RECONNECT) => {}
        }
    }
}

async fn hear(told: &mut HeadAnnouncements, host: &str, begin: Instant) -> Result<()> {
    let mut socket = read::open_socket(host).await?;
    let request =
        json!({ "jsonrpc": "2.0", "id": REQUEST, "method": "eth_subscribe", "params": ["newHeads"] });
    socket.send(Message::text(request.to_string())).await?;
    loop {
        let message = socket.next().await.ok_or_else(|| anyhow!("the node closed the socket"))??;
        let now = Instant::now().saturating_duration_since(begin);
        let Message::Text(text) = message else { continue };
        told.take(&serde_json::from_str(&text)?, now)?;
    }
}

impl HeadAnnouncements {
    fn take(&mut self, message: &Value, now: Duration) -> Result<()> {
        if message["id"] == json!(REQUEST) {
            if let Some(error) = message.get("error") {
                bail!("the node refused the subscription: {error}");
            }
            self.since.get_or_insert(now);
        }
        if message["method"] == "eth_subscription" && self.heads.len() < HEADS_MAX {
            let number = quantity(&message["params"]["result"]["number"])?;
            // A head that is announced again after a restart keeps its first time.
            self.heads.entry(number).or_insert(now);
        }
        Ok(())
    }

    /// Judges the announcements of the batches that the nodes showed before the schedule ended.
    pub(super) fn judged(&self, heads: &[Heads], duration: Duration, watched: Duration) -> HeadNews {
        let (mut latencies, mut stretches) = (Latencies::default(), Stretches::of(duration));
        let mut missed = 0;
        let begin = heads.iter().map(|heads| heads.first).min().unwrap_or_default();
        let end = heads.iter().map(|heads| heads.first + heads.seen.len() as u64).max().unwrap_or_default();
        let counts_from = self.since.unwrap_or_default().min(SUBSCRIBED_WITHIN) + GRACE;
        for number in begin..end {
            let shown = heads.iter().filter_map(|heads| heads.at(number)).min();
            let Some(shown) = shown.filter(|shown| *shown < duration) else { continue };
            match self.heads.get(&number) {
                Some(told) => {
                    let latency = told.saturating_sub(shown);
                    latencies.record(latency);
                    stretches.record(shown, latency);
                }
                None if shown >= counts_from && shown + GRACE <= watched => {
                    let latency = watched.saturating_sub(shown).max(DEADLINE);
                    missed += 1;
                    latencies.record(latency);
                    stretches.miss(shown, latency);
                }
                None => {}
            }
        }
        HeadNews {
            node: self.name.clone(),
            news_ms: latencies.percentiles(),
            missed,
            points: stretches.points(duration),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use tokio_tungstenite::accept_async;

    use super::*;

    fn head(number: u64) -> Value {
        let result = json!({ "number": format!("{number:#x}") });
        let params = json!({ "subscription": "0x1", "result": result });
        json!({ "jsonrpc": "2.0", "method": "eth_subscription", "params": params })
    }

    /// Goal: announcements before a connection breaks and after it is reopened are kept with their times.
    #[tokio::test]
    async fn a_subscription_is_made_again() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let server = tokio::spawn(async move {
            for numbers in [[5, 6], [6, 8]] {
                let (stream, _) = listener.accept().await.unwrap();
                let mut socket = accept_async(stream).await.unwrap();
                let Some(Ok(Message::Text(text))) = socket.next().await else { panic!("a request") };
                let request: Value = serde_json::from_str(&text).unwrap();
                assert_eq!(
                    (&request["method"], &request["params"][0]),
                    (&json!("eth_subscribe"), &json!("newHeads"))
                );
                let taken = json!({ "jsonrpc": "2.0", "id": request["id"], "result": "0x1" });
                for message in std::iter::once(taken).chain(numbers.map(head)) {
                    socket.send(Message::text(message.to_string())).await.unwrap();
                }
                socket.close(None).await.unwrap();
            }
        });
        let (mut told, begin) = (HeadAnnouncements::default(), Instant::now());
        hear(&mut told, &host, begin).await.unwrap_err();
        let (since, sixth) = (told.since.unwrap(), told.heads[&6]);
        hear(&mut told, &host, begin).await.unwrap_err();
        server.await.unwrap();
        assert_eq!(told.heads.keys().copied().collect::<Vec<_>>(), [5, 6, 8]);
        assert_eq!((told.since, told.heads[&6]), (Some(since), sixth));
    }

    /// Goal: a node that is down or refuses has announced nothing, and its subscriber ends when it is stopped.
    #[tokio::test]
    async fn a_node_that_is_away_tells_nothing() {
        let stop = CancellationToken::new();
        let node = ("a".to_owned(), Rpc::new("127.0.0.1:1").unwrap());
        let feed = HeadFeed::start(node, Instant::now(), stop.clone());
        stop.cancel();
        let mut told = feed.result().await.unwrap();
        let refusal = json!({ "id": REQUEST, "error": { "code": -32_000, "message": "too many" } });
        assert!(told.take(&refusal, Duration::ZERO).unwrap_err().to_string().contains("too many"));
        assert!(told.since.is_none() && told.heads.is_empty());
    }

    /// Goal: a head is due when any node shows it. A missed one counts as later than any other, unless the node could
    /// not have announced it.
    #[test]
    fn heads_are_due_when_any_node_shows_them() {
        let ms = Duration::from_millis;
        let heads = |name: &str, seen: &[u64]| Heads {
            name: name.to_owned(),
            first: 5,
            seen: seen.iter().map(|at| ms(*at)).collect(),
            looks: 1,
        };
        // Batches 5 to 10; the last is first shown after the schedule's end.
        let heads =
            [heads("a", &[100, 500, 1_500, 2_500]), heads("b", &[90, 600, 1_400, 2_600, 3_900, 5_000])];
        let mut told =
            HeadAnnouncements { name: "b".to_owned(), since: Some(ms(200)), heads: BTreeMap::new() };
        told.heads.extend([(6, ms(510)), (8, ms(2_400))]);
        let news = told.judged(&heads, ms(4_000), ms(4_500));
        // 5 came before the subscription, 7 was missed, 9 may still come.
        let found = news.news_ms.unwrap();
        assert_eq!((found.count, news.missed), (3, 1));
        assert!((9.9..10.1).contains(&found.p50) && found.max > 9_990.0, "{found}");
        let rates: Vec<(f64, f64)> =
            news.points.iter().map(|point| (point.due_per_second, point.answered_per_second)).collect();
        assert_eq!(rates, [(1.0, 1.0), (1.0, 0.0), (1.0, 1.0), (0.0, 0.0)]);
        told.since = Some(ms(1_200));
        assert_eq!(told.judged(&heads, ms(4_000), ms(4_500)).missed, 0, "7 was there already");
        let silent = HeadAnnouncements::default().judged(&heads, ms(4_000), ms(9_000));
        assert_eq!((silent.missed, silent.news_ms.unwrap().count), (3, 3), "7, 8 and 9");
    }

    /// Goal: a node that accepts a subscription late has missed the earlier heads, and does not look like one that
    /// announced all.
    #[test]
    fn a_late_subscription_misses_heads() {
        let seen = (0..20).map(Duration::from_secs).collect();
        let heads = [Heads { name: "a".to_owned(), first: 0, seen, looks: 1 }];
        let late = HeadAnnouncements {
            name: "a".to_owned(),
            since: Some(Duration::from_secs(15)),
            heads: (15..20).map(|number| (number, Duration::from_secs(number))).collect(),
        };
        let news = late.judged(&heads, Duration::from_secs(20), Duration::from_secs(30));
        // The heads of seconds 6 to 14; the earlier ones may have existed before.
        assert_eq!((news.missed, news.news_ms.unwrap().count), (9, 14));
    }
}
