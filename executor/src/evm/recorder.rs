//! [`Recorder`]: the database below revm's cache. Passes every read on and remembers it.

use alloy_primitives::{
    Address, B256, U256,
    map::{AddressMap, B256Map, B256Set},
};
use revm::{
    Database, bytecode::Bytecode, database_interface::DBErrorMarker, primitives::KECCAK_EMPTY,
    state::AccountInfo,
};
use slipstream_types::{
    AccountValue, BatchNumber, Digest, Hints, StateKey, StateValue,
    hints::{AccountHints, Preimage},
};

use super::{adapter::account_info, code::AnalysedCode};
use crate::{env::BatchEnv, error::ExecuteError, hot::Touched, reader::StateReader};

/// A failed read on its way through revm.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(super) struct ReadError(pub(super) ExecuteError);

impl DBErrorMarker for ReadError {}

/// Inputs of KECCAK256 that are kept: 6 MB at most. Mainnet blocks since London have 500 to 8,000.
const PREIMAGES_MAX: usize = 65_536;

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
    number: u64,
    parent_hash: B256,
    accounts: AddressMap<AccountReads>,
    account_order: Vec<Address>,
    codes: B256Map<AnalysedCode>,
    pub(super) preimages: Vec<Preimage>,
}

impl<'a> Recorder<'a> {
    pub(super) fn new(state: &'a dyn StateReader, env: &BatchEnv) -> Self {
        Self {
            state,
            number: env.number,
            parent_hash: env.parent_hash,
            accounts: AddressMap::default(),
            account_order: Vec::new(),
            codes: B256Map::default(),
            preimages: Vec::new(),
        }
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

    /// Keeps an input of KECCAK256, if there is room.
    pub(super) fn remember(&mut self, preimage: Preimage) {
        if self.preimages.len() < PREIMAGES_MAX {
            self.preimages.push(preimage);
        }
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
        let value = self.state.account(&address).map_err(|error| ReadError(error.into()))?;
        self.reads(address).value = value;
        Ok(value.as_ref().map(account_info))
    }

    fn code_by_hash(&mut self, hash: B256) -> Result<Bytecode, ReadError> {
        if hash == KECCAK_EMPTY {
            return Ok(Bytecode::default());
        }
        let digest = Digest::from(hash);
        let code = match self.state.analysed(&digest) {
            Some(code) => code,
            None => {
                let code = self.state.code(&digest).map_err(|error| ReadError(error.into()))?;
                AnalysedCode::new(code.ok_or(ReadError(ExecuteError::MissingCode { hash: digest }))?)
            }
        };
        self.codes.insert(hash, code.clone());
        Ok(code.0)
    }

    fn storage(&mut self, address: Address, index: U256) -> Result<U256, ReadError> {
        let slot = B256::from(index);
        let value = self.state.slot(&address, &slot).map_err(|error| ReadError(error.into()))?;
        let reads = self.reads(address);
        if reads.slots.insert(slot, value).is_none() {
            reads.slot_order.push(slot);
        }
        Ok(value)
    }

    fn block_hash(&mut self, number: u64) -> Result<B256, ReadError> {
        // The parent may be a batch that no store has yet.
        if number.checked_add(1) == Some(self.number) {
            return Ok(self.parent_hash);
        }
        let digest = self.state.header_digest(BatchNumber(number));
        Ok(digest.map_err(|error| ReadError(error.into()))?.map_or(B256::ZERO, B256::from))
    }
}
