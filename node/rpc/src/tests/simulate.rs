//! `eth_simulateV1` and `eth_createAccessList`.

use super::*;

const SOMEBODY: Address = Address::repeat_byte(0x66);

fn payload(blocks: Value) -> Value {
    json!([{ "blockStateCalls": blocks }])
}

/// Goal: blocks follow the head and each other, with the fields and transactions of real blocks.
#[tokio::test]
async fn simulated_blocks_follow_each_other() {
    let rpc = Fixture::new();
    let head = rpc.result("eth_getBlockByNumber", json!(["latest", false])).await;
    // NUMBER, TIMESTAMP and BLOCKHASH(1), each returned.
    let code = |code: &str| json!({ (CONTRACT.to_string()): { "code": format!("0x{code}5f5260205ff3") } });
    let call = json!({ "from": sender(), "to": CONTRACT });
    let blocks = json!([
        { "stateOverrides": code("43"), "calls": [call] },
        { "blockOverrides": { "number": "0x4" }, "stateOverrides": code("42"), "calls": [call, call] },
        { "blockOverrides": { "time": "0x99999999" }, "stateOverrides": code("600140"), "calls": [call] },
    ]);
    let answer = rpc.result("eth_simulateV1", payload(blocks.clone())).await;
    let field =
        |name: &str| answer.as_array().unwrap().iter().map(|block| block[name].clone()).collect::<Vec<_>>();
    assert_eq!(field("number"), ["0x1", "0x2", "0x3", "0x4", "0x5"]);
    assert_eq!(field("timestamp"), ["0x6553f101", "0x6553f102", "0x6553f103", "0x6553f104", "0x99999999"]);
    let mut parents = vec![head["hash"].clone()];
    parents.extend(field("hash"));
    assert_eq!(field("parentHash"), parents[..5]);
    let counts: Vec<_> = field("calls").iter().map(|calls| calls.as_array().unwrap().len()).collect();
    assert_eq!(counts, [1, 0, 0, 2, 1]);
    let returned = |block: usize, call: usize| answer[block]["calls"][call]["returnData"].clone();
    assert_eq!(returned(0, 0), json!(B256::with_last_byte(1)));
    assert_eq!(returned(3, 1), json!(B256::from(U256::from(0x6553_f104u64))));
    assert_eq!(returned(4, 0), answer[0]["hash"]);
    assert_eq!(answer[3]["transactions"].as_array().unwrap().len(), 2);
    assert_ne!(answer[3]["transactions"][0], answer[3]["transactions"][1], "nonces differ");
    assert_eq!(answer[0]["baseFeePerGas"], "0x0");
    assert!(answer[0]["calls"][0].get("error").is_none());

    let full = json!([{ "blockStateCalls": blocks, "returnFullTransactions": true }, "0x0"]);
    let full = rpc.result("eth_simulateV1", full).await;
    let transaction = &full[3]["transactions"][1];
    // The genesis account has nonce 1.
    let expected = json!({ "from": sender(), "to": CONTRACT, "nonce": "0x3", "blockNumber": "0x4", "transactionIndex": "0x1",
        "hash": answer[3]["transactions"][1], "blockHash": answer[3]["hash"], "type": "0x2" });
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(transaction[field], *value, "{field}");
    }
}

/// Goal: failures are reported call by call, transfers produce logs where requested, and overridden state persists.
#[tokio::test]
async fn what_simulated_calls_do() {
    let rpc = Fixture::new();
    let rich = json!({ (SOMEBODY.to_string()): { "balance": "0x64" } });
    let pay = |wei: &str| json!({ "from": SOMEBODY, "to": Address::repeat_byte(2), "value": wei });
    let reverts = json!({ "to": CONTRACT, "data": "0x01" });
    let out_of_gas =
        json!({ "to": ZEROS, "gas": "0x7530", "data": format!("0x{}", "00".repeat(29) + "ffffff") });
    let blocks = json!([
        { "stateOverrides": rich, "calls": [pay("0x3c"), reverts, out_of_gas] },
        { "calls": [pay("0x28")] },
    ]);
    let options = json!([{ "blockStateCalls": blocks, "traceTransfers": true }]);
    let answer = rpc.result("eth_simulateV1", options).await;
    let calls = &answer[0]["calls"];
    let told = |call: usize, field: &str| calls[call][field].clone();
    assert_eq!(
        (told(0, "status"), told(1, "status"), told(2, "status")),
        (json!("0x1"), json!("0x0"), json!("0x0"))
    );
    assert_eq!(told(1, "error"), json!({ "code": 3, "message": "execution reverted", "data": "0x" }));
    assert_eq!(told(2, "error")["code"], -32015);
    assert_eq!(told(2, "error")["message"], "out of gas");
    assert_eq!(told(0, "gasUsed"), "0x5208");
    let log = &told(0, "logs")[0];
    assert_eq!(log["address"], "0xeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee");
    assert_eq!(
        (&log["data"], &log["topics"][1]),
        (&json!(B256::with_last_byte(60)), &json!(SOMEBODY.into_word()))
    );
    assert_eq!(log["transactionHash"], answer[0]["transactions"][0]);
    assert_eq!(answer[1]["calls"][0]["logs"][0]["blockHash"], answer[1]["hash"]);
    // One wei more than is left fails the request: nothing after it would mean anything.
    let poor = json!([{ "stateOverrides": rich, "calls": [pay("0x3c")] }, { "calls": [pay("0x29")] }]);
    let (code, text) = rpc.error("eth_simulateV1", payload(poor)).await;
    assert!(
        code == -38014 && text.starts_with("insufficient funds for gas * price + value"),
        "{code} {text}"
    );
}

/// Goal: each refusal has the code that the execution APIs assign to it.
#[tokio::test]
async fn refusals_have_their_codes() {
    let rpc = Fixture::new();
    let block = |overrides: Value| json!({ "blockOverrides": overrides });
    let calls = |call: Value| json!([{ "calls": [call] }]);
    let many: Vec<_> = (0..257).map(|_| json!({})).collect();
    let [one, two] = [1, 2].map(|byte| Address::with_last_byte(byte).to_string());
    let to = |address: &str| json!({ "movePrecompileToAddress": address });
    let moves = |accounts: Value| json!([{ "stateOverrides": accounts }]);
    for (blocks, code, text) in [
        (json!([]), -32602, "empty input"),
        (json!(many), -38026, "too many blocks: 257 > 256"),
        (json!([block(json!({ "number": "0x101" }))]), -38026, "too many blocks"),
        (json!([block(json!({ "number": "0xffffffffffffffff" }))]), -38026, "too many blocks"),
        (json!([block(json!({ "number": "0x10000000000000000" }))]), -38026, "too many blocks"),
        (json!([{ "calls": vec![json!({}); 2_381] }]), -38026, "too many calls: 2381"),
        (json!([{ "calls": vec![json!({}); 2_380] }, { "calls": [{}] }]), -38026, "too many calls: 2381"),
        (
            json!([block(json!({ "number": "0x5" })), block(json!({ "number": "0x5" }))]),
            -38020,
            "block numbers must be in order: 5 <= 5",
        ),
        (json!([block(json!({ "number": "0x0" }))]), -38020, "block numbers must be in order: 0 <= 0"),
        (json!([block(json!({ "time": "0x6553f0ff" }))]), -38021, "block timestamps must be in order"),
        (
            moves(json!({ (one.clone()): to(&one) })),
            -38022,
            "account 0x0000000000000000000000000000000000000001",
        ),
        (
            moves(
                json!({ (one.clone()): to(&SOMEBODY.to_string()), (two.clone()): to(&SOMEBODY.to_string()) }),
            ),
            -38023,
            "account ",
        ),
        (moves(json!({ (SOMEBODY.to_string()): to(&one) })), -32000, "account "),
        (calls(json!({ "gas": "0x5" })), -38013, "intrinsic gas too low"),
        (calls(json!({ "gas": "0xffffffff" })), -38015, "block gas limit reached: 0 >= 300000000"),
        (calls(json!({ "from": SOMEBODY, "value": "0x1" })), -38014, "insufficient funds"),
        (
            calls(json!({ "data": format!("0x{}", "00".repeat(49_153)) })),
            -38025,
            "max initcode size exceeded",
        ),
        (
            calls(json!({ "value": "0x01" })),
            -32602,
            "invalid argument 0: blockStateCalls[0].calls[0].value: hex number with leading zero digits",
        ),
        (
            json!([{}, { "nonsense": 1 }]),
            -32602,
            "invalid argument 0: blockStateCalls[1].nonsense: unknown field `nonsense`",
        ),
        (json!([{}, 7]), -32602, "invalid argument 0: blockStateCalls[1]: "),
        (json!({}), -32602, "invalid argument 0: blockStateCalls: "),
    ] {
        let (found, message) = rpc.error("eth_simulateV1", payload(blocks)).await;
        assert!(found == code && message.starts_with(text), "{text}: {found} {message}");
    }
    let valid = |call: Value| json!([{ "blockStateCalls": [{ "calls": [call] }], "validation": true }]);
    let fee = |nonce: &str| json!({ "from": sender(), "nonce": nonce, "gas": "0x5208", "to": SOMEBODY, "maxFeePerGas": "0x1312d00" });
    for (request, code, text) in [
        (valid(fee("0x0")), -38010, "nonce too low"),
        (valid(fee("0x2")), -38011, "nonce too high"),
        (valid(json!({ "from": sender() })), -38012, "max fee per gas less than block base fee"),
        (json!([{ "blockStateCalls": [{}] }, "0x5"]), -32000, "header not found: batch 5 does not exist yet"),
        (
            json!([{ "blockStateCalls": [{}], "more": true }]),
            -32602,
            "invalid argument 0: more: unknown field",
        ),
        (json!([]), -32602, "missing value for required argument 0"),
    ] {
        let (found, message) = rpc.error("eth_simulateV1", request).await;
        assert!(found == code && message.starts_with(text), "{text}: {found} {message}");
    }
    let taken = rpc.result("eth_simulateV1", valid(fee("0x1"))).await;
    assert_eq!(
        (&taken[0]["calls"][0]["status"], &taken[0]["baseFeePerGas"]),
        (&json!("0x1"), &json!("0x989680"))
    );
}

/// Goal: the overrides of all blocks of a request share the limits of one call.
#[tokio::test]
async fn overrides_share_their_limits() {
    let rpc = Fixture::new();
    let accounts = |first: usize| {
        let account = |number: usize| (format!("0x{number:040x}"), json!({ "balance": "0x1" }));
        (first..first + 501).map(account).collect::<serde_json::Map<_, _>>()
    };
    let block = |first| json!({ "stateOverrides": accounts(first) });
    let (code, text) = rpc.error("eth_simulateV1", payload(json!([block(1_000), block(2_000)]))).await;
    assert_eq!(code, -32602);
    assert!(
        text.starts_with("1002 accounts are overridden, but one request may override at most 1000"),
        "{text}"
    );
}

/// Goal: a request that takes too long ends, with its own error code.
#[tokio::test]
async fn long_simulations_end() {
    let rpc = Fixture(table(RpcContext { call_time_max: Duration::from_millis(1), ..context() }));
    let endless = json!({ (SOMEBODY.to_string()): { "code": "0x5b5f56" } });
    let blocks = json!([{ "stateOverrides": endless, "calls": [{ "to": SOMEBODY }] }]);
    let (code, text) = rpc.error("eth_simulateV1", payload(blocks)).await;
    assert!(code == -32016 && text.starts_with("execution aborted (timeout = 1ms)"), "{code} {text}");
    let params = json!([{ "to": SOMEBODY }, "latest", endless]);
    let (code, text) = rpc.error("eth_createAccessList", params).await;
    assert!(code == -32000 && text.starts_with("execution aborted (timeout = 1ms)"), "{code} {text}");
}

/// Goal: access lists have geth's form, with overrides, and with the error of a call that fails.
#[tokio::test]
async fn access_lists() {
    let rpc = Fixture::new();
    let code = json!({ (CONTRACT.to_string()): { "code": "0x60015450" } });
    let listed = rpc.result("eth_createAccessList", json!([{ "to": CONTRACT }, "latest", code])).await;
    let slot = B256::with_last_byte(1);
    assert_eq!(listed["accessList"], json!([{ "address": CONTRACT, "storageKeys": [slot] }]));
    // 21,000, the list's 2,400 and 1,900, PUSH1, a warm SLOAD and POP.
    assert_eq!((&listed["gasUsed"], listed.get("error")), (&json!("0x633d"), None));
    let failed = rpc.result("eth_createAccessList", json!([{ "to": CONTRACT, "data": "0x01" }])).await;
    assert_eq!((&failed["accessList"], &failed["error"]), (&json!([]), &json!("execution reverted")));
    let (code, text) = rpc.error("eth_createAccessList", json!([{ "to": CONTRACT }, "0x7"])).await;
    assert!(code == -32000 && text.starts_with("header not found: batch 7 does not exist yet"), "{text}");
}
