//! [`Driver`]: one run of a follower: the loop around its engine, and the tasks beside the loop.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use rayon::{ThreadPool, ThreadPoolBuilder};
use rustix::process::setpriority_process;
use slipstream_network::{NetworkError, PeerId, Protocol, RequestLimits};
use slipstream_types::codec;
use tokio::{
    sync::oneshot,
    task::{AbortHandle, JoinSet},
    time::Instant,
};

use super::Follower;
use crate::{
    SyncError,
    engine::{Effect, JobId, RequestId},
    protocol::Request,
    work::{Done, Job},
};

/// After the engine has handled a broadcast, the next broadcast waits for this many times the time that it took. So
/// broadcasts get at most a quarter of the engine's time, and requested answers get the rest.
const BROADCAST_REST: u32 = 3;
/// The niceness of background threads: a background thread that competes with a thread of the head's work gets a tenth
/// of a core. A node that stops waits for its background threads.
const BACK_NICENESS: i32 = 10;
/// How often changed scores and costs are written: a crash costs at most what was learned since.
const SAVE_EVERY: Duration = Duration::from_secs(30);

/// The end of a task beside the loop.
enum TaskEnd {
    Request(RequestId, Result<Vec<u8>, NetworkError>),
    Job(JobId, Box<Done>, Duration),
    /// A save of scores and costs ended, well or not.
    Saved,
}

/// One run of a follower.
pub(super) struct Driver<'a> {
    follower: &'a Follower,
    beside: JoinSet<TaskEnd>,
    requests: BTreeMap<RequestId, AbortHandle>,
    /// The background threads. The outer option is `None` until a job needs them, the inner one if the system grants
    /// none.
    back: Option<Option<ThreadPool>>,
}

/// Starts threads that give way to the threads of the head's work.
fn threads_that_stand_back() -> Option<ThreadPool> {
    let builder = ThreadPoolBuilder::new().thread_name(|index| format!("sync-back-{index}"));
    // If the system does not support this, the threads run like any other.
    let builder = builder.start_handler(|_| {
        let _ = setpriority_process(None, BACK_NICENESS);
    });
    // The task that waits for the job notices the panic.
    let pool = builder.panic_handler(|_| {}).build();
    pool.inspect_err(
        |error| tracing::warn!(%error, "cannot start threads for the missing history: it shares the head's threads"),
    )
    .ok()
}

impl<'a> Driver<'a> {
    pub(super) fn new(follower: &'a Follower) -> Driver<'a> {
        Driver { follower, beside: JoinSet::new(), requests: BTreeMap::new(), back: None }
    }

    /// Carries out the engine's effects and hands arriving events to the engine, without end.
    pub(super) async fn drive(&mut self) -> Result<(), SyncError> {
        let follower = self.follower;
        let mut head = follower.store.watch_head();
        let mut peer_watch = follower.transport.peer_changes().watch();
        let mut connected = Vec::new();
        let mut save_at = Instant::now() + SAVE_EVERY;
        let mut broadcast_at = Instant::now();
        loop {
            let now = Instant::now();
            let peers = follower.transport.peers();
            if peers != connected {
                follower.engine.lock().handle_peers(&peers, now);
                connected = peers;
            }
            if now >= save_at {
                self.save(now);
                save_at = now + SAVE_EVERY;
            }
            self.act();
            let timeout = follower.engine.lock().poll_timeout();
            let look_at = if now < broadcast_at { save_at.min(broadcast_at) } else { save_at };
            tokio::select! {
                Some(ended) = self.beside.join_next() => match ended {
                    Ok(ended) => self.take(ended)?,
                    // A request that was cancelled.
                    Err(error) if error.is_cancelled() => {}
                    Err(error) => return Err(SyncError::Worker(error.to_string())),
                },
                (peer, payload) = follower.broadcasts.pop(), if broadcast_at <= now => {
                    let began = Instant::now();
                    follower.engine.lock().handle_broadcast(peer, payload, began);
                    let ended = Instant::now();
                    broadcast_at = ended + (ended - began) * BROADCAST_REST;
                }
                () = follower.poked.notified() => {}
                () = peer_watch.changed() => {}
                Ok(()) = head.changed() => {
                    let number = *head.borrow_and_update();
                    follower.engine.lock().handle_head(number, Instant::now());
                }
                () = tokio::time::sleep_until(timeout.map_or(look_at, |timeout| timeout.min(look_at))) => {
                    let now = Instant::now();
                    if timeout.is_some_and(|timeout| timeout <= now) {
                        follower.engine.lock().handle_timeout(now);
                    }
                }
            }
        }
    }

    fn take(&mut self, ended: TaskEnd) -> Result<(), SyncError> {
        let now = Instant::now();
        let mut engine = self.follower.engine.lock();
        match ended {
            TaskEnd::Request(id, answer) => {
                let bytes = answer.as_ref().map_or(0, Vec::len);
                tracing::trace!(id = id.0, bytes, "answered");
                self.requests.remove(&id);
                engine.handle_answer(id, answer, now);
            }
            TaskEnd::Job(id, done, took) => {
                tracing::trace!(id = id.0, took_us = took.as_micros() as u64, "done");
                engine.handle_done(id, *done, took, now)?;
            }
            TaskEnd::Saved => {}
        }
        Ok(())
    }

    /// Carries out the engine's effects.
    fn act(&mut self) {
        loop {
            let effect = self.follower.engine.lock().poll_effect();
            let Some(effect) = effect else { return };
            match effect {
                Effect::Send { id, peer, request, deadline, bytes_max } => {
                    let limits = RequestLimits { deadline, response_bytes_max: bytes_max };
                    self.send(id, peer, &request, limits);
                }
                Effect::Cancel { id } => {
                    if let Some(request) = self.requests.remove(&id) {
                        request.abort();
                    }
                }
                Effect::Run { id, job } => self.run(id, job),
                Effect::Ban { peer, reason, duration } => {
                    self.follower.transport.ban(peer, &reason, duration);
                }
                Effect::Hear { peer, forks } => self.follower.hear(peer, &forks),
            }
        }
    }

    /// Runs a job beside the engine. A job that the head does not wait for runs on background threads.
    fn run(&mut self, id: JobId, job: Job) {
        let worker = Arc::clone(&self.follower.worker);
        let back = job.stands_back().then(|| self.back.get_or_insert_with(threads_that_stand_back));
        let work = move || {
            let began = Instant::now();
            let done = worker.run(job);
            TaskEnd::Job(id, Box::new(done), began.elapsed())
        };
        match back {
            Some(Some(threads)) => {
                let (tell, told) = oneshot::channel();
                threads.spawn(move || drop(tell.send(work())));
                self.beside.spawn(async move { told.await.expect("the job panicked") });
            }
            Some(None) | None => drop(self.beside.spawn_blocking(work)),
        }
    }

    /// Aborts the requests and waits for the jobs.
    pub(super) async fn end(&mut self) -> Result<(), SyncError> {
        for request in std::mem::take(&mut self.requests).into_values() {
            request.abort();
        }
        let mut done = Ok(());
        while let Some(ended) = self.beside.join_next().await {
            match ended {
                Ok(ended @ TaskEnd::Job(..)) => done = done.and(self.take(ended)),
                Err(error) if error.is_panic() => done = Err(SyncError::Worker(error.to_string())),
                _ => {}
            }
        }
        done
    }

    fn send(&mut self, id: RequestId, peer: PeerId, request: &Request, limits: RequestLimits) {
        let transport = Arc::clone(&self.follower.transport);
        tracing::trace!(id = id.0, peer = %peer.short(), ?request, "asked");
        let payload = codec::encode("sync request", request).expect("requests are within their bounds");
        let asked = self.beside.spawn(async move {
            TaskEnd::Request(id, transport.request(peer, Protocol::SYNC, payload, limits).await)
        });
        self.requests.insert(id, asked);
    }

    fn save(&mut self, now: Instant) {
        if let Some(advice) = self.follower.advice(now) {
            let store = self.follower.store.clone();
            self.beside.spawn_blocking(move || {
                advice.write(&store);
                TaskEnd::Saved
            });
        }
    }
}
