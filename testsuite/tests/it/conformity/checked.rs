//! [`Checked`]: calls of a node's methods by topic, each answer checked against its schema.

use std::collections::BTreeSet;

use alloy_consensus::TxEip1559;
use alloy_primitives::{Address, B256, TxKind, U256};
use serde_json::{Value, json};
use slipnet::{
    accounts::Account,
    contracts,
    rpc::{Rpc, RpcError, quantity},
    signer::seal,
};

use super::{GAS_PRICE_WEI, specification::Specification};
use crate::common::until;

const METHOD_NOT_FOUND: i64 = -32601;

/// A node, the specification, and the methods that were called.
pub(super) struct Checked<'a> {
    pub(super) rpc: &'a Rpc,
    pub(super) specification: &'a Specification,
    pub(super) called: BTreeSet<String>,
}

impl Checked<'_> {
    pub(super) async fn call(&mut self, method: &str, params: Value) -> Value {
        let result: Value = self.rpc.call(method, params.clone()).await.unwrap();
        self.specification.check(method, &params, &result);
        self.called.insert(method.to_owned());
        result
    }

    /// Checks that an error has the code of its kind, and a text.
    async fn refused(&mut self, method: &str, params: Value, code: i64) {
        let error = self.rpc.call::<Value>(method, params.clone()).await.unwrap_err();
        let error =
            error.downcast_ref::<RpcError>().unwrap_or_else(|| panic!("{method} {params}: {error:#}"));
        assert_eq!(error.code, code, "{method} {params}: {error}");
        assert!(!error.message.is_empty(), "{method} {params}");
    }

    pub(super) async fn receipt(&mut self, hash: &Value) -> Value {
        until("a receipt", async || {
            let receipt = self.call("eth_getTransactionReceipt", json!([hash])).await;
            if receipt.is_null() { Err(format!("{hash} is in no batch")) } else { Ok(receipt) }
        })
        .await
    }

    pub(super) async fn state(&mut self, token: Address, sender: Address) {
        for block in [json!("latest"), json!("pending"), json!("safe"), json!("finalized")] {
            self.call("eth_getBalance", json!([sender, block])).await;
            self.call("eth_getTransactionCount", json!([sender, block])).await;
            self.call("eth_getCode", json!([token, block])).await;
            self.call("eth_getStorageAt", json!([token, "0x2", block])).await;
            let slots = json!({ (token.to_string()): ["0x2", B256::ZERO], (sender.to_string()): [] });
            self.call("eth_getStorageValues", json!([slots, block])).await;
        }
        let (none, slot) = (Address::repeat_byte(0xaa), B256::ZERO);
        self.call("eth_getCode", json!([none, "latest"])).await;
        self.call("eth_getBalance", json!([none, "latest"])).await;
        self.call("eth_getStorageAt", json!([none, slot, "latest"])).await;
        let transfer =
            json!({ "from": sender, "to": token, "data": contracts::transfer(none, U256::from(1)) });
        let reverting = json!({ "from": none, "to": token, "data": contracts::transfer(none, U256::MAX) });
        for method in ["eth_call", "eth_estimateGas"] {
            self.call(method, json!([transfer, "latest"])).await;
            self.call(method, json!([{ "to": none }])).await;
            self.refused(method, json!([reverting, "latest"]), 3).await;
            self.refused(method, json!([{ "to": "0x12" }]), -32602).await;
        }
        self.refused("eth_getBalance", json!([sender, "0xffffff"]), -32000).await;
        self.refused("eth_getBalance", json!(["0x12", "latest"]), -32602).await;
    }

    /// Calls `eth_createAccessList` and `eth_simulateV1`, which execute a call repeatedly, or several in sequence.
    pub(super) async fn simulations(&mut self, token: Address, sender: Address) {
        let none = Address::repeat_byte(0xaa);
        let transfer =
            json!({ "from": sender, "to": token, "data": contracts::transfer(none, U256::from(1)) });
        let reverting = json!({ "from": none, "to": token, "input": contracts::transfer(none, U256::MAX) });
        let pays = json!({ "from": sender, "to": none, "value": "0x5" });
        for block in ["latest", "pending"] {
            self.call("eth_createAccessList", json!([transfer, block])).await;
        }
        self.call("eth_createAccessList", json!([reverting])).await;
        let state = json!({ (none.to_string()): { "balance": "0x7", "stateDiff": {} } });
        let blocks = json!([
            { "calls": [transfer, reverting, pays] },
            { "blockOverrides": { "time": "0xffffffff" }, "stateOverrides": state, "calls": [{ "data": "0xfe" }] },
            {},
        ]);
        for full in [false, true] {
            let payload =
                json!({ "blockStateCalls": blocks, "traceTransfers": full, "returnFullTransactions": full });
            let simulated = self.call("eth_simulateV1", json!([payload, "latest"])).await;
            let moved = &simulated[0]["calls"][0]["logs"][0];
            assert_eq!(
                (&moved["address"], &simulated[0]["calls"][1]["error"]["code"]),
                (&json!(token), &json!(3))
            );
            assert_eq!(simulated[1]["calls"][0]["error"]["code"], -32015);
        }
        let backwards = json!([{ "blockStateCalls": [{ "blockOverrides": { "number": "0x0" } }] }]);
        self.refused("eth_simulateV1", backwards, -38020).await;
    }

    /// Calls with the struct logger, in its forms, and with another tracer.
    pub(super) async fn traces(&mut self, receipt: &Value) {
        let (hash, number, block) =
            (&receipt["transactionHash"], &receipt["blockNumber"], &receipt["blockHash"]);
        let much = json!({ "enableMemory": true, "enableReturnData": true });
        let little = json!({ "disableStack": true, "disableStorage": true });
        for options in [json!({}), much, little, json!({ "tracer": "callTracer" })] {
            self.call("debug_traceBlockByNumber", json!([number, options])).await;
            self.call("debug_traceBlockByHash", json!([block, options])).await;
            self.call("debug_traceTransaction", json!([hash, options])).await;
        }
        self.refused("debug_traceBlockByNumber", json!(["0x0"]), -32000).await;
        self.refused("debug_traceBlockByHash", json!([B256::ZERO]), -32000).await;
        self.refused("debug_traceTransaction", json!([B256::ZERO]), -32000).await;
    }

    pub(super) async fn blocks(&mut self, receipt: &Value) {
        let (number, hash) = (receipt["blockNumber"].clone(), receipt["blockHash"].clone());
        for block in [number.clone(), json!("latest"), json!("earliest"), json!("pending"), json!("0xffffff")]
        {
            for full in [false, true] {
                if block == "pending" {
                    self.block_in_the_making(full).await;
                } else {
                    self.call("eth_getBlockByNumber", json!([block, full])).await;
                }
            }
            self.call("eth_getBlockTransactionCountByNumber", json!([block])).await;
            self.call("eth_getBlockReceipts", json!([block])).await;
            for index in ["0x0", "0xff"] {
                self.call("eth_getTransactionByBlockNumberAndIndex", json!([block, index])).await;
            }
        }
        for block in [hash, json!(B256::ZERO)] {
            for full in [false, true] {
                self.call("eth_getBlockByHash", json!([block, full])).await;
            }
            self.call("eth_getBlockTransactionCountByHash", json!([block])).await;
            self.call("eth_getBlockReceipts", json!([block])).await;
            for index in ["0x0", "0xff"] {
                self.call("eth_getTransactionByBlockHashAndIndex", json!([block, index])).await;
            }
        }
        self.refused("eth_getBlockByNumber", json!(["newest", false]), -32602).await;
    }

    /// Checks the pending block. It has three nulls, as in geth, that the specification does not allow.
    async fn block_in_the_making(&self, full: bool) {
        let params = json!(["pending", full]);
        let mut block: Value = self.rpc.call("eth_getBlockByNumber", params.clone()).await.unwrap();
        for (field, made) in [
            ("hash", json!(B256::ZERO)),
            ("nonce", json!("0x0000000000000000")),
            ("miner", json!(Address::ZERO)),
        ] {
            assert_eq!(std::mem::replace(&mut block[field], made), Value::Null, "{field}");
        }
        self.specification.check("eth_getBlockByNumber", &params, &block);
    }

    pub(super) async fn logs(&mut self, token: Address, receipt: &Value) {
        let topics = receipt["logs"][0]["topics"].clone();
        for filter in [
            json!({ "fromBlock": "earliest" }),
            json!({ "fromBlock": "0x0", "toBlock": "latest", "address": token }),
            json!({ "fromBlock": "0x0", "address": [token, Address::ZERO], "topics": [topics[0]] }),
            json!({ "fromBlock": "0x0", "topics": [null, [topics[1], topics[0]]] }),
            json!({ "blockHash": receipt["blockHash"] }),
            json!({}),
        ] {
            self.call("eth_getLogs", json!([filter])).await;
        }
        let all = self.call("eth_getLogs", json!([{ "fromBlock": "earliest", "address": token }])).await;
        assert_eq!(all.as_array().unwrap().len(), 3, "two are minted, one is moved");
        self.refused("eth_getLogs", json!([{ "fromBlock": "0x2", "toBlock": "0x1" }]), -32602).await;
        self.refused("eth_getLogs", json!([{ "toBlock": "0xffffff" }]), -32602).await;
        self.refused("eth_getLogs", json!([{ "blockHash": B256::ZERO }]), -32000).await;
    }

    /// Installs filters, sends a transfer of the token, and polls.
    pub(super) async fn filters(&mut self, token: Address, account: &Account) {
        let logs = self.call("eth_newFilter", json!([{ "address": token, "fromBlock": "0x0" }])).await;
        let blocks = self.call("eth_newBlockFilter", json!([])).await;
        let pending = self.call("eth_newPendingTransactionFilter", json!([])).await;
        let transfer = TxEip1559 {
            chain_id: 7_357,
            nonce: 6,
            gas_limit: 200_000,
            max_fee_per_gas: GAS_PRICE_WEI,
            to: TxKind::Call(token),
            input: contracts::transfer(Address::repeat_byte(1), U256::from(1)),
            ..TxEip1559::default()
        };
        let sent = self.call("eth_sendRawTransaction", json!([seal(&account.key, transfer).raw])).await;
        let receipt = self.receipt(&sent).await;
        self.past(token, account.address, &receipt).await;
        let told = self.call("eth_getFilterChanges", json!([logs])).await;
        assert_eq!(told[0]["transactionHash"], sent);
        let told = self.call("eth_getFilterChanges", json!([blocks])).await;
        assert!(told.as_array().unwrap().contains(&receipt["blockHash"]));
        assert_eq!(self.call("eth_getFilterChanges", json!([pending])).await, json!([sent]));
        assert_eq!(self.call("eth_getFilterChanges", json!([logs])).await, json!([]));
        assert_eq!(self.call("eth_getFilterLogs", json!([logs])).await.as_array().unwrap().len(), 4);
        for known in [true, false] {
            assert_eq!(self.call("eth_uninstallFilter", json!([logs])).await, known);
        }
        self.refused("eth_getFilterChanges", json!([logs]), -32000).await;
        self.refused("eth_getFilterLogs", json!([blocks]), -32000).await;
    }

    /// Calls after the batch of a transaction, and before it: they differ by one transfer of one token unit.
    async fn past(&mut self, token: Address, sender: Address, receipt: &Value) {
        let number = quantity(&receipt["blockNumber"]).unwrap();
        let [before, after] = [number - 1, number].map(|number| json!(format!("0x{number:x}")));
        let held = json!({ "to": token, "data": contracts::balance_of(Address::repeat_byte(1)) });
        let (mut nonces, mut balances) = (Vec::new(), Vec::new());
        for id in [before, after, json!({ "blockHash": receipt["blockHash"] }), json!("latest")] {
            let nonce = self.call("eth_getTransactionCount", json!([sender, id])).await;
            nonces.push(quantity(&nonce).unwrap());
            let balance: U256 =
                self.call("eth_call", json!([held, id])).await.as_str().unwrap().parse().unwrap();
            balances.push(balance);
            self.call("eth_estimateGas", json!([held, id])).await;
        }
        let moved = balances[0] + U256::from(1);
        assert_eq!(nonces, [6, 7, 7, 7]);
        assert_eq!(balances[1..], [moved; 3]);
    }

    /// Checks transactions in the pool, as they were signed.
    pub(super) async fn waiting(&mut self, account: &Account, receipt: &Value) {
        let later = TxEip1559 {
            chain_id: 7_357,
            nonce: 1_000,
            gas_limit: 21_000,
            max_fee_per_gas: GAS_PRICE_WEI,
            to: TxKind::Call(account.address),
            ..TxEip1559::default()
        };
        self.call("eth_sendRawTransaction", json!([seal(&account.key, later).raw])).await;
        assert_eq!(self.call("txpool_status", json!([])).await["queued"], "0x1");
        let all = self.call("txpool_content", json!([])).await;
        let own = self.call("txpool_contentFrom", json!([account.address])).await;
        assert_eq!(all["queued"][account.address.to_checksum(None)], own["queued"]);
        assert_eq!(own["queued"]["1000"]["nonce"], "0x3e8");
        self.call("txpool_contentFrom", json!([Address::ZERO])).await;
        self.refused("txpool_contentFrom", json!(["0x12"]), -32602).await;
        for hash in [&receipt["transactionHash"], &json!(B256::ZERO)] {
            self.call("debug_getRawTransaction", json!([hash])).await;
        }
    }

    pub(super) async fn rest(&mut self) {
        for method in [
            "net_version",
            "eth_chainId",
            "eth_syncing",
            "eth_accounts",
            "eth_blockNumber",
            "eth_config",
            "eth_baseFee",
            "eth_gasPrice",
            "eth_maxPriorityFeePerGas",
            "eth_blobBaseFee",
        ] {
            self.call(method, json!([])).await;
        }
        self.call("eth_feeHistory", json!(["0x5", "latest", [10.0, 50.0]])).await;
        self.call("eth_feeHistory", json!(["0x1", "earliest", []])).await;
        self.refused("eth_feeHistory", json!(["0x5", "latest", [50.0, 10.0]]), -32000).await;
        self.call("eth_getTransactionByHash", json!([B256::ZERO])).await;
        self.call("eth_getTransactionReceipt", json!([B256::ZERO])).await;
        self.refused("eth_sendRawTransaction", json!(["0x00"]), -32000).await;
        self.refused("eth_getTransactionByHash", json!(["0x12"]), -32602).await;
    }

    /// Returns the methods of the specification that the node lacks.
    pub(super) async fn missing(&self) -> BTreeSet<&str> {
        let mut missing = BTreeSet::new();
        for method in self.specification.0.keys() {
            let answer = self.rpc.call::<Value>(method, json!([])).await;
            let code = answer.err().and_then(|error| Some(error.downcast_ref::<RpcError>()?.code));
            if code == Some(METHOD_NOT_FOUND) {
                missing.insert(&**method);
            }
        }
        missing
    }
}
