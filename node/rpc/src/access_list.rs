//! `eth_createAccessList`.

use alloy_eips::eip2930::AccessList;
use alloy_primitives::U64;
use jsonrpsee_types::Params;
use serde::Serialize;
use slipstream_executor::create_access_list;

use super::{RpcContext, call::CallParams, errors::RpcResult, table::CallContext};

/// The answer, as geth gives it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AccessListReply {
    access_list: AccessList,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    gas_used: U64,
}

/// `eth_createAccessList`
pub(super) fn create(
    context: &RpcContext,
    params: &Params<'_>,
    asker: &CallContext<'_>,
) -> RpcResult<AccessListReply> {
    let CallParams { view, env, request } = CallParams::read(context, params)?;
    let listed = create_access_list(&view, &env, &request, &context.interrupt(asker));
    let listed = listed.map_err(|error| context.execute_error(error, asker))?;
    let gas_used = U64::from(listed.gas_used);
    Ok(AccessListReply { access_list: listed.access_list, error: listed.error, gas_used })
}
