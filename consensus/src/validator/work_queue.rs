//! [`WorkQueue`]: runs heavy work on a thread that may block, one piece after another, and returns the results to the
//! actor.

use std::{collections::VecDeque, sync::Arc};

use tokio::task::JoinHandle;

use super::stop::Stop;
use crate::{error::ConsensusError, seams::Machine};

struct Job<R> {
    name: &'static str,
    work: Box<dyn FnOnce() -> End<R> + Send>,
    stop: Stop,
}

/// The last part of a piece of work. Its argument is whether a simulated machine was stopped before it.
type End<R> = Box<dyn FnOnce(bool) -> R + Send>;

/// A queue of work that runs one piece at a time. Work that has begun runs to its end even if the queue is dropped.
///
/// The queue has no bound of its own: its owner adds a bounded number of pieces.
pub(super) struct WorkQueue<R> {
    queue: VecDeque<Job<R>>,
    running: Option<(&'static str, JoinHandle<R>)>,
    /// The machine of a simulation; `None` for real threads.
    machine: Option<Arc<dyn Machine>>,
}

impl<R: Send + 'static> WorkQueue<R> {
    /// Creates a queue whose work runs on threads, or on a simulated machine.
    pub(super) fn new(machine: Option<Arc<dyn Machine>>) -> WorkQueue<R> {
        WorkQueue { queue: VecDeque::new(), running: None, machine }
    }

    /// Begins the work, or queues it. The name identifies it if it panics.
    pub(super) fn add(&mut self, name: &'static str, work: impl FnOnce() -> R + Send + 'static) {
        let work = move || {
            let result = work();
            move |_| result
        };
        self.add_long(name, Stop::default(), work);
    }

    /// Does the same as [`WorkQueue::add`], with work in two parts that can be stopped. A simulated machine spends its
    /// working time between the two parts.
    pub(super) fn add_long<E: FnOnce(bool) -> R + Send + 'static>(
        &mut self,
        name: &'static str,
        stop: Stop,
        work: impl FnOnce() -> E + Send + 'static,
    ) {
        self.queue.push_back(Job { name, work: Box::new(move || Box::new(work())), stop });
        self.begin();
    }

    /// Whether no work is running.
    pub(super) fn is_idle(&self) -> bool {
        self.running.is_none()
    }

    fn begin(&mut self) {
        if self.running.is_none()
            && let Some(Job { name, work, stop }) = self.queue.pop_front()
        {
            let running = match &self.machine {
                None => tokio::task::spawn_blocking(move || work()(false)),
                Some(machine) => {
                    let [before, after] = machine.pace(name);
                    tokio::spawn(async move {
                        tokio::time::sleep(before).await;
                        let end = work();
                        let result = end(stop.pass().await);
                        tokio::time::sleep(after).await;
                        result
                    })
                }
            };
            self.running = Some((name, running));
        }
    }

    /// Waits for the next result; waits for ever if there is no work. Dropping the future loses nothing.
    ///
    /// # Errors
    /// [`ConsensusError::Task`] if the work panicked.
    pub(super) async fn next(&mut self) -> Result<R, ConsensusError> {
        let Some((name, running)) = &mut self.running else { return std::future::pending().await };
        let (task, ended) = (*name, running.await);
        self.running = None;
        self.begin();
        ended.map_err(|panic| ConsensusError::Task { task, reason: panic.to_string() })
    }

    /// Waits for the running work and drops the rest.
    pub(super) async fn finish(&mut self) {
        self.queue.clear();
        if let Some((_, running)) = self.running.take() {
            // The result has no receiver any more.
            _ = running.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering::SeqCst},
            mpsc,
        },
        time::Duration,
    };

    use super::*;

    /// Goal: pieces run one at a time and in order, whoever waits. A panic is reported by name and ends nothing else.
    #[tokio::test]
    async fn one_after_another() {
        let mut queue = WorkQueue::new(None);
        let (open, gate) = mpsc::channel::<()>();
        let begun = Arc::new(AtomicUsize::new(0));
        let count = || {
            let begun = begun.clone();
            move || begun.fetch_add(1, SeqCst)
        };
        queue.add("first", {
            let count = count();
            move || {
                gate.recv().unwrap();
                count()
            }
        });
        queue.add("second", || panic!("broken"));
        queue.add("third", count());
        // A waiter that gives up takes nothing away.
        assert!(tokio::time::timeout(Duration::ZERO, queue.next()).await.is_err());
        assert_eq!(begun.load(SeqCst), 0, "nothing overtakes the first");
        open.send(()).unwrap();
        assert_eq!(queue.next().await.unwrap(), 0);
        let panic = queue.next().await.unwrap_err().to_string();
        assert!(panic.contains("second") && panic.contains("broken"), "{panic}");
        assert_eq!(queue.next().await.unwrap(), 1);
    }

    /// Goal: `finish` waits for the running work, and begins no more.
    #[tokio::test]
    async fn the_end_waits_for_what_is_under_way() {
        let mut queue = WorkQueue::new(None);
        let done = Arc::new(AtomicUsize::new(0));
        for _ in 0..3 {
            let done = done.clone();
            queue.add("work", move || {
                done.fetch_add(1, SeqCst);
            });
        }
        queue.finish().await;
        assert_eq!(done.load(SeqCst), 1);
        assert!(tokio::time::timeout(Duration::ZERO, queue.next()).await.is_err());
    }
}
