//! The node's tasks: each has a name, an owner and an end.

use std::{collections::HashMap, future::Future, time::Duration};

use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

/// The error of a failed task.
pub type TaskError = Box<dyn std::error::Error + Send + Sync>;

/// Why a running node had to stop.
#[derive(Debug, thiserror::Error)]
pub enum TaskFailure {
    /// The task returned an error.
    #[error("task `{task}` failed: {source}")]
    Failed {
        /// The task's name.
        task: &'static str,
        /// The error that it returned.
        source: TaskError,
    },
    /// The task panicked, which is a bug.
    #[error("task `{task}` panicked: {message}; this is a bug in slipstream, please report it with the log")]
    Panicked {
        /// The task's name.
        task: &'static str,
        /// The message of the panic.
        message: String,
    },
    /// The task returned although nobody asked it to stop.
    #[error("task `{task}` ended by itself; this is a bug in slipstream, please report it with the log")]
    Ended {
        /// The task's name.
        task: &'static str,
    },
}

/// Owns every long-running task. Dropping it aborts them.
#[derive(Default)]
pub struct Tasks {
    running: JoinSet<Result<(), TaskError>>,
    names: HashMap<Id, &'static str>,
    tokens: Vec<(&'static str, CancellationToken)>,
}

impl Tasks {
    /// Starts a task; `make` gets the token that signals it to end.
    pub fn spawn<F>(&mut self, name: &'static str, make: impl FnOnce(CancellationToken) -> F)
    where
        F: Future<Output = Result<(), TaskError>> + Send + 'static,
    {
        let token = CancellationToken::new();
        let id = self.running.spawn(make(token.clone())).id();
        self.names.insert(id, name);
        self.tokens.push((name, token));
    }

    /// Waits until a task ends, which none should do while the node runs.
    pub async fn failure(&mut self) -> TaskFailure {
        match self.running.join_next_with_id().await {
            Some(joined) => {
                let (task, result) = self.ended(joined);
                result.err().unwrap_or(TaskFailure::Ended { task })
            }
            None => std::future::pending().await,
        }
    }

    /// Asks the tasks to end in the given order, and waits at most `patience` for each. Returns the failures that occur
    /// meanwhile, in order.
    pub async fn stop(&mut self, order: &[&'static str], patience: Duration) -> Vec<TaskFailure> {
        let mut failures = Vec::new();
        for name in order {
            for (_, token) in self.tokens.iter().filter(|(task, _)| task == name) {
                token.cancel();
            }
            let waited = tokio::time::timeout(patience, async {
                while self.names.values().any(|task| task == name) {
                    let Some(joined) = self.running.join_next_with_id().await else { break };
                    failures.extend(self.ended(joined).1.err());
                }
            });
            if waited.await.is_err() {
                tracing::warn!(
                    task = name,
                    patience_s = patience.as_secs(),
                    "the task did not end in time, aborting it"
                );
            }
        }
        self.running.abort_all();
        failures
    }

    fn ended(
        &mut self,
        joined: Result<(Id, Result<(), TaskError>), JoinError>,
    ) -> (&'static str, Result<(), TaskFailure>) {
        let id = joined.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        let task = self.names.remove(&id).unwrap_or("unknown");
        let result = match joined {
            Ok((_, Ok(()))) => Ok(()),
            Ok((_, Err(source))) => Err(TaskFailure::Failed { task, source }),
            Err(error) => Err(TaskFailure::Panicked { task, message: panic_message(error) }),
        };
        (task, result)
    }
}

fn panic_message(error: JoinError) -> String {
    match error.try_into_panic() {
        Ok(payload) => payload
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| payload.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "no message".to_owned()),
        Err(error) => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn until_cancelled(tasks: &mut Tasks, name: &'static str, log: &Arc<Mutex<Vec<&'static str>>>) {
        let log = log.clone();
        tasks.spawn(name, |token| async move {
            token.cancelled().await;
            log.lock().unwrap().push(name);
            Ok(())
        });
    }

    #[tokio::test]
    async fn a_panic_names_its_task() {
        let log = Arc::default();
        let mut tasks = Tasks::default();
        until_cancelled(&mut tasks, "steady", &log);
        tasks.spawn("shaky", |_| async { panic!("lost my {}", "keys") });
        let text = tasks.failure().await.to_string();
        assert!(text.starts_with("task `shaky` panicked: lost my keys"), "{text}");
        assert!(tasks.stop(&["steady"], PATIENCE).await.is_empty());
        assert_eq!(*log.lock().unwrap(), ["steady"]);
    }

    #[tokio::test]
    async fn an_error_and_an_early_end_are_failures() {
        let mut tasks = Tasks::default();
        tasks.spawn("fails", |_| async { Err("no disk".into()) });
        assert_eq!(tasks.failure().await.to_string(), "task `fails` failed: no disk");
        tasks.spawn("ends", |_| async { Ok(()) });
        assert!(matches!(tasks.failure().await, TaskFailure::Ended { task: "ends" }));
    }

    /// Goal: shutdown keeps its order, even if a task ignores its signal.
    #[tokio::test(start_paused = true)]
    async fn ordered_stop() {
        let log = Arc::default();
        let mut tasks = Tasks::default();
        for name in ["network", "sync", "api"] {
            until_cancelled(&mut tasks, name, &log);
        }
        tasks.spawn("deaf", |_| std::future::pending());
        assert!(tasks.stop(&["api", "deaf", "sync", "network"], Duration::from_millis(100)).await.is_empty());
        assert_eq!(*log.lock().unwrap(), ["api", "sync", "network"]);
    }
}
