//! [`Plan`]: when each transaction is due, who sends it, and what it does. A plan depends on the seed alone, so that
//! the sending processes and the auditing one agree without communicating.

use std::{ops::Range, path::PathBuf, time::Duration};

use alloy_primitives::{Address, TxKind, U256};
use anyhow::{Context, Result};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde::{Deserialize, Serialize};

use super::{
    TRANSACTIONS_MAX,
    access_lists::{self, Touch},
    question::Contract,
    schedule::{Rate, Schedule},
    setup::Call,
    workload::{Mix, Workload},
};
use crate::{contracts, signer::Envelope};

const TRANSFER_WEI: u64 = 1_000;
/// The gas that a plain transfer uses, which is also its gas limit.
pub(super) const TRANSFER_GAS: u64 = 21_000;
const TOKEN_TRANSFER_GAS: u64 = 70_000;
const SWAP_GAS: u64 = 160_000;
/// The code of a Lists contract has about 400 bytes.
const DEPLOY_GAS: u64 = 500_000;
/// The gas of a call that touches slots: a base cost, and the maximum for each slot read and written, including call
/// data.
const TOUCH_GAS: u64 = 60_000;
const READ_GAS: u64 = 3_500;
const WRITE_GAS: u64 = 26_000;
/// The slots of one storage-heavy call, and the range from which they are chosen.
const STORAGE_SLOTS: usize = 20;
const STORAGE_SPACE: Range<u64> = 0..1_000_000;

/// The contracts that a mix calls, and the access lists that it replays.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub(super) struct Targets {
    /// An ERC-20; every account holds some of its units.
    pub(super) token: Option<Address>,
    /// A pair and its two tokens. Every account holds some of both and has approved the pair.
    pub(super) pair: Option<(Address, [Address; 2])>,
    /// The contract whose slots are read and written.
    pub(super) lists: Option<Address>,
    /// A directory of `NUMBER.rlp.gz`.
    pub(super) access_lists: Option<PathBuf>,
}

impl Targets {
    /// Returns the contract for the calls of readers, if there is one.
    pub(super) fn contract(&self) -> Option<Contract> {
        let token = self.tokens().first().copied().map(Contract::Token);
        token.or_else(|| self.lists.map(Contract::Lists))
    }

    /// Returns all tokens whose balances are audited.
    pub(super) fn tokens(&self) -> Vec<Address> {
        self.token.into_iter().chain(self.pair.into_iter().flat_map(|(_, tokens)| tokens)).collect()
    }
}

/// The inputs that determine a plan.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PlanOptions {
    pub(super) mix: Mix,
    pub(super) rate: Rate,
    pub(super) duration_ms: u64,
    pub(super) seed: u64,
    pub(super) targets: Targets,
}

/// The plan of a load. Transaction `i` comes from account `i % accounts`, so that an account's nonces follow the
/// schedule.
pub(super) struct Plan {
    options: PlanOptions,
    schedule: Schedule,
    senders: Vec<Address>,
    touches: Vec<Touch>,
}

impl Plan {
    /// Makes the plan, and reads the access lists if the mix needs them.
    pub(super) fn new(options: PlanOptions, senders: Vec<Address>) -> Result<Plan> {
        let duration = Duration::from_millis(options.duration_ms);
        let schedule = Schedule::new(options.rate, duration, TRANSACTIONS_MAX)?;
        let touches = match &options.targets.access_lists {
            Some(dir) if options.mix.has(Workload::AccessLists) => access_lists::load(dir)?,
            _ => Vec::new(),
        };
        Ok(Plan { options, schedule, senders, touches })
    }

    pub(super) fn len(&self) -> usize {
        self.schedule.len()
    }

    pub(super) fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// Returns when the transaction is due, after the start.
    pub(super) fn due(&self, index: usize) -> Duration {
        self.schedule.due(index)
    }

    /// Returns the sender's index among the accounts.
    pub(super) fn sender(&self, index: usize) -> usize {
        index % self.senders.len()
    }

    pub(super) fn sender_address(&self, index: usize) -> Address {
        self.senders[self.sender(index)]
    }

    /// Returns the transaction's index among its sender's: its nonce minus the account's first nonce.
    pub(super) fn nonce_offset(&self, index: usize) -> u64 {
        (index / self.senders.len()) as u64
    }

    /// Returns the transaction's lane. All transactions of an account share a lane, which keeps their order.
    pub(super) fn lane(&self, index: usize, lanes: usize) -> usize {
        self.sender(index) % lanes
    }

    /// Returns the transaction's own random generator, so that the plan does not depend on the order of calls.
    fn random(&self, index: usize) -> StdRng {
        StdRng::seed_from_u64(self.options.seed.wrapping_mul(1 << 32) ^ index as u64)
    }

    /// Returns the kind of a transaction, drawn from the mix by its index alone.
    pub(super) fn kind(&self, index: usize) -> Workload {
        self.options.mix.choose(&mut self.random(index))
    }

    /// Returns the call of a transaction.
    ///
    /// # Errors
    /// If the contract that it calls was not deployed.
    pub(super) fn call(&self, index: usize) -> Result<Call> {
        let mut random = self.random(index);
        let kind = self.options.mix.choose(&mut random);
        let Targets { token, pair, lists, .. } = &self.options.targets;
        let missing = || format!("the contract of {} was not deployed", kind.name());
        Ok(match kind {
            Workload::Transfers => self.transfer(index, self.receiver(index, &mut random)),
            Workload::HotSpot => self.transfer(index, self.senders[0]),
            Workload::Erc20 => {
                let receiver = self.receiver(index, &mut random);
                let input = contracts::transfer(receiver, U256::from(random.random_range(1..1_000_000u64)));
                Call { input, ..Call::to(token.with_context(missing)?, TOKEN_TRANSFER_GAS) }
            }
            Workload::Amm => {
                let (amm, tokens) = pair.with_context(missing)?;
                let amount = U256::from(random.random_range(1_000..1_000_000u64));
                let input = contracts::swap(tokens[random.random_range(0..2)], amount);
                Call { input, ..Call::to(amm, SWAP_GAS) }
            }
            Workload::Storage => {
                let mut slots = || -> Vec<U256> {
                    (0..STORAGE_SLOTS).map(|_| U256::from(random.random_range(STORAGE_SPACE))).collect()
                };
                let touch = Touch { reads: slots(), writes: slots() };
                touch_call(lists.with_context(missing)?, &touch)
            }
            Workload::AccessLists => {
                let touch = self.touches.get(index % self.touches.len().max(1));
                let touch =
                    touch.context("access-lists needs a directory of access lists (--access-lists)")?;
                touch_call(lists.with_context(missing)?, touch)
            }
            Workload::Deploy => {
                Call { gas_limit: DEPLOY_GAS, input: contracts::lists_init_code(), ..Call::default() }
            }
        })
    }

    /// Returns the slots that a transaction increments, with repetitions.
    pub(super) fn written_slots(&self, index: usize) -> Vec<U256> {
        use alloy_sol_types::SolCall;
        if !matches!(self.kind(index), Workload::Storage | Workload::AccessLists) {
            return Vec::new();
        }
        let call = self.call(index).ok();
        let decoded = call.and_then(|call| contracts::Lists::touchCall::abi_decode(&call.input).ok());
        decoded.map(|call| call.writes).unwrap_or_default()
    }

    /// Returns another account of the load or, half of the time, a fresh address: real states grow, so the test's state
    /// must too.
    fn receiver(&self, index: usize, random: &mut StdRng) -> Address {
        if random.random() {
            return Address::new(random.random());
        }
        let others = random.random_range(1..self.senders.len());
        self.senders[(self.sender(index) + others) % self.senders.len()]
    }

    fn transfer(&self, index: usize, to: Address) -> Call {
        let envelope = if index.is_multiple_of(2) { Envelope::DynamicFee } else { Envelope::Legacy };
        Call { value: U256::from(TRANSFER_WEI), envelope, ..Call::to(to, TRANSFER_GAS) }
    }
}

fn touch_call(lists: Address, touch: &Touch) -> Call {
    let (reads, writes) = (touch.reads.len() as u64, touch.writes.len() as u64);
    let input = contracts::touch(touch.reads.clone(), touch.writes.clone());
    Call { input, ..Call::to(lists, TOUCH_GAS + reads * READ_GAS + writes * WRITE_GAS) }
}

/// Returns the call that plugs the nonce of a refused transaction: a transfer of nothing to oneself.
pub(super) fn plug(account: Address) -> Call {
    Call { to: TxKind::Call(account), gas_limit: TRANSFER_GAS, ..Call::default() }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::accounts::Account;

    /// 30 transactions at 10 per second from 4 accounts.
    pub(in crate::load) fn plan(mix: &str) -> Plan {
        let at = Address::repeat_byte;
        let options = PlanOptions {
            mix: mix.parse().unwrap(),
            rate: Rate::constant(10),
            duration_ms: 3_000,
            seed: 1,
            targets: Targets {
                token: Some(at(1)),
                pair: Some((at(2), [at(3), at(4)])),
                lists: Some(at(5)),
                access_lists: None,
            },
        };
        let senders = Account::derive_many("plan", 4).iter().map(|account| account.address).collect();
        Plan::new(options, senders).unwrap()
    }

    #[test]
    fn a_plan_repeats_and_each_account_stays_in_one_lane_in_order() {
        let mix = "transfers,erc20,amm,storage,hot-spot,deploy";
        let (plan, again) = (plan(mix), plan(mix));
        assert_eq!((plan.len(), plan.due(25)), (30, Duration::from_millis(2_500)));
        let mut next = [0; 4];
        let mut lanes = vec![HashSet::new(); 4];
        let mut kinds = HashSet::new();
        for index in 0..plan.len() {
            let (call, same) = (plan.call(index).unwrap(), again.call(index).unwrap());
            assert_eq!((&call.input, call.to, call.gas_limit), (&same.input, same.to, same.gas_limit));
            let sender = plan.sender(index);
            assert_eq!(plan.nonce_offset(index), next[sender]);
            next[sender] += 1;
            lanes[sender].insert(plan.lane(index, 3));
            kinds.insert(plan.kind(index));
        }
        assert!(lanes.iter().all(|lanes| lanes.len() == 1));
        assert!(kinds.len() > 4, "{kinds:?}");
    }

    #[test]
    fn transfers_never_go_to_their_sender_and_storage_writes_twenty_slots() {
        let transfers = plan("transfers");
        for index in 0..transfers.len() {
            let to = transfers.call(index).unwrap().to;
            assert_ne!(to, TxKind::Call(transfers.sender_address(index)));
            assert_eq!(transfers.written_slots(index), Vec::<U256>::new());
        }
        assert_eq!(plan("storage").written_slots(3).len(), STORAGE_SLOTS);
        let targets = |token| Targets { token, lists: Some(Address::repeat_byte(5)), ..Targets::default() };
        assert_eq!(targets(None).contract(), Some(Contract::Lists(Address::repeat_byte(5))));
        let token = Address::repeat_byte(1);
        assert_eq!(targets(Some(token)).contract(), Some(Contract::Token(token)));
        assert_eq!(Targets::default().contract(), None);
        let error = plan("access-lists").call(0).unwrap_err().to_string();
        assert!(error.contains("--access-lists"), "{error}");
    }
}
