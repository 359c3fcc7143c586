//! [`Simulation`]: JSON-RPC's `eth_simulateV1`: batches of calls, each on the state that earlier calls left. All
//! effects are discarded afterwards.

mod state;

use alloy_primitives::{B256, Log};

use self::state::SimulatedState;
use crate::{
    call::{CALL_GAS_MAX, CallOutcome, TRANSFER_GAS},
    error::{ExecuteError, Rejection},
    evm::{BatchEnv, ExecutionState, Machine, RunError, Transfers},
    interrupt::Interrupt,
    overrides::Overrides,
    request::CallRequest,
};

/// Limits of one simulation, set by the node's configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SimulationRules {
    /// Whether calls must have the right nonce and pay for themselves, like transactions.
    pub is_validated: bool,
    /// Whether transfers of ether make logs, as a token's transfers would.
    pub has_transfer_logs: bool,
    /// Maximum bytes of all outputs and logs, which stay in memory until the last call is done.
    pub output_bytes_max: usize,
}

/// Why a simulation has no outcome. The first such call ends the simulation: later calls would run on another state
/// than requested.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    /// A call is invalid as a transaction at its position.
    #[error("{reason} (call {index} of its block)")]
    Rejected {
        /// Position in its batch.
        index: usize,
        /// The rule that it breaks.
        reason: Rejection,
    },
    /// The calls of a batch ask for more gas than the batch has.
    #[error("block gas limit reached: {used} >= {gas_limit} (call {index} of its block asks for {asked})")]
    BatchGas {
        /// Position in its batch.
        index: usize,
        /// Gas that the calls before it used.
        used: u64,
        /// Gas that the call asks for.
        asked: u64,
        /// Gas limit of the simulated batch.
        gas_limit: u64,
    },
    /// The calls of one simulation together would use more than [`CALL_GAS_MAX`].
    #[error(
        "RPC gas cap exhausted: all calls of a simulation share {CALL_GAS_MAX} gas, and {left} are left for call {index} of its block"
    )]
    GasCap {
        /// Position in its batch.
        index: usize,
        /// Gas that the simulation has left.
        left: u64,
    },
    /// The returned data and logs of the calls exceed the limit.
    #[error("the calls return and log more than {max} bytes; ask for less at once")]
    OutputTooLong {
        /// The most that the rules allow.
        max: usize,
    },
    /// The call cannot be tried at all.
    #[error(transparent)]
    Execute(#[from] ExecuteError),
}

/// A simulated batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SimulatedBatch {
    /// The environment that its calls saw.
    pub env: BatchEnv,
    /// Its calls, in order.
    pub calls: Vec<SimulatedCall>,
    /// Gas used by all calls.
    pub gas_used: u64,
}

/// A simulated call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SimulatedCall {
    /// The nonce that the call used.
    pub nonce: u64,
    /// The gas limit that the call used.
    pub gas_limit: u64,
    /// The result of the call.
    pub outcome: CallOutcome,
    /// The logs of the call, empty if it failed.
    pub logs: Vec<Log>,
}

/// A state that grows by simulated batches.
pub struct Simulation<'a> {
    draft: SimulatedState<'a>,
    rules: SimulationRules,
    interrupt: Interrupt,
    gas_left: u64,
    bytes_left: usize,
}

impl<'a> Simulation<'a> {
    /// Starts a simulation on a state. `interrupt` can end it.
    pub fn new(
        state: &'a dyn ExecutionState,
        rules: SimulationRules,
        interrupt: Interrupt,
    ) -> Simulation<'a> {
        let (gas_left, bytes_left) = (CALL_GAS_MAX, rules.output_bytes_max);
        Simulation { draft: SimulatedState::over(state), rules, interrupt, gas_left, bytes_left }
    }

    /// Executes a batch. Its number, time and parent come from `env`; everything else can be overridden. BASEFEE is
    /// zero, unless calls are validated or it is overridden.
    ///
    /// # Errors
    /// If a call cannot be executed at its position, or a limit is reached. The simulation is over then.
    pub fn batch(
        &mut self,
        mut env: BatchEnv,
        overrides: &Overrides,
        calls: &[CallRequest],
    ) -> Result<SimulatedBatch, SimulateError> {
        if !self.rules.is_validated {
            env.base_fee_wei = 0;
        }
        let env = env.with_values_of(&overrides.block);
        self.draft.override_accounts(&overrides.accounts).map_err(ExecuteError::State)?;
        for (number, hash) in &overrides.block.hashes {
            self.draft.put_hash(*number, *hash);
        }
        let is_validated = self.rules.is_validated;
        let machine = Machine::for_simulation(&self.draft, &env, overrides, is_validated, &self.interrupt)?;
        let mut run = Run {
            machine: machine.inspected_by(Transfers::default()),
            env: &env,
            rules: self.rules,
            gas_left: self.gas_left,
            bytes_left: self.bytes_left,
            gas_used: 0,
        };
        let calls = calls.iter().enumerate().map(|(index, request)| run.call(index, request));
        let calls = calls.collect::<Result<Vec<_>, _>>()?;
        let Run { machine, gas_left, bytes_left, gas_used, .. } = run;
        let (changes, _) = machine.finish_part()?;
        self.draft.apply(&changes.into_delta()?);
        (self.gas_left, self.bytes_left) = (gas_left, bytes_left);
        Ok(SimulatedBatch { env, calls, gas_used })
    }

    /// Sets the hash of an executed batch, for later batches.
    pub fn seal(&mut self, number: u64, hash: B256) {
        self.draft.put_hash(number, hash);
    }
}

/// One batch of a simulation.
struct Run<'a> {
    machine: Machine<'a, Transfers>,
    env: &'a BatchEnv,
    rules: SimulationRules,
    /// Gas left for the whole simulation.
    gas_left: u64,
    bytes_left: usize,
    /// Gas that the batch has used.
    gas_used: u64,
}

impl Run<'_> {
    fn call(&mut self, index: usize, request: &CallRequest) -> Result<SimulatedCall, SimulateError> {
        let gas_limit = self.gas_limit(index, request.gas)?;
        let nonce = match request.nonce {
            Some(nonce) => nonce,
            None => self.machine.nonce(request.from)?,
        };
        let request = CallRequest { nonce: Some(nonce), ..request.clone() };
        let executed = match self.rules.has_transfer_logs {
            true => self.machine.inspect_call(&request, gas_limit),
            false => self.machine.call(&request, gas_limit),
        };
        let executed = executed.map_err(|error| match error {
            RunError::Rejected(reason) => SimulateError::Rejected { index, reason },
            RunError::Failed(error) => error.into(),
        })?;
        self.gas_used += executed.gas_used;
        self.gas_left = self.gas_left.saturating_sub(executed.gas_used);
        let outcome = CallOutcome::of(&executed);
        let bytes = outcome.output.len() + executed.logs.iter().map(log_bytes).sum::<usize>();
        let too_long = SimulateError::OutputTooLong { max: self.rules.output_bytes_max };
        self.bytes_left = self.bytes_left.checked_sub(bytes).ok_or(too_long)?;
        let call = SimulatedCall { nonce, gas_limit, outcome, logs: executed.logs.clone() };
        self.machine.commit(executed);
        Ok(call)
    }

    /// The gas that the call may use: its own limit, or all that is left.
    fn gas_limit(&self, index: usize, asked: Option<u64>) -> Result<u64, SimulateError> {
        let (used, gas_limit) = (self.gas_used, self.env.gas_limit);
        let room = gas_limit.saturating_sub(used);
        let needed = asked.unwrap_or(TRANSFER_GAS);
        if needed > room {
            return Err(SimulateError::BatchGas { index, used, asked: needed, gas_limit });
        }
        if self.gas_left < TRANSFER_GAS {
            return Err(SimulateError::GasCap { index, left: self.gas_left });
        }
        let most = if self.rules.is_validated { self.env.transaction_gas_max } else { u64::MAX };
        Ok(asked.unwrap_or(room.min(most)).min(self.gas_left))
    }
}

/// Approximate memory of a log, in bytes.
fn log_bytes(log: &Log) -> usize {
    128 + 32 * log.topics().len() + log.data.data.len()
}
