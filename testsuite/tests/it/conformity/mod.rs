//! A node's answers, checked against the schemas of Ethereum's execution APIs.
//!
//! The schemas are not part of the project: they are looked for in `$SLIPSTREAM_DATA` and `../shared/data`. If they are
//! missing, the test says that it skips; with `SLIPSTREAM_REQUIRE_DATA=1` it fails.

mod checked;
mod specification;

use std::collections::BTreeSet;

use alloy_consensus::{TxEip1559, TxEip2930, TxEip7702, TxLegacy};
use alloy_eips::{
    eip2930::{AccessList, AccessListItem},
    eip7702::Authorization,
};
use alloy_primitives::{Address, B256, Bytes, Signature, TxKind, U256};
use serde_json::json;
use slipnet::{
    accounts::Account,
    contracts,
    devnet::{Devnet, DevnetOptions},
    signer::seal,
};

use self::{checked::Checked, specification::Specification};
use crate::common::data;

/// Methods of the specification that a node does not have. A method that is added must leave this list, and is called
/// below.
const MISSING: [&str; 13] = [
    "debug_getBadBlocks",
    "debug_getRawBlock",
    "debug_getRawBlockAccessList",
    "debug_getRawHeader",
    "debug_getRawReceipts",
    "eth_capabilities",
    "eth_coinbase",
    "eth_fillTransaction",
    "eth_getBlockAccessList",
    "eth_getProof",
    "eth_sendTransaction",
    "eth_sign",
    "eth_signTransaction",
];

const GAS_PRICE_WEI: u128 = 30_000_000;

/// Returns one signed transaction of each type and outcome; the first deploys the token.
fn transactions(account: &Account, delegate: &Account) -> Vec<Bytes> {
    let token = account.address.create(0);
    let (chain_id, other) = (7_357, Address::repeat_byte(0xbb));
    let access_list = AccessList(vec![AccessListItem { address: token, storage_keys: vec![B256::ZERO] }]);
    let authorization = Authorization { chain_id: U256::from(chain_id), address: token, nonce: 0 };
    let signature = delegate.key.sign_prehash_recoverable(authorization.signature_hash().as_slice()).unwrap();
    let dynamic = |nonce, to, value, input: Bytes| TxEip1559 {
        chain_id,
        nonce,
        gas_limit: 3_000_000,
        max_fee_per_gas: GAS_PRICE_WEI,
        max_priority_fee_per_gas: 1_000,
        to,
        value: U256::from(value),
        access_list: AccessList::default(),
        input,
    };
    let mint = contracts::mint_many(vec![account.address, delegate.address], U256::from(1_000));
    let too_much = contracts::transfer(delegate.address, U256::MAX);
    let deploy = TxLegacy {
        chain_id: Some(chain_id),
        nonce: 0,
        gas_price: GAS_PRICE_WEI,
        gas_limit: 3_000_000,
        to: TxKind::Create,
        value: U256::ZERO,
        input: contracts::token_init_code("Conform", "CON"),
    };
    let listed = TxEip2930 {
        chain_id,
        nonce: 2,
        gas_price: GAS_PRICE_WEI,
        gas_limit: 200_000,
        to: TxKind::Call(token),
        value: U256::ZERO,
        access_list,
        input: contracts::transfer(delegate.address, U256::from(5)),
    };
    let delegating = TxEip7702 {
        chain_id,
        nonce: 3,
        gas_limit: 200_000,
        max_fee_per_gas: GAS_PRICE_WEI,
        max_priority_fee_per_gas: 1_000,
        to: other,
        value: U256::from(1),
        access_list: AccessList::default(),
        authorization_list: vec![authorization.into_signed(Signature::from(signature))],
        input: Bytes::new(),
    };
    vec![
        seal(&account.key, deploy).raw,
        seal(&account.key, dynamic(1, TxKind::Call(token), 0, mint)).raw,
        seal(&account.key, listed).raw,
        seal(&account.key, delegating).raw,
        seal(&account.key, dynamic(4, TxKind::Call(token), 0, too_much)).raw,
        seal(&account.key, dynamic(5, TxKind::Call(other), 9, Bytes::new())).raw,
    ]
}

/// Goal: docs/clients.md lists exactly the missing methods.
#[test]
fn the_document_lists_what_is_missing() {
    let document = include_str!("../../../../docs/clients.md");
    let begin = "**Missing methods** of Ethereum's execution APIs:";
    let (_, rest) = document.split_once(begin).unwrap_or_else(|| panic!("docs/clients.md lacks `{begin}`"));
    let (list, _) = rest.split_once("\n*").expect("another item follows");
    let listed: Vec<&str> = list.split('`').skip(1).step_by(2).collect();
    assert_eq!(listed, MISSING);
}

/// Goal: every method of a node answers in the form of Ethereum's specification, for all types of transactions.
#[tokio::test(flavor = "multi_thread")]
async fn answers_have_the_form_of_the_specification() {
    let Some(dir) = data("execution-apis/src") else { return };
    let specification = Specification::read(&dir);
    let options = DevnetOptions { validators: 1, accounts: 2, ..DevnetOptions::default() };
    let devnet = Devnet::start(options).await.unwrap();
    let [account, delegate] = devnet.accounts() else { panic!("two accounts were asked for") };
    let mut checked =
        Checked { rpc: devnet.proposer().rpc(), specification: &specification, called: BTreeSet::new() };

    let mut receipts = Vec::new();
    for raw in transactions(account, delegate) {
        let hash = checked.call("eth_sendRawTransaction", json!([raw])).await;
        // The receipt comes first: the specification has no form for a pending transaction.
        receipts.push(checked.receipt(&hash).await);
        checked.call("eth_getTransactionByHash", json!([hash])).await;
    }
    let told = |field: &str| receipts.iter().map(|receipt| receipt[field].clone()).collect::<Vec<_>>();
    assert_eq!(told("type"), ["0x0", "0x2", "0x1", "0x4", "0x2", "0x2"]);
    assert_eq!(told("status"), ["0x1", "0x1", "0x1", "0x1", "0x0", "0x1"]);

    let token = account.address.create(0);
    checked.state(token, account.address).await;
    checked.simulations(token, account.address).await;
    for receipt in &receipts[..4] {
        checked.blocks(receipt).await;
        checked.traces(receipt).await;
    }
    checked.logs(token, &receipts[1]).await;
    checked.filters(token, account).await;
    checked.waiting(account, &receipts[0]).await;
    checked.rest().await;

    let missing = checked.missing().await;
    assert_eq!(missing, MISSING.into_iter().collect());
    let served = specification.0.keys().filter(|method| !missing.contains(&***method));
    let untried: Vec<_> = served.filter(|method| !checked.called.contains(*method)).collect();
    assert!(untried.is_empty(), "served, but not called here: {untried:?}");
    devnet.stop().await.unwrap();
}
