//! A program that takes a validator's place: it has the validator's key and address, sends the messages of a validator,
//! and lies.
//!
//! It executes and stores nothing: it hears the others' messages about a batch, and reacts to all of them. It knows the
//! validators of the genesis, and so those of the chain's first epoch. `slipnet run` starts it for the fault
//! `lying_validator`, as `campaign-child lying-validator`, and waits for its line `ready …` on standard output.

mod censor;
mod lies;

use std::{fs, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use clap::Args;
use serde::Deserialize;
use slipnet::{output::print_line, time::now_ms};
use slipstream_consensus::simulated::{Request, Response, decode_request, domain, encode};
use slipstream_eve::Message;
use slipstream_network::{
    BoxFuture, Handler, Network, NetworkConfig, Payload, PeerId, PeerTarget, Protocol, Refusal,
    RequestLimits, Transport,
};
use slipstream_types::{Genesis, SecretKey, digest::parse_hex};
use tokio::{sync::mpsc, task::JoinSet};

pub use self::lies::Lie;
use self::lies::{Liar, OutgoingMessage};

/// The most messages that wait for a lie, and lies that wait for one validator. More are dropped, as a slow validator
/// drops them.
const WAITING_MAX: usize = 1_024;
/// The most lies to one validator without an answer. The second of two votes must not wait for the answer to the first.
/// Over a slow link the batch would be decided meanwhile, and the second vote ignored.
const UNANSWERED_MAX: usize = 16;
/// The limits of a request, as for a validator's vote.
const LIMITS: RequestLimits = RequestLimits { deadline: Duration::from_secs(2), response_bytes_max: 16 };

/// The time between two orders: just less than a validator's patience with a primary, 2 s.
const ORDER_INTERVAL: Duration = Duration::from_millis(1_600);

/// Lies until it is killed.
#[derive(Clone, Debug, Args)]
pub struct LiarOptions {
    /// The lie.
    #[arg(long, value_enum)]
    lie: Lie,
    /// The validator to replace: a JSON file.
    #[arg(long)]
    orders: PathBuf,
}

/// The file of a liar's orders.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Orders {
    key_file: PathBuf,
    listen: SocketAddr,
    peers: Vec<PeerTarget>,
    genesis: PathBuf,
}

impl LiarOptions {
    /// Takes the validator's place, and lies.
    ///
    /// # Errors
    /// If the orders cannot be read, the key is no validator's, or the address is taken.
    pub async fn run(&self) -> Result<()> {
        let read = |path: &PathBuf| {
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
        };
        let Orders { key_file, listen, peers, genesis } = serde_json::from_str(&read(&self.orders)?)?;
        let key = SecretKey::from_seed(parse_hex(read(&key_file)?.trim())?);
        let genesis: Genesis = serde_json::from_str(&read(&genesis)?)?;
        let set = genesis.validator_set();
        let seat = set.index_of(&key.public()).with_context(|| {
            format!("the key in {} belongs to no validator of the genesis", key_file.display())
        })?;
        let domain = domain(genesis.header()?.digest(), &set);
        let others: Vec<PeerId> = set.validators.iter().map(|validator| validator.public_key).collect();
        let (heard, mail) = mpsc::channel(WAITING_MAX);
        let config = NetworkConfig { listen, peers, outbound: 0, ..NetworkConfig::default() };
        let network = Network::start(&config, &key, Arc::new(Ear { heard })).await?;
        print_line(&format!("ready in place of validator {seat}"))?;
        let own = key.public();
        let liar = Liar::new(self.lie, key, seat, domain, set);
        talk(liar, mail, network, others.into_iter().filter(|other| *other != own)).await
    }
}

/// Reacts to the others' messages, with a separate queue for each validator.
async fn talk(
    mut liar: Liar,
    mut mail: mpsc::Receiver<Message>,
    network: Arc<Network>,
    others: impl Iterator<Item = PeerId>,
) -> Result<()> {
    let lanes: Vec<mpsc::Sender<Arc<Vec<u8>>>> = others
        .map(|other| {
            let (lane, lies) = mpsc::channel::<Arc<Vec<u8>>>(WAITING_MAX);
            let network = network.clone();
            tokio::spawn(tell(lies, move |payload| {
                let network = network.clone();
                async move {
                    // The validator may be away, or refuse the message.
                    let _ = network.request(other, Protocol::CONSENSUS, payload, LIMITS).await;
                }
            }));
            lane
        })
        .collect();
    let mut orders = tokio::time::interval(ORDER_INTERVAL);
    loop {
        let said = tokio::select! {
            message = mail.recv() => match message {
                Some(message) => liar.hear(&message)?,
                None => return Ok(()),
            },
            _ = orders.tick() => liar.order(now_ms())?,
        };
        for OutgoingMessage { to, request } in said {
            let lie = Arc::new(request);
            for (_, lane) in lanes.iter().enumerate().filter(|(place, _)| to.has(*place)) {
                // A full queue belongs to a validator that does not respond.
                let _ = lane.try_send(lie.clone());
            }
        }
    }
}

/// Sends lies to one validator, with at most [`UNANSWERED_MAX`] in flight.
async fn tell<F>(mut lies: mpsc::Receiver<Arc<Vec<u8>>>, say: impl Fn(Vec<u8>) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut unanswered = JoinSet::new();
    while let Some(lie) = lies.recv().await {
        if unanswered.len() >= UNANSWERED_MAX {
            unanswered.join_next().await;
        }
        unanswered.spawn(say(Arc::unwrap_or_clone(lie)));
    }
    while unanswered.join_next().await.is_some() {}
}

/// Receives the validators' messages.
struct Ear {
    heard: mpsc::Sender<Message>,
}

impl Ear {
    fn hear(&self, protocol: Protocol, payload: &[u8]) -> Result<Payload, Refusal> {
        if protocol != Protocol::CONSENSUS {
            return Err(Refusal::not_kept("it keeps nothing"));
        }
        let request = decode_request(payload).map_err(|error| Refusal::malformed(error.to_string()))?;
        let response = match request {
            Request::Outcome { .. } => Response::Lacks,
            Request::Order(_) => Response::Taken,
            Request::Say(_, message) => {
                // A message that finds the queue full will be repeated.
                let _ = self.heard.try_send(*message);
                Response::Taken
            }
        };
        encode(&response).map(Payload::from).map_err(|error| Refusal::failed(error.to_string()))
    }
}

impl Handler for Ear {
    fn request<'a>(
        &'a self,
        _peer: PeerId,
        protocol: Protocol,
        payload: Vec<u8>,
    ) -> BoxFuture<'a, Result<Payload, Refusal>> {
        Box::pin(async move { self.hear(protocol, &payload) })
    }

    fn message<'a>(&'a self, _peer: PeerId, _payload: Vec<u8>) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, sleep};

    use super::*;

    /// Goal: all lies about one batch leave at once, however long answers take, up to the allowed number.
    #[tokio::test(start_paused = true)]
    async fn lies_do_not_wait_for_each_others_answers() {
        const ANSWER: Duration = Duration::from_millis(200);
        let (lane, lies) = mpsc::channel(WAITING_MAX);
        let (note, mut notes) = mpsc::unbounded_channel();
        let begun = Instant::now();
        for _ in 0..UNANSWERED_MAX + 1 {
            lane.try_send(Arc::new(Vec::new())).unwrap();
        }
        drop(lane);
        tell(lies, move |_| {
            let note = note.clone();
            async move {
                note.send(begun.elapsed()).unwrap();
                sleep(ANSWER).await;
            }
        })
        .await;
        let mut said = Vec::new();
        while let Some(after) = notes.recv().await {
            said.push(after);
        }
        assert_eq!((said.len(), said[UNANSWERED_MAX - 1]), (UNANSWERED_MAX + 1, Duration::ZERO), "{said:?}");
        assert!(said[UNANSWERED_MAX] >= ANSWER, "{said:?}");
    }
}
