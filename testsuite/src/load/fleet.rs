//! [`Fleet`]: the load's side of its generators.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use alloy_primitives::B256;
use anyhow::{Context, Result, anyhow, bail, ensure};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::mpsc,
};

use super::{
    plan::Plan,
    protocol::{GeneratorCommand, GeneratorReport, Job, LINE_BYTES_MAX, Outcome, Tally},
    sink::Sink,
    stock::indices,
};
use crate::{devnet::die_with_parent, leftovers::RunDir};

/// The most generators of one load: more than a machine's cores only slow each other down.
pub(super) const WORKERS_MAX: usize = 64;
/// How long all generators send to the sink.
const PROVE: Duration = Duration::from_millis(500);
/// The time limit for signing. One core signs two million transactions in two minutes.
const SIGN_DEADLINE: Duration = Duration::from_secs(600);
/// The time limit for a generator to answer `Prove` or `Stop`, even on a loaded machine.
const ANSWER_DEADLINE: Duration = Duration::from_secs(60);
/// The most lines that wait for the load.
const LINES_MAX: usize = 1_024;

/// The running generators. All of them end when this is dropped.
pub(super) struct Fleet {
    workers: Vec<Worker>,
    said: mpsc::Receiver<(usize, Result<GeneratorReport>)>,
    tallies: Vec<Tally>,
    /// The directory of the files of hashes.
    dir: RunDir,
    _sink: Sink,
}

struct Worker {
    child: Child,
    stdin: ChildStdin,
}

impl Worker {
    async fn tell(&mut self, told: &GeneratorCommand) -> Result<()> {
        let line = serde_json::to_string(told)? + "\n";
        let written = async {
            self.stdin.write_all(line.as_bytes()).await?;
            self.stdin.flush().await
        };
        written.await.context("a load generator has ended")
    }
}

impl Fleet {
    /// Starts a process for each job, and waits until all have signed. Sets the sink and the hashes file of each job.
    pub(super) async fn start(program: &Path, workers: usize, job: impl Fn(usize) -> Job) -> Result<Fleet> {
        ensure!(
            (1..=WORKERS_MAX).contains(&workers),
            "a load has 1 to {WORKERS_MAX} generators, not {workers}"
        );
        let dir = RunDir::new("load-").context("cannot create a temporary directory for the hashes")?;
        let sink = Sink::start().await?;
        let (sender, said) = mpsc::channel(LINES_MAX);
        let mut started = Vec::new();
        for index in 0..workers {
            let (stdout, mut worker) = Worker::start(program)?;
            tokio::spawn(hear(index, stdout, sender.clone()));
            let job = Job {
                worker: index,
                workers,
                sink: sink.url().to_owned(),
                hashes_file: hashes_file(dir.path(), index),
                ..job(index)
            };
            worker.tell(&GeneratorCommand::Job(Box::new(job))).await?;
            started.push(worker);
        }
        // The channel closes once all generators have closed their output.
        drop(sender);
        let tallies = vec![Tally::default(); workers];
        let mut fleet = Fleet { workers: started, said, tallies, dir, _sink: sink };
        fleet
            .gather(SIGN_DEADLINE, |said| matches!(said, GeneratorReport::Signed { .. }).then_some(()))
            .await?;
        Ok(fleet)
    }

    /// Returns the index in the plan of every hash.
    pub(super) fn hashes(&self, plan: &Plan, connections: usize) -> Result<HashMap<B256, u32>> {
        let mut found = HashMap::with_capacity(plan.len());
        for worker in 0..self.workers.len() {
            let path = hashes_file(self.dir.path(), worker);
            let bytes = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let places = indices(plan, worker, self.workers.len(), connections);
            let hashes = bytes.chunks_exact(32).map(B256::from_slice);
            ensure!(
                hashes.len() == places.len(),
                "a generator signed a part of the plan that is not its own"
            );
            found.extend(hashes.zip(places));
        }
        Ok(found)
    }

    /// Returns the transactions per second that all generators together send to the sink.
    pub(super) async fn prove(&mut self) -> Result<f64> {
        self.tell(&GeneratorCommand::Prove { ms: PROVE.as_millis() as u64 }).await?;
        let proved = |said: GeneratorReport| match said {
            GeneratorReport::Proved { per_second } => Some(per_second),
            _ => None,
        };
        Ok(self.gather(ANSWER_DEADLINE, proved).await?.into_iter().sum())
    }

    /// Announces to all generators when the first transaction is due.
    pub(super) async fn begin(&mut self, at_ns: u64) -> Result<()> {
        self.tell(&GeneratorCommand::Begin { at_ns }).await
    }

    /// Waits until a generator reports its progress; returns the progress of all generators together.
    pub(super) async fn progress(&mut self) -> Result<Tally> {
        let (worker, said) = self.said.recv().await.context("all load generators have ended")?;
        match said.with_context(|| format!("load generator {worker}"))? {
            GeneratorReport::Progress(tally) => self.tallies[worker] = tally,
            GeneratorReport::Failed { reason } => bail!("load generator {worker} failed: {reason}"),
            other => bail!("load generator {worker} reported {other:?} while sending"),
        }
        let mut sum = Tally { is_settled: true, ..Tally::default() };
        self.tallies.iter().for_each(|tally| sum.add(*tally));
        Ok(sum)
    }

    /// Stops all generators, and returns their combined outcome.
    pub(super) async fn finish(mut self) -> Result<Outcome> {
        self.tell(&GeneratorCommand::Stop).await?;
        let done = |said: GeneratorReport| match said {
            GeneratorReport::Done(outcome) => Some(*outcome),
            _ => None,
        };
        let mut sum = Outcome::default();
        sum.tally.is_settled = true;
        for outcome in self.gather(ANSWER_DEADLINE, done).await? {
            sum.add(outcome);
        }
        for worker in &mut self.workers {
            let ended = tokio::time::timeout(ANSWER_DEADLINE, worker.child.wait()).await;
            ended.context("a load generator did not end")??;
        }
        Ok(sum)
    }

    async fn tell(&mut self, told: &GeneratorCommand) -> Result<()> {
        for worker in &mut self.workers {
            worker.tell(told).await?;
        }
        Ok(())
    }

    /// Waits until each generator has sent a wanted message. Progress is skipped.
    async fn gather<T>(
        &mut self,
        deadline: Duration,
        wanted: impl Fn(GeneratorReport) -> Option<T>,
    ) -> Result<Vec<T>> {
        let mut found: Vec<Option<T>> = (0..self.workers.len()).map(|_| None).collect();
        let gathered = async {
            while found.iter().any(Option::is_none) {
                let (worker, said) = self.said.recv().await.context("all load generators have ended")?;
                match said.with_context(|| format!("load generator {worker}"))? {
                    GeneratorReport::Failed { reason } => bail!("load generator {worker} failed: {reason}"),
                    GeneratorReport::Progress(_) => {}
                    said => {
                        found[worker] =
                            Some(wanted(said).context("a load generator sent an unexpected message")?)
                    }
                }
            }
            Ok::<_, anyhow::Error>(())
        };
        let gathered = tokio::time::timeout(deadline, gathered).await;
        gathered
            .with_context(|| format!("no answer from a load generator within {} s", deadline.as_secs()))??;
        Ok(found.into_iter().flatten().collect())
    }
}

impl Worker {
    fn start(program: &Path) -> Result<(ChildStdout, Worker)> {
        use std::os::unix::process::CommandExt;
        let mut command = std::process::Command::new(program);
        command.arg("load-worker").stdin(Stdio::piped()).stdout(Stdio::piped());
        // The child has its own process group: ctrl-c reaches the load alone, which ends its generators.
        command.process_group(0);
        die_with_parent(&mut command);
        let mut command = Command::from(command);
        command.kill_on_drop(true);
        let mut child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (stdin, stdout) = pipes.context("a load generator has no pipes")?;
        Ok((stdout, Worker { child, stdin }))
    }
}

/// Forwards a generator's messages until it closes its output or the load has ended.
async fn hear(worker: usize, stdout: ChildStdout, sender: mpsc::Sender<(usize, Result<GeneratorReport>)>) {
    let mut stdout = BufReader::new(stdout);
    let mut is_done = false;
    loop {
        let mut line = String::new();
        let said: Result<GeneratorReport> =
            match (&mut stdout).take(LINE_BYTES_MAX as u64).read_line(&mut line).await {
                Ok(0) if is_done => return,
                Ok(0) => Err(anyhow!("it has ended")),
                Ok(_) => {
                    serde_json::from_str(&line).context("it does not speak the protocol of this version")
                }
                Err(error) => Err(error).context("cannot read its output"),
            };
        is_done = matches!(said, Ok(GeneratorReport::Done(_)));
        // Nothing is read after an error.
        let is_over = said.is_err();
        if sender.send((worker, said)).await.is_err() || is_over {
            return;
        }
    }
}

fn hashes_file(dir: &Path, worker: usize) -> PathBuf {
    dir.join(format!("hashes-{worker}"))
}

/// Returns the path of the program `slipnet`: this one, or the one that cargo put beside it or, for tests, a directory
/// above.
pub(super) fn program() -> Result<PathBuf> {
    let this = std::env::current_exe().context("cannot find the path of this program")?;
    if this.file_name().is_some_and(|name| name == "slipnet") {
        return Ok(this);
    }
    let mut places = this.ancestors().skip(1).take(2).map(|dir| dir.join("slipnet"));
    places.find(|path| path.is_file()).with_context(|| {
        format!(
            "load generators are processes of the program slipnet, which is not beside {}: build it with `./x build`",
            this.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::stock::tests::job;

    /// Creates a shell script in place of slipnet. A child process writes the script, so that this process never has it
    /// open for writing. Otherwise a child that another test forks meanwhile would hold it open too, and the system
    /// would refuse to execute it.
    fn stand_in(dir: &Path, script: &str) -> PathBuf {
        let path = dir.join("slipnet");
        let write = r#"printf '#!/bin/sh\n%s\n' "$2" > "$1" && chmod +x "$1""#;
        let mut shell = std::process::Command::new("/bin/sh");
        shell.args(["-c", write, "sh"]).arg(&path).arg(script);
        assert!(shell.status().unwrap().success());
        path
    }

    #[tokio::test]
    async fn a_generator_that_fails_is_named_with_its_reason() {
        let dir = tempfile::tempdir().unwrap();
        let scripts = [
            (
                r#"read job; echo '{"Failed":{"reason":"no keys"}}'; cat >/dev/null"#,
                "load generator 0 failed: no keys",
            ),
            ("read job; echo hello", "does not speak the protocol"),
            ("read job", "has ended"),
        ];
        for (script, expected) in scripts {
            let program = stand_in(dir.path(), script);
            let error = Fleet::start(&program, 1, job).await.err().unwrap();
            assert!(format!("{error:#}").contains(expected), "{error:#}");
        }
    }

    #[tokio::test]
    async fn a_load_has_a_bounded_number_of_generators() {
        for workers in [0, WORKERS_MAX + 1] {
            let error = Fleet::start(Path::new("/bin/false"), workers, job).await.err().unwrap();
            assert!(error.to_string().contains("1 to 64"), "{error}");
        }
    }
}
