//! [`CallRequest`]: a call that is not a transaction.

use alloy_eips::{eip2930::AccessList, eip7702::RecoveredAuthorization};
use alloy_primitives::{Address, Bytes, U256};

use crate::overrides::Overrides;

/// A call as JSON-RPC describes it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CallRequest {
    /// The caller's account, which needs no signature.
    pub from: Address,
    /// The called account, or `None` to create a contract.
    pub to: Option<Address>,
    /// Gas limit; `None` for the maximum that is allowed.
    pub gas: Option<u64>,
    /// Maximum wei per gas; zero for a call without a fee, which sees a BASEFEE of zero.
    pub max_fee_wei: u128,
    /// The part of `max_fee_wei` that may go to the proposer, in wei per gas. A legacy gas price sets both fields.
    pub max_tip_wei: u128,
    /// Wei sent; the caller must have them.
    pub value: U256,
    /// Call data, or the code that creates a contract.
    pub data: Bytes,
    /// The caller's nonce; not checked.
    pub nonce: Option<u64>,
    /// The call's access list (EIP-2930).
    pub access_list: AccessList,
    /// EIP-7702 authorizations; `Some` of an empty list is invalid.
    pub authorizations: Option<Vec<RecoveredAuthorization>>,
    /// Overrides of the state's and the batch's values that the call sees.
    pub overrides: Overrides,
}
