//! A chain with everything that proofs need.

use std::collections::{BTreeMap, HashMap};

use slipstream_light::{AccountProof, BatchTag, Encoded, LightClient, Question, SlotProof, WaypointProof};
use slipstream_types::{
    Address, B256, BatchHeader, BatchNumber, Certificate, ChainConfig, Digest, Epoch, Genesis, LedgerInfo,
    Path, SecretKey, StateKey, StateValue, U256, ValidatorSet,
    accumulator::{Accumulator, AccumulatorRangeProof, NodePosition, prove},
    bounded::{BoundedBytes, BoundedVec},
    genesis::GenesisAccount,
    state::AccountValue,
    tree::{self, Leaf, Sibling, SiblingNode, StateRangeProof, Subtree},
};

pub(crate) const RICH: Address = Address::repeat_byte(0xaa);
pub(crate) const CONTRACT: Address = Address::repeat_byte(0xcc);
pub(crate) const NOBODY: Address = Address::repeat_byte(0xee);

/// Returns the key of slot `n`; slots 1 to 20 are set in the contract.
pub(crate) fn slot(n: u8) -> B256 {
    B256::with_last_byte(n)
}

/// Returns keys of an epoch's validators, from the first byte of their seeds.
pub(crate) fn keys(first: u8, count: u8) -> Vec<SecretKey> {
    slipstream_testkit::keys(first..first + count)
}

pub(crate) fn set(epoch: u64, keys: &[SecretKey]) -> ValidatorSet {
    slipstream_testkit::set(epoch, keys, RICH)
}

type State = BTreeMap<StateKey, StateValue>;

/// Batches from the genesis on, each with its state.
pub(crate) struct Chain {
    pub(crate) genesis: Genesis,
    pub(crate) headers: Vec<BatchHeader>,
    roots: Vec<Digest>,
    states: Vec<State>,
    accumulator: Accumulator,
    nodes: HashMap<NodePosition, Digest>,
}

impl Chain {
    /// Makes a chain with four validators and `batches` empty batches after the genesis. `chain_id` tells chains apart.
    pub(crate) fn new(chain_id: u64, batches: u64) -> Chain {
        let rich =
            GenesisAccount { balance: U256::from(10).pow(U256::from(20)), nonce: 3, ..Default::default() };
        let contract = GenesisAccount {
            code: BoundedBytes::new(vec![0x60, 0x00]).unwrap(),
            storage: (1..=20).map(|n| (slot(n), U256::from(n) << n)).collect(),
            ..Default::default()
        };
        let others = (1..40).map(|n| {
            (Address::repeat_byte(n), GenesisAccount { balance: U256::from(n), ..Default::default() })
        });
        let genesis = Genesis {
            chain: ChainConfig { chain_id, ..ChainConfig::default() },
            timestamp_ms: 1_000_000,
            validators: set(0, &keys(1, 4)).validators,
            accounts: others.chain([(RICH, rich), (CONTRACT, contract)]).collect(),
            ..Genesis::default()
        };
        let state = genesis.delta().unwrap().entries().iter().map(|it| (it.key, it.value.unwrap())).collect();
        let mut chain = Chain {
            headers: Vec::new(),
            roots: Vec::new(),
            states: Vec::new(),
            accumulator: Accumulator::default(),
            nodes: HashMap::new(),
            genesis,
        };
        let header = chain.genesis.header().unwrap();
        chain.push(header, state);
        (0..batches).for_each(|_| chain.grow(Epoch(0), &[]));
        chain
    }

    fn push(&mut self, header: BatchHeader, state: State) {
        self.nodes.extend(self.accumulator.append(header.digest()));
        self.roots.push(self.accumulator.root());
        self.headers.push(header);
        self.states.push(state);
    }

    /// Adds a batch that changes these rows.
    pub(crate) fn grow(&mut self, epoch: Epoch, changes: &[(StateKey, Option<StateValue>)]) {
        let (parent, mut state) = (self.headers.last().unwrap(), self.states.last().unwrap().clone());
        for (key, value) in changes {
            match value {
                Some(value) => state.insert(*key, *value),
                None => state.remove(key),
            };
        }
        let header = BatchHeader {
            number: parent.number.next(),
            parent: parent.digest(),
            epoch,
            timestamp_ms: parent.timestamp_ms + 100,
            state_root: tree::root(&leaves(&state)),
            ..parent.clone()
        };
        self.push(header, state);
    }

    pub(crate) fn info(&self, number: u64, next: Option<ValidatorSet>) -> LedgerInfo {
        LedgerInfo::of(&self.headers[number as usize], self.roots[number as usize], next)
    }

    /// Makes the certificate of a batch, by these validators of its epoch.
    pub(crate) fn certify(
        &self,
        number: u64,
        next: Option<ValidatorSet>,
        keys: &[SecretKey],
        signers: &[u16],
    ) -> Certificate {
        sign(self.info(number, next), keys, signers)
    }

    /// Proves a header in the ledger up to a batch.
    pub(crate) fn header_proof(&self, number: u64, up_to: u64) -> Encoded<AccumulatorRangeProof> {
        let node = |position: NodePosition| self.nodes.get(&position).copied();
        Encoded(prove(up_to + 1, number, 1, &node).unwrap())
    }

    pub(crate) fn waypoint_proof(&self, number: u64, next: Option<ValidatorSet>) -> WaypointProof {
        WaypointProof {
            ledger_info: Encoded(self.info(number, next)),
            genesis: self.headers[0].digest(),
            genesis_proof: self.header_proof(0, number),
        }
    }

    /// Proves an account in the state of a batch, under a certificate.
    pub(crate) fn proof(
        &self,
        number: u64,
        certificate: Certificate,
        address: Address,
        slots: &[B256],
    ) -> AccountProof {
        let (state, up_to) = (&self.states[number as usize], certificate.info.number.get());
        let leaves = leaves(state);
        let prove = |key: StateKey| Encoded(prove_path(&leaves, &key.path()));
        let storage = slots.iter().map(|slot| {
            let key = StateKey::Slot(address, *slot);
            let value = match state.get(&key) {
                Some(StateValue::Slot(value)) => *value,
                _ => U256::ZERO,
            };
            SlotProof { key: *slot, value, proof: prove(key) }
        });
        let account = match state.get(&StateKey::Account(address)) {
            Some(StateValue::Account(account)) => Some((*account).into()),
            _ => None,
        };
        AccountProof {
            genesis_proof: self.header_proof(0, up_to),
            header: Encoded(self.headers[number as usize].clone()),
            header_proof: self.header_proof(number, up_to),
            certificate: Encoded(certificate),
            address,
            account,
            account_proof: prove(StateKey::Account(address)),
            storage: BoundedVec::new(storage.collect()).unwrap(),
        }
    }

    /// Makes a proof at a batch of epoch 0 that a quorum certified itself.
    pub(crate) fn good(&self, number: u64, address: Address, slots: &[B256]) -> AccountProof {
        self.proof(number, self.certify(number, None, &keys(1, 4), &[0, 2, 3]), address, slots)
    }

    pub(crate) fn client(&self) -> LightClient {
        LightClient::from_genesis(&self.genesis).unwrap()
    }
}

pub(crate) fn sign(info: LedgerInfo, keys: &[SecretKey], signers: &[u16]) -> Certificate {
    Certificate::signed(info, 7, signers.iter().map(|&index| (index, &keys[usize::from(index)]))).unwrap()
}

pub(crate) fn ask(number: u64, address: Address, slots: &[B256]) -> Question<'_> {
    Question { address, slots, at: BatchTag::Batch(BatchNumber::new(number)) }
}

pub(crate) fn account(balance: u64) -> Option<StateValue> {
    Some(StateValue::Account(AccountValue { nonce: 1, balance: U256::from(balance), code_hash: None }))
}

fn leaves(state: &State) -> Vec<Leaf> {
    let leaf =
        |(key, value): (&StateKey, &StateValue)| Leaf { path: key.path(), value_hash: value.hash(key) };
    let mut leaves: Vec<Leaf> = state.iter().map(leaf).collect();
    leaves.sort_unstable_by_key(|leaf| leaf.path);
    leaves
}

/// Makes the proof by its definition: the sibling at each bit of the path holds the leaves that branch off there.
fn prove_path(leaves: &[Leaf], end: &Path) -> StateRangeProof {
    let mut beside: BTreeMap<usize, Vec<Leaf>> = BTreeMap::new();
    for leaf in leaves.iter().filter(|leaf| leaf.path != *end) {
        beside.entry(leaf.path.common_bits(end)).or_default().push(*leaf);
    }
    let side = |before: bool| {
        let parted = beside.iter().filter(|(depth, _)| end.bit(**depth) == before);
        let sibling = |(depth, leaves): (&usize, &Vec<Leaf>)| {
            let node = match tree::subtree(leaves, depth + 1) {
                Subtree::Inner(hash) => SiblingNode::Inner(hash),
                _ => SiblingNode::Leaf(leaves[0]),
            };
            Sibling { depth: *depth as u8, node }
        };
        BoundedVec::new(parted.map(sibling).collect()).unwrap()
    };
    StateRangeProof { left: side(true), right: side(false) }
}
