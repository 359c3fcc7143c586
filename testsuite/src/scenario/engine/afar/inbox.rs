//! [`Inbox`]: where loads of other containers leave what they came to.
//!
//! One connection brings one [`Delivery`] and is answered in a line. What comes is bounded: two at a time, each of a known phase that
//! has brought nothing yet, and all of them together.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    task::JoinHandle,
    time::{Instant, timeout, timeout_at},
};

use crate::load::{DELIVERY_BYTES_MAX, Delivery, Ending, TAKEN};

/// Connections that are read at a time: each may fill the memory of one delivery.
const READ_AT_A_TIME: usize = 2;
/// All deliveries together, as text: a scenario has 256 phases at most.
const ALL_BYTES_MAX: usize = 256 << 20;
/// How long a connection may take to bring what it has.
const READ_WITHIN: Duration = Duration::from_secs(15);
/// After an accept that failed: file handles may be short for a moment.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Takes deliveries until it is dropped.
pub(super) struct Inbox {
    shelf: Arc<Shelf>,
    address: SocketAddr,
    task: JoinHandle<()>,
}

struct Shelf {
    held: Mutex<Held>,
    /// Phases that have brought nothing yet.
    missing: watch::Sender<usize>,
}

struct Held {
    /// By their names; none until it comes.
    phases: BTreeMap<String, Option<Ending>>,
    bytes_left: usize,
}

impl Inbox {
    /// Listens for what these phases bring.
    ///
    /// # Errors
    /// If nobody may listen there.
    pub(super) async fn open(listen: SocketAddr, phases: impl Iterator<Item = String>) -> Result<Inbox> {
        let listener = TcpListener::bind(listen)
            .await
            .with_context(|| format!("cannot listen at {listen} for what loads bring"))?;
        let address = listener.local_addr()?;
        let phases: BTreeMap<String, Option<Ending>> = phases.map(|name| (name, None)).collect();
        let (missing, _) = watch::channel(phases.len());
        let held = Mutex::new(Held { phases, bytes_left: ALL_BYTES_MAX });
        let shelf = Arc::new(Shelf { held, missing });
        let task = tokio::spawn(serve(listener, shelf.clone()));
        Ok(Inbox { shelf, address, task })
    }

    /// Where it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until all have brought theirs, or this moment; then what came, by the names of the phases.
    pub(super) async fn close(self, deadline: Instant) -> BTreeMap<String, Option<Ending>> {
        let mut missing = self.shelf.missing.subscribe();
        let _ = timeout_at(deadline, missing.wait_for(|missing| *missing == 0)).await;
        std::mem::take(&mut self.shelf.held.lock().phases)
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(listener: TcpListener, shelf: Arc<Shelf>) {
    let places = Arc::new(Semaphore::new(READ_AT_A_TIME));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_AGAIN).await;
            continue;
        };
        let shelf = shelf.clone();
        tokio::spawn(async move {
            // Who brings nothing in time, or hangs up, is not answered; it tries again.
            let _ = timeout(READ_WITHIN, take(stream, &shelf)).await;
            drop(place);
        });
    }
}

async fn take(mut stream: TcpStream, shelf: &Shelf) -> Result<()> {
    let mut text = Vec::new();
    let longest = DELIVERY_BYTES_MAX as u64 + 1;
    (&mut stream).take(longest).read_to_end(&mut text).await?;
    let answer = match shelf.put(&text) {
        Ok(()) => TAKEN.to_owned(),
        Err(refusal) => refusal,
    };
    stream.write_all((answer + "\n").as_bytes()).await?;
    Ok(())
}

impl Shelf {
    /// Keeps a delivery; or says why not.
    fn put(&self, text: &[u8]) -> Result<(), String> {
        let length = text.len();
        if length > DELIVERY_BYTES_MAX {
            return Err(format!("it has more than {DELIVERY_BYTES_MAX} bytes"));
        }
        let delivery: Result<Delivery, _> = serde_json::from_slice(text);
        let Delivery { phase, ending } =
            delivery.map_err(|error| format!("these are no figures of a load: {error}"))?;
        let mut held = self.held.lock();
        let Held { phases, bytes_left } = &mut *held;
        let Some(place) = phases.get_mut(&phase) else {
            return Err("the scenario has no such phase".to_owned());
        };
        if place.is_some() {
            return Err(format!("{phase} has brought its figures already"));
        }
        let Some(left) = bytes_left.checked_sub(length) else {
            return Err(format!("all figures together have more than {ALL_BYTES_MAX} bytes"));
        };
        (*bytes_left, *place) = (left, Some(ending));
        let missing = phases.values().filter(|ending| ending.is_none()).count();
        self.missing.send_replace(missing);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(phase: &str, why: &str) -> Delivery {
        Delivery { phase: phase.to_owned(), ending: Ending::Failed(why.to_owned()) }
    }

    async fn open(phases: &[&str]) -> Inbox {
        let phases: Vec<String> = phases.iter().map(|name| (*name).to_owned()).collect();
        Inbox::open(([127, 0, 0, 1], 0).into(), phases.into_iter()).await.unwrap()
    }

    fn in_a_minute() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// Goal: what each load brings is kept once, and nobody waits longer than for the last of them.
    #[tokio::test]
    async fn each_phase_brings_its_figures_once() {
        let inbox = open(&["main", "peaks"]).await;
        let judge = inbox.address().to_string();
        let patience = Duration::from_secs(30);
        failed("main", "no node").send(&judge, patience).await.unwrap();
        let again = failed("main", "another").send(&judge, patience).await.unwrap_err().to_string();
        assert!(again.contains("main has brought its figures already"), "{again}");
        let strange = failed("mine", "no node").send(&judge, patience).await.unwrap_err().to_string();
        assert!(strange.contains("no such phase"), "{strange}");
        failed("peaks", "late").send(&judge, patience).await.unwrap();
        let begin = Instant::now();
        let mut came = inbox.close(in_a_minute()).await;
        assert!(begin.elapsed() < Duration::from_secs(30));
        for (phase, why) in [("main", "no node"), ("peaks", "late")] {
            let ending = came.remove(phase).unwrap();
            assert!(matches!(ending, Some(Ending::Failed(text)) if text == why), "{phase}");
        }
    }

    /// Goal: a load that brings nothing is missing once the time is over; what is no delivery is refused with a reason.
    #[tokio::test]
    async fn who_brings_nothing_is_missing() {
        let inbox = open(&["main"]).await;
        let mut stream = TcpStream::connect(inbox.address()).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("these are no figures of a load"), "{answer}");
        let came = inbox.close(Instant::now()).await;
        assert!(came["main"].is_none());
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
