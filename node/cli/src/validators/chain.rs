//! [`Chain`]: a node's answers about its chain, from `/v1/status` and JSON-RPC.

use std::collections::BTreeMap;

use alloy_primitives::{Address, Bytes};
use alloy_sol_types::SolCall;
use miette::{Result, miette};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use slipstream_types::{BatchNumber, Epoch, Failures, PublicKey};

use crate::ask::{NodeUrl, ask, parse, rpc};

/// A node's chain, as of the first request.
pub(super) struct Chain {
    node: NodeUrl,
    pub(super) status: Status,
}

/// The part of `/v1/status` that is used.
#[derive(Debug, Deserialize)]
pub(super) struct Status {
    pub(super) chain_id: u64,
    pub(super) head: Head,
    pub(super) epoch: EpochStatus,
}

#[derive(Debug, Deserialize)]
pub(super) struct Head {
    pub(super) number: BatchNumber,
}

#[derive(Debug, Deserialize)]
pub(super) struct EpochStatus {
    pub(super) number: Epoch,
    pub(super) validators: Vec<PublicKey>,
    /// Their names in the node's configuration.
    #[serde(default)]
    pub(super) names: BTreeMap<PublicKey, String>,
    pub(super) failures: Failures,
    pub(super) quorum: usize,
    pub(super) contract: Option<Address>,
}

impl Chain {
    /// Asks the node at this URL.
    pub(super) fn ask(url: &str) -> Result<Chain> {
        let node = NodeUrl::parse(url)?;
        let status = parse(&ask(&node, "/v1/status")?)?;
        Ok(Chain { node, status })
    }

    /// The address of the validators contract.
    pub(super) fn contract(&self) -> Result<Address> {
        let contract = self.status.epoch.contract;
        contract.ok_or_else(|| {
            miette!("this chain's validators cannot change: its genesis names no `validators_contract`, and only another genesis could")
        })
    }

    /// Makes one JSON-RPC call.
    pub(super) fn rpc<T: DeserializeOwned>(&self, method: &str, params: &Value) -> Result<T> {
        parse(&rpc(&self.node, method, params)?)
    }

    /// Calls a view function of the contract.
    pub(super) fn view<C: SolCall>(&self, call: &C) -> Result<C::Return> {
        let params = json!([{ "to": self.contract()?, "data": Bytes::from(call.abi_encode()) }, "latest"]);
        let output: Bytes = self.rpc("eth_call", &params)?;
        C::abi_decode_returns(&output).map_err(|error| {
            miette!("the validators contract's answer does not match its interface: {error}")
        })
    }
}
