//! [`Recorder`]: the database below revm's cache. Forwards every read and records it.

use alloy_primitives::{Address, B256, U256};
use revm::{
    Database, DatabaseRef, bytecode::Bytecode, database_interface::DBErrorMarker, primitives::KECCAK_EMPTY,
    state::AccountInfo,
};
use slipstream_storage::StorageError;
use slipstream_types::{BatchNumber, Digest, hints::Preimage};

use super::{
    adapter::account_info, code::AnalysedCode, env::BatchEnv, state::ExecutionState, versions::Versions,
    working_set::WorkingSet,
};
use crate::{error::ExecuteError, interrupt::Interrupt};

/// A failed read on its way through revm.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(crate) struct ReadError(pub(super) ExecuteError);

impl DBErrorMarker for ReadError {}

impl From<StorageError> for ReadError {
    fn from(error: StorageError) -> Self {
        ReadError(error.into())
    }
}

/// Reads from the state; see the module.
pub(crate) struct Recorder<'a> {
    state: &'a dyn ExecutionState,
    /// Source of code that other threads may have analysed already; if `None`, code is read from the state.
    shared: Option<&'a Versions<'a>>,
    env: &'a BatchEnv,
    /// The turn that reads are attributed to; see [`WorkingSet`].
    turn: u32,
    reads: WorkingSet,
    /// Polled before every read.
    pub(super) interrupt: Interrupt,
}

impl<'a> Recorder<'a> {
    pub(super) fn new(state: &'a dyn ExecutionState, env: &'a BatchEnv) -> Self {
        Self {
            state,
            shared: None,
            env,
            turn: 0,
            reads: WorkingSet::default(),
            interrupt: Interrupt::never(),
        }
    }

    /// Makes a recorder that shares its reads with other threads.
    pub(super) fn sharing(versions: &'a Versions<'a>) -> Self {
        Self { shared: Some(versions), ..Self::new(versions, versions.env()) }
    }

    /// Attributes the following reads to the transaction at this position.
    pub(super) fn begin(&mut self, index: u32) {
        self.turn = index + 1;
    }

    /// Keeps the inputs that the transaction hashed.
    pub(super) fn remember(&mut self, preimages: Vec<Preimage>) {
        self.reads.remember(self.turn, preimages);
    }

    fn check(&self) -> Result<(), ReadError> {
        if self.interrupt.is_due() { Err(ReadError(ExecuteError::Interrupted)) } else { Ok(()) }
    }

    pub(super) fn into_reads(self) -> WorkingSet {
        self.reads
    }
}

impl Database for Recorder<'_> {
    type Error = ReadError;

    fn basic(&mut self, address: Address) -> Result<Option<AccountInfo>, ReadError> {
        self.check()?;
        let value = self.state.account(&address)?;
        self.reads.read_account(self.turn, address, value);
        Ok(value.as_ref().map(account_info))
    }

    fn code_by_hash(&mut self, hash: B256) -> Result<Bytecode, ReadError> {
        if hash == KECCAK_EMPTY {
            return Ok(Bytecode::default());
        }
        self.check()?;
        let code = match self.shared {
            Some(versions) => versions.bytecode(hash)?,
            None => read_code(self.state, hash)?,
        };
        self.reads.codes.insert(hash, code.clone());
        Ok(code.0)
    }

    fn storage(&mut self, address: Address, index: U256) -> Result<U256, ReadError> {
        self.check()?;
        let slot = B256::from(index);
        let value = self.state.slot(&address, &slot)?;
        self.reads.read_slot(self.turn, address, slot, value);
        Ok(value)
    }

    fn block_hash(&mut self, number: u64) -> Result<B256, ReadError> {
        Ok(read_block_hash(self.state, self.env, number)?)
    }
}

/// Tracers' reads do not count as the batch's.
impl DatabaseRef for Recorder<'_> {
    type Error = ReadError;

    fn basic_ref(&self, address: Address) -> Result<Option<AccountInfo>, ReadError> {
        self.check()?;
        Ok(self.state.account(&address)?.as_ref().map(account_info))
    }

    fn code_by_hash_ref(&self, hash: B256) -> Result<Bytecode, ReadError> {
        if hash == KECCAK_EMPTY {
            return Ok(Bytecode::default());
        }
        self.check()?;
        Ok(read_code(self.state, hash)?.0)
    }

    fn storage_ref(&self, address: Address, index: U256) -> Result<U256, ReadError> {
        self.check()?;
        Ok(self.state.slot(&address, &B256::from(index))?)
    }

    fn block_hash_ref(&self, number: u64) -> Result<B256, ReadError> {
        Ok(read_block_hash(self.state, self.env, number)?)
    }
}

/// Returns the state's code by its hash, analysed.
pub(super) fn read_code(state: &dyn ExecutionState, hash: B256) -> Result<AnalysedCode, ReadError> {
    let digest = Digest::from(hash);
    if let Some(code) = state.analysed(&digest) {
        return Ok(code);
    }
    let code = state.code(&digest)?.ok_or(ReadError(ExecuteError::MissingCode { hash: digest }))?;
    Ok(AnalysedCode::new(code))
}

/// BLOCKHASH of an earlier batch; zero if the hash is unknown.
pub(super) fn read_block_hash(
    state: &dyn ExecutionState,
    env: &BatchEnv,
    number: u64,
) -> Result<B256, StorageError> {
    // The parent may be a batch that no store has yet.
    if number.checked_add(1) == Some(env.number) {
        return Ok(env.parent_hash);
    }
    Ok(state.header_digest(BatchNumber::new(number))?.map_or(B256::ZERO, B256::from))
}
