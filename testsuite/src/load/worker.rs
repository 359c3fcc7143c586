//! A generator: `slipnet load-worker`, a process that a load starts. See [`super::protocol`] for its messages.

use std::{
    io::{BufRead, Read},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use tokio::{sync::mpsc, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::{
    lane::{self, Lane},
    protocol::{GeneratorCommand, GeneratorReport, Job, LINE_BYTES_MAX, Outcome, Tally, instant_of},
    read,
    stock::Stock,
};
use crate::{output, rpc::Rpc};

const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);
/// The most lines that wait. A load sends only four messages, one after the other.
const LINES_MAX: usize = 4;

/// Executes the messages on standard input, and reports on standard output.
///
/// # Errors
/// If the load ends before the work does, or its messages are invalid. The load receives the reason too.
pub async fn run() -> Result<()> {
    let result = work(listen()).await;
    if let Err(error) = &result {
        say(&GeneratorReport::Failed { reason: format!("{error:#}") })?;
    }
    result
}

fn say(said: &GeneratorReport) -> Result<()> {
    output::print_line(&serde_json::to_string(said)?)
}

/// Reads standard input on a separate thread, which ends with the process.
fn listen() -> mpsc::Receiver<Result<GeneratorCommand>> {
    let (sender, receiver) = mpsc::channel(LINES_MAX);
    std::thread::spawn(move || {
        let mut stdin = std::io::stdin().lock();
        loop {
            let mut line = String::new();
            let told = match stdin.by_ref().take(LINE_BYTES_MAX as u64).read_line(&mut line) {
                Ok(0) => return,
                Ok(_) => {
                    serde_json::from_str(&line).context("the load sent a line that is not in its protocol")
                }
                Err(error) => Err(error).context("cannot read what the load sends"),
            };
            if sender.blocking_send(told).is_err() {
                return;
            }
        }
    });
    receiver
}

async fn next(told: &mut mpsc::Receiver<Result<GeneratorCommand>>) -> Result<GeneratorCommand> {
    told.recv().await.context("the load ended")?
}

async fn work(mut told: mpsc::Receiver<Result<GeneratorCommand>>) -> Result<()> {
    let GeneratorCommand::Job(job) = next(&mut told).await? else {
        bail!("the load's first message is not a job")
    };
    let stock = Arc::new(tokio::task::block_in_place(|| Stock::sign(&job))?);
    std::fs::write(&job.hashes_file, stock.hashes())
        .with_context(|| format!("cannot write {}", job.hashes_file.display()))?;
    say(&GeneratorReport::Signed { count: stock.indices().len() as u64 })?;
    loop {
        match next(&mut told).await? {
            GeneratorCommand::Prove { ms } => {
                let per_second = prove(&job, &stock, Duration::from_millis(ms)).await?;
                say(&GeneratorReport::Proved { per_second })?;
            }
            GeneratorCommand::Begin { at_ns } => {
                let outcome = generate(&job, &stock, instant_of(at_ns), &mut told).await?;
                return say(&GeneratorReport::Done(Box::new(outcome)));
            }
            GeneratorCommand::Stop => return say(&GeneratorReport::Done(Box::default())),
            GeneratorCommand::Job(_) => bail!("the load sent a second job"),
        }
    }
}

/// Returns the indices of the generator's lanes among all, each with the number of all lanes.
fn places(job: &Job) -> impl Iterator<Item = (usize, usize)> {
    let lanes = job.workers * job.connections;
    (job.worker..lanes).step_by(job.workers).map(move |place| (place, lanes))
}

/// Measures the transactions per second that the generator can send.
async fn prove(job: &Job, stock: &Arc<Stock>, duration: Duration) -> Result<f64> {
    let begin = Instant::now();
    let mut lanes = JoinSet::new();
    for place in places(job) {
        lanes.spawn(lane::prove(stock.clone(), place, Rpc::new(&job.sink)?, begin + duration));
    }
    let mut count = 0;
    while let Some(lane) = lanes.join_next().await {
        count += lane.context("a proving lane panicked")?;
    }
    Ok(count as f64 / begin.elapsed().as_secs_f64())
}

/// Sends and reads until the load sends `Stop`.
async fn generate(
    job: &Job,
    stock: &Arc<Stock>,
    begin: Instant,
    told: &mut mpsc::Receiver<Result<GeneratorCommand>>,
) -> Result<Outcome> {
    let nodes = job.submit.iter().map(|url| Rpc::new(url)).collect::<Result<Vec<_>>>()?;
    let stop = CancellationToken::new();
    let _stop_at_end = stop.clone().drop_guard();
    let mut lanes = JoinSet::new();
    let mut tallies = Vec::new();
    for place in places(job) {
        let tally = Arc::new(Mutex::new(Tally::default()));
        tallies.push(tally.clone());
        let lane = Lane { place, stock: stock.clone(), nodes: nodes.clone(), begin, tally };
        lanes.spawn(lane.run(stop.clone()));
    }
    let reads = tokio::spawn({
        let (reads, place) = (job.reads.clone(), (job.worker, job.workers));
        let (duration, stop) = (stock.plan().schedule().duration(), stop.clone());
        let addresses: Vec<_> = (0..stock.nonces().len()).map(|account| stock.address(account)).collect();
        async move {
            match &reads {
                Some(reads) => read::run(reads, place, (begin, duration), &addresses, &stop).await,
                None => Ok(Vec::new()),
            }
        }
    });
    let mut ticks = tokio::time::interval(PROGRESS_INTERVAL);
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                let mut sum = Tally { is_settled: true, ..Tally::default() };
                tallies.iter().for_each(|tally| sum.add(*tally.lock()));
                say(&GeneratorReport::Progress(sum))?;
            }
            told = next(told) => match told? {
                GeneratorCommand::Stop => break,
                other => bail!("the load sent {other:?} while the generator was sending"),
            },
        }
    }
    stop.cancel();
    let mut outcome = Outcome::default();
    outcome.tally.is_settled = true;
    while let Some(lane) = lanes.join_next().await {
        outcome.add(lane.context("a sending lane panicked")?);
    }
    let reads = reads.await.context("the readers panicked")??;
    reads.iter().for_each(|read| outcome.own.add(&read.own));
    outcome.add_reads(reads);
    Ok(outcome)
}
