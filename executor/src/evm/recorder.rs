//! [`Recorder`]: the database below revm's cache. Passes every read on and remembers it.

use alloy_primitives::{
    Address, B256, U256,
    map::{AddressMap, B256Map},
};
use revm::{
    Database, bytecode::Bytecode, database_interface::DBErrorMarker, primitives::KECCAK_EMPTY,
    state::AccountInfo,
};
use slipstream_storage::StorageError;
use slipstream_types::{AccountValue, BatchNumber, Digest, Hints};

use super::{adapter::account_info, versions::Versions};
use crate::{env::BatchEnv, error::ExecuteError, reader::StateReader};

/// A failed read on its way through revm.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(super) struct ReadError(pub(super) ExecuteError);

impl DBErrorMarker for ReadError {}

impl From<StorageError> for ReadError {
    fn from(error: StorageError) -> Self {
        ReadError(error.into())
    }
}

/// What was read of one account, before the batch changed anything.
#[derive(Default)]
pub(super) struct AccountReads {
    pub(super) value: Option<AccountValue>,
    pub(super) slots: B256Map<U256>,
    slot_order: Vec<B256>,
}

/// Reads through to the state; see the module.
pub(super) struct Recorder<'a> {
    state: &'a dyn StateReader,
    /// Where code comes from that other threads may have analysed already; none: from the state.
    shared: Option<&'a Versions<'a>>,
    env: &'a BatchEnv,
    accounts: AddressMap<AccountReads>,
    account_order: Vec<Address>,
    codes: Vec<B256>,
}

impl<'a> Recorder<'a> {
    pub(super) fn new(state: &'a dyn StateReader, env: &'a BatchEnv) -> Self {
        Self {
            state,
            shared: None,
            env,
            accounts: AddressMap::default(),
            account_order: Vec::new(),
            codes: Vec::new(),
        }
    }

    /// A recorder that reads what other threads read too.
    pub(super) fn sharing(versions: &'a Versions<'a>) -> Self {
        Self { shared: Some(versions), ..Self::new(versions, versions.env()) }
    }

    /// What was read of an account; none if nothing was.
    pub(super) fn account(&self, address: &Address) -> Option<&AccountReads> {
        self.accounts.get(address)
    }

    /// The working set, in first-use order; empty if it passes the limits on hints, which are advice after all.
    pub(super) fn hints(&self) -> Hints {
        let slots = |address| self.accounts.get(address).map(|reads| reads.slot_order.clone());
        let accounts =
            self.account_order.iter().map(|address| (*address, slots(address).unwrap_or_default()));
        Hints::new(accounts.collect(), self.codes.clone()).unwrap_or_default()
    }

    fn reads(&mut self, address: Address) -> &mut AccountReads {
        let order = &mut self.account_order;
        self.accounts.entry(address).or_insert_with(|| {
            order.push(address);
            AccountReads::default()
        })
    }
}

impl Database for Recorder<'_> {
    type Error = ReadError;

    fn basic(&mut self, address: Address) -> Result<Option<AccountInfo>, ReadError> {
        let value = self.state.account(&address)?;
        self.reads(address).value = value;
        Ok(value.as_ref().map(account_info))
    }

    fn code_by_hash(&mut self, hash: B256) -> Result<Bytecode, ReadError> {
        if hash == KECCAK_EMPTY {
            return Ok(Bytecode::default());
        }
        let code = match self.shared {
            Some(versions) => versions.bytecode(hash)?,
            None => read_code(self.state, hash)?,
        };
        self.codes.push(hash);
        Ok(code)
    }

    fn storage(&mut self, address: Address, index: U256) -> Result<U256, ReadError> {
        let slot = B256::from(index);
        let value = self.state.slot(&address, &slot)?;
        let reads = self.reads(address);
        if reads.slots.insert(slot, value).is_none() {
            reads.slot_order.push(slot);
        }
        Ok(value)
    }

    fn block_hash(&mut self, number: u64) -> Result<B256, ReadError> {
        Ok(read_block_hash(self.state, self.env, number)?)
    }
}

/// The state's code by its hash, analysed.
pub(super) fn read_code(state: &dyn StateReader, hash: B256) -> Result<Bytecode, ReadError> {
    let digest = Digest::from(hash);
    let code = state.code(&digest)?.ok_or(ReadError(ExecuteError::MissingCode { hash: digest }))?;
    // Code from before EIP-3541 may start like a delegation (EIP-7702) without being one.
    Ok(Bytecode::new_raw_checked(code.clone()).unwrap_or_else(|_| Bytecode::new_legacy(code)))
}

/// BLOCKHASH of a batch before this one; zero if it is not known.
pub(super) fn read_block_hash(
    state: &dyn StateReader,
    env: &BatchEnv,
    number: u64,
) -> Result<B256, StorageError> {
    // The parent may be a batch that no store has yet.
    if number.checked_add(1) == Some(env.number) {
        return Ok(env.parent_hash);
    }
    Ok(state.header_digest(BatchNumber(number))?.map_or(B256::ZERO, B256::from))
}
