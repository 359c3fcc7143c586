//! [`Probe`]: the handler that the tests send to.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::{BoxFuture, Handler, MESSAGE_BYTES_MAX, Payload, PeerId, Protocol, Refusal};

pub(crate) const ECHO: Protocol = Protocol(1);
/// Refuses; the payload begins with the kind.
pub(crate) const REFUSE: Protocol = Protocol(2);
/// Waits until the test opens the gate.
pub(crate) const WAIT: Protocol = Protocol(3);
/// Answers with the number of zeros in the payload.
pub(crate) const ZEROS: Protocol = Protocol(9);
pub(crate) const PANIC: Protocol = Protocol(5);
/// Accepts at most [`SHORT_BYTES_MAX`] bytes and echoes them.
pub(crate) const SHORT: Protocol = Protocol(6);
pub(crate) const SHORT_BYTES_MAX: usize = 10;
/// Is never accepted.
pub(crate) const NOTHING: Protocol = Protocol(7);
/// As [`ZEROS`]; the test sees how many of these bytes still exist.
pub(crate) const TRACKED: Protocol = Protocol(8);

/// Bytes that are counted while they exist.
struct Tracked {
    bytes: Vec<u8>,
    live: Arc<AtomicUsize>,
}

impl AsRef<[u8]> for Tracked {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.live.fetch_sub(self.bytes.len(), Ordering::SeqCst);
    }
}

/// A handler that follows the protocol of each request and records its calls.
pub(crate) struct Probe {
    pub(crate) gate: Semaphore,
    pub(crate) broadcast_gate: Semaphore,
    pub(crate) started: AtomicUsize,
    pub(crate) finished: AtomicUsize,
    pub(crate) broadcasts: Mutex<Vec<(PeerId, Vec<u8>)>>,
    /// Bytes of [`TRACKED`] answers now, and the maximum so far.
    live: Arc<AtomicUsize>,
    pub(crate) live_max: AtomicUsize,
}

impl Probe {
    pub(crate) fn new() -> Arc<Probe> {
        Arc::new(Probe {
            gate: Semaphore::new(0),
            broadcast_gate: Semaphore::new(Semaphore::MAX_PERMITS),
            started: AtomicUsize::new(0),
            finished: AtomicUsize::new(0),
            broadcasts: Mutex::new(Vec::new()),
            live: Arc::default(),
            live_max: AtomicUsize::new(0),
        })
    }

    pub(crate) fn started(&self) -> usize {
        self.started.load(Ordering::SeqCst)
    }

    pub(crate) fn live(&self) -> usize {
        self.live.load(Ordering::SeqCst)
    }

    fn tracked(&self, len: usize) -> Payload {
        let live = self.live.fetch_add(len, Ordering::SeqCst) + len;
        self.live_max.fetch_max(live, Ordering::SeqCst);
        Bytes::from_owner(Tracked { bytes: vec![0; len], live: self.live.clone() }).into()
    }

    pub(crate) fn finished(&self) -> usize {
        self.finished.load(Ordering::SeqCst)
    }
}

impl Handler for Probe {
    fn request<'a>(
        &'a self,
        _peer: PeerId,
        protocol: Protocol,
        payload: Vec<u8>,
    ) -> BoxFuture<'a, Result<Payload, Refusal>> {
        Box::pin(async move {
            self.started.fetch_add(1, Ordering::SeqCst);
            let answer = match protocol {
                ECHO | SHORT => Ok(payload.into()),
                WAIT => {
                    self.gate.acquire().await.unwrap().forget();
                    Ok(payload.into())
                }
                ZEROS => Ok(vec![0; usize::from_le_bytes(payload.try_into().unwrap())].into()),
                TRACKED => Ok(self.tracked(usize::from_le_bytes(payload.try_into().unwrap()))),
                PANIC => panic!("the test wants it"),
                _ => Err(refusal(&String::from_utf8(payload).unwrap())),
            };
            self.finished.fetch_add(1, Ordering::SeqCst);
            answer
        })
    }

    fn request_bytes_max(&self, _peer: PeerId, protocol: Protocol) -> usize {
        match protocol {
            SHORT => SHORT_BYTES_MAX,
            NOTHING => 0,
            _ => MESSAGE_BYTES_MAX,
        }
    }

    /// Overestimates [`TRACKED`] answers, and is wrong about [`ZEROS`].
    fn answer_bytes_expected(&self, _peer: PeerId, protocol: Protocol, payload: &[u8]) -> usize {
        if protocol == TRACKED { MESSAGE_BYTES_MAX } else { payload.len() }
    }

    fn message<'a>(&'a self, peer: PeerId, payload: Vec<u8>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            self.broadcast_gate.acquire().await.unwrap().forget();
            self.broadcasts.lock().push((peer, payload));
        })
    }
}

fn refusal(payload: &str) -> Refusal {
    let text = format!("not here: {payload}");
    match payload.split(' ').next() {
        Some("busy") => Refusal::busy(Duration::from_millis(700), text),
        Some("malformed") => Refusal::malformed(text),
        Some("failed") => Refusal::failed(text),
        _ => Refusal::not_kept(text),
    }
}
