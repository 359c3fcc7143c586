//! [`Recorder`]: the database below revm's cache. Passes every read on and remembers it.

use alloy_primitives::{
    Address, B256, U256,
    map::{AddressMap, B256Map, B256Set},
};
use revm::{
    Database, bytecode::Bytecode, database_interface::DBErrorMarker, primitives::KECCAK_EMPTY,
    state::AccountInfo,
};
use slipstream_storage::StorageError;
use slipstream_types::{
    AccountValue, BatchNumber, Digest, Hints, StateKey, StateValue,
    hints::{AccountHints, Preimage},
};

use super::{adapter::account_info, code::AnalysedCode, preimages::PREIMAGES_MAX, versions::Versions};
use crate::{env::BatchEnv, error::ExecuteError, hot::Touched, reader::StateReader};

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
    codes: B256Map<AnalysedCode>,
    pub(super) preimages: Vec<Preimage>,
}

impl<'a> Recorder<'a> {
    pub(super) fn new(state: &'a dyn StateReader, env: &'a BatchEnv) -> Self {
        Self {
            state,
            shared: None,
            env,
            accounts: AddressMap::default(),
            account_order: Vec::new(),
            codes: B256Map::default(),
            preimages: Vec::new(),
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

    /// The working set, in first-use order.
    pub(super) fn hints(&self) -> Hints {
        let mut codes: B256Set = self.codes.keys().copied().collect();
        let account = |address: &Address| {
            let reads = self.accounts.get(address);
            let code_hash = reads.and_then(|reads| reads.value).and_then(|value| value.code_hash);
            // Where several accounts have the same code, the first stands for all.
            let code = code_hash.is_some_and(|hash| codes.remove(&B256::from(hash)));
            let slots = reads.map(|reads| reads.slot_order.clone()).unwrap_or_default();
            AccountHints { address: *address, code, slots }
        };
        Hints { accounts: self.account_order.iter().map(account).collect() }
    }

    /// What was read, with the values before the batch.
    pub(super) fn touched(&self) -> Touched {
        let mut rows = Vec::new();
        for (address, reads) in self.account_order.iter().filter_map(|it| Some((it, self.accounts.get(it)?)))
        {
            rows.push((StateKey::Account(*address), reads.value.map(StateValue::Account)));
            let value = |slot: &B256| reads.slots.get(slot).filter(|value| !value.is_zero());
            let slot =
                |slot: &B256| (StateKey::Slot(*address, *slot), value(slot).copied().map(StateValue::Slot));
            rows.extend(reads.slot_order.iter().map(slot));
        }
        let mut codes: Vec<_> = self.codes.iter().map(|(hash, code)| (*hash, code.clone())).collect();
        codes.sort_unstable_by_key(|(hash, _)| *hash);
        Touched { rows, codes }
    }

    /// Keeps what a transaction hashed, as far as there is room.
    pub(super) fn remember(&mut self, preimages: Vec<Preimage>) {
        let room = PREIMAGES_MAX - self.preimages.len();
        self.preimages.extend(preimages.into_iter().take(room));
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
        self.codes.insert(hash, code.clone());
        Ok(code.0)
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
pub(super) fn read_code(state: &dyn StateReader, hash: B256) -> Result<AnalysedCode, ReadError> {
    let digest = Digest::from(hash);
    if let Some(code) = state.analysed(&digest) {
        return Ok(code);
    }
    let code = state.code(&digest)?.ok_or(ReadError(ExecuteError::MissingCode { hash: digest }))?;
    Ok(AnalysedCode::new(code))
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
