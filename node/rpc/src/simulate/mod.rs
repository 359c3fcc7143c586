//! `eth_simulateV1`: blocks of calls, each on the state that the earlier ones left.

mod answer;
mod request;

use alloy_primitives::{Address, B256};
use jsonrpsee_types::Params;
use slipstream_executor::{
    BatchEnv, ExecuteError, MoveError, Rejection, SimulateError, Simulation, SimulationRules,
};
use slipstream_types::{BatchNumber, ChainConfig};

use self::{
    answer::SimulatedBlock,
    request::{BlockAsked, SimulationRequest},
};
use super::{
    RpcContext,
    errors::{RpcError, RpcResult},
    table::CallContext,
};

/// Maximum number of blocks in one request, as in geth; blocks that fill a gap in the numbers count, too.
const BLOCKS_MAX: u64 = 256;
/// Maximum bytes that all calls of a request return and log. These bytes stay in memory until the last call is done,
/// and are held again as text.
const OUTPUT_BYTES_MAX: usize = 4 << 20;

/// The execution APIs' codes for calls that cannot be simulated.
mod code {
    pub(super) const INVALID_REQUEST: i32 = -32000;
    pub(super) const TIMEOUT: i32 = -32016;
    pub(super) const NONCE_TOO_LOW: i32 = -38010;
    pub(super) const NONCE_TOO_HIGH: i32 = -38011;
    pub(super) const BASE_FEE_TOO_LOW: i32 = -38012;
    pub(super) const INTRINSIC_GAS: i32 = -38013;
    pub(super) const INSUFFICIENT_FUNDS: i32 = -38014;
    pub(super) const BLOCK_GAS: i32 = -38015;
    pub(super) const BLOCK_NUMBER: i32 = -38020;
    pub(super) const BLOCK_TIME: i32 = -38021;
    pub(super) const MOVED_TO_ITSELF: i32 = -38022;
    pub(super) const MOVED_TO_THE_SAME: i32 = -38023;
    pub(super) const SENDER_NOT_EOA: i32 = -38024;
    pub(super) const INIT_CODE_TOO_LONG: i32 = -38025;
    pub(super) const LIMIT: i32 = -38026;
}

/// `eth_simulateV1`
pub(super) fn simulate(
    context: &RpcContext,
    params: &Params<'_>,
    asker: &CallContext<'_>,
) -> RpcResult<Vec<SimulatedBlock>> {
    let SimulationRequest { id, blocks, rules, is_full } =
        SimulationRequest::read(params, context.chain.chain_id)?;
    let view = context.state_at(id)?;
    let head = view.head();
    let rules = SimulationRules { output_bytes_max: OUTPUT_BYTES_MAX, ..rules };
    let mut simulation = Simulation::new(&view, rules, context.interrupt(asker));
    let mut tip = Tip {
        number: head.number.get(),
        time_s: head.timestamp_ms / 1_000,
        hash: head.digest().into(),
        last: head.number.get().saturating_add(BLOCKS_MAX),
    };
    let (filler, mut answer) = (BlockAsked::default(), Vec::new());
    for asked in blocks {
        for place in tip.up_to(asked.number, asked.time_s)? {
            asker.still_waits()?;
            let asked = if place.is_filler { &filler } else { &asked };
            let env = tip.env(&context.chain, &place, head.proposer);
            let batch = simulation.batch(env, &asked.overrides, &asked.calls);
            let batch = batch.map_err(|error| refusal(context, error, asker))?;
            let block = SimulatedBlock::new(context.chain.chain_id, batch, asked, is_full);
            simulation.seal(place.number, block.hash());
            tip.advance(&place, block.hash());
            answer.push(block);
        }
    }
    Ok(answer)
}

/// The last block so far.
struct Tip {
    number: u64,
    time_s: u64,
    hash: B256,
    /// The highest allowed block number.
    last: u64,
}

/// The number and time of a block.
#[derive(Clone, Copy)]
struct BlockMoment {
    number: u64,
    time_s: u64,
    /// Whether the block was not requested and only fills a gap.
    is_filler: bool,
}

impl Tip {
    /// The number and time of the next block, after those of the empty blocks that fill a gap in the numbers. Empty
    /// blocks are one second apart.
    fn up_to(&self, number: Option<u64>, time_s: Option<u64>) -> Result<Vec<BlockMoment>, RpcError> {
        let number = number.unwrap_or(self.number.saturating_add(1));
        if number <= self.number {
            let text = format!("block numbers must be in order: {number} <= {}", self.number);
            return Err(RpcError::Simulation { code: code::BLOCK_NUMBER, text });
        }
        if number > self.last {
            let text = format!("too many blocks: at most {BLOCKS_MAX} from the base block on");
            return Err(RpcError::Simulation { code: code::LIMIT, text });
        }
        let gap = number - self.number - 1;
        let later = |seconds: u64| self.time_s.saturating_add(seconds);
        let before = later(gap);
        let time_s = time_s.unwrap_or(later(gap + 1));
        if time_s < before {
            let text = format!("block timestamps must be in order: {time_s} < {before}");
            return Err(RpcError::Simulation { code: code::BLOCK_TIME, text });
        }
        let fill = |index| BlockMoment { number: self.number + index, time_s: later(index), is_filler: true };
        let mut places: Vec<BlockMoment> = (1..=gap).map(fill).collect();
        places.push(BlockMoment { number, time_s, is_filler: false });
        Ok(places)
    }

    /// The environment of a batch with the number and time of `place`, as on the chain.
    fn env(&self, chain: &ChainConfig, place: &BlockMoment, proposer: Address) -> BatchEnv {
        let time_ms = place.time_s.saturating_mul(1_000);
        let env = BatchEnv::behind(self.hash, chain, BatchNumber::new(place.number), time_ms, proposer);
        // Correct even for a time that is too large in milliseconds.
        BatchEnv { timestamp_s: place.time_s, ..env }
    }

    fn advance(&mut self, place: &BlockMoment, hash: B256) {
        (self.number, self.time_s, self.hash) = (place.number, place.time_s, hash);
    }
}

/// The error for a simulation without an answer, with the execution APIs' code.
fn refusal(context: &RpcContext, error: SimulateError, asker: &CallContext<'_>) -> RpcError {
    let text = error.to_string();
    let code = match error {
        SimulateError::Rejected { reason, .. } => rejection_code(&reason),
        SimulateError::BatchGas { .. } => code::BLOCK_GAS,
        SimulateError::GasCap { .. } => code::LIMIT,
        SimulateError::OutputTooLong { .. } => return RpcError::TooMuch(text),
        SimulateError::Execute(ExecuteError::Move(MoveError::ToItself(_))) => code::MOVED_TO_ITSELF,
        SimulateError::Execute(ExecuteError::Move(MoveError::ToTheSame(_))) => code::MOVED_TO_THE_SAME,
        SimulateError::Execute(error) => match context.execute_error(error, asker) {
            error @ RpcError::CallTimedOut { .. } => {
                return RpcError::Simulation { code: code::TIMEOUT, text: error.to_string() };
            }
            error => return error,
        },
    };
    RpcError::Simulation { code, text }
}

fn rejection_code(reason: &Rejection) -> i32 {
    match reason {
        Rejection::NonceTooLow { .. } => code::NONCE_TOO_LOW,
        Rejection::NonceTooHigh { .. } => code::NONCE_TOO_HIGH,
        Rejection::FeeBelowBase => code::BASE_FEE_TOO_LOW,
        Rejection::IntrinsicGas { .. } => code::INTRINSIC_GAS,
        Rejection::InsufficientFunds { .. } => code::INSUFFICIENT_FUNDS,
        Rejection::GasLimitTooHigh { .. } => code::BLOCK_GAS,
        Rejection::SenderHasCode => code::SENDER_NOT_EOA,
        Rejection::InitCodeTooLong => code::INIT_CODE_TOO_LONG,
        _ => code::INVALID_REQUEST,
    }
}
