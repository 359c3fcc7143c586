//! [`Genesis`]: a chain's identity and first state.

use std::{collections::BTreeMap, convert::Infallible};

use alloy_primitives::{Address, B256, U256, keccak256};
use serde::{Deserialize, Deserializer, Serialize, Serializer, ser::SerializeStruct};

use crate::{
    accumulator::Accumulator,
    batch::{BatchHeader, BatchNumber, Epoch, content_digest},
    blob::BlobKind,
    bounded::BoundedVec,
    certificate::LedgerInfo,
    chain::RulesId,
    chain_config::ChainConfig,
    codec::{self, CodecError},
    delta::{Code, Delta, DeltaEntry},
    digest::Digest,
    limits,
    receipt::Receipts,
    state::{AccountValue, StateKey, StateValue},
    totals::Totals,
    tree,
    validators::{Failures, Validator, ValidatorSet, ValidatorSetError},
    validators_contract,
};

/// Everything that batch 0 fixes. JSON as a file, BCS as batch 0's body. The default names no validator, so it is not
/// yet a valid genesis.
///
/// [`ChainConfig::unprotected_transactions`] is written last, and only if it is true: so the bytes and the identity of
/// other chains do not depend on it. In BCS only [`Genesis::decode`] reads it; other readers refuse the remaining byte.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(from = "GenesisFields")]
pub struct Genesis {
    /// The rules.
    pub chain: ChainConfig,
    /// Milliseconds since 1970.
    pub timestamp_ms: u64,
    /// The validators of epoch 0.
    pub validators: BoundedVec<Validator, { limits::VALIDATORS_MAX }>,
    /// The failures that the set tolerates; [`Failures::thirds`] if omitted.
    pub failures: Option<Failures>,
    /// Address of the contract that decides on the validators of later epochs; see [`validators_contract`]. Without one
    /// they never change.
    pub validators_contract: Option<Address>,
    /// The first state.
    pub accounts: BTreeMap<Address, GenesisAccount>,
}

/// The fields of a file and of a body. [`Genesis`] writes the same names in the same order.
#[derive(Deserialize)]
#[serde(rename = "Genesis", deny_unknown_fields)]
struct GenesisFields {
    chain: ChainConfig,
    timestamp_ms: u64,
    validators: BoundedVec<Validator, { limits::VALIDATORS_MAX }>,
    #[serde(default)]
    failures: Option<Failures>,
    #[serde(default)]
    validators_contract: Option<Address>,
    accounts: BTreeMap<Address, GenesisAccount>,
    #[serde(default, deserialize_with = "in_files")]
    unprotected_transactions: bool,
}

/// The last byte in BCS if unprotected transactions are admitted.
const UNPROTECTED: u8 = 1;

/// Reads the flag from a genesis file, which has it by name. A body may lack the flag, which BCS cannot express. So
/// this function reads nothing from a body, and [`Genesis::decode`] checks the remaining bytes.
fn in_files<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    if deserializer.is_human_readable() { bool::deserialize(deserializer) } else { Ok(false) }
}

impl From<GenesisFields> for Genesis {
    fn from(read: GenesisFields) -> Genesis {
        let GenesisFields { timestamp_ms, validators, failures, validators_contract, accounts, .. } = read;
        let chain = ChainConfig { unprotected_transactions: read.unprotected_transactions, ..read.chain };
        Genesis { chain, timestamp_ms, validators, failures, validators_contract, accounts }
    }
}

impl Serialize for Genesis {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let is_lax = self.chain.unprotected_transactions;
        let mut fields = serializer.serialize_struct("Genesis", if is_lax { 7 } else { 6 })?;
        fields.serialize_field("chain", &self.chain)?;
        fields.serialize_field("timestamp_ms", &self.timestamp_ms)?;
        fields.serialize_field("validators", &self.validators)?;
        fields.serialize_field("failures", &self.failures)?;
        fields.serialize_field("validators_contract", &self.validators_contract)?;
        fields.serialize_field("accounts", &self.accounts)?;
        if is_lax {
            fields.serialize_field("unprotected_transactions", &true)?;
        }
        fields.end()
    }
}

/// One account of the first state.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GenesisAccount {
    /// Wei.
    #[serde(default)]
    pub balance: U256,
    /// Its nonce.
    #[serde(default)]
    pub nonce: u64,
    /// Its code, empty for none.
    #[serde(default)]
    pub code: Code,
    /// Its storage; zero values are omitted.
    #[serde(default)]
    pub storage: BTreeMap<B256, U256>,
}

/// EIP-7610: creating a contract at an address with storage fails. An account's row does not say whether it has
/// storage, so a genesis must have no account with storage alone. Every other account with storage has code or a nonce,
/// which makes creation fail too.
const ONLY_STORAGE: &str = "has storage but neither code nor a nonce, so no contract could ever be created there \
    (EIP-7610): give it code or a nonce, or omit its storage";

/// See [`Genesis::check`].
const OTHER_VALIDATORS: &str = "is named as validators_contract, but its storage does not hold the genesis' \
    validators and failures in the same order";

/// Why a genesis was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GenesisError {
    /// The bytes are no encoded genesis, or the genesis breaks a rule of its chain.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// Its validators do not form a valid set.
    #[error("invalid genesis: {0}")]
    Validators(#[from] ValidatorSetError),
    /// An account has a state with which no chain may begin.
    #[error("invalid genesis: account {address} {rule}")]
    Account {
        /// Address of the refused account.
        address: Address,
        /// The rule that it breaks, and what to do.
        rule: &'static str,
    },
}

impl GenesisAccount {
    /// Returns the account of the validators contract: see [`validators_contract::first_storage`].
    ///
    /// # Errors
    /// If the contract's compiled code cannot be decoded.
    pub fn validators_contract(
        owner: Address,
        epoch_batches: u64,
        set: &ValidatorSet,
    ) -> Result<GenesisAccount, CodecError> {
        let (code, storage) =
            (validators_contract::code()?, validators_contract::first_storage(owner, epoch_batches, set));
        Ok(GenesisAccount { nonce: 1, code, storage, ..GenesisAccount::default() })
    }

    fn has_only_storage(&self) -> bool {
        let is_plain = self.nonce == 0 && self.code.is_empty();
        is_plain && self.storage.values().any(|value| !value.is_zero())
    }
}

impl Genesis {
    /// Decodes batch 0's body: all fields and nothing more, or all fields and the one byte that admits unprotected
    /// transactions. A content has only one reading, and a genesis only one content: a last byte 0 is refused.
    ///
    /// # Errors
    /// If the content is neither, or breaks a rule.
    pub fn decode(content: &[u8]) -> Result<Genesis, GenesisError> {
        let exactly = |content| codec::decode::<Genesis>("genesis", content, limits::GENESIS_BYTES_MAX);
        let genesis = match (exactly(content), content.split_last()) {
            (
                Err(CodecError::Malformed { source: bcs::Error::RemainingInput, .. }),
                Some((&UNPROTECTED, fields)),
            ) => {
                let mut genesis = exactly(fields)?;
                genesis.chain.unprotected_transactions = true;
                genesis
            }
            (decoded, _) => decoded?,
        };
        genesis.check()?;
        Ok(genesis)
    }

    /// Checks the rules that parsing does not check.
    pub fn check(&self) -> Result<(), GenesisError> {
        let invalid = |rule| Err(CodecError::Invalid { what: "genesis", rule }.into());
        self.validator_set().check()?;
        if self.accounts.len() > limits::GENESIS_ACCOUNTS_MAX {
            return invalid("too many accounts");
        }
        if self.chain.chain_id == 0 {
            return invalid("chain_id must not be 0");
        }
        if let Some(rule) = self.chain.first_rules().broken() {
            return invalid(rule);
        }
        match self.accounts.iter().find(|(_, account)| account.has_only_storage()) {
            Some((address, _)) => Err(GenesisError::Account { address: *address, rule: ONLY_STORAGE }),
            None => self.check_validators_contract(),
        }
    }

    /// Checks that the contract's storage holds the validators with which the chain begins: otherwise its first change
    /// would replace them all.
    fn check_validators_contract(&self) -> Result<(), GenesisError> {
        let Some(address) = self.validators_contract else { return Ok(()) };
        let invalid = |rule| Err(GenesisError::Account { address, rule });
        let Some(account) = self.accounts.get(&address).filter(|account| !account.code.is_empty()) else {
            return invalid("is named as validators_contract, but has no code");
        };
        let mut read = |slot| Ok::<_, Infallible>(account.storage.get(&slot).copied().unwrap_or_default());
        let Ok(wanted) = validators_contract::wanted(Epoch(0), &mut read);
        match wanted == Ok(self.validator_set()) {
            true => Ok(()),
            false => invalid(OTHER_VALIDATORS),
        }
    }

    /// The canonical content of batch 0's body.
    pub fn content(&self) -> Result<Vec<u8>, CodecError> {
        codec::encode("genesis", self)
    }

    /// The first state as a delta on the empty state.
    pub fn delta(&self) -> Result<Delta, CodecError> {
        let mut entries = Vec::new();
        let mut codes = Vec::new();
        for (address, account) in &self.accounts {
            let code_hash = (!account.code.is_empty()).then(|| Digest::from(keccak256(&account.code[..])));
            let value = AccountValue { nonce: account.nonce, balance: account.balance, code_hash };
            let value = Some(StateValue::Account(value));
            entries.push(DeltaEntry { key: StateKey::Account(*address), value });
            if code_hash.is_some() {
                codes.push(account.code.to_vec());
            }
            for (slot, value) in account.storage.iter().filter(|(_, value)| !value.is_zero()) {
                let value = Some(StateValue::Slot(*value));
                entries.push(DeltaEntry { key: StateKey::Slot(*address, *slot), value });
            }
        }
        entries.retain(|entry| entry.value.is_some_and(|value| value.fits(&entry.key)));
        Delta::new(entries, codes)
    }

    /// The header of batch 0; its digest is the chain's identity.
    pub fn header(&self) -> Result<BatchHeader, CodecError> {
        let delta = self.delta()?;
        let delta_content = delta.content()?;
        let leaves = delta.entries().iter().filter_map(|entry| {
            let value = entry.value?;
            Some(tree::Leaf { path: entry.key.path(), value_hash: value.hash(&entry.key) })
        });
        let content = self.content()?;
        let receipts_content = codec::encode("receipts", &Receipts::default())?;
        Ok(BatchHeader {
            number: BatchNumber::GENESIS,
            parent: Digest::ZERO,
            epoch: Epoch(0),
            rules: RulesId::GENESIS,
            timestamp_ms: self.timestamp_ms,
            proposer: Address::ZERO,
            tx_count: 0,
            tx_bytes: content.len() as u32,
            gas_used: 0,
            delta_bytes: delta_content.len() as u32,
            transactions_root: content_digest(BlobKind::Genesis, &content),
            receipts_root: content_digest(BlobKind::Receipts, &receipts_content),
            delta_digest: content_digest(BlobKind::Delta, &delta_content),
            state_root: tree::root(&leaves.collect::<Vec<_>>()),
            totals: Totals {
                body_bytes: content.len() as u64,
                receipts_bytes: receipts_content.len() as u64,
                delta_bytes: delta_content.len() as u64,
                ..Totals::default()
            },
        })
    }

    /// The ledger info of the ledger that holds only the genesis. It is unsigned, because the genesis is trusted.
    pub fn ledger_info(&self) -> Result<LedgerInfo, CodecError> {
        let header = self.header()?;
        let mut accumulator = Accumulator::default();
        accumulator.append(header.digest());
        Ok(LedgerInfo::of(&header, accumulator.root(), Some(self.validator_set())))
    }

    /// Places the validators contract at [`validators_contract::ADDRESS`]; see [`GenesisAccount::validators_contract`].
    ///
    /// # Errors
    /// Those of [`GenesisAccount::validators_contract`].
    pub fn with_validators_contract(
        mut self,
        owner: Address,
        epoch_batches: u64,
    ) -> Result<Genesis, CodecError> {
        let account = GenesisAccount::validators_contract(owner, epoch_batches, &self.validator_set())?;
        self.accounts.insert(validators_contract::ADDRESS, account);
        self.validators_contract = Some(validators_contract::ADDRESS);
        Ok(self)
    }

    /// The validators of epoch 0.
    pub fn validator_set(&self) -> ValidatorSet {
        let set = ValidatorSet::new(Epoch(0), self.validators.clone());
        ValidatorSet { failures: self.failures.unwrap_or(set.failures), ..set }
    }
}
