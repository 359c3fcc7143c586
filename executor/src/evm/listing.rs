//! [`Listing`]: records the accounts and slots that a call touches.

use alloy_eips::eip2930::AccessList;
use revm_inspectors::access_list::AccessListInspector;

use super::machine::{ExecutedTransaction, Machine, RunError};
use crate::request::CallRequest;

/// A machine whose calls record the keys that they touch.
pub(crate) struct Listing<'a>(Machine<'a, AccessListInspector>);

impl<'a> Listing<'a> {
    pub(crate) fn new(machine: Machine<'a>) -> Listing<'a> {
        Listing(machine.inspected_by(AccessListInspector::default()))
    }

    /// Runs a call. Returns the call's result, and the keys that it touched or that its access list names. Sender,
    /// called account and precompiles appear only with slots.
    pub(crate) fn call(
        &mut self,
        request: &CallRequest,
        gas_limit: u64,
    ) -> Result<(ExecutedTransaction, AccessList), RunError> {
        self.0.evm.inspector = AccessListInspector::from(request.access_list.clone());
        let executed = self.0.inspect_call(request, gas_limit)?;
        Ok((executed, std::mem::take(&mut self.0.evm.inspector).into_access_list()))
    }
}
