//! [`EvmPrecompiles`]: the precompiles of an EVM. A call may move them to other addresses, or replace them with code.

use std::collections::BTreeMap;

use alloy_primitives::Address;
use revm::{
    context_interface::{Cfg, ContextTr},
    handler::{EthPrecompiles, PrecompileProvider},
    interpreter::{CallInputs, InterpreterResult},
    primitives::{AddressSet, hardfork::SpecId},
};

use super::{adapter::is_precompile, env::BatchEnv};
use crate::{error::MoveError, overrides::AccountOverride};

/// Addresses whose precompile differs from the fork's. Each maps to the address whose precompile it has, or to `None`.
pub(crate) type MovedPrecompiles = BTreeMap<Address, Option<Address>>;

/// Returns the precompiles that the call finds at other addresses than in its fork. A precompile that moves leaves its
/// address. A precompile whose account is overridden in any way leaves it too, as in geth.
///
/// # Errors
/// If the address has no precompile to move, or the new address is taken.
pub(super) fn moved_precompiles(
    accounts: &BTreeMap<Address, AccountOverride>,
    env: &BatchEnv,
) -> Result<MovedPrecompiles, MoveError> {
    let mut moved = MovedPrecompiles::new();
    for (address, account) in accounts {
        if let Some(to) = account.precompile_to {
            if !is_precompile(address, env) {
                return Err(MoveError::NoPrecompile(*address));
            }
            if to == *address {
                return Err(MoveError::ToItself(to));
            }
            if accounts.contains_key(&to) {
                return Err(MoveError::ToOverridden(to));
            }
            if moved.insert(to, Some(*address)).is_some() {
                return Err(MoveError::ToTheSame(to));
            }
        }
        if is_precompile(address, env) {
            moved.insert(*address, None);
        }
    }
    Ok(moved)
}

/// The fork's own precompiles, except those that a call moves.
pub(crate) struct EvmPrecompiles {
    own: EthPrecompiles,
    moved: MovedPrecompiles,
}

impl EvmPrecompiles {
    pub(super) fn new(spec: SpecId) -> EvmPrecompiles {
        EvmPrecompiles { own: EthPrecompiles::new(spec), moved: MovedPrecompiles::new() }
    }

    pub(super) fn move_as(&mut self, moved: MovedPrecompiles) {
        self.moved = moved;
    }
}

impl<CTX: ContextTr> PrecompileProvider<CTX> for EvmPrecompiles {
    type Output = InterpreterResult;

    fn set_spec(&mut self, spec: <CTX::Cfg as Cfg>::Spec) -> bool {
        PrecompileProvider::<CTX>::set_spec(&mut self.own, spec)
    }

    fn run(&mut self, context: &mut CTX, inputs: &CallInputs) -> Result<Option<InterpreterResult>, String> {
        match self.moved.get(&inputs.bytecode_address) {
            None => self.own.run(context, inputs),
            Some(None) => Ok(None),
            Some(Some(from)) => {
                self.own.run(context, &CallInputs { bytecode_address: *from, ..inputs.clone() })
            }
        }
    }

    /// Returns the fork's warm addresses, as geth does: a moved precompile's new address is not warm.
    fn warm_addresses(&self) -> &AddressSet {
        self.own.warm_addresses()
    }
}
