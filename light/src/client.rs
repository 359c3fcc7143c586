//! [`LightClient`]: which signatures count, and what they prove.

use slipstream_types::{
    AccountValue, Address, B256, BatchNumber, Certificate, Digest, Epoch, Genesis, Path, StateKey,
    StateValue, U256, ValidatorSet, Waypoint,
    genesis::GenesisError,
    tree::{Leaf, StateRangeError, StateRangeProof},
};

use crate::{
    error::{EpochEndFault, LightError},
    wire::{Account, AccountProof, WaypointProof},
};

/// A chain and the validators of its newest known epoch. Only certificates by these validators count.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LightClient {
    genesis: Digest,
    set: ValidatorSet,
    /// The waypoint of the ledger info that named the set.
    named_by: Waypoint,
}

/// The question that an answer must fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Question<'a> {
    /// Address of the account.
    pub address: Address,
    /// Its slots, at most [`crate::SLOTS_MAX`].
    pub slots: &'a [B256],
    /// The requested state.
    pub at: BatchTag,
}

/// Selects the state that a question is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BatchTag {
    /// The newest state, if its batch is at most this old.
    Latest {
        /// The current time, in milliseconds since 1970.
        now_ms: u64,
        /// Maximum milliseconds since the batch. Batches are made even without transactions, so a working chain has a new
        /// one every few hundred milliseconds.
        age_ms_max: u64,
    },
    /// The state after this batch, however old it is. That state is final.
    Batch(BatchNumber),
}

/// The account that a verified answer proves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VerifiedAccount {
    /// The batch whose state this is.
    pub number: BatchNumber,
    /// Its header's digest, which JSON-RPC calls the block hash.
    pub hash: Digest,
    /// The batch's time, in milliseconds since 1970. The batch's proposer set it, and a quorum accepted it.
    pub timestamp_ms: u64,
    /// The batch of the certificate: this one or a later one.
    pub certified: BatchNumber,
    /// The account's row. `None` proves that the state has no row for it: balance and nonce are 0, and it has no code.
    pub account: Option<AccountValue>,
    /// The values of the requested slots, in the order of the question.
    pub slots: Vec<U256>,
}

impl LightClient {
    /// Begins with the validators of a genesis.
    ///
    /// # Errors
    /// If the genesis breaks a rule.
    pub fn from_genesis(genesis: &Genesis) -> Result<LightClient, LightError> {
        genesis.check()?;
        let named_by = Waypoint::of(&genesis.ledger_info().map_err(GenesisError::from)?);
        let header = genesis.header().map_err(GenesisError::from)?;
        Ok(LightClient { genesis: header.digest(), set: genesis.validator_set(), named_by })
    }

    /// Begins with the validators that a waypoint's ledger info names. The waypoint must belong to an epoch's last
    /// batch, or to batch 0. The answer may come from any node: it is checked against the waypoint.
    ///
    /// # Errors
    /// [`LightError::OtherWaypoint`], [`LightError::WaypointInsideEpoch`], [`LightError::OtherChain`], or the fault of
    /// the next validators.
    pub fn from_waypoint(waypoint: &Waypoint, proof: &WaypointProof) -> Result<LightClient, LightError> {
        let info = &proof.ledger_info.0;
        let found = Waypoint::of(info);
        if found != *waypoint {
            return Err(LightError::OtherWaypoint { waypoint: *waypoint, found });
        }
        let Some(set) = info.next_validators.clone() else {
            return Err(LightError::WaypointInsideEpoch { waypoint: *waypoint });
        };
        let (number, genesis) = (info.number, proof.genesis);
        proof
            .genesis_proof
            .0
            .verify(info.accumulator_root, number.leaves(), BatchNumber::GENESIS.get(), &[genesis])
            .map_err(|source| LightError::OtherChain { number, genesis, source })?;
        // The genesis begins epoch 0, and every other info that names validators ends an epoch.
        let next = if number == BatchNumber::GENESIS { Some(0) } else { info.epoch.0.checked_add(1) };
        check_next(&set, next).map_err(|fault| LightError::EpochEnd { number, epoch: info.epoch, fault })?;
        Ok(LightClient { genesis, set, named_by: *waypoint })
    }

    /// Returns the digest of the genesis' header, which JSON-RPC calls the hash of block 0.
    pub fn genesis(&self) -> Digest {
        self.genesis
    }

    /// Returns the newest epoch whose validators are known: request epoch changes from this epoch on.
    pub fn epoch(&self) -> Epoch {
        self.set.epoch
    }

    /// Returns the validators of the newest known epoch.
    pub fn validators(&self) -> &ValidatorSet {
        &self.set
    }

    /// Returns a waypoint from which a client that trusts this one can begin: the waypoint of the last batch before the
    /// newest known epoch.
    pub fn waypoint(&self) -> Waypoint {
        self.named_by
    }

    /// Follows the validators through consecutive epoch ends; the first one must end the known epoch. Returns the
    /// number of ends.
    ///
    /// # Errors
    /// The fault of the first refused certificate; the client has learnt the earlier ones.
    pub fn learn(&mut self, ends: &[Certificate]) -> Result<usize, LightError> {
        for end in ends {
            self.verify_certificate(end)?;
            let (number, epoch) = (end.info.number, end.info.epoch);
            let wrong = |fault| LightError::EpochEnd { number, epoch, fault };
            let next = end.info.next_validators.as_ref().ok_or_else(|| wrong(EpochEndFault::NoValidators))?;
            check_next(next, epoch.0.checked_add(1)).map_err(wrong)?;
            self.set = next.clone();
            self.named_by = Waypoint::of(&end.info);
        }
        Ok(ends.len())
    }

    /// Checks that a proof answers the question, and that a quorum of the newest known epoch vouches for all of it.
    ///
    /// # Errors
    /// [`LightError::UnknownEpoch`] if the client must first learn epoch changes; otherwise the fault of the proof.
    pub fn verify(
        &self,
        question: &Question<'_>,
        proof: &AccountProof,
    ) -> Result<VerifiedAccount, LightError> {
        answers(question, proof)?;
        self.verify_certificate(&proof.certificate.0)?;
        self.verify_header(proof)?;
        let header = &proof.header.0;
        let (number, root) = (header.number, header.state_root);
        let account = proof.account.map(|account| row_of(&proof.address, account)).transpose()?;
        let key = StateKey::Account(proof.address);
        verify_row(&key, account.map(StateValue::Account), root, &proof.account_proof.0)
            .map_err(|source| LightError::row(&key, number, source))?;
        for slot in &proof.storage {
            let key = StateKey::Slot(proof.address, slot.key);
            let value = (!slot.value.is_zero()).then_some(StateValue::Slot(slot.value));
            verify_row(&key, value, root, &slot.proof.0)
                .map_err(|source| LightError::row(&key, number, source))?;
        }
        Ok(VerifiedAccount {
            number,
            hash: header.digest(),
            timestamp_ms: header.timestamp_ms,
            certified: proof.certificate.0.info.number,
            account,
            slots: proof.storage.iter().map(|slot| slot.value).collect(),
        })
    }

    /// Checks that a quorum of the newest known epoch signed the certificate, and that its batch is of that epoch.
    fn verify_certificate(&self, certificate: &Certificate) -> Result<(), LightError> {
        let (number, epoch, known) = (certificate.info.number, certificate.info.epoch, self.set.epoch);
        match epoch.cmp(&known) {
            std::cmp::Ordering::Less => return Err(LightError::PastEpoch { epoch, known }),
            std::cmp::Ordering::Greater => return Err(LightError::UnknownEpoch { epoch, known }),
            std::cmp::Ordering::Equal => {}
        }
        let after = self.named_by.number;
        if number <= after {
            return Err(LightError::OutsideEpoch { number, epoch, after });
        }
        Ok(certificate.verify(&self.set)?)
    }

    /// Checks that the certified ledger belongs to this chain and holds the header.
    fn verify_header(&self, proof: &AccountProof) -> Result<(), LightError> {
        let (info, header) = (&proof.certificate.0.info, &proof.header.0);
        let (root, leaves, genesis) = (info.accumulator_root, info.number.leaves(), self.genesis);
        proof
            .genesis_proof
            .0
            .verify(root, leaves, BatchNumber::GENESIS.get(), &[genesis])
            .map_err(|source| LightError::OtherChain { number: info.number, genesis, source })?;
        let number = header.number;
        proof
            .header_proof
            .0
            .verify(root, leaves, number.get(), &[header.digest()])
            .map_err(|source| LightError::Header { number, source })?;
        match number == info.number && header.state_root != info.state_root {
            true => Err(LightError::HeaderState { number }),
            false => Ok(()),
        }
    }
}

/// Checks that a set may be that of this epoch.
fn check_next(set: &ValidatorSet, epoch: Option<u64>) -> Result<(), EpochEndFault> {
    if epoch != Some(set.epoch.0) {
        return Err(EpochEndFault::OtherEpoch { found: set.epoch });
    }
    Ok(set.check()?)
}

/// Refuses a proof that does not match the question, even if it is true.
fn answers(question: &Question<'_>, proof: &AccountProof) -> Result<(), LightError> {
    if proof.address != question.address {
        return Err(LightError::OtherAddress { asked: question.address, found: proof.address });
    }
    if !proof.storage.iter().map(|slot| &slot.key).eq(question.slots) {
        return Err(LightError::OtherSlots { asked: question.slots.len() });
    }
    let header = &proof.header.0;
    match question.at {
        BatchTag::Batch(asked) if asked != header.number => {
            Err(LightError::OtherBatch { asked, found: header.number })
        }
        BatchTag::Latest { now_ms, age_ms_max }
            if now_ms.saturating_sub(header.timestamp_ms) > age_ms_max =>
        {
            let age_ms = now_ms.saturating_sub(header.timestamp_ms);
            Err(LightError::TooOld { number: header.number, age_ms, age_ms_max })
        }
        _ => Ok(()),
    }
}

/// Converts an account to its row. Refuses a row of zeros, which would be a second form of an absent account.
fn row_of(address: &Address, account: Account) -> Result<AccountValue, LightError> {
    let row = AccountValue::from(account);
    match StateValue::Account(row).fits(&StateKey::Account(*address)) {
        true => Ok(row),
        false => Err(LightError::EmptyAccount { address: *address }),
    }
}

/// Checks that a state holds exactly this row, or none, at the key's path.
fn verify_row(
    key: &StateKey,
    value: Option<StateValue>,
    state_root: Digest,
    proof: &StateRangeProof,
) -> Result<(), StateRangeError> {
    let path: Path = key.path();
    let leaf = value.map(|value| Leaf { path, value_hash: value.hash(key) });
    proof.verify(state_root, path, path, leaf.as_slice())
}
