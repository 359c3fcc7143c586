//! A machine's sync: the engine and the worker that ship, driven as by `sync`'s own driver, in virtual time.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Result, anyhow, bail};
use rand::Rng;
use slipstream_network::{NetworkError, PeerId, Protocol, RequestLimits, Transport};
use slipstream_sync::{
    Defences, SyncConfig,
    engine::{Effect, Engine, JobId, Local, RequestId, Setup},
    protocol::Request,
    work::{Done, Worker},
};
use slipstream_types::{BatchNumber, codec};
use tokio::{
    sync::mpsc,
    task::{AbortHandle, JoinSet},
    time::{Instant, sleep, sleep_until},
};

use super::{machine::Up, port::Port, world::World};

/// The interval at which the follower checks its peers and its head.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long sync leaves a new batch to consensus, as in `node`.
const DECISION_PATIENCE: Duration = Duration::from_secs(1);
/// The longest duration of a job, in milliseconds.
const JOB_MS_MAX: u64 = 8;

/// The end of a task that runs beside the engine.
enum Ended {
    Request(RequestId, Result<Vec<u8>, NetworkError>),
    Job(JobId, Box<Done>, Duration),
}

/// A machine's follower.
struct Follower {
    world: Arc<World>,
    up: Arc<Up>,
    port: Arc<Port>,
    engine: Engine,
    worker: Arc<Worker>,
    beside: JoinSet<Ended>,
    requests: BTreeMap<RequestId, AbortHandle>,
    peers: Vec<PeerId>,
    head: BatchNumber,
    validates: bool,
}

/// Follows until the process dies.
pub(super) async fn run(
    world: Arc<World>,
    up: Arc<Up>,
    mut heard: mpsc::Receiver<(PeerId, Vec<u8>)>,
) -> Result<()> {
    let config = SyncConfig::default();
    let seed = up.machine as u64;
    let setup = Setup {
        hints: true,
        patience: Duration::ZERO,
        waypoint: BatchNumber::GENESIS,
        cores: 2,
        seed,
        defences: Defences::default(),
    };
    let worker = Arc::new(Worker::new(up.store.clone(), &config, up.session.clone(), None, seed)?);
    let local = Local::of(&up.store)?;
    let head = local.head;
    let engine = Engine::new(config, &setup, local, None, Instant::now());
    let port = Arc::new(Port::new(world.clone(), &up));
    let (beside, requests) = (JoinSet::new(), BTreeMap::new());
    let (peers, validates) = (Vec::new(), false);
    let mut it = Follower { world, up, port, engine, worker, beside, requests, peers, head, validates };
    loop {
        it.look()?;
        it.act()?;
        let look_at = Instant::now() + LOOK_EVERY;
        let timeout = it.engine.poll_timeout();
        tokio::select! {
            biased;
            Some(ended) = it.beside.join_next() => match ended {
                Ok(ended) => it.take(ended)?,
                Err(error) if error.is_cancelled() => {}
                Err(error) => bail!("a job panicked: {error}"),
            },
            Some((peer, payload)) = heard.recv() => it.engine.handle_broadcast(peer, payload, Instant::now()),
            () = sleep_until(timeout.map_or(look_at, |at| at.min(look_at))) => {
                let now = Instant::now();
                if timeout.is_some_and(|timeout| timeout <= now) {
                    it.engine.handle_timeout(now);
                }
            }
        }
    }
}

impl Follower {
    /// Passes changes of the peers and of the head to the engine.
    fn look(&mut self) -> Result<()> {
        let now = Instant::now();
        let peers = self.port.peers();
        if peers != self.peers {
            self.engine.handle_peers(&peers, now);
            self.peers = peers;
        }
        let head = self.up.store.head()?.header.number;
        if head != self.head {
            self.head = head;
            self.engine.handle_head(head, now);
            self.up.pool.catch_up()?;
            self.world.look_at_ledger(&self.up);
        }
        let validates = self.up.validator.lock().is_some();
        if validates != self.validates {
            self.validates = validates;
            self.engine.set_patience(if validates { DECISION_PATIENCE } else { Duration::ZERO });
        }
        Ok(())
    }

    fn take(&mut self, ended: Ended) -> Result<()> {
        let now = Instant::now();
        match ended {
            Ended::Request(id, answer) => {
                self.requests.remove(&id);
                self.engine.handle_answer(id, answer, now);
            }
            Ended::Job(id, done, took) => self.engine.handle_done(id, *done, took, now)?,
        }
        Ok(())
    }

    /// Carries out the engine's effects.
    fn act(&mut self) -> Result<()> {
        while let Some(effect) = self.engine.poll_effect() {
            match effect {
                Effect::Send { id, peer, request, deadline, bytes_max } => {
                    self.send(id, peer, &request, RequestLimits { deadline, response_bytes_max: bytes_max })?;
                }
                Effect::Cancel { id } => {
                    if let Some(request) = self.requests.remove(&id) {
                        request.abort();
                    }
                }
                Effect::Run { id, job } => {
                    let (worker, world) = (self.worker.clone(), self.world.clone());
                    self.beside.spawn(async move {
                        let pause = |world: &World| {
                            Duration::from_millis(world.chance.lock().rng.random_range(0..=JOB_MS_MAX))
                        };
                        let (before, after) = (pause(&world), pause(&world));
                        sleep(before).await;
                        let done = worker.run(job);
                        sleep(after).await;
                        Ended::Job(id, Box::new(done), before + after)
                    });
                }
                Effect::Ban { peer, reason, .. } => {
                    let banned = self.world.machines.iter().position(|machine| machine.id == peer);
                    if banned.is_none_or(|machine| !self.world.plan.is_traitor(machine)) {
                        return Err(anyhow!("it bans honest machine {banned:?}: {reason}"));
                    }
                }
                Effect::Hear { forks, .. } => _ = self.up.store.hear_forks(&forks)?,
            }
        }
        Ok(())
    }

    fn send(&mut self, id: RequestId, peer: PeerId, request: &Request, limits: RequestLimits) -> Result<()> {
        let payload = codec::encode("sync request", request)?;
        let port = self.port.clone();
        let asked = self.beside.spawn(async move {
            Ended::Request(id, port.request(peer, Protocol::SYNC, payload, limits).await)
        });
        self.requests.insert(id, asked);
        Ok(())
    }
}
