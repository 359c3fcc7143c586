//! [`Transfers`]: an inspector that logs every transfer of ether, as `eth_simulateV1` requires.

use alloy_primitives::{Address, B256, Log, LogData, U256, address, b256};
use revm::{
    Inspector,
    bytecode::opcode,
    context::{ContextTr, JournalTr},
    inspector::JournalExt,
    interpreter::{
        CallInputs, CallOutcome, CallScheme, CreateInputs, CreateOutcome, InstructionResult, Interpreter,
        interpreter::EthInterpreter,
        interpreter_types::{InputsTr as _, Jumps as _, LoopControl as _},
    },
};

/// The emitter of these logs, which is no real contract, and their topic: an ERC-20 token's
/// `Transfer(address,address,uint256)`.
const EMITTER: Address = address!("0xeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee");
const TOPIC: B256 = b256!("0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef");

/// Puts the transfers' logs between the contracts' logs, in the order of events. A revert removes these logs too.
#[derive(Default)]
pub(crate) struct Transfers {
    /// The transfer of the call that is about to begin. A log added after the call begins is undone with the call.
    announced: Option<Transfer>,
    /// The transfer of the SELFDESTRUCT that is about to execute.
    destroyed: Option<Transfer>,
}

struct Transfer {
    from: Address,
    /// `None` while the address of a created contract is unknown.
    to: Option<Address>,
    value: U256,
}

impl Transfer {
    fn log<J: JournalTr>(self, to: Address, journal: &mut J) {
        if self.value.is_zero() {
            return;
        }
        let topics = vec![TOPIC, self.from.into_word(), self.to.unwrap_or(to).into_word()];
        let data = B256::from(self.value).to_vec().into();
        journal.log(Log { address: EMITTER, data: LogData::new_unchecked(topics, data) });
    }
}

impl<C: ContextTr<Journal: JournalExt>> Inspector<C> for Transfers {
    fn call(&mut self, _: &mut C, inputs: &mut CallInputs) -> Option<CallOutcome> {
        let (from, to) = (inputs.transfer_from(), Some(inputs.transfer_to()));
        // A CALLCODE pays the calling contract itself, so no ether moves.
        let value = inputs.transfer_value().filter(|_| inputs.scheme != CallScheme::CallCode);
        self.announced = value.map(|value| Transfer { from, to, value });
        None
    }

    fn create(&mut self, _: &mut C, inputs: &mut CreateInputs) -> Option<CreateOutcome> {
        self.announced = Some(Transfer { from: inputs.caller(), to: None, value: inputs.value() });
        None
    }

    fn initialize_interp(&mut self, interpreter: &mut Interpreter, context: &mut C) {
        if let Some(transfer) = self.announced.take() {
            transfer.log(interpreter.input.target_address(), context.journal_mut());
        }
    }

    /// If the transfer is still pending, no code ran: the called account has no code or is a precompile.
    fn call_end(&mut self, context: &mut C, inputs: &CallInputs, outcome: &mut CallOutcome) {
        if let Some(transfer) = self.announced.take()
            && outcome.result.is_ok()
        {
            transfer.log(inputs.transfer_to(), context.journal_mut());
        }
    }

    fn create_end(&mut self, context: &mut C, _: &CreateInputs, outcome: &mut CreateOutcome) {
        if let Some(transfer) = self.announced.take()
            && let Some(address) = outcome.address
        {
            transfer.log(address, context.journal_mut());
        }
    }

    fn step(&mut self, interpreter: &mut Interpreter<EthInterpreter>, context: &mut C) {
        self.destroyed = None;
        if interpreter.bytecode.opcode() != opcode::SELFDESTRUCT {
            return;
        }
        let from = interpreter.input.target_address();
        let to = interpreter.stack.data().last().map(|word| Address::from_word((*word).into()));
        let account = context.journal_mut().evm_state().get(&from);
        let value = account.map(|account| account.info.balance).unwrap_or_default();
        self.destroyed = Some(Transfer { from, to, value });
    }

    fn step_end(&mut self, interpreter: &mut Interpreter<EthInterpreter>, context: &mut C) {
        let Some(transfer) = self.destroyed.take() else { return };
        if interpreter.bytecode.instruction_result() == Some(InstructionResult::SelfDestruct) {
            transfer.log(Address::ZERO, context.journal_mut());
        }
    }
}
