//! [`Speculator`]: runs transactions ahead of their turn. [`SpeculativeReads`]: the rows that those transactions saw,
//! which show whether their results hold.

use alloy_consensus::Transaction as _;
use alloy_primitives::{Address, B256, U256};
use revm::{
    Database, ExecuteEvm,
    bytecode::Bytecode,
    database::State,
    primitives::{KECCAK_EMPTY, hardfork::SpecId},
    state::{AccountInfo, EvmState},
};

use super::{
    adapter,
    interrupting::{self, Pace},
    machine::{ExecutedTransaction, Machine},
    observe::{self, COMMUTING_BITS_MAX, Observations, ObservedEvm},
    recorder::{ReadError, Recorder},
    state::ExecutionState as _,
    versions::Versions,
};
use crate::{error::ExecuteError, interrupt::Interrupt, transaction::Transaction};

/// Initial capacity for a transaction's reads.
const READS: usize = 32;

/// A row as a transaction read it.
enum Read {
    Account { address: Address, seen: InspectorContext },
    Slot { address: Address, slot: U256, value: U256 },
    Code { hash: B256 },
}

/// An account as a transaction read it.
struct InspectorContext {
    balance: U256,
    nonce: u64,
    code_hash: B256,
    exists: bool,
    /// Whether the account came with its code, because the batch created it.
    has_code: bool,
}

/// The reads of a transaction that ran ahead of its turn, in the order of the reads.
pub(crate) struct SpeculativeReads(Vec<Read>);

/// Whether a speculative result holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// The result does not hold.
    Refused,
    /// The result holds.
    Holds,
    /// The result holds, but its access set must be computed again: an account that was empty then is no longer empty,
    /// or vice versa.
    Moved,
}

/// One thread's EVM over the versions that all threads share.
pub(crate) struct Speculator<'a> {
    evm: ObservedEvm<Ahead<'a>>,
    interrupt: Interrupt,
}

/// The database of a transaction that runs ahead.
struct Ahead<'a> {
    versions: &'a Versions<'a>,
    index: u32,
    /// The transaction's own nonce stands for the sender's, because earlier transactions may still be running.
    sender: Address,
    nonce: u64,
    reads: Vec<Read>,
}

impl<'a> Speculator<'a> {
    pub(crate) fn new(versions: &'a Versions<'a>) -> Self {
        let database = Ahead { versions, index: 0, sender: Address::ZERO, nonce: 0, reads: Vec::new() };
        let mut evm = observe::build(database, versions.env(), None);
        let interrupt = versions.interrupt();
        if !interrupt.is_never() {
            interrupting::install_observed(&mut evm);
        }
        Self { evm, interrupt }
    }

    /// Runs the transaction at this position on the values known so far. Returns `None` if the run fails for any
    /// reason.
    pub(crate) fn run(
        &mut self,
        index: u32,
        transaction: &Transaction,
    ) -> Option<(ExecutedTransaction, SpeculativeReads)> {
        let database = &mut self.evm.ctx.journaled_state.database;
        (database.index, database.sender, database.nonce) = (index, transaction.sender, transaction.nonce());
        database.reads = Vec::with_capacity(READS);
        self.evm.ctx.chain =
            Observations { pace: Pace::new(self.interrupt.clone()), ..Observations::default() };
        let done = self.evm.transact(adapter::tx_env(transaction)).ok()?;
        let executed = ExecutedTransaction::new(done, std::mem::take(&mut self.evm.ctx.chain));
        let reads = std::mem::take(&mut self.evm.ctx.journaled_state.database.reads);
        Some((executed, SpeculativeReads(reads)))
    }
}

impl Database for Ahead<'_> {
    type Error = ReadError;

    fn basic(&mut self, address: Address) -> Result<Option<AccountInfo>, ReadError> {
        let mut info = self.versions.account(address, self.index)?;
        if let Some(info) = info.as_mut().filter(|_| address == self.sender) {
            info.nonce = self.nonce;
        }
        self.reads.push(Read::Account { address, seen: InspectorContext::new(info.as_ref()) });
        Ok(info)
    }

    fn code_by_hash(&mut self, hash: B256) -> Result<Bytecode, ReadError> {
        self.reads.push(Read::Code { hash });
        Ok(self.versions.bytecode(hash)?.0)
    }

    fn storage(&mut self, address: Address, slot: U256) -> Result<U256, ReadError> {
        let value = self.versions.slot_at(address, slot, self.index)?;
        self.reads.push(Read::Slot { address, slot, value });
        Ok(value)
    }

    fn block_hash(&mut self, number: u64) -> Result<B256, ReadError> {
        Ok(self.versions.block_hash(number)?)
    }
}

impl InspectorContext {
    fn new(info: Option<&AccountInfo>) -> InspectorContext {
        let exists = info.is_some();
        let has_code = info.is_some_and(|info| info.code.is_some());
        let none = AccountInfo::default();
        let info = info.unwrap_or(&none);
        InspectorContext {
            balance: info.balance,
            nonce: info.nonce,
            code_hash: info.code_hash,
            exists,
            has_code,
        }
    }

    fn is_empty(&self) -> bool {
        self.balance.is_zero() && self.nonce == 0 && self.code_hash == KECCAK_EMPTY
    }
}

impl<'a> Machine<'a> {
    /// Makes a machine for the batch's transactions that shares its reads with other threads. Makes the system calls
    /// first.
    pub(crate) fn sharing(versions: &'a Versions<'a>) -> Result<Self, ExecuteError> {
        let database = State::builder().with_database(Recorder::sharing(versions)).build();
        Self::over(database, versions.env(), versions).with_system_calls()
    }

    /// Checks whether a transaction that ran ahead would do the same now that its turn has come. Each row that the
    /// transaction read must have the same value, or differ only in a balance that it did not observe. If so, the
    /// result is updated and may be committed. Otherwise the result is unchanged, and the transaction must run again.
    ///
    /// The rows are read here in the transaction's order, up to the first that differs. So the recorder sees exactly
    /// the reads of running the transaction here.
    pub(crate) fn accept(
        &mut self,
        executed: &mut ExecutedTransaction,
        reads: &SpeculativeReads,
        transaction: &Transaction,
    ) -> Verdict {
        let spec = self.env.spec;
        let database = &mut self.evm.ctx.journaled_state.database;
        // Code that revm would request here, because its accounts come without their code.
        let mut codes_missing = Vec::new();
        let mut shifts = Vec::new();
        let mut verdict = Verdict::Holds;
        for read in &reads.0 {
            // An error will occur again, and be reported, when the transaction is run.
            let holds = match read {
                Read::Slot { address, slot, value } => {
                    Database::storage(database, *address, *slot).is_ok_and(|now| now == *value)
                }
                Read::Code { hash } => !codes_missing.contains(hash) || database.code_by_hash(*hash).is_ok(),
                Read::Account { address, seen } => database.basic(*address).is_ok_and(|now| {
                    let now = InspectorContext::new(now.as_ref());
                    if !now.has_code && now.code_hash != KECCAK_EMPTY {
                        codes_missing.push(now.code_hash);
                    }
                    let rule = Rule::new(*address, seen, executed, transaction, spec);
                    shifts.extend(Shift::between(*address, seen, &now));
                    // The fee recipient is paid all the time, so only its balance is recorded.
                    if seen.is_empty() != now.is_empty() && *address != self.env.beneficiary {
                        verdict = Verdict::Moved;
                    }
                    rule.allows(seen, &now)
                }),
            };
            if !holds {
                return Verdict::Refused;
            }
        }
        let applied = shifts.iter().all(|shift| shift.apply(&mut executed.state));
        if applied { verdict } else { Verdict::Refused }
    }
}

/// How an account may differ from the one that a transaction read without changing its result.
struct Rule {
    /// Whether the account must be exactly the same.
    is_exact: bool,
    balance_is_exact: bool,
    nonce_is_exact: bool,
    existence_is_exact: bool,
    /// Maximum amount by which the balance may be lower.
    slack: U256,
}

impl Rule {
    fn new(
        address: Address,
        seen: &InspectorContext,
        executed: &ExecutedTransaction,
        transaction: &Transaction,
        spec: SpecId,
    ) -> Rule {
        let observed = &executed.observed;
        let is_sender = address == transaction.sender;
        let account = executed.state.get(&address);
        let spent = observed.spent.iter().find(|(spender, _)| *spender == address);
        let mut slack = spent.map_or(U256::MAX, |(_, left)| *left);
        if is_sender {
            slack = slack.min(seen.balance.saturating_sub(transaction.cost_max()));
        }
        let changes_nonce = account.is_none_or(|account| {
            account.info.nonce != seen.nonce || account.is_created() || account.is_selfdestructed()
        });
        Rule {
            // Before EIP-161 the existence of an empty account mattered.
            is_exact: observed.everything || !spec.is_enabled_in(SpecId::SPURIOUS_DRAGON),
            balance_is_exact: observed.balances.contains(&address)
                || (is_sender && transaction.envelope.blob_versioned_hashes().is_some()),
            nonce_is_exact: is_sender || changes_nonce || observed.nonces.contains(&address),
            existence_is_exact: observed.existences.contains(&address),
            slack,
        }
    }

    fn allows(&self, seen: &InspectorContext, now: &InspectorContext) -> bool {
        let same_balance = seen.balance == now.balance;
        let same_nonce = seen.nonce == now.nonce;
        // Code that came with the account was never requested.
        let same_code = seen.code_hash == now.code_hash && (!seen.has_code || now.has_code);
        if same_balance && same_nonce && same_code && seen.exists == now.exists {
            return true;
        }
        let commutes = [seen, now].iter().all(|seen| seen.balance.bit_len() <= COMMUTING_BITS_MAX)
            && seen.balance.saturating_sub(now.balance) <= self.slack;
        !self.is_exact
            && same_code
            && (same_balance || (commutes && !self.balance_is_exact))
            && (same_nonce || !self.nonce_is_exact)
            && (seen.is_empty() == now.is_empty() || !self.existence_is_exact)
    }
}

/// Changes that other transactions made to an account in the meantime. The transaction's own changes must build on
/// them.
struct Shift {
    address: Address,
    /// Added to the balance, modulo 2^256.
    added: U256,
    /// The nonce to set if the transaction leaves the nonce alone.
    nonce: Option<u64>,
}

impl Shift {
    fn between(address: Address, seen: &InspectorContext, now: &InspectorContext) -> Option<Shift> {
        let added = now.balance.wrapping_sub(seen.balance);
        let nonce = (now.nonce != seen.nonce).then_some(now.nonce);
        (!added.is_zero() || nonce.is_some()).then_some(Shift { address, added, nonce })
    }

    fn apply(&self, changes: &mut EvmState) -> bool {
        let Some(account) = changes.get_mut(&self.address) else { return false };
        account.info.balance = account.info.balance.wrapping_add(self.added);
        account.info.nonce = self.nonce.unwrap_or(account.info.nonce);
        // The original values change too; otherwise other transactions' changes would count as this one's
        // (`ExecutedTransaction::access`).
        let found = account.original_info_mut();
        found.balance = found.balance.wrapping_add(self.added);
        found.nonce = self.nonce.unwrap_or(found.nonce);
        true
    }
}
