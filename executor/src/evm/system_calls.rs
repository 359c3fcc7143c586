//! The calls that the protocol itself makes before a batch's transactions.

use alloy_primitives::{Address, B256, address};
use revm::{
    Database as _, SystemCallCommitEvm, context::result::EVMError, database_interface::bal::EvmDatabaseError,
    primitives::hardfork::SpecId,
};

use super::{env::BatchEnv, machine::Evm, recorder::ReadError};

/// Keeps the parent beacon block roots (EIP-4788).
const BEACON_ROOTS: Address = address!("0x000F3df6D732807Ef1319fB7B8bB8522d0Beac02");
/// Keeps the last 8,191 block hashes (EIP-2935).
const HISTORY_STORAGE: Address = address!("0x0000F90827F1C53a10cb7A02335B175320002935");

/// Calls EIP-4788's contract from Cancun on, then EIP-2935's from Prague on. Each call is made only if the state has
/// the contract, which the chain's genesis puts there. A reverting call leaves the state unchanged and raises no error.
pub(super) fn before_batch(
    evm: &mut Evm<'_>,
    env: &BatchEnv,
) -> Result<(), EVMError<EvmDatabaseError<ReadError>>> {
    if let Some(root) = env.parent_beacon_root
        && env.spec.is_enabled_in(SpecId::CANCUN)
    {
        call(evm, BEACON_ROOTS, root)?;
    }
    if env.spec.is_enabled_in(SpecId::PRAGUE) {
        call(evm, HISTORY_STORAGE, env.parent_hash)?;
    }
    Ok(())
}

fn call(
    evm: &mut Evm<'_>,
    contract: Address,
    word: B256,
) -> Result<(), EVMError<EvmDatabaseError<ReadError>>> {
    let account = evm.ctx.journaled_state.database.basic(contract).map_err(EVMError::Database)?;
    if account.is_some_and(|account| !account.is_empty_code_hash()) {
        evm.system_call_commit(contract, word.0.to_vec().into())?;
    }
    Ok(())
}
