//! [`Port`]: a machine's connection to the others: slow, lossy, split at times, and gone with its process.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    time::Duration,
};

use anyhow::Result;
use rand::Rng;
use slipstream_consensus::simulated::{Request, decode_request, decode_response, encode};
use slipstream_eve::Message;
use slipstream_network::{
    BoxFuture, Bytes, NetworkError, PeerChanges, PeerId, PeerStats, Priority, Protocol, Refusal,
    RequestLimits, Transport,
};
use slipstream_sync::answer;
use slipstream_types::Digest;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep, timeout},
};

use super::{super::explain, fault::WorldFault, machine::Up, traitor::Traitor, world::World};

/// The receiver of a request's answer; it stays empty if the request is lost.
type Answer = oneshot::Sender<Result<Vec<u8>, NetworkError>>;

/// A machine's network.
pub(super) struct Port {
    world: Arc<World>,
    machine: usize,
    life: u64,
    up: Weak<Up>,
}

/// When the last message of each link arrives, to detect overtaking.
pub(super) type Arrivals = BTreeMap<(usize, usize), Instant>;

/// A message in flight.
struct MessageInFlight {
    world: Arc<World>,
    from: usize,
    life: u64,
    to: usize,
    protocol: Protocol,
    payload: Vec<u8>,
    /// Whether the message is still in a buffer of its sender, and is lost if the sender dies.
    is_held: bool,
    delay: Duration,
}

impl Port {
    pub(super) fn new(world: Arc<World>, up: &Arc<Up>) -> Port {
        Port { world, machine: up.machine, life: up.life, up: Arc::downgrade(up) }
    }

    /// Whether the process still runs: a dead process must send nothing, because its statements are on no disk.
    fn lives(&self) -> bool {
        self.world.machines[self.machine].is_in(self.life)
    }

    fn post(&self, to: usize, protocol: Protocol, payload: Vec<u8>, answer: Answer) {
        if !self.lives() {
            return;
        }
        let payloads = match (protocol, self.up.upgrade()) {
            (Protocol::CONSENSUS, Some(up)) => {
                let said = self.say(&up, to, payload);
                said.unwrap_or_else(|error| {
                    self.world.hold(Err(error));
                    Vec::new()
                })
            }
            _ => vec![payload],
        };
        let mut answer = Some(answer);
        for payload in payloads {
            for delay in self.world.fate(self.machine, to, protocol, &payload) {
                let letter = MessageInFlight {
                    world: self.world.clone(),
                    from: self.machine,
                    life: self.life,
                    to,
                    protocol,
                    payload: payload.clone(),
                    is_held: self.world.chance.lock().rng.random_bool(0.3),
                    delay,
                };
                tokio::spawn(letter.travel(answer.take()));
            }
        }
    }

    /// Returns the messages that leave a machine: its own, or a traitor's version of them.
    fn say(&self, up: &Up, to: usize, payload: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        let request = decode_request(&payload)?;
        let mut oracle = self.world.oracle.lock();
        let Some((machine, habit)) = self.world.plan.traitor.filter(|(machine, _)| *machine == up.machine)
        else {
            oracle.hear(up, &request)?;
            return Ok(vec![payload]);
        };
        let epoch = up.store.next_set()?.epoch;
        let Some((set, seat)) = oracle.seat(machine, epoch) else { return Ok(vec![payload]) };
        let domain = oracle.domain(set);
        let mut chance = self.world.chance.lock();
        let (rng, troubles) = chance.both();
        let key = &self.world.machines[machine].key;
        let about = about(&request);
        let requests = Traitor { key, seat, domain, rng, troubles }.twist(habit, to as u64, request);
        drop(chance);
        for request in &requests {
            oracle.hear(up, request)?;
        }
        let said = requests.iter().map(|request| Ok(encode(request)?)).collect::<Result<Vec<_>>>()?;
        if said.is_empty() {
            self.world
                .tell(explain::Kind::Lie, format_args!("machine {machine} keeps {about} from machine {to}"));
        } else if said != [payload] {
            self.world
                .tell(explain::Kind::Lie, format_args!("machine {machine} lies to machine {to} in {about}"));
        }
        Ok(said)
    }
}

impl Port {
    /// Announces a batch to every other machine.
    pub(super) fn announce(&self, payload: &[u8]) {
        (0..self.world.machines.len()).for_each(|to| self.tell(to, payload));
    }

    fn tell(&self, to: usize, payload: &[u8]) {
        let (from, id) = (self.machine, self.local());
        if to == from || !self.lives() || !self.world.reaches(from, to) {
            return;
        }
        for delay in self.world.fate(from, to, Protocol::SYNC, payload) {
            let (world, payload) = (self.world.clone(), payload.to_vec());
            tokio::spawn(async move {
                sleep(delay).await;
                if let Some(up) = world.machines[to].up().filter(|_| world.reaches(from, to)) {
                    // If too many announcements wait, this one is dropped, and sync fetches the batch.
                    _ = up.announcements.try_send((id, payload));
                }
            });
        }
    }
}

impl Transport for Port {
    fn local(&self) -> PeerId {
        self.world.machines[self.machine].id
    }

    fn peers(&self) -> Vec<PeerId> {
        let reached = (0..self.world.machines.len()).filter(|to| self.world.reaches(self.machine, *to));
        let mut peers: Vec<PeerId> = reached.map(|to| self.world.machines[to].id).collect();
        peers.sort();
        peers
    }

    fn peer_changes(&self) -> PeerChanges {
        self.world.peer_changes.clone()
    }

    fn connected_since(&self, _: &PeerId) -> Option<Instant> {
        None
    }

    fn request<'a>(
        &'a self,
        peer: PeerId,
        protocol: Protocol,
        payload: Vec<u8>,
        limits: RequestLimits,
    ) -> BoxFuture<'a, Result<Vec<u8>, NetworkError>> {
        Box::pin(async move {
            let Some(to) = self.world.machines.iter().position(|machine| machine.id == peer) else {
                return Err(NetworkError::UnknownPeer { peer });
            };
            if !self.world.machines[to].is_up() {
                return Err(NetworkError::UnknownPeer { peer });
            }
            let (answer, answered) = oneshot::channel();
            self.post(to, protocol, payload, answer);
            let waiting = async {
                match answered.await {
                    Ok(answer) => answer,
                    Err(_) => std::future::pending().await,
                }
            };
            let late = NetworkError::Deadline { peer, deadline: limits.deadline };
            let answer = timeout(limits.deadline, waiting).await.unwrap_or(Err(late))?;
            let (bytes, bytes_max) = (answer.len(), limits.response_bytes_max);
            if bytes > bytes_max { Err(NetworkError::TooLong { peer, bytes, bytes_max }) } else { Ok(answer) }
        })
    }

    fn send(&self, peer: PeerId, message: Bytes, _priority: Priority) {
        if let Some(to) = self.world.machines.iter().position(|machine| machine.id == peer) {
            self.tell(to, &message);
        }
    }

    fn ban(&self, _peer: PeerId, _reason: &str, _duration: Duration) {}

    fn peer_stats(&self) -> Vec<PeerStats> {
        Vec::new()
    }
}

impl MessageInFlight {
    async fn travel(self, asked: Option<Answer>) {
        sleep(self.delay).await;
        let MessageInFlight { world, from, life, to, protocol, payload, is_held, .. } = self;
        let Some(up) = world.machines[to].up().filter(|_| world.reaches(from, to)) else { return };
        if is_held && !world.machines[from].is_in(life) {
            return;
        }
        world.note(format_args!("machine {from} reaches machine {to} over {protocol}"), &payload);
        world.think(to);
        let peer = world.machines[from].id;
        let answered = match protocol {
            Protocol::SYNC => answer(&up.store, &payload),
            _ => answer_consensus(&world, &up, peer, payload).await,
        };
        let Some(asked) = asked else { return };
        let id = world.machines[to].id;
        let answered = answered.map_err(|refusal| NetworkError::Refused { peer: id, refusal });
        let bytes = answered.as_deref().unwrap_or_default();
        let Some(delay) = world.fate(to, from, Protocol::SYNC, bytes).first().copied() else { return };
        sleep(delay).await;
        if world.reaches(to, from) && world.machines[to].is_in(up.life) {
            _ = asked.send(answered);
        }
    }
}

async fn answer_consensus(
    world: &World,
    up: &Up,
    peer: PeerId,
    payload: Vec<u8>,
) -> Result<Vec<u8>, Refusal> {
    let validator = up.validator.lock().clone();
    let Some(validator) = validator else { return Err(Refusal::not_kept("no validator")) };
    let answered = validator.handle(peer, payload).await?;
    match world.plan.traitor.filter(|(machine, _)| *machine == up.machine) {
        None => Ok(answered),
        Some((machine, habit)) => {
            let failed = |_| Refusal::failed("nothing");
            let response = decode_response(&answered).map_err(failed)?;
            let key = &world.machines[machine].key;
            let domain = Digest::ZERO;
            let mut chance = world.chance.lock();
            let (rng, troubles) = chance.both();
            let shown = Traitor { key, seat: 0, domain, rng, troubles }.show(habit, response);
            let shown = encode(&shown).map_err(failed)?;
            if shown != answered {
                world.tell(explain::Kind::Lie, format_args!("machine {machine} shows a false outcome"));
            }
            Ok(shown)
        }
    }
}

/// Names the kind of a message, for the readers of a recording.
fn about(request: &Request) -> &'static str {
    let Request::Say(_, message) = request else {
        return if matches!(request, Request::Order(_)) { "an order" } else { "a question" };
    };
    match **message {
        Message::Verify(_) => "an outcome",
        Message::Prepare(_) => "a prepare",
        Message::Commit(_) => "a commit",
        Message::ViewChange(_) => "a view change",
        Message::Status(_) => "its own status",
        _ => "a message",
    }
}

/// Returns whether a message spreads a decision, or is a prepare.
fn kind(payload: &[u8]) -> Option<Kind> {
    let Ok(Request::Say(_, message)) = decode_request(payload) else { return None };
    match *message {
        Message::Commit(_) | Message::Decided(_) => Some(Kind::News),
        Message::Prepare(_) => Some(Kind::Prepare),
        _ => None,
    }
}

/// Messages that are lost more often than others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    News,
    Prepare,
}

impl World {
    /// Returns the delay of each copy of a message that arrives; empty if it is lost.
    fn fate(&self, from: usize, to: usize, protocol: Protocol, payload: &[u8]) -> Vec<Duration> {
        let weather = self.plan.weather;
        let calm = self.is_calm();
        let special = match (calm, protocol) {
            (false, Protocol::CONSENSUS) => kind(payload),
            _ => None,
        };
        let mut chance = self.chance.lock();
        let (rng, troubles) = chance.both();
        let besides = match special {
            Some(Kind::News) => weather.news_loss,
            Some(Kind::Prepare) => weather.prepare_loss,
            None => 0.0,
        };
        if !calm && (rng.random_bool(weather.loss) || rng.random_bool(besides)) {
            troubles.insert(WorldFault::Loss);
            return Vec::new();
        }
        let repeats = !calm && rng.random_bool(weather.repeats);
        if repeats {
            troubles.insert(WorldFault::Repetition);
        }
        let jitter_ms = if calm { weather.jitter_ms.min(20) } else { weather.jitter_ms };
        let mut delay = || Duration::from_millis(weather.delay_ms + rng.random_range(0..=jitter_ms));
        let delays: Vec<Duration> = (0..=u32::from(repeats)).map(|_| delay()).collect();
        let arrives = Instant::now() + delays[0];
        let last = chance.arrivals.entry((from, to)).or_insert(arrives);
        let overtakes = arrives < *last;
        *last = arrives.max(*last);
        if overtakes {
            chance.troubles.insert(WorldFault::Overtaking);
        }
        delays
    }
}
