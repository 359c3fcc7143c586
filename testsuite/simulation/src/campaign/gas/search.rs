//! [`Lab`]: a state in memory on which each candidate is executed by one call; and the search for the slowest.

use std::time::Instant;

use alloy_primitives::{Address, B256, U256};
use anyhow::{Context, Result, ensure};
use slipnet::progress::Progress;
use slipstream_executor::{BatchEnv, CallRequest, Interrupt, call};
use slipstream_storage::MemoryState;
use slipstream_types::{AccountValue, BatchNumber, ChainConfig, StateKey, StateValue};

use super::candidates::{self, CODE_BYTES_MAX, Candidate, LARGE};

/// The address of the candidate.
const AT: Address = Address::repeat_byte(0x5e);
const SENDER: Address = Address::repeat_byte(0x5d);
/// The error text when gas runs out.
const OUT_OF_GAS: &str = "out of gas";
/// The value that each transaction sends to its program: some programs forward a wei at a time.
pub(super) const PURSE_WEI: u64 = 1_000_000;
/// A candidate and its measured speed.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    pub(super) candidate: Candidate,
    pub(super) mgas_per_s: f64,
}

/// The extent of the search.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    /// Gas for a first measurement: enough to separate the slow candidates from the others.
    pub look_gas: u64,
    /// Runs of each candidate. The fastest counts, because the others may have shared the core.
    pub runs: usize,
    /// The number of slowest candidates that are mixed, and measured with [`Effort::final_gas`].
    pub finalists: usize,
    /// The number of mixes of the slowest.
    pub mixes: usize,
    /// The gas of the final measurement: a transaction's maximum, so that setup and end do not matter.
    pub final_gas: u64,
}

/// Returns all candidates by speed at the prices of new chains: the finalists, slowest first, then those with a first
/// measurement alone.
pub(super) fn search(effort: &Effort, seed: u64, progress: Progress) -> Result<Vec<Measured>> {
    let lab = Lab::new();
    let measure = |doing: &str, all: Vec<Candidate>, gas| -> Result<Vec<Measured>> {
        let mut task = progress.task(doing, all.len() as u64);
        let mut measured = Vec::new();
        for candidate in all {
            task.update(measured.len() as u64, &candidate.name);
            let mgas_per_s = lab.speed(&candidate, gas, effort.runs)?;
            measured.push(Measured { candidate, mgas_per_s });
        }
        measured.sort_by(|a, b| a.mgas_per_s.total_cmp(&b.mgas_per_s));
        Ok(measured)
    };
    let mut all = measure("looks", candidates::all(), effort.look_gas)?;
    let slowest: Vec<_> = all.iter().take(effort.finalists).map(|it| it.candidate.clone()).collect();
    all.extend(measure("mixes", candidates::mixes(&slowest, effort.mixes, seed), effort.look_gas)?);
    all.sort_by(|a, b| a.mgas_per_s.total_cmp(&b.mgas_per_s));
    let finalists = all.drain(..effort.finalists.min(all.len())).map(|it| it.candidate).collect();
    let mut measured = measure("finalists", finalists, effort.final_gas)?;
    measured.extend(all);
    Ok(measured)
}

struct Lab {
    env: BatchEnv,
    state: MemoryState,
}

impl Lab {
    fn new() -> Lab {
        let chain = ChainConfig::default();
        let env = BatchEnv::behind(B256::ZERO, &chain, BatchNumber::new(1), 1_000, Address::ZERO);
        let mut state = MemoryState::default();
        let rich = AccountValue { balance: U256::from(PURSE_WEI), ..AccountValue::default() };
        state.insert(StateKey::Account(SENDER), StateValue::Account(rich));
        place(&mut state, LARGE, &[0; CODE_BYTES_MAX]);
        Lab { env, state }
    }

    /// Measures the speed of a candidate with a gas limit of `gas`, in Mgas/s.
    ///
    /// # Errors
    /// If the candidate ends before its gas is used up: then it does not do what its name says.
    fn speed(&self, candidate: &Candidate, gas: u64, runs: usize) -> Result<f64> {
        let mut state = self.state.clone();
        place(&mut state, AT, &candidate.code);
        candidate.others.iter().for_each(|(at, code)| place(&mut state, *at, code));
        let value = U256::from(PURSE_WEI);
        let request =
            CallRequest { from: SENDER, to: Some(AT), gas: Some(gas), value, ..CallRequest::default() };
        let mut fastest = 0.0_f64;
        for _ in 0..runs {
            let begun = Instant::now();
            let outcome = call(&state, &self.env, &request, &Interrupt::never())
                .with_context(|| format!("cannot execute {}", candidate.name))?;
            fastest = fastest.max(outcome.gas_used as f64 / 1e6 / begun.elapsed().as_secs_f64());
            let end = outcome.halt.as_deref();
            ensure!(
                end == Some(OUT_OF_GAS),
                "{} ended with {end:?} before it used up its gas",
                candidate.name
            );
        }
        Ok(fastest)
    }
}

fn place(state: &mut MemoryState, at: Address, code: &[u8]) {
    let code_hash = Some(state.insert_code(code.to_vec().into()));
    let contract = AccountValue { nonce: 1, code_hash, ..AccountValue::default() };
    state.insert(StateKey::Account(at), StateValue::Account(contract));
}
