//! [`Delivery`]: the result of a load, or of a node's orders, for the judge of the scenario. Over its own connection go
//! a line with the judge's secret and then one JSON value; a line comes back.

use std::{
    fmt,
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::{LoadSummary, Saturation};

/// The longest delivery. A search of sixty steps with all reads at sixty nodes has a few MiB.
pub(crate) const DELIVERY_BYTES_MAX: usize = 32 << 20;
/// The environment variable with the judge's secret: the judge refuses deliveries without it.
pub(crate) const JUDGE_SECRET: &str = "SLIPNET_JUDGE_SECRET";
/// The judge's answer to a delivery that it accepts.
pub(crate) const TAKEN: &str = "taken";
/// The most bytes of an answer that are read.
const ANSWER_BYTES_MAX: u64 = 1_024;
/// The timeout of one attempt.
const ATTEMPT: Duration = Duration::from_secs(20);
/// The delay between two attempts: the judge's container may be starting.
const RETRY: Duration = Duration::from_secs(1);

/// The result of one part of a scenario.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Delivery {
    pub(crate) from: Source,
    pub(crate) ending: Ending,
}

/// A part of a scenario that reports to the judge, by name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Source {
    /// The load of a phase.
    Phase(String),
    /// The operator of a node, which applies the scenario's events.
    Node(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Phase(name) => write!(f, "the load {name}"),
            Source::Node(name) => write!(f, "the node {name}"),
        }
    }
}

/// How the part ended. Times are in ms after the start time that all containers share.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ending {
    Run {
        /// When its first transaction was due.
        begin_ms: u64,
        summary: Box<LoadSummary>,
    },
    Search {
        /// The same for each step.
        begins_ms: Vec<u64>,
        saturation: Box<Saturation>,
    },
    /// The load failed, with this error.
    Failed(String),
    /// Not an ending: the node's operator will apply this order to the primary, and announces it to the judge first.
    Taken { order: String },
    /// The node's last order is over.
    Orders {
        /// What could not be carried out, if anything.
        failed: Option<String>,
    },
}

/// Returns the judge's secret from the environment, or an empty text.
pub(crate) fn given_secret() -> String {
    std::env::var_os(JUDGE_SECRET).unwrap_or_default().to_string_lossy().trim().to_owned()
}

impl Delivery {
    /// Sends the secret and the delivery to the judge at `HOST:PORT`, and retries until `patience` has passed.
    ///
    /// # Errors
    /// If the delivery is too long, no judge accepts it in time, or the judge refuses it.
    pub(crate) async fn send(&self, judge: &str, secret: &str, patience: Duration) -> Result<()> {
        let mut text = format!("{secret}\n").into_bytes();
        let begin = text.len();
        serde_json::to_writer(&mut text, self)?;
        let length = text.len() - begin;
        ensure!(
            length <= DELIVERY_BYTES_MAX,
            "the figures of {} have {length} bytes, and a judge takes {DELIVERY_BYTES_MAX}",
            self.from
        );
        let begin = Instant::now();
        loop {
            let failed = match tokio::time::timeout(ATTEMPT, attempt(judge, &text)).await {
                Ok(Ok(answer)) if answer == TAKEN => return Ok(()),
                Ok(Ok(answer)) if !answer.is_empty() => bail!("the judge at {judge} refused: {answer}"),
                Ok(Ok(_)) => "it closed the connection without an answer".to_owned(),
                Ok(Err(error)) => format!("{error:#}"),
                Err(_) => format!("it did not answer within {} s", ATTEMPT.as_secs()),
            };
            if begin.elapsed() >= patience {
                bail!("no judge at {judge} took the figures within {} s: {failed}", patience.as_secs());
            }
            tokio::time::sleep(RETRY).await;
        }
    }
}

async fn attempt(judge: &str, text: &[u8]) -> Result<String> {
    let mut stream = TcpStream::connect(judge).await?;
    stream.write_all(text).await?;
    // Closing the write side marks the end of the value.
    stream.shutdown().await?;
    let mut answer = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer).await?;
    Ok(answer.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    fn failed() -> Delivery {
        let from = Source::Phase("main".to_owned());
        Delivery { from, ending: Ending::Failed("no node answers".to_owned()) }
    }

    /// Goal: delivery is retried if the judge starts late or hangs up; the judge receives the whole value.
    #[tokio::test]
    async fn a_delivery_is_sent_until_it_is_taken() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let judge = listener.local_addr().unwrap().to_string();
        let server = tokio::spawn(async move {
            drop(listener.accept().await.unwrap());
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut text = Vec::new();
            stream.read_to_end(&mut text).await.unwrap();
            stream.write_all(format!("{TAKEN}\n").as_bytes()).await.unwrap();
            text
        });
        failed().send(&judge, "the secret", Duration::from_secs(60)).await.unwrap();
        let text = server.await.unwrap();
        let value = text.strip_prefix(b"the secret\n").expect("the secret stands before the value");
        let delivery: Delivery = serde_json::from_slice(value).unwrap();
        assert_eq!(delivery.from, Source::Phase("main".to_owned()));
        assert!(matches!(delivery.ending, Ending::Failed(why) if why == "no node answers"));
    }

    /// Goal: a judge that refuses is not asked again, and an absent one is named in the error.
    #[tokio::test]
    async fn a_refusal_and_an_absence_are_told() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let judge = listener.local_addr().unwrap().to_string();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut text = Vec::new();
            stream.read_to_end(&mut text).await.unwrap();
            stream.write_all(b"no such phase\n").await.unwrap();
        });
        let refused = failed().send(&judge, "", Duration::from_secs(60)).await.unwrap_err().to_string();
        assert!(refused.contains("refused: no such phase"), "{refused}");
        server.await.unwrap();
        // The port is bound, so that nobody else gets it, but nobody listens.
        let held = tokio::net::TcpSocket::new_v4().unwrap();
        held.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let closed = held.local_addr().unwrap().to_string();
        let absent = failed().send(&closed, "", Duration::ZERO).await.unwrap_err().to_string();
        assert!(absent.contains(&closed) && absent.contains("within 0 s"), "{absent}");
    }
}
