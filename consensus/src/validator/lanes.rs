//! [`Lanes`]: messages to the other validators, each on a lane of its own.
//!
//! A lane has several requests in flight and a bounded queue behind them. So a slow or silent validator delays nobody
//! else and takes little memory. Callers that want no answer ignore what [`Lanes::landed`] returns.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use slipstream_network::{NetworkError, PeerId, Protocol, RefusalKind, RequestLimits, Transport};
use slipstream_types::BatchNumber;
use tokio::task::JoinSet;

use super::{logged_refusals::LoggedRefusals, message::REQUEST_BYTES_MAX};
use crate::error::ConsensusError;

/// Maximum number of requests in flight to one validator: the votes of several batches, where a round trip takes longer than a
/// batch.
const IN_FLIGHT_MAX: usize = 16;
/// Maximum number of requests that wait for one validator. Beyond that, the oldest is dropped for a newer one.
const QUEUE_MAX: usize = 64;
/// Maximum bytes that wait for one validator, with the same effect: two of the longest orders.
const QUEUE_BYTES_MAX: usize = 2 * REQUEST_BYTES_MAX;
/// How long a validator may take to acknowledge a request, apart from its transfer.
const DEADLINE_MS: u64 = 2_000;
/// Payload bytes per second of the slowest link that a validator may have. A request's deadline grows by the transfer;
/// otherwise an order too long for its deadline would be resent from its first byte for ever. An order of 24 MiB then
/// has 25 s, which is within the receiver's transfer timeout.
const LINK_BYTES_PER_SECOND: u64 = 1_000_000;

/// One queued request.
#[derive(Clone)]
pub(super) struct Parcel<T> {
    /// Identifies the request for its sender when the answer arrives.
    pub(super) tag: T,
    /// The batch that the request was sent for.
    pub(super) number: BatchNumber,
    pub(super) payload: Arc<Vec<u8>>,
    /// Maximum bytes that the answer may have.
    pub(super) answer_bytes_max: usize,
}

/// The result of a request.
#[derive(Debug)]
pub(super) struct LaneAnswer<T> {
    pub(super) seat: u16,
    pub(super) tag: T,
    /// `None` if the answer was late or a refusal, or the request was dropped.
    pub(super) answer: Option<Vec<u8>>,
}

struct Lane<T> {
    peer: PeerId,
    in_flight: usize,
    /// Bytes of the requests in flight.
    bytes: usize,
    queue: VecDeque<Parcel<T>>,
    /// The refusals that were logged.
    said: LoggedRefusals,
    /// Whether the validator's silence was logged.
    silent: bool,
}

struct Flight<T> {
    seat: u16,
    tag: T,
    number: BatchNumber,
    bytes: usize,
    result: Result<Vec<u8>, NetworkError>,
}

/// See the module.
pub(super) struct Lanes<T> {
    transport: Arc<dyn Transport>,
    lanes: BTreeMap<u16, Lane<T>>,
    flying: JoinSet<Flight<T>>,
    /// Requests that were dropped unsent, and are still to be reported.
    given_up: VecDeque<LaneAnswer<T>>,
}

impl<T: Copy + Send + 'static> Lanes<T> {
    pub(super) fn new(
        transport: Arc<dyn Transport>,
        others: impl Iterator<Item = (u16, PeerId)>,
    ) -> Lanes<T> {
        let lane = |(seat, peer)| {
            let (queue, said) = (VecDeque::new(), LoggedRefusals::default());
            (seat, Lane { peer, in_flight: 0, bytes: 0, queue, said, silent: false })
        };
        Lanes {
            transport,
            lanes: others.map(lane).collect(),
            flying: JoinSet::new(),
            given_up: VecDeque::new(),
        }
    }

    /// The seats that have a lane.
    pub(super) fn seats(&self) -> Vec<u16> {
        self.lanes.keys().copied().collect()
    }

    /// Sends a request, now or when the lane has room. [`Lanes::landed`] reports each, including one that was dropped.
    pub(super) fn post(&mut self, seat: u16, parcel: Parcel<T>) {
        let Some(lane) = self.lanes.get_mut(&seat) else { return };
        lane.queue.push_back(parcel);
        let bytes = |queue: &VecDeque<Parcel<T>>| queue.iter().map(|it| it.payload.len()).sum::<usize>();
        while lane.queue.len() > QUEUE_MAX || bytes(&lane.queue) > QUEUE_BYTES_MAX {
            let Some(Parcel { tag, .. }) = lane.queue.pop_front() else { break };
            tracing::debug!(validator = seat, "dropped a request: too many wait for this validator");
            self.given_up.push_back(LaneAnswer { seat, tag, answer: None });
        }
        self.launch(seat);
    }

    fn launch(&mut self, seat: u16) {
        let Some(lane) = self.lanes.get_mut(&seat) else { return };
        // Next to the longest order only votes are in flight.
        while lane.in_flight < IN_FLIGHT_MAX
            && lane.bytes < REQUEST_BYTES_MAX
            && let Some(Parcel { tag, number, payload, answer_bytes_max }) = lane.queue.pop_front()
        {
            let bytes = payload.len();
            lane.in_flight += 1;
            lane.bytes += bytes;
            let (transport, peer) = (self.transport.clone(), lane.peer);
            // A long message takes time in either direction.
            let deadline = deadline(payload.len().max(answer_bytes_max));
            let limits = RequestLimits { deadline, response_bytes_max: answer_bytes_max };
            self.flying.spawn(async move {
                let payload = Arc::unwrap_or_clone(payload);
                let result = transport.request(peer, Protocol::CONSENSUS, payload, limits).await;
                Flight { seat, tag, number, bytes, result }
            });
        }
    }

    /// Waits for the next request that ends; waits for ever if there is none. Dropping the future loses nothing.
    ///
    /// # Errors
    /// [`ConsensusError::Task`] if sending panicked.
    pub(super) async fn landed(&mut self) -> Result<LaneAnswer<T>, ConsensusError> {
        if let Some(landed) = self.given_up.pop_front() {
            return Ok(landed);
        }
        let Some(ended) = self.flying.join_next().await else { return std::future::pending().await };
        let Flight { seat, tag, number, bytes, result } =
            ended.map_err(|panic| ConsensusError::Task { task: "messenger", reason: panic.to_string() })?;
        if let Some(lane) = self.lanes.get_mut(&seat) {
            lane.in_flight -= 1;
            lane.bytes -= bytes;
            lane.note(seat, number, &result);
        }
        self.launch(seat);
        Ok(LaneAnswer { seat, tag, answer: result.ok() })
    }
}

impl<T> Lane<T> {
    /// Logs a refusal once per batch, and silence once until it ends.
    fn note(&mut self, validator: u16, number: BatchNumber, result: &Result<Vec<u8>, NetworkError>) {
        // A busy refusal says nothing about the batch.
        let silent = matches!(result, Err(error) if error.refusal().is_none() || error.is_retryable());
        let began = !std::mem::replace(&mut self.silent, silent) && silent;
        let is_elsewhere = |error: &NetworkError| {
            error.refusal().is_some_and(|refusal| refusal.kind() == RefusalKind::NotKept)
        };
        match result {
            Ok(_) => {}
            // It is starting, or in another epoch.
            Err(error) if is_elsewhere(error) => {
                tracing::debug!(validator, %error, "a validator does not accept messages yet");
            }
            Err(error) if began => {
                tracing::warn!(validator, %number, %error, "a validator does not answer");
            }
            Err(error) if !silent && self.said.is_new(Some(number), &error.to_string()) => {
                tracing::warn!(validator, %number, %error, "a validator refuses a message");
            }
            Err(error) => tracing::debug!(validator, %error, "a validator did not answer"),
        }
    }
}

/// Time to acknowledge, and time to send `bytes` over the slowest link.
fn deadline(bytes: usize) -> Duration {
    Duration::from_millis(DEADLINE_MS + bytes as u64 * 1_000 / LINK_BYTES_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use slipstream_network::{BoxFuture, Handler, MemoryHub, Payload, Refusal};
    use tokio::{sync::Semaphore, time::Instant};

    use super::*;
    use crate::testing::{Endpoint, Silent, validator_key};

    // The largest order fits through the slowest link, and a small request is retried soon.
    #[test]
    fn deadlines_leave_time_for_the_transfer() {
        assert_eq!(deadline(300), Duration::from_millis(2_000));
        assert_eq!(deadline(24 << 20), Duration::from_millis(2_000 + 25_165));
    }

    /// Echoes a request, once its gate lets it.
    struct Echo {
        gate: Arc<Semaphore>,
    }

    impl Handler for Echo {
        fn request<'a>(
            &'a self,
            _: PeerId,
            _: Protocol,
            payload: Vec<u8>,
        ) -> BoxFuture<'a, Result<Payload, Refusal>> {
            Box::pin(async move {
                self.gate.acquire().await.unwrap().forget();
                match payload.as_slice() {
                    [] => Err(Refusal::failed("nothing")),
                    _ => Ok(payload.into()),
                }
            })
        }

        fn message<'a>(&'a self, _: PeerId, _: Vec<u8>) -> BoxFuture<'a, ()> {
            Box::pin(async {})
        }
    }

    /// Makes lanes from validator 0 to validator 1, which answers when the gate lets it, and to 2, which never does.
    fn lanes(gate: &Arc<Semaphore>) -> (MemoryHub, Lanes<u32>) {
        let hub = MemoryHub::new();
        let peer = |index| validator_key(index).public();
        let transport = hub.join(peer(0), Arc::new(Endpoint::default()));
        hub.join(peer(1), Arc::new(Echo { gate: gate.clone() }));
        hub.join(peer(2), Arc::new(Silent));
        assert!(hub.connect(peer(0), peer(1)) && hub.connect(peer(0), peer(2)));
        let lanes = Lanes::new(transport, [(1, peer(1)), (2, peer(2))].into_iter());
        (hub, lanes)
    }

    fn parcel(tag: u32) -> Parcel<u32> {
        let payload = Arc::new(vec![tag as u8]);
        Parcel { tag, number: BatchNumber::new(1), payload, answer_bytes_max: 100 }
    }

    /// Goal: a silent validator costs its own lane its deadline, and the other lane nothing.
    #[tokio::test(start_paused = true)]
    async fn a_silent_validator_holds_up_nobody() {
        let (_hub, mut lanes) = lanes(&Arc::new(Semaphore::new(100)));
        assert_eq!(lanes.seats(), [1, 2]);
        lanes.post(2, parcel(7));
        lanes.post(1, parcel(8));
        lanes.post(1, Parcel { payload: Arc::default(), ..parcel(9) });
        lanes.post(3, parcel(10));
        let begun = Instant::now();
        let mut heard = Vec::new();
        for _ in 0..3 {
            let LaneAnswer { seat, tag, answer, .. } = lanes.landed().await.unwrap();
            heard.push((seat, tag, answer, begun.elapsed() >= Duration::from_millis(2_000)));
        }
        heard.sort();
        let expected = [(1, 8, Some(vec![8]), false), (1, 9, None, false), (2, 7, None, true)];
        assert_eq!(heard, expected);
        assert!(tokio::time::timeout(Duration::from_secs(9), lanes.landed()).await.is_err());
    }

    /// Goal: a lane's memory is bounded. The oldest queued request is dropped and reported, and all others are sent in
    /// order.
    #[tokio::test(start_paused = true)]
    async fn a_full_lane_gives_up_the_oldest() {
        const EXCESS: usize = 3;
        let gate = Arc::new(Semaphore::new(0));
        let (_hub, mut lanes) = lanes(&gate);
        let posted = IN_FLIGHT_MAX + QUEUE_MAX + EXCESS;
        (0..posted as u32).for_each(|tag| lanes.post(1, parcel(tag)));
        assert_eq!(lanes.lanes[&1].queue.len(), QUEUE_MAX);
        for expected in IN_FLIGHT_MAX..IN_FLIGHT_MAX + EXCESS {
            let landed = lanes.landed().await.unwrap();
            assert_eq!((landed.tag as usize, landed.answer), (expected, None));
        }
        gate.add_permits(posted);
        let mut answered = Vec::new();
        for _ in 0..IN_FLIGHT_MAX + QUEUE_MAX {
            let landed = lanes.landed().await.unwrap();
            assert_eq!(landed.answer, Some(vec![landed.tag as u8]));
            answered.push(landed.tag as usize);
        }
        answered.sort();
        let given_up = IN_FLIGHT_MAX..IN_FLIGHT_MAX + EXCESS;
        assert_eq!(answered, (0..posted).filter(|tag| !given_up.contains(tag)).collect::<Vec<_>>());
    }
}
