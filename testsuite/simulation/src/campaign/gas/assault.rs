//! [`assault`]: the slowest programs against four validators under honest load, at full speed or slowed down.
//!
//! ```text
//!  honest: 20 transfers a second ─────────▶ a validator that is not the primary ◀── its head, every 50 ms: gaps, waits
//!  attackers: one account each, a transaction's maximum of gas, higher tips ─▶ primary
//!  brake: SIGSTOP and SIGCONT in turn ─▶ all nodes
//! ```
//!
//! Each speed has its own devnet, because nodes learn the prices of programs. A wait or gap that does not end counts
//! with its time so far.

use std::time::{Duration, Instant};

use alloy_primitives::{Address, B256, Bytes, TxKind, U256};
use anyhow::{Context, Result, ensure};
use parking_lot::Mutex;
use serde_json::{Value, json};
use slipnet::{
    accounts::Account,
    devnet::{Devnet, DevnetOptions, Node},
    progress::Progress,
    rpc::{Rpc, RpcError, quantity},
    signer::{Envelope, Fees, Request, Signed, sign},
};
use slipstream_types::limits::TRANSACTION_GAS_MAX;
use tokio::{task::JoinSet, time::MissedTickBehavior};

use super::{
    brake::{Speed, brake},
    candidates::{CODE_BYTES_MAX, Candidate, LARGE},
    search::PURSE_WEI,
    waits::{Gaps, Waits},
};

/// The time between two polls of the head, and between two transfers.
const INTERVAL: Duration = Duration::from_millis(50);
/// The time until a transaction is sent again after a failed request.
const RETRY: Duration = Duration::from_millis(200);
/// The deadline for deploying a program.
const DEPLOY_DEADLINE: Duration = Duration::from_secs(60);
/// Transactions with the maximum of gas that fill a default batch; a wave sends them at once.
const WAVE: usize = 18;
const WAVE_INTERVAL: Duration = Duration::from_secs(5);
/// Honest accounts, used in turn so that one slow transfer does not delay the next.
const HONEST: usize = 64;
const HONEST_TIP_WEI: u128 = 1;
/// Higher than [`HONEST_TIP_WEI`], so that the attackers come first wherever tips decide.
const ATTACK_TIP_WEI: u128 = 1_000_000_000;
/// The primary, while no view fails.
const PRIMARY: usize = 0;
/// The node that honest accounts send to.
const ENTRY: usize = 1;
/// Init code that returns what follows it; PUSH2 of the length comes before it.
const RETURNS: [u8; 7] = [0x80, 0x60, 0x0a, 0x5f, 0x39, 0x5f, 0xf3];
/// Text of the error for a transaction that was dropped because it alone takes too long.
const TOO_SLOW: &str = "takes longer than the validators have for a batch";

/// The durations of an assault's parts.
#[derive(Clone, Copy, Debug)]
pub(super) struct AssaultTimes {
    /// Honest load alone.
    pub(super) quiet: Duration,
    /// Honest load and attack.
    pub(super) attack: Duration,
    /// The time for the last honest transfers to be executed.
    pub(super) drain: Duration,
}

/// The result of an assault.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) speed: Speed,
    /// The longest time without a batch before the attack.
    pub(super) quiet_gap_s: f64,
    /// The longest time without a batch since the attack began.
    pub(super) gap_s: f64,
    /// The sorted waits of honest transfers sent during the attack, including those that did not end.
    pub(super) waits_s: Vec<f64>,
    /// The number of waits that did not end.
    pub(super) honest_waiting: usize,
    pub(super) fates: Fates,
}

/// The fates of the attackers' transactions.
#[derive(Clone, Debug, Default)]
pub(super) struct Fates {
    executed: usize,
    too_slow: usize,
    waiting: usize,
    /// Transactions neither executed nor known: dropped for another reason.
    gone: usize,
    /// The other errors, each once.
    pub(super) refusals: Vec<String>,
}

impl Fates {
    pub(super) fn counts(&self) -> [(&'static str, usize); 4] {
        let Fates { executed, too_slow, waiting, gone, .. } = *self;
        [("executed", executed), ("too_slow", too_slow), ("waiting", waiting), ("gone", gone)]
    }
}

/// Measures a fresh devnet at one speed. Its files stay if `keep` is set, or if something failed.
pub(super) async fn assault(
    programs: &[Candidate],
    speed: Speed,
    course: &AssaultTimes,
    keep: bool,
    progress: Progress,
) -> Result<Outcome> {
    let waves = course.attack.as_secs().div_ceil(WAVE_INTERVAL.as_secs()) as usize;
    let accounts = u32::try_from(1 + HONEST + waves * WAVE)?;
    let mut devnet = Devnet::start(DevnetOptions { accounts, ..DevnetOptions::default() }).await?;
    let outcome = async { Assault::prepare(&devnet, programs).await?.run(speed, course).await }.await;
    if keep || outcome.is_err() {
        progress.step(&format!("files and logs stay in {}", devnet.keep_directory().display()));
    }
    // A node that exited is an error here.
    let stopped = devnet.stop().await;
    let outcome = outcome?;
    stopped?;
    Ok(outcome)
}

struct Assault<'a> {
    nodes: &'a [Node],
    deployer: &'a Account,
    honest: &'a [Account],
    attackers: &'a [Account],
    chain_id: u64,
    base_fee_wei: u64,
    programs: Vec<Address>,
}

impl Assault<'_> {
    async fn prepare<'a>(devnet: &'a Devnet, programs: &[Candidate]) -> Result<Assault<'a>> {
        let rpc = devnet.proposer().rpc();
        let block: Value = rpc.call("eth_getBlockByNumber", json!(["latest", false])).await?;
        let (deployer, others) = devnet.accounts().split_first().context("the devnet has no accounts")?;
        let (honest, attackers) = others.split_at(HONEST);
        let mut assault = Assault {
            nodes: devnet.nodes(),
            deployer,
            honest,
            attackers,
            chain_id: quantity(&rpc.call("eth_chainId", json!([])).await?)?,
            base_fee_wei: quantity(&block["baseFeePerGas"])?,
            programs: Vec::new(),
        };
        let mut nonce = 0;
        let large = assault.deploy(&mut nonce, &[0; CODE_BYTES_MAX]).await?;
        for program in programs {
            let mut places = vec![(LARGE, large)];
            for (at, code) in &program.others {
                let there = assault.deploy(&mut nonce, &moved(code, &places)).await?;
                places.push((*at, there));
            }
            let place = assault.deploy(&mut nonce, &moved(&program.code, &places)).await;
            assault.programs.push(place.with_context(|| program.name.clone())?);
        }
        Ok(assault)
    }

    async fn deploy(&self, nonce: &mut u64, code: &[u8]) -> Result<Address> {
        let length = u16::try_from(code.len())?.to_be_bytes();
        let init = [&[0x61][..], &length, &RETURNS, code].concat();
        let call = Call {
            to: TxKind::Create,
            gas_limit: TRANSACTION_GAS_MAX,
            tip_wei: HONEST_TIP_WEI,
            input: init.into(),
        };
        let signed = self.sign(self.deployer, *nonce, call);
        *nonce += 1;
        let rpc = self.nodes[PRIMARY].rpc();
        let _: B256 = rpc.call("eth_sendRawTransaction", json!([signed.raw])).await?;
        let deadline = Instant::now() + DEPLOY_DEADLINE;
        loop {
            let receipt = receipt(rpc, signed.hash).await?;
            if !receipt.is_null() {
                ensure!(receipt["status"] == "0x1", "the deployment of a program failed: {receipt}");
                return Ok(serde_json::from_value(receipt["contractAddress"].clone())?);
            }
            ensure!(Instant::now() < deadline, "the deployment of a program was not committed in time");
            tokio::time::sleep(INTERVAL).await;
        }
    }

    fn sign(&self, account: &Account, nonce: u64, call: Call) -> Signed {
        let Call { to, gas_limit, tip_wei, input } = call;
        let request = Request {
            chain_id: self.chain_id,
            nonce,
            to,
            value: if to.is_create() { U256::ZERO } else { U256::from(PURSE_WEI) },
            gas_limit,
            fees: Fees { max_fee_wei: 2 * u128::from(self.base_fee_wei) + tip_wei, tip_wei },
            input,
            envelope: Envelope::DynamicFee,
        };
        sign(account, request)
    }

    async fn run(&self, speed: Speed, course: &AssaultTimes) -> Result<Outcome> {
        let attack = Instant::now() + course.quiet;
        let end = attack + course.attack;
        let last = end + course.drain;
        let ledger = Mutex::new(Waits::default());
        let all = async {
            tokio::join!(
                self.watch(&ledger, [attack, end, last]),
                self.transfer(&ledger, [attack, end, last]),
                self.attack(attack, end),
            )
        };
        let (gaps, (), attacks) = tokio::select! {
            all = all => all,
            () = brake(self.nodes, speed) => unreachable!("a brake holds until it is dropped"),
        };
        let Gaps { quiet, attacked } = gaps?;
        let Waits { open, took_s } = ledger.into_inner();
        let now = Instant::now();
        let waiting: Vec<f64> = open.values().map(|sent| (now - *sent).as_secs_f64()).collect();
        let mut fates = Fates::default();
        for signed in &attacks {
            self.learn(signed, &mut fates).await?;
        }
        let mut waits_s = [&took_s[..], &waiting].concat();
        waits_s.sort_by(f64::total_cmp);
        Ok(Outcome {
            speed,
            quiet_gap_s: quiet.as_secs_f64(),
            gap_s: attacked.as_secs_f64(),
            honest_waiting: waiting.len(),
            waits_s,
            fates,
        })
    }

    /// Watches the head until the attack has ended and all honest transfers are executed, or until `last`.
    async fn watch(&self, ledger: &Mutex<Waits>, [attack, end, last]: [Instant; 3]) -> Result<Gaps> {
        let rpc = self.nodes[ENTRY].rpc();
        let mut gaps = Gaps::default();
        let mut head = rpc.head().await?;
        let mut read = head;
        let mut since = Instant::now();
        let mut ticks = ticks();
        loop {
            ticks.tick().await;
            // A node that does not answer shows no new batch.
            let seen = rpc.head().await.unwrap_or(head);
            let now = Instant::now();
            gaps.note(since, now, attack);
            if seen > head {
                (head, since) = (seen, now);
            }
            while read < head {
                let number = format!("{:#x}", read + 1);
                let block: Result<Value> = rpc.call("eth_getBlockByNumber", json!([number, false])).await;
                let Ok(block) = block else { break };
                let hashes: Vec<B256> = serde_json::from_value(block["transactions"].clone())?;
                ledger.lock().committed(&hashes, now);
                read += 1;
            }
            let is_over = now >= end && ledger.lock().open.is_empty();
            if is_over || now >= last {
                return Ok(gaps);
            }
        }
    }

    /// Sends transfers until `end`. Those since the attack began are measured, each from its scheduled time.
    async fn transfer(&self, ledger: &Mutex<Waits>, [attack, end, last]: [Instant; 3]) {
        let mut sending = JoinSet::new();
        let mut ticks = ticks();
        let to = TxKind::Call(Address::repeat_byte(0x77));
        for turn in 0.. {
            let scheduled = ticks.tick().await.into_std();
            if scheduled >= end {
                break;
            }
            let call = Call { to, gas_limit: 21_000, tip_wei: HONEST_TIP_WEI, input: Bytes::new() };
            let signed = self.sign(&self.honest[turn % HONEST], (turn / HONEST) as u64, call);
            if scheduled >= attack {
                ledger.lock().open.insert(signed.hash, scheduled);
            }
            sending.spawn(bring(self.nodes[ENTRY].rpc().clone(), signed.raw));
        }
        // Transfers that no node accepted by then count as endless waits.
        let _ = tokio::time::timeout_at(last.into(), sending.join_all()).await;
    }

    /// Sends waves of calls to the programs, and returns what it sent.
    async fn attack(&self, attack: Instant, end: Instant) -> Vec<Signed> {
        let (mut sending, mut sent) = (JoinSet::new(), Vec::new());
        let mut at = attack;
        for wave in self.attackers.chunks(WAVE) {
            tokio::time::sleep_until(at.into()).await;
            for (account, program) in wave.iter().zip(self.programs.iter().cycle()) {
                let to = TxKind::Call(*program);
                let call =
                    Call { to, gas_limit: TRANSACTION_GAS_MAX, tip_wei: ATTACK_TIP_WEI, input: Bytes::new() };
                let signed = self.sign(account, 0, call);
                sending.spawn(bring(self.nodes[PRIMARY].rpc().clone(), signed.raw.clone()));
                sent.push(signed);
            }
            at += WAVE_INTERVAL;
        }
        // Transactions that are not accepted by then count as gone.
        let _ = tokio::time::timeout_at(end.into(), sending.join_all()).await;
        sent
    }

    /// Finds the fate of a transaction: by its receipt, or by the node's answer when it is sent again.
    async fn learn(&self, signed: &Signed, fates: &mut Fates) -> Result<()> {
        let rpc = self.nodes[PRIMARY].rpc();
        if !receipt(rpc, signed.hash).await?.is_null() {
            fates.executed += 1;
            return Ok(());
        }
        let again: Result<Value> = rpc.call("eth_sendRawTransaction", json!([signed.raw])).await;
        let Err(error) = again else {
            fates.gone += 1;
            return Ok(());
        };
        match error.downcast_ref::<RpcError>() {
            Some(refused) if refused.message.contains(TOO_SLOW) => fates.too_slow += 1,
            Some(refused) if refused.message.contains("already known") => fates.waiting += 1,
            // Its receipt arrived between the two requests.
            Some(refused) if refused.message.contains("nonce too low") => fates.executed += 1,
            Some(refused) => {
                fates.gone += 1;
                if !fates.refusals.contains(&refused.message) {
                    fates.refusals.push(refused.message.clone());
                }
            }
            None => return Err(error),
        }
        Ok(())
    }
}

/// The fields of a transaction that vary.
struct Call {
    to: TxKind,
    gas_limit: u64,
    tip_wei: u128,
    input: Bytes,
}

/// Sends a transaction until the node has it.
async fn bring(rpc: Rpc, raw: Bytes) {
    loop {
        let sent: Result<Value> = rpc.call("eth_sendRawTransaction", json!([raw])).await;
        let Err(error) = sent else { return };
        if let Some(refused) = error.downcast_ref::<RpcError>() {
            let has_it = ["already known", "nonce too low", TOO_SLOW];
            if has_it.iter().any(|text| refused.message.contains(text)) {
                return;
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn receipt(rpc: &Rpc, hash: B256) -> Result<Value> {
    rpc.call("eth_getTransactionReceipt", json!([hash])).await
}

fn ticks() -> tokio::time::Interval {
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Returns the code with each contract's address replaced by the address at which that contract was deployed.
fn moved(code: &[u8], places: &[(Address, Address)]) -> Vec<u8> {
    let mut code = code.to_vec();
    for (from, to) in places {
        let named: Vec<usize> =
            code.windows(20).enumerate().filter(|(_, it)| *it == from.as_slice()).map(|it| it.0).collect();
        named.into_iter().for_each(|at| code[at..at + 20].copy_from_slice(to.as_slice()));
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_call_each_other_where_they_are() {
        let [from, to] = [LARGE, Address::repeat_byte(0x11)];
        let code = [&[0x73][..], from.as_slice(), &[0x5a, 0x73], from.as_slice(), &[0xf1]].concat();
        let expected = [&[0x73][..], to.as_slice(), &[0x5a, 0x73], to.as_slice(), &[0xf1]].concat();
        assert_eq!(moved(&code, &[(from, to)]), expected);
    }
}
