//! Records a transaction's observations beyond the rows that it loads: exact balances, nonces, and the existence of
//! accounts.
//!
//! Nearly every transaction loads accounts whose balance others change, above all the fee recipient's and a
//! wrapped-ether contract's. Hardly any transaction reads the exact balance; nearly all only add to it or pay from it.
//! So the instructions that read a balance record that here, and all other changes of balances commute. Source of the
//! idea: the lazy updates of pevm, which cover only plain transfers and the fee recipient.

use std::sync::Arc;

use alloy_primitives::{Address, U256};
use revm::{
    Database, Journal, MainBuilder,
    bytecode::opcode,
    context::{BlockEnv, CfgEnv, Context, Evm, TxEnv},
    handler::{EthFrame, MainnetContext, instructions::EthInstructions},
    interpreter::{
        Instruction, InstructionContext, InstructionExecResult,
        instructions::{contract, control, host},
        interpreter::EthInterpreter,
        interpreter_types::{InputsTr as _, Jumps as _},
    },
};

use slipstream_predict::JumpWatch;
use slipstream_types::hints::Preimage;

use super::{adapter, env::BatchEnv, interrupting::Pace, precompiles::EvmPrecompiles, preimages};

pub(super) type ObservedContext<DB> = Context<BlockEnv, TxEnv, CfgEnv, DB, Journal<DB>, Observations>;
pub(super) type ObservedEvm<DB, I = ()> = Evm<
    ObservedContext<DB>,
    I,
    EthInstructions<EthInterpreter, ObservedContext<DB>>,
    EvmPrecompiles,
    EthFrame<EthInterpreter>,
>;
type Ictx<'a, DB> = InstructionContext<'a, ObservedContext<DB>, EthInterpreter>;

/// Maximum number of observations of one kind that a transaction may record. A transaction with more counts as having
/// observed everything. This limit keeps a loop over SELFBALANCE from filling the memory.
const NOTES_MAX: usize = 32;
/// Balances and values of more bits count as observed exactly, so that no sum of a transaction's values can overflow.
pub(super) const COMMUTING_BITS_MAX: usize = 192;

/// The observations of one transaction.
#[derive(Default, Debug)]
pub(crate) struct Observations {
    /// Accounts whose exact balance the transaction observed.
    pub(super) balances: Vec<Address>,
    /// Contracts whose nonce determined a new address.
    pub(super) nonces: Vec<Address>,
    /// Accounts whose existence the transaction observed.
    pub(super) existences: Vec<Address>,
    /// Accounts that paid, each with its least balance after a payment.
    pub(super) spent: Vec<(Address, U256)>,
    /// Whether a list overflowed, so that everything counts as observed.
    pub(super) everything: bool,
    /// The inputs that the transaction hashed, for hints.
    pub(super) preimages: Vec<Preimage>,
    /// Decides when the execution ends early.
    pub(super) pace: Pace,
    /// The recorder of jumps.
    pub(super) watch: Option<Arc<JumpWatch>>,
}

impl Observations {
    fn note(list: &mut Vec<Address>, everything: &mut bool, address: Address) {
        if list.contains(&address) {
            return;
        }
        if list.len() < NOTES_MAX { list.push(address) } else { *everything = true }
    }

    fn balance(&mut self, address: Address) {
        Self::note(&mut self.balances, &mut self.everything, address);
    }

    fn nonce(&mut self, address: Address) {
        Self::note(&mut self.nonces, &mut self.everything, address);
    }

    fn existence(&mut self, address: Address) {
        Self::note(&mut self.existences, &mut self.everything, address);
    }

    fn spend(&mut self, address: Address, balance: U256, value: U256) {
        self.everything |= value.bit_len() > COMMUTING_BITS_MAX;
        let Some(left) = balance.checked_sub(value) else { return self.balance(address) };
        if let Some((_, least)) = self.spent.iter_mut().find(|(spender, _)| *spender == address) {
            *least = left.min(*least);
        } else if self.spent.len() < NOTES_MAX {
            self.spent.push((address, left));
        } else {
            self.everything = true;
        }
    }
}

/// Builds mainnet's EVM unchanged.
pub(super) fn build_silent<DB: Database>(
    database: DB,
    env: &BatchEnv,
    watch: Option<&Arc<JumpWatch>>,
) -> ObservedEvm<DB> {
    MainnetContext::new(database, env.spec)
        .with_chain(Observations { watch: watch.cloned(), ..Observations::default() })
        .with_cfg(adapter::cfg_env(env))
        .with_block(adapter::block_env(env))
        .build_mainnet()
        .with_precompiles(EvmPrecompiles::new(env.spec))
}

/// As [`build_silent`], with instructions that record observations in [`Observations`] and otherwise behave the same.
pub(super) fn build<DB: Database>(
    database: DB,
    env: &BatchEnv,
    watch: Option<&Arc<JumpWatch>>,
) -> ObservedEvm<DB> {
    let mut evm = build_silent(database, env, watch);
    let table = evm.instruction.instruction_table_mut();
    table[usize::from(opcode::KECCAK256)] = Instruction::new(preimages::keccak256);
    table[usize::from(opcode::BALANCE)] = Instruction::new(balance);
    table[usize::from(opcode::SELFBALANCE)] = Instruction::new(selfbalance);
    table[usize::from(opcode::EXTCODEHASH)] = Instruction::new(extcodehash);
    table[usize::from(opcode::SELFDESTRUCT)] = Instruction::new(selfdestruct);
    table[usize::from(opcode::CALL)] = Instruction::new(call::<{ opcode::CALL }, DB>);
    table[usize::from(opcode::CALLCODE)] = Instruction::new(call::<{ opcode::CALLCODE }, DB>);
    table[usize::from(opcode::CREATE)] = Instruction::new(create::<false, DB>);
    table[usize::from(opcode::CREATE2)] = Instruction::new(create::<true, DB>);
    if watch.is_some() {
        table[usize::from(opcode::JUMP)] = Instruction::new(jump);
    }
    evm
}

fn top<DB: Database>(context: &Ictx<'_, DB>) -> Option<U256> {
    context.interpreter.stack.data().last().copied()
}

fn to_address(word: U256) -> Address {
    Address::from_word(word.into())
}

fn this<DB: Database>(context: &Ictx<'_, DB>) -> Address {
    context.interpreter.input.target_address()
}

fn spend<DB: Database>(context: &mut Ictx<'_, DB>, value: U256) {
    if value.is_zero() {
        return;
    }
    let address = this(context);
    let account = context.host.journaled_state.inner.state.get(&address);
    let balance = account.map(|account| account.info.balance).unwrap_or_default();
    context.host.chain.spend(address, balance, value);
}

fn balance<DB: Database>(context: Ictx<'_, DB>) -> InstructionExecResult {
    if let Some(word) = top(&context) {
        context.host.chain.balance(to_address(word));
    }
    host::balance(context)
}

fn selfbalance<DB: Database>(context: Ictx<'_, DB>) -> InstructionExecResult {
    let this = this(&context);
    context.host.chain.balance(this);
    host::selfbalance(context)
}

fn extcodehash<DB: Database>(context: Ictx<'_, DB>) -> InstructionExecResult {
    if let Some(word) = top(&context) {
        context.host.chain.existence(to_address(word));
    }
    host::extcodehash(context)
}

fn selfdestruct<DB: Database>(context: Ictx<'_, DB>) -> InstructionExecResult {
    let this = this(&context);
    context.host.chain.balance(this);
    if let Some(word) = top(&context) {
        context.host.chain.existence(to_address(word));
    }
    host::selfdestruct(context)
}

pub(super) fn call<const KIND: u8, DB: Database>(mut context: Ictx<'_, DB>) -> InstructionExecResult {
    if let [.., value, to, _] = context.interpreter.stack.data()[..]
        && !value.is_zero()
    {
        spend(&mut context, value);
        // A call with value to an empty account costs more gas.
        context.host.chain.existence(to_address(to));
    }
    contract::call::<KIND, _, _>(context)
}

/// Reports a valid jump before it is made.
fn jump<DB: Database>(context: Ictx<'_, DB>) -> InstructionExecResult {
    let to = top(&context);
    let bytecode = &mut context.interpreter.bytecode;
    if let (Some(watch), Some(hash), Some(to)) = (&context.host.chain.watch, bytecode.hash(), to) {
        let to = to.saturating_to();
        if bytecode.is_valid_legacy_jump(to) {
            // The program counter is past the instruction already.
            watch.record(&hash, bytecode.pc() - 1, to);
        }
    }
    control::jump(context)
}

pub(super) fn create<const IS_CREATE2: bool, DB: Database>(
    mut context: Ictx<'_, DB>,
) -> InstructionExecResult {
    if let Some(value) = top(&context) {
        spend(&mut context, value);
    }
    let this = this(&context);
    context.host.chain.nonce(this);
    contract::create::<IS_CREATE2, _, _>(context)
}
