//! [`Contracts`]: the precompiles of an EVM. A call may move them to other addresses, or replace them with code.

use std::collections::BTreeMap;

use alloy_primitives::Address;
use revm::{
    context_interface::{Cfg, ContextTr},
    handler::{EthPrecompiles, PrecompileProvider},
    interpreter::{CallInputs, InterpreterResult},
    primitives::{AddressSet, hardfork::SpecId},
};

/// Addresses with another precompile than in the fork: the precompile of the given address, or none.
pub(crate) type Moved = BTreeMap<Address, Option<Address>>;

/// The fork's own precompiles, except those that a call moves.
pub(crate) struct Contracts {
    own: EthPrecompiles,
    moved: Moved,
}

impl Contracts {
    pub(super) fn new(spec: SpecId) -> Contracts {
        Contracts { own: EthPrecompiles::new(spec), moved: Moved::new() }
    }

    pub(super) fn move_as(&mut self, moved: Moved) {
        self.moved = moved;
    }
}

impl<CTX: ContextTr> PrecompileProvider<CTX> for Contracts {
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
