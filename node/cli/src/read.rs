//! `slipstream read`: an answer from enough validators that at least one of them is honest. The answer is as recent as
//! the request.
//!
//! Validators answer reads without ordering them (the Eve paper, section 4.3). An answer must reflect everything that
//! was certified before the request. So each validator of a quorum waits until it has every batch it voted for, and
//! then reports its position with a certificate. Each certificate rests on a quorum of votes, and two quorums share an
//! honest validator. So no batch above the highest of these certificates was certified before the request. An answer
//! counts only from validators that have reached that batch.

use std::{collections::BTreeMap, path::PathBuf, thread};

use clap::Args;
use miette::{Result, miette};
use serde_json::{Value, json};
use slipstream_api::settled::{EPOCH_ENDS_MAX, Settled};
use slipstream_base::genesis_file;
use slipstream_sync::Trust;
use slipstream_types::{BatchNumber, Bytes, Certificate, PublicKey, codec};

use super::{
    ask::{NodeUrl, ask, parse, post},
    exit::{CommandFailure, Exit, OrFail as _},
    output::print,
};

/// Maximum bytes of a certificate: more than a certificate of the largest set has.
const CERTIFICATE_BYTES_MAX: usize = 1 << 20;
/// Maximum number of attempts while the head moves and answers therefore disagree.
const ATTEMPTS: usize = 5;

#[derive(Debug, Args)]
pub(super) struct ReadArgs {
    /// The chain's genesis file, which names the trusted validators
    #[arg(long, value_name = "FILE")]
    genesis: PathBuf,
    /// The API of a validator, as in --api of other commands; repeat it for each validator
    #[arg(long, value_name = "URL", required = true)]
    validator: Vec<String>,
    /// Print a JSON document that includes the batch reached and the validators that agree
    #[arg(long)]
    json: bool,
    /// A JSON-RPC method that only reads, such as eth_getBalance
    method: String,
    /// Its parameters, as a JSON array
    #[arg(default_value = "[]")]
    params: String,
}

/// A validator to ask.
#[derive(Clone)]
struct Witness {
    node: NodeUrl,
    /// The validator's key, to which its answer is attributed.
    key: PublicKey,
}

/// A validator and the position of its certificate.
struct ValidatorStanding {
    witness: Witness,
    number: BatchNumber,
}

pub(super) fn read(args: &ReadArgs) -> Result<()> {
    let params: Value = serde_json::from_str(&args.params)
        .ok()
        .filter(Value::is_array)
        .ok_or_else(|| miette!("the parameters are not a JSON array: {}", args.params))?;
    let nodes = args.validator.iter().map(|url| NodeUrl::parse(url)).collect::<Result<Vec<_>>>()?;
    let mut trust = Trust::of_genesis(&genesis_file::load(&args.genesis).or_fail()?);
    let (standings, silent) = standings(&nodes, &mut trust);
    let quorum = trust.set().quorum();
    if standings.len() < quorum {
        let text = format!(
            "only {} validators answer, and a quorum needs {}{}",
            standings.len(),
            quorum,
            silent.iter().map(|reason| format!("; {reason}")).collect::<String>()
        );
        return Err(CommandFailure::new(Exit::TryAgain, text).into());
    }
    let floor = standings.iter().map(|standing| standing.number).max().unwrap_or_default();
    let request = json!({ "jsonrpc": "2.0", "id": 1, "method": args.method, "params": params }).to_string();
    let matching = trust.set().matching();
    let mut heard = BTreeMap::new();
    for _ in 0..ATTEMPTS {
        heard = answers(&standings, floor, &request);
        if let Some((answer, keys)) = heard.iter().find(|(_, keys)| keys.len() >= matching) {
            return show(args, floor, &parse(answer)?, keys);
        }
    }
    let counts: Vec<String> =
        heard.iter().map(|(answer, keys)| format!("{} say {answer}", keys.len())).collect();
    let text = format!(
        "no {matching} validators give the same answer at batch {floor} or later: {}",
        if counts.is_empty() { "none answers".to_owned() } else { counts.join("; ") }
    );
    Err(CommandFailure::new(Exit::TryAgain, text).into())
}

/// The position of each validator, and why the other nodes do not count.
fn standings(nodes: &[NodeUrl], trust: &mut Trust) -> (Vec<ValidatorStanding>, Vec<String>) {
    let said = side_by_side(nodes, |node| settled(node, BatchNumber::GENESIS, trust));
    let (mut standings, mut silent): (Vec<ValidatorStanding>, Vec<String>) = Default::default();
    let mut claims = Vec::new();
    for (node, said) in nodes.iter().zip(said) {
        match said {
            Ok((claim, learned)) => {
                if learned.epoch() > trust.epoch() {
                    *trust = learned;
                }
                claims.push((node, claim));
            }
            Err(error) => silent.push(format!("{node}: {error}")),
        }
    }
    for (node, Claim { key, certificate }) in claims {
        let is_new = standings.iter().all(|standing| standing.witness.key != key);
        let reason = match trust.verify(&certificate) {
            Err(error) => error.to_string(),
            Ok(()) if trust.set().index_of(&key).is_none() => format!("{key} is not a validator"),
            Ok(()) if !is_new => format!("{key} already answered at another address"),
            Ok(()) => {
                let witness = Witness { node: node.clone(), key };
                standings.push(ValidatorStanding { witness, number: certificate.info.number });
                continue;
            }
        };
        silent.push(format!("{node}: {reason}"));
    }
    (standings, silent)
}

/// A validator's claim, still unchecked.
struct Claim {
    key: PublicKey,
    certificate: Certificate,
}

/// A validator's claim, and the validators of all epochs up to its own.
fn settled(node: &NodeUrl, after: BatchNumber, trust: &Trust) -> Result<(Claim, Trust)> {
    let mut trust = trust.clone();
    loop {
        let epoch = trust.epoch();
        let path = format!("/v1/consensus/settled?after={after}&epoch={epoch}");
        let said: Settled = parse(&ask(node, &path)?)?;
        let ends = said.epoch_ends.iter().map(decode).collect::<Result<Vec<_>>>()?;
        trust.learn(&ends).map_err(|error| miette!("{error}"))?;
        if ends.len() < EPOCH_ENDS_MAX || trust.epoch() == epoch {
            return Ok((Claim { key: said.validator, certificate: decode(&said.certificate)? }, trust));
        }
    }
}

fn decode(bytes: &Bytes) -> Result<Certificate> {
    codec::decode("certificate", bytes, CERTIFICATE_BYTES_MAX).map_err(|error| miette!("{error}"))
}

/// The answers of the validators that have reached the floor, each with the keys of the validators that gave it.
fn answers(
    standings: &[ValidatorStanding],
    floor: BatchNumber,
    request: &str,
) -> BTreeMap<String, Vec<PublicKey>> {
    let said = side_by_side(standings, |ValidatorStanding { witness, number }| {
        if *number < floor {
            // The validator confirms that it has reached the floor; a liar's confirmation counts no more than its
            // answer.
            ask(&witness.node, &format!("/v1/consensus/settled?after={floor}"))?;
        }
        let reply: Value = parse(&post(&witness.node, "/", request)?)?;
        let answer = json!({ "result": reply.get("result"), "error": reply.get("error") });
        Ok(answer.to_string())
    });
    let mut answers: BTreeMap<String, Vec<PublicKey>> = BTreeMap::new();
    for (standing, said) in standings.iter().zip(said) {
        if let Ok(answer) = said {
            answers.entry(answer).or_default().push(standing.witness.key);
        }
    }
    answers
}

/// Asks all at once, and returns the results in the order of `asked`.
fn side_by_side<A: Sync, T: Send>(asked: &[A], ask: impl Fn(&A) -> Result<T> + Sync) -> Vec<Result<T>> {
    let ask = &ask;
    thread::scope(|scope| {
        let threads: Vec<_> = asked.iter().map(|one| scope.spawn(move || ask(one))).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Result<T>>| {
            thread.join().unwrap_or_else(|_| Err(miette!("asking it panicked")))
        };
        threads.into_iter().map(join).collect()
    })
}

fn show(args: &ReadArgs, floor: BatchNumber, answer: &Value, keys: &[PublicKey]) -> Result<()> {
    if let Some(error) = answer.get("error").filter(|error| !error.is_null()) {
        let text = format!("{} validators refuse {}: {error}", keys.len(), args.method);
        return Err(CommandFailure::new(Exit::Failure, text).into());
    }
    let result = &answer["result"];
    if args.json {
        let agreed: Vec<String> = keys.iter().map(PublicKey::to_string).collect();
        return print(&json!({ "result": result, "batch_min": floor, "validators": agreed }).to_string());
    }
    print(&result.as_str().map_or_else(|| result.to_string(), str::to_owned))
}
