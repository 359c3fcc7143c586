//! [`CallObject`]: the transaction-like object of a call.

use alloy_eips::{
    eip2930::{AccessList, AccessListItem},
    eip7702::{Authorization, SignedAuthorization, constants::PER_EMPTY_ACCOUNT_COST},
};
use alloy_primitives::{Address, B256, Bytes, U256};
use serde::{Deserialize, de::IgnoredAny};
use slipstream_executor::{CALL_GAS_MAX, CallRequest};

use crate::{errors::RpcError, params::Strict};

/// Maximum number of authorizations in one call. More would cost more gas than a call may use, and each needs a
/// signature recovery.
const AUTHORIZATIONS_MAX: usize = (CALL_GAS_MAX / PER_EMPTY_ACCOUNT_COST) as usize;

/// A call as clients describe it. Unknown fields are ignored, as in geth, because libraries add some.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CallObject {
    from: Option<Strict<Address>>,
    to: Option<Strict<Address>>,
    gas: Option<Strict<u64>>,
    gas_price: Option<Strict<u128>>,
    max_fee_per_gas: Option<Strict<u128>>,
    max_priority_fee_per_gas: Option<Strict<u128>>,
    value: Option<Strict<U256>>,
    nonce: Option<Strict<u64>>,
    data: Option<Strict<Bytes>>,
    input: Option<Strict<Bytes>>,
    access_list: Option<Vec<AccessObject>>,
    chain_id: Option<Strict<U256>>,
    authorization_list: Option<Vec<AuthorizationObject>>,
    max_fee_per_blob_gas: Option<IgnoredAny>,
    blob_versioned_hashes: Option<IgnoredAny>,
    blobs: Option<IgnoredAny>,
}

/// An entry of an access list (EIP-2930).
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AccessObject {
    address: Strict<Address>,
    storage_keys: Vec<Strict<B256>>,
}

/// An authorization (EIP-7702).
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AuthorizationObject {
    chain_id: Strict<U256>,
    address: Strict<Address>,
    nonce: Strict<u64>,
    y_parity: Strict<u64>,
    r: Strict<U256>,
    s: Strict<U256>,
}

impl CallObject {
    /// # Errors
    /// In geth's words, if fields contradict each other or the chain, or request something that the chain lacks.
    pub(crate) fn into_request(self, chain_id: u64) -> Result<CallRequest, RpcError> {
        // Only the nonce's form is checked: a call is not a transaction, and clients fill in any number.
        Ok(CallRequest { nonce: None, ..self.into_ordered(chain_id)?.0 })
    }

    /// Like [`CallObject::into_request`], for a call whose position among others matters. The call keeps its nonce, and
    /// its authorizations as they were signed.
    ///
    /// # Errors
    /// As [`CallObject::into_request`].
    pub(crate) fn into_ordered(
        self,
        chain_id: u64,
    ) -> Result<(CallRequest, Vec<SignedAuthorization>), RpcError> {
        let (max_fee_wei, max_tip_wei) = self.fees()?;
        if let Some(Strict(asked)) = self.chain_id
            && asked != U256::from(chain_id)
        {
            let text = format!("chainId does not match node's (have={asked}, want={chain_id})");
            return Err(RpcError::Rejected(text));
        }
        if self.max_fee_per_blob_gas.is_some() || self.blob_versioned_hashes.is_some() || self.blobs.is_some()
        {
            let text = "transaction type not supported: blobs (EIP-4844) are not supported on this chain";
            return Err(RpcError::Rejected(text.into()));
        }
        let data = match (self.input, self.data) {
            (Some(input), Some(data)) if input != data => {
                let text = "both \"data\" and \"input\" are set and not equal. Please use \"input\" to pass transaction call data";
                return Err(RpcError::Rejected(text.into()));
            }
            (input, data) => input.or(data).map(|data| data.0).unwrap_or_default(),
        };
        if self.authorization_list.is_some() && self.to.is_none() {
            let text = "EIP-7702 transaction cannot be used to create contract";
            return Err(RpcError::Rejected(text.into()));
        }
        let signed = self.authorization_list.map(signed).transpose()?;
        let recovered = |signed: &Vec<SignedAuthorization>| {
            signed.iter().cloned().map(SignedAuthorization::into_recovered).collect()
        };
        let request = CallRequest {
            from: self.from.unwrap_or_default().0,
            to: self.to.map(|to| to.0),
            gas: self.gas.map(|gas| gas.0),
            max_fee_wei,
            max_tip_wei,
            value: self.value.unwrap_or_default().0,
            data,
            nonce: self.nonce.map(|nonce| nonce.0),
            access_list: access_list(self.access_list.unwrap_or_default()),
            authorizations: signed.as_ref().map(recovered),
            ..CallRequest::default()
        };
        Ok((request, signed.unwrap_or_default()))
    }

    /// The caps on the whole fee and on the tip.
    fn fees(&self) -> Result<(u128, u128), RpcError> {
        let (fee, tip) = (self.max_fee_per_gas, self.max_priority_fee_per_gas);
        match self.gas_price {
            Some(_) if fee.is_some() || tip.is_some() => Err(RpcError::Rejected(
                "both gasPrice and (maxFeePerGas or maxPriorityFeePerGas) specified".into(),
            )),
            Some(Strict(price)) => Ok((price, price)),
            None => Ok((fee.unwrap_or_default().0, tip.unwrap_or_default().0)),
        }
    }
}

fn access_list(objects: Vec<AccessObject>) -> AccessList {
    let item = |object: AccessObject| AccessListItem {
        address: object.address.0,
        storage_keys: object.storage_keys.into_iter().map(|key| key.0).collect(),
    };
    AccessList(objects.into_iter().map(item).collect())
}

fn signed(objects: Vec<AuthorizationObject>) -> Result<Vec<SignedAuthorization>, RpcError> {
    if objects.len() > AUTHORIZATIONS_MAX {
        let text =
            format!("{} authorizations are too many: a call has gas for {AUTHORIZATIONS_MAX}", objects.len());
        return Err(RpcError::InvalidParams(text));
    }
    objects
        .into_iter()
        .map(|object| {
            let parity = u8::try_from(object.y_parity.0)
                .map_err(|_| RpcError::InvalidParams("an authorization's yParity is above 255".into()))?;
            let (chain_id, address) = (object.chain_id.0, object.address.0);
            let authorization = Authorization { chain_id, address, nonce: object.nonce.0 };
            Ok(SignedAuthorization::new_unchecked(authorization, parity, object.r.0, object.s.0))
        })
        .collect()
}
