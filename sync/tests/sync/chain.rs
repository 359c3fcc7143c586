//! [`Chain`]: a small certified chain.

use alloy_primitives::{Bytes, TxKind};
use slipstream_executor::{
    Admission, BatchContext, HintsMode, ReadSet, decode_body, execute, seal,
    validators::{add_call, next_validators, remove_call},
};
use slipstream_storage::{CommitBatch, StorageConfig, Store};
use slipstream_testkit::{Batch, Wallet};
use slipstream_types::{
    AccountValue, Address, BatchNumber, BlobKind, Body, Certificate, ChainConfig, Delta, Digest, Epoch,
    Genesis, SecretKey, StateKey, StateValue, U256, Validator, ValidatorSet, Waypoint, bounded::BoundedVec,
    delta::DeltaEntry, genesis::GenesisAccount, keccak256, limits,
};

/// Init code of a contract that writes its call's first word into slot 0 and emits it as a log.
/// Runtime: PUSH0 CALLDATALOAD PUSH0 SSTORE PUSH1 32 PUSH0 LOG0 STOP.
const INIT_CODE: &str = "685f355f5560205fa0005f5260096017f3";

pub(crate) struct Chain {
    pub(crate) genesis: Genesis,
    pub(crate) store: Store,
    keys: Vec<SecretKey>,
    epoch: Epoch,
    wallet: Wallet,
    tell: Option<Tell>,
    voucher: Option<SecretKey>,
}

/// Changes the rows before a batch that its hints have.
pub(crate) type Tell = fn(&mut ReadSet);

impl Chain {
    /// A chain of `batches` batches: transfers, the creation of a contract, and calls of it.
    pub(crate) fn new(batches: u64) -> Chain {
        Self::with_accounts(batches, 0)
    }

    /// As [`Chain::new`], on a genesis with `accounts` more accounts.
    pub(crate) fn with_accounts(batches: u64, accounts: u64) -> Chain {
        Self::under(ChainConfig::default(), batches, accounts)
    }

    /// As [`Chain::with_accounts`], under these rules.
    pub(crate) fn under(rules: ChainConfig, batches: u64, accounts: u64) -> Chain {
        let keys = keys(Epoch(0));
        let wallet = Wallet::new(9, ChainConfig::default().chain_id, 500_000);
        let rich = GenesisAccount { balance: U256::from(10).pow(U256::from(20)), ..Default::default() };
        let owner = wallet.address();
        let genesis = Genesis {
            chain: rules,
            timestamp_ms: 1_700_000_000_000,
            validators: validators(&keys),
            accounts: (0..accounts)
                .map(|i| (Address::from_word(keccak256(i.to_be_bytes())), rich.clone()))
                .chain([(owner, rich.clone())])
                .collect(),
            ..Genesis::default()
        };
        let genesis = genesis.with_validators_contract(owner, 1).unwrap();
        let config = StorageConfig { snapshot_interval_batches: 10, snapshots_kept: 2, ..Default::default() };
        let store = Store::memory(&config);
        store.initialize(&genesis).unwrap();
        let mut chain = Chain { genesis, store, keys, epoch: Epoch(0), wallet, tell: None, voucher: None };
        for number in 1..=batches {
            chain.extend(number);
        }
        chain
    }

    /// As [`Chain::new`], with hints that have values, changed by `tell`.
    pub(crate) fn telling(batches: u64, tell: Tell) -> Chain {
        let mut chain = Chain { tell: Some(tell), ..Self::new(0) };
        (1..=batches).for_each(|number| _ = chain.extend(number));
        chain
    }

    /// As [`Chain::new`], with hints that `key` signs as the third validator.
    pub(crate) fn vouched(batches: u64, key: SecretKey, tell: Option<Tell>) -> Chain {
        let mut chain = Chain { voucher: Some(key), tell, ..Self::new(0) };
        (1..=batches).for_each(|number| _ = chain.extend(number));
        chain
    }

    /// The key of the third validator.
    pub(crate) fn third_key() -> SecretKey {
        keys(Epoch(0)).swap_remove(2)
    }

    /// A chain of 25 batches, of which the 8th and the 16th each end an epoch.
    pub(crate) fn of_three_epochs() -> Chain {
        let mut chain = Chain::new(7);
        chain.end_epoch();
        (9..16).for_each(|number| _ = chain.extend(number));
        chain.end_epoch();
        (17..=25).for_each(|number| _ = chain.extend(number));
        chain
    }

    /// Appends one batch that ends the epoch: the owner of the validators contract replaces all validators.
    pub(crate) fn end_epoch(&mut self) {
        let next = Epoch(self.epoch.0 + 1);
        let (old, new) = (validators(&self.keys), validators(&keys(next)));
        let add = new.iter().map(add_call);
        let remove = old.iter().map(|validator| remove_call(&validator.public_key));
        let calls: Vec<_> = add.chain(remove).collect();
        let contract = TxKind::Call(self.genesis.validators_contract.unwrap());
        let raw = calls.into_iter().map(|call| self.wallet.sign(contract, 0, call)).collect();
        let (_, certificate) = self.append(Body::new(raw).unwrap(), None, None);
        assert_eq!(certificate.info.next_validators.map(|set| set.validators), Some(new));
        (self.epoch, self.keys) = (next, keys(next));
    }

    /// Appends one batch in which a quorum hands over to validators that the contract does not want.
    pub(crate) fn usurp(&mut self) {
        let next = Epoch(self.epoch.0 + 1);
        let raw = self.wallet.sign(TxKind::Call(self.wallet.address()), 1, Bytes::new());
        let set = ValidatorSet::new(next, validators(&keys(next)));
        self.append(Body::new(vec![raw]).unwrap(), Some(set), None);
        (self.epoch, self.keys) = (next, keys(next));
    }

    /// Appends one batch of a few transactions.
    pub(crate) fn extend(&mut self, number: u64) -> (slipstream_types::BatchHeader, Certificate) {
        let contract = self.wallet.address().create(0);
        let mut raw = Vec::new();
        if number == 1 {
            raw.push(self.wallet.sign(TxKind::Create, 0, hex(INIT_CODE)));
        } else {
            raw.push(self.wallet.sign(
                TxKind::Call(contract),
                0,
                U256::from(number).to_be_bytes_vec().into(),
            ));
        }
        for i in 0..3 {
            let to = Address::from_slice(&keccak256((number * 10 + i).to_be_bytes())[..20]);
            raw.push(self.wallet.sign(TxKind::Call(to), 1_000 + i, Bytes::new()));
        }
        self.append(Body::new(raw).unwrap(), None, None)
    }

    /// Appends one batch of independent transactions, each with enough work to be worth a thread.
    pub(crate) fn extend_widely(&mut self, transactions: usize) {
        let raw = (0..transactions).map(|_| self.wallet.sign(TxKind::Create, 0, hex(INIT_CODE))).collect();
        self.append(Body::new(raw).unwrap(), None, None);
    }

    /// Appends one batch in which a quorum gives `to` money that no transaction gives.
    pub(crate) fn extend_falsely(&mut self, to: Address) {
        let raw = self.wallet.sign(TxKind::Call(self.wallet.address()), 1, Bytes::new());
        self.append(Body::new(vec![raw]).unwrap(), None, Some(to));
    }

    /// Appends one batch with a transaction that names no chain. The quorum admits it, whatever the genesis says.
    pub(crate) fn extend_unprotected(&mut self, to: Address) {
        let raw = self.wallet.sign_unprotected(TxKind::Call(to), 1, Bytes::new());
        let lax = ChainConfig { unprotected_transactions: true, ..self.genesis.chain.clone() };
        self.append_admitting((&lax).into(), Body::new(vec![raw]).unwrap(), None, None);
    }

    /// Appends one batch that changes few rows, the same ones every time.
    pub(crate) fn extend_quietly(&mut self) {
        let raw = self.wallet.sign(TxKind::Call(self.wallet.address()), 1, Bytes::new());
        self.append(Body::new(vec![raw]).unwrap(), None, None);
    }

    fn append(
        &mut self,
        body: Body,
        usurpers: Option<ValidatorSet>,
        gift: Option<Address>,
    ) -> (slipstream_types::BatchHeader, Certificate) {
        self.append_admitting((&self.genesis.chain).into(), body, usurpers, gift)
    }

    fn append_admitting(
        &mut self,
        admission: Admission,
        body: Body,
        usurpers: Option<ValidatorSet>,
        gift: Option<Address>,
    ) -> (slipstream_types::BatchHeader, Certificate) {
        let head = self.store.head().unwrap();
        let transactions = decode_body(&body, admission).unwrap();
        let timestamp_ms = head.header.timestamp_ms + 100;
        let proposer = self.genesis.validators[0].fee_recipient;
        let basis = BatchContext { parent: &head.header, epoch: self.epoch, timestamp_ms, proposer };
        let env = basis.env(&self.store.chain().unwrap());
        let mut outcome = execute(&self.store.view().unwrap(), &env, &transactions).unwrap();
        if let Some(to) = gift {
            outcome.delta = with_gift(&outcome.delta, to);
        }
        assert!(outcome.receipts.receipts.iter().all(|receipt| receipt.success));
        let speculation = self.store.speculate(&outcome.delta).unwrap();
        let root = speculation.root();
        let mode = match self.tell {
            None => HintsMode::Keys,
            Some(tell) => {
                tell(&mut outcome.touched);
                HintsMode::Values
            }
        };
        let mut sealed = seal(mode, &basis, &transactions, &outcome, root).unwrap();
        if let Some(key) = &self.voucher {
            sealed.vouch(2, key);
        }
        let view = self.store.view().unwrap();
        let contract = self.genesis.validators_contract;
        let wanted = next_validators(contract, &sealed.header, &view, &outcome.delta).unwrap();
        drop(view);
        let next = usurpers.or(wanted);
        let batch = Batch { sealed: &sealed, delta: &outcome.delta, transactions: &transactions, next };
        let certificate = batch.commit(&self.store, speculation, &self.keys[..3]).unwrap();
        (sealed.header, certificate)
    }

    /// Commits the chain's batch to another store, as a validator's consensus does.
    pub(crate) fn commit_to(&self, store: &Store, number: BatchNumber) {
        let blob = |kind| self.store.blob(kind, number).unwrap().unwrap();
        let [body, receipts, delta_blob] = [BlobKind::Body, BlobKind::Receipts, BlobKind::Delta].map(blob);
        let transactions: Body = body.open(BlobKind::Body).unwrap();
        let transactions = decode_body(&transactions, &self.genesis.chain).unwrap();
        let hashes: Vec<_> = transactions.iter().map(|transaction| transaction.hash).collect();
        let header = self.store.header(number).unwrap().unwrap();
        let certificate = self.store.certificate(number).unwrap();
        let delta = delta_blob.open(BlobKind::Delta).unwrap();
        let hints = self.store.blob(BlobKind::Hints, number).unwrap();
        let commit = CommitBatch {
            header: &header,
            delta: &delta,
            body: Some(&body),
            receipts: Some(&receipts),
            delta_blob: Some(&delta_blob),
            hints: hints.as_ref(),
            transaction_hashes: &hashes,
            certificate: certificate.as_ref(),
        };
        store.commit(commit, None).unwrap();
    }

    pub(crate) fn head(&self) -> BatchNumber {
        self.store.head().unwrap().header.number
    }

    pub(crate) fn root(&self) -> Digest {
        self.store.head().unwrap().header.state_root
    }

    pub(crate) fn waypoint(&self, number: u64) -> Waypoint {
        Waypoint::of(&self.store.certificate(BatchNumber::new(number)).unwrap().unwrap().info)
    }
}

fn with_gift(delta: &Delta, to: Address) -> Delta {
    let account = AccountValue { balance: U256::from(1_000_000), ..Default::default() };
    let gift = DeltaEntry { key: StateKey::Account(to), value: Some(StateValue::Account(account)) };
    let entries = delta.entries().iter().cloned().chain([gift]).collect();
    Delta::new(entries, delta.codes().iter().map(|code| code.to_vec()).collect()).unwrap()
}

/// The keys of an epoch's validators.
fn keys(epoch: Epoch) -> Vec<SecretKey> {
    slipstream_testkit::keys((1..=4).map(|seat| 10 * epoch.0 as u8 + seat))
}

fn validators(keys: &[SecretKey]) -> BoundedVec<Validator, { limits::VALIDATORS_MAX }> {
    let validator = |key: &SecretKey| Validator {
        public_key: key.public(),
        fee_recipient: Address::repeat_byte(key.public().0[0]),
    };
    BoundedVec::new(keys.iter().map(validator).collect()).unwrap()
}

fn hex(text: &str) -> Bytes {
    text.parse().unwrap()
}
