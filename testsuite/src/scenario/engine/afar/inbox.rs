//! [`Inbox`]: receives the results of loads in other containers, and of nodes' orders.
//!
//! Each connection brings one [`Delivery`], and gets one line as the answer. The inbox is bounded. It reads two long
//! deliveries at a time, only from known sources without a result so far, and it limits the total size. Before that,
//! nodes may announce each known order that they carry out, once. These announcements are short, and slow connections
//! do not delay them. A delivery without the judge's secret is refused and discarded.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    task::JoinHandle,
    time::{Instant, timeout, timeout_at},
};

use crate::load::{DELIVERY_BYTES_MAX, Delivery, Ending, JUDGE_SECRET, Source, TAKEN};

/// The most connections at a time, each with a short delivery: all loads and nodes of a scenario may connect at once.
const CONNECTIONS_MAX: usize = 384;
/// The limit of a short delivery. A load's figures are longer; a node's orders are shorter.
const SHORT_BYTES_MAX: usize = 8 << 10;
/// The timeout of a short delivery, and of an idle connection.
const SHORT_WITHIN: Duration = Duration::from_secs(5);
/// The most long deliveries that are read at a time: each may take the memory of the longest.
const LONG_AT_A_TIME: usize = 2;
/// The limit of all deliveries together, as text. A scenario has at most 256 phases, and nodes' deliveries are short.
const ALL_BYTES_MAX: usize = 256 << 20;
/// How long a long delivery may wait for its turn, and how long its transfer may then take.
const READ_WITHIN: Duration = Duration::from_secs(15);
/// The delay after a failed accept: file descriptors may be short for a moment.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Accepts deliveries until it is dropped.
pub(super) struct Inbox {
    shelf: Arc<Shelf>,
    address: SocketAddr,
    task: JoinHandle<()>,
}

struct Shelf {
    /// The required first line of a delivery; any first line is accepted if this is empty.
    secret: String,
    held: Mutex<Held>,
    /// The number of sources without a delivery so far.
    missing: watch::Sender<usize>,
}

struct Held {
    /// The ending of each source; `None` until it arrives.
    endings: BTreeMap<Source, Option<Ending>>,
    bytes_left: usize,
    /// The orders that nodes may announce.
    orders: BTreeSet<String>,
    /// The announced pairs of node and order, and those of them that have not been read yet.
    taken: BTreeSet<(String, String)>,
    new: Vec<(String, String)>,
}

impl Inbox {
    /// Listens for the deliveries of these sources with this secret, and for announcements of these orders.
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub(super) async fn open(
        listen: SocketAddr,
        secret: String,
        sources: impl Iterator<Item = Source>,
        orders: BTreeSet<String>,
    ) -> Result<Inbox> {
        let listener = TcpListener::bind(listen)
            .await
            .with_context(|| format!("cannot listen at {listen} for what loads and nodes bring"))?;
        let address = listener.local_addr()?;
        let endings: BTreeMap<Source, Option<Ending>> = sources.map(|source| (source, None)).collect();
        let (missing, _) = watch::channel(endings.len());
        let held = Mutex::new(Held {
            endings,
            bytes_left: ALL_BYTES_MAX,
            orders,
            taken: BTreeSet::new(),
            new: Vec::new(),
        });
        let shelf = Arc::new(Shelf { secret, held, missing });
        let task = tokio::spawn(serve(listener, shelf.clone()));
        Ok(Inbox { shelf, address, task })
    }

    /// Returns the address on which it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the nodes and orders announced since the last call.
    pub(super) fn taken(&self) -> Vec<(String, String)> {
        std::mem::take(&mut self.shelf.held.lock().new)
    }

    /// Waits until all sources have delivered, or until the deadline.
    pub(super) async fn wait(&self, deadline: Instant) {
        let mut missing = self.shelf.missing.subscribe();
        let _ = timeout_at(deadline, missing.wait_for(|missing| *missing == 0)).await;
    }

    /// Waits until all sources have delivered, or until the deadline; returns the deliveries.
    pub(super) async fn close(self, deadline: Instant) -> BTreeMap<Source, Option<Ending>> {
        self.wait(deadline).await;
        std::mem::take(&mut self.shelf.held.lock().endings)
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(listener: TcpListener, shelf: Arc<Shelf>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let long = Arc::new(Semaphore::new(LONG_AT_A_TIME));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_AGAIN).await;
            continue;
        };
        let (shelf, long) = (shelf.clone(), long.clone());
        tokio::spawn(async move {
            // A connection that sends nothing in time, or hangs up, gets no answer; its sender retries.
            let _ = take(stream, &shelf, &long).await;
            drop(place);
        });
    }
}

async fn take(mut stream: TcpStream, shelf: &Shelf, long: &Semaphore) -> Result<()> {
    let mut text = Vec::new();
    timeout(SHORT_WITHIN, read_up_to(&mut stream, SHORT_BYTES_MAX, &mut text)).await??;
    let mut place = None;
    let answer = match shelf.begin(&text) {
        Some(begin) => {
            if text.len() == SHORT_BYTES_MAX {
                place = Some(timeout(READ_WITHIN, long.acquire()).await??);
                let longest = begin + DELIVERY_BYTES_MAX + 1;
                timeout(READ_WITHIN, read_up_to(&mut stream, longest, &mut text)).await??;
            }
            shelf.put(&text[begin..]).err().unwrap_or_else(|| TAKEN.to_owned())
        }
        None => {
            // The rest is read first: if a connection is closed with unread data, its sender gets no answer.
            let mut rest = (&mut stream).take(DELIVERY_BYTES_MAX as u64);
            let _ = timeout(SHORT_WITHIN, tokio::io::copy(&mut rest, &mut tokio::io::sink())).await;
            format!("it does not begin with the judge's secret: give it in {JUDGE_SECRET}")
        }
    };
    drop((text, place));
    timeout(SHORT_WITHIN, stream.write_all((answer + "\n").as_bytes())).await??;
    Ok(())
}

/// Reads until `text` has this many `bytes`, or the input ends.
async fn read_up_to(stream: &mut TcpStream, bytes: usize, text: &mut Vec<u8>) -> io::Result<()> {
    let left = bytes.saturating_sub(text.len()) as u64;
    stream.take(left).read_to_end(text).await.map(drop)
}

impl Shelf {
    /// Returns where the delivery begins, after the secret; `None` if the secret is wrong. If no secret is required,
    /// any is accepted.
    fn begin(&self, text: &[u8]) -> Option<usize> {
        let end = text.iter().position(|byte| *byte == b'\n')?;
        (self.secret.is_empty() || text[..end] == *self.secret.as_bytes()).then_some(end + 1)
    }

    /// Stores a delivery, or says why not.
    fn put(&self, text: &[u8]) -> Result<(), String> {
        let length = text.len();
        if length > DELIVERY_BYTES_MAX {
            return Err(format!("it has more than {DELIVERY_BYTES_MAX} bytes"));
        }
        let delivery: Result<Delivery, _> = serde_json::from_slice(text);
        let Delivery { from, ending } = delivery
            .map_err(|error| format!("these are no figures of a load, and no node's orders: {error}"))?;
        let is_of_node = matches!(ending, Ending::Orders { .. } | Ending::Taken { .. });
        if matches!(from, Source::Node(_)) != is_of_node {
            return Err(format!("{from} brings what is not its own"));
        }
        let mut held = self.held.lock();
        let Held { endings, bytes_left, orders, taken, new } = &mut *held;
        let Some(place) = endings.get_mut(&from) else {
            return Err("the scenario has no such phase, and no such node with orders".to_owned());
        };
        if let (Source::Node(node), Ending::Taken { order }) = (&from, &ending) {
            if !orders.contains(order) {
                return Err("the scenario has no such order to the primary".to_owned());
            }
            let took = (node.clone(), order.clone());
            if taken.insert(took.clone()) {
                new.push(took);
            }
            return Ok(());
        }
        if place.is_some() {
            return Err(format!("{from} was heard already"));
        }
        let Some(left) = bytes_left.checked_sub(length) else {
            return Err(format!("all figures together have more than {ALL_BYTES_MAX} bytes"));
        };
        (*bytes_left, *place) = (left, Some(ending));
        let missing = endings.values().filter(|ending| ending.is_none()).count();
        self.missing.send_replace(missing);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(name: &str) -> Source {
        Source::Phase(name.to_owned())
    }

    fn failed(name: &str, why: &str) -> Delivery {
        Delivery { from: phase(name), ending: Ending::Failed(why.to_owned()) }
    }

    const SECRET: &str = "the secret";

    async fn open(phases: &[&str]) -> Inbox {
        let sources: Vec<Source> = phases.iter().map(|name| phase(name)).collect();
        let listen = ([127, 0, 0, 1], 0).into();
        Inbox::open(listen, SECRET.to_owned(), sources.into_iter(), BTreeSet::new()).await.unwrap()
    }

    fn in_a_minute() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// Goal: each load's delivery is stored once, and the wait ends with the last of them.
    #[tokio::test]
    async fn each_phase_brings_its_figures_once() {
        let inbox = open(&["main", "peaks"]).await;
        let judge = inbox.address().to_string();
        let patience = Duration::from_secs(30);
        failed("main", "no node").send(&judge, SECRET, patience).await.unwrap();
        let again = failed("main", "another").send(&judge, SECRET, patience).await.unwrap_err().to_string();
        assert!(again.contains("the load main was heard already"), "{again}");
        let strange = failed("mine", "no node").send(&judge, SECRET, patience).await.unwrap_err().to_string();
        assert!(strange.contains("no such phase"), "{strange}");
        failed("peaks", "late").send(&judge, SECRET, patience).await.unwrap();
        let begin = Instant::now();
        let mut came = inbox.close(in_a_minute()).await;
        assert!(begin.elapsed() < Duration::from_secs(30));
        for (name, why) in [("main", "no node"), ("peaks", "late")] {
            let ending = came.remove(&phase(name)).unwrap();
            assert!(matches!(ending, Some(Ending::Failed(text)) if text == why), "{name}");
        }
    }

    /// Goal: a node delivers only its own orders' results. Nobody else delivers for it, and a load of the same name is
    /// a different source.
    #[tokio::test]
    async fn a_node_brings_what_came_of_its_orders() {
        let near = || Source::Node("near".to_owned());
        let sources = [phase("near"), near()];
        let orders = BTreeSet::from(["1ms..,lie=garbage,primary".to_owned()]);
        let (listen, secret) = (([127, 0, 0, 1], 0).into(), String::new());
        let inbox = Inbox::open(listen, secret, sources.into_iter(), orders).await.unwrap();
        let put = |from: Source, ending: Ending| {
            inbox.shelf.put(&serde_json::to_vec(&Delivery { from, ending }).unwrap())
        };
        let orders = || Ending::Orders { failed: Some("no room".to_owned()) };
        for (from, ending) in [(near(), Ending::Failed("late".to_owned())), (phase("near"), orders())] {
            let refused = put(from, ending).unwrap_err();
            assert!(refused.contains("near brings what is not its own"), "{refused}");
        }
        let taken = |order: &str| Ending::Taken { order: order.to_owned() };
        for (from, order, part) in [
            (phase("near"), "1ms..,lie=garbage,primary", "near brings what is not its own"),
            (Source::Node("far".to_owned()), "1ms..,lie=garbage,primary", "no such node"),
            (near(), "2ms..,lie=garbage,primary", "no such order"),
        ] {
            let refused = put(from, taken(order)).unwrap_err();
            assert!(refused.contains(part), "{refused}");
        }
        assert!(inbox.taken().is_empty());
        // A node whose answer was lost asks again.
        (0..2).for_each(|_| put(near(), taken("1ms..,lie=garbage,primary")).unwrap());
        assert_eq!(inbox.taken(), [("near".to_owned(), "1ms..,lie=garbage,primary".to_owned())]);
        assert!(inbox.taken().is_empty());
        put(near(), orders()).unwrap();
        let came = inbox.close(Instant::now()).await;
        assert!(came[&phase("near")].is_none());
        assert!(matches!(&came[&near()], Some(Ending::Orders { failed: Some(why) }) if why == "no room"));
    }

    /// Goal: a delivery without the exact secret is refused, even if one contains the other, and counts as missing.
    #[tokio::test]
    async fn nobody_is_heard_without_the_secret() {
        let inbox = open(&["main"]).await;
        let (judge, patience) = (inbox.address().to_string(), Duration::from_secs(30));
        for wrong in ["", "the secre", "the secrets", "another"] {
            let refused =
                failed("main", "forged").send(&judge, wrong, patience).await.unwrap_err().to_string();
            assert!(refused.contains("does not begin with the judge's secret"), "{wrong}: {refused}");
        }
        // Longer than the buffers between the two ends of a connection.
        let long = failed("main", &"x".repeat(DELIVERY_BYTES_MAX / 4));
        let refused = long.send(&judge, "another", patience).await.unwrap_err().to_string();
        assert!(refused.contains("does not begin with the judge's secret"), "{refused}");
        failed("main", "no node").send(&judge, SECRET, patience).await.unwrap();
        let came = inbox.close(in_a_minute()).await;
        assert!(matches!(&came[&phase("main")], Some(Ending::Failed(why)) if why == "no node"));
    }

    /// Goal: a judge without a secret accepts everybody, including a sender with a secret.
    #[tokio::test]
    async fn everybody_is_heard_where_there_is_no_secret() {
        let sources = [phase("main"), phase("peaks")].into_iter();
        let listen = ([127, 0, 0, 1], 0).into();
        let inbox = Inbox::open(listen, String::new(), sources, BTreeSet::new()).await.unwrap();
        let (judge, patience) = (inbox.address().to_string(), Duration::from_secs(30));
        failed("main", "no node").send(&judge, SECRET, patience).await.unwrap();
        failed("peaks", "no node").send(&judge, "", patience).await.unwrap();
        assert!(inbox.close(in_a_minute()).await.values().all(Option::is_some));
    }

    /// Goal: a load that delivers nothing is missing once the time is over; an invalid delivery is refused with a
    /// reason.
    #[tokio::test]
    async fn who_brings_nothing_is_missing() {
        let inbox = open(&["main"]).await;
        let mut stream = TcpStream::connect(inbox.address()).await.unwrap();
        stream.write_all(b"the secret\nGET / HTTP/1.1\r\n\r\n").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("these are no figures of a load"), "{answer}");
        let came = inbox.close(Instant::now()).await;
        assert!(came[&phase("main")].is_none());
    }

    /// Goal: connections that send nothing, or hang within a long delivery, do not delay short deliveries.
    #[tokio::test]
    async fn who_stands_keeps_nobody_waiting() {
        let inbox = open(&["main", "peaks"]).await;
        let judge = inbox.address().to_string();
        let mut standing = Vec::new();
        for brought in [0, 1, SHORT_BYTES_MAX, SHORT_BYTES_MAX + 1, 2 * SHORT_BYTES_MAX, 3 * SHORT_BYTES_MAX]
        {
            let mut stream = TcpStream::connect(inbox.address()).await.unwrap();
            let text = format!("{SECRET}\n{}", " ".repeat(brought));
            stream.write_all(&text.as_bytes()[..brought]).await.unwrap();
            standing.push(stream);
        }
        let begin = Instant::now();
        failed("main", "no node").send(&judge, SECRET, Duration::ZERO).await.unwrap();
        assert!(begin.elapsed() < SHORT_WITHIN, "it waited for those that stand");
        drop(standing);
        // A long delivery gets its turn once they have gone.
        let long = "x".repeat(3 * SHORT_BYTES_MAX);
        failed("peaks", &long).send(&judge, SECRET, Duration::from_secs(60)).await.unwrap();
        let came = inbox.close(in_a_minute()).await;
        assert!(matches!(&came[&phase("peaks")], Some(Ending::Failed(why)) if *why == long));
    }

    #[tokio::test]
    async fn all_together_are_bounded() {
        let inbox = open(&["main"]).await;
        inbox.shelf.held.lock().bytes_left = 10;
        let text = serde_json::to_vec(&failed("main", "a reason")).unwrap();
        assert!(inbox.shelf.put(&text).unwrap_err().contains("all figures together"));
        assert!(inbox.shelf.put(&vec![b' '; DELIVERY_BYTES_MAX + 1]).unwrap_err().contains("more than"));
    }
}
