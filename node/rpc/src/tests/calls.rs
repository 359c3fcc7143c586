//! Calls and estimates, and parameters as clients write them.

use std::time::Instant;

use super::*;

/// Goal: every override of a caller takes effect or is refused by name, and is never ignored.
#[tokio::test]
async fn overrides_are_honoured_or_refused() {
    let rpc = Fixture::new();
    let word = |number: u64| json!(B256::from(U256::from(number)));
    let shows = |code: &str| format!("0x{code}5f5260205ff3");
    // NUMBER, TIMESTAMP, BASEFEE, SLOAD(1) and the balance of the caller, each returned.
    for (code, field, block, plain) in [
        ("43", "number", "0x7b", 0),
        ("42", "time", "0x7b", 1_700_000_000),
        ("48", "baseFeePerGas", "0x7b", 0),
        ("45", "gasLimit", "0x7b", 300_000_000),
    ] {
        let accounts = json!({ (CONTRACT.to_string()): { "code": shows(code) } });
        let call = |block: Value| json!([{ "to": CONTRACT }, "latest", accounts, block]);
        assert_eq!(rpc.result("eth_call", call(json!({}))).await, word(plain), "{field}");
        assert_eq!(rpc.result("eth_call", call(json!({ field: block }))).await, word(0x7b), "{field}");
        let (code, text) = rpc.error("eth_call", call(json!({ "nonsense": "0x1" }))).await;
        assert_eq!(code, -32602);
        assert!(text.starts_with("invalid argument 3: nonsense: unknown field `nonsense`"), "{text}");
    }
    let number = json!({ (CONTRACT.to_string()): { "code": shows("43") } });
    let far = json!([{ "to": CONTRACT }, "latest", number, { "number": U256::MAX }]);
    assert_eq!(rpc.result("eth_call", far).await, json!(B256::repeat_byte(0xff)), "more than any batch has");
    let storage = |account: Value| json!([{ "to": CONTRACT }, "latest", { (CONTRACT.to_string()): account }]);
    let shows_slot = shows("600154");
    let code = json!({ "code": shows_slot });
    assert_eq!(rpc.result("eth_call", storage(code)).await, word(99));
    let diff = json!({ "code": shows_slot, "stateDiff": { (B256::with_last_byte(1).to_string()): word(5) } });
    assert_eq!(rpc.result("eth_call", storage(diff)).await, word(5));
    let emptied = json!({ "code": shows_slot, "state": {} });
    assert_eq!(rpc.result("eth_call", storage(emptied)).await, word(0));
    let moved = json!({ "movePrecompileToAddress": Address::repeat_byte(9) });
    let refused = (-32000, format!("account {CONTRACT} is not a precompile"));
    assert_eq!(rpc.error("eth_call", storage(moved)).await, refused);

    // The same in an estimate: without its code the contract is a plain account.
    let gas = rpc.result("eth_estimateGas", storage(json!({ "code": "0x" }))).await;
    assert_eq!(gas, "0x5208");
    let small = json!([{ "to": CONTRACT }, "latest", null, { "gasLimit": "0x5209" }]);
    let (code, text) = rpc.error("eth_estimateGas", small).await;
    assert_eq!((code, &*text), (-32000, "gas required exceeds allowance (21001)"));
}

/// Goal: code can replace a precompile, and a precompile can move, in each method that takes state overrides.
#[tokio::test]
async fn precompiles_are_replaced_and_moved() {
    let rpc = Fixture::new();
    let (identity, there) = (Address::with_last_byte(4), Address::repeat_byte(9));
    let accounts = json!({ (identity.to_string()):
        { "code": "0x602a5f5260205ff3", "movePrecompileToAddress": there } });
    let call = |to: Address| json!([{ "to": to, "data": "0x616263" }, "latest", accounts]);
    assert_eq!(rpc.result("eth_call", call(identity)).await, json!(B256::with_last_byte(0x2a)));
    assert_eq!(rpc.result("eth_call", call(there)).await, "0x616263");
    assert_eq!(rpc.result("eth_call", json!([{ "to": there, "data": "0x616263" }])).await, "0x");
    for method in ["eth_estimateGas", "eth_createAccessList"] {
        assert!(rpc.ask(method, call(identity)).await.get("error").is_none(), "{method}");
    }
    let options = json!({ "tracer": "callTracer", "stateOverrides": accounts });
    let traced = json!([{ "to": there, "data": "0x616263" }, "latest", options]);
    assert_eq!(rpc.result("debug_traceCall", traced).await["output"], "0x616263");
}

/// Goal: a call at `latest` runs in the head's own block, one at `pending` in the next.
#[tokio::test]
async fn the_block_of_a_call() {
    let rpc = Fixture::new();
    let number = json!({ (CONTRACT.to_string()): { "code": "0x435f5260205ff3" } });
    for (id, expected) in [(json!("latest"), 0), (json!("0x0"), 0), (json!(null), 0), (json!("pending"), 1)] {
        let answer = rpc.result("eth_call", json!([{ "to": CONTRACT }, id, number])).await;
        assert_eq!(answer, json!(B256::with_last_byte(expected)), "{id}");
    }
}

/// Goal: these refusals use the words by which clients recognise them.
#[tokio::test]
async fn calls_are_refused_in_geths_words() {
    let rpc = Fixture::new();
    let poor = Address::repeat_byte(0x77);
    let fee = json!({ "from": poor, "to": CONTRACT, "value": "0x1", "maxFeePerGas": "0x1312d00" });
    let (code, text) = rpc.error("eth_estimateGas", json!([fee])).await;
    assert!(code == -32000 && text.starts_with("insufficient funds for transfer"), "{text}");
    let free = json!({ "from": poor, "to": CONTRACT, "value": "0x1" });
    for method in ["eth_call", "eth_estimateGas"] {
        let (code, text) = rpc.error(method, json!([free])).await;
        assert!(code == -32000 && text.starts_with("insufficient funds for gas * price + value"), "{text}");
    }
    let with = |field: &str, value: Value| {
        let mut call = json!({ "to": CONTRACT });
        call[field] = value;
        call
    };
    let authorization = json!({ "chainId": "0x1cbd", "address": CONTRACT, "nonce": "0x0", "yParity": "0x0", "r": "0x1", "s": "0x1" });
    let both = json!({ "to": CONTRACT, "gasPrice": "0x1", "maxFeePerGas": "0x1" });
    let low = json!({ "to": CONTRACT, "maxFeePerGas": "0x1" });
    let tip = json!({ "to": CONTRACT, "maxPriorityFeePerGas": "0x1" });
    for (call, code, text) in [
        (with("chainId", json!("0x1")), -32000, "chainId does not match node's (have=1, want=7357)"),
        (both, -32000, "both gasPrice and (maxFeePerGas or maxPriorityFeePerGas) specified"),
        (low, -32000, "max fee per gas less than block base fee"),
        (tip, -32000, "max priority fee per gas higher than max fee per gas"),
        (with("gas", json!("0x5")), -32000, "intrinsic gas too low"),
        (with("blobVersionedHashes", json!([B256::ZERO])), -32000, "transaction type not supported: blobs"),
        (
            json!({ "authorizationList": [authorization] }),
            -32000,
            "EIP-7702 transaction cannot be used to create contract",
        ),
        (with("authorizationList", json!([])), -32000, "EIP-7702 transaction with empty auth list"),
        (
            with("value", json!("0x01")),
            -32602,
            "invalid argument 0: value: hex number with leading zero digits",
        ),
        (
            with("value", json!(1)),
            -32602,
            "invalid argument 0: value: invalid type: integer `1`, expected a quantity",
        ),
        (
            with("data", json!([1, 2])),
            -32602,
            "invalid argument 0: data: invalid type: sequence, expected data",
        ),
        (
            with("from", json!(vec![1; 20])),
            -32602,
            "invalid argument 0: from: invalid type: sequence, expected an address",
        ),
        (with("to", json!("0x1")), -32602, "invalid argument 0: to: hex string has length 1, want 40"),
    ] {
        let (found, message) = rpc.error("eth_call", json!([call])).await;
        assert!(found == code && message.starts_with(text), "{call}: {found} {message}");
    }
    let right = json!({ "to": CONTRACT, "chainId": "0x1cbd", "type": "0x2", "nonce": "0x9", "authorizationList": [authorization] });
    assert_eq!(rpc.result("eth_call", json!([right])).await, json!(B256::with_last_byte(0x2a)));
}

/// Goal: pages that write a call by hand and leave strings empty get geth's answer. So do keys without `0x`.
#[tokio::test]
async fn empty_strings_and_bare_keys_are_taken() {
    let rpc = Fixture::new();
    let by_hand = json!({ "to": CONTRACT, "data": "", "gas": "0x100000", "value": "", "nonce": "" });
    assert_eq!(rpc.result("eth_call", json!([by_hand])).await, json!(B256::with_last_byte(0x2a)));
    let plain = json!({ "from": sender(), "to": Address::repeat_byte(2), "value": "0x1", "input": "" });
    assert_eq!(rpc.result("eth_estimateGas", json!([plain])).await, "0x5208");
    let (code, text) = rpc.error("eth_getBalance", json!([sender(), ""])).await;
    assert_eq!((code, &*text), (-32602, "invalid argument 1: empty hex string"));
    for key in ["0x1", "1", "01"] {
        let value = rpc.result("eth_getStorageAt", json!([CONTRACT, key, "latest"])).await;
        assert_eq!(value, json!(B256::with_last_byte(99)), "{key}");
    }
}

#[tokio::test]
async fn parameters_are_taken_as_they_should_be_written() {
    let rpc = Fixture::new();
    for (method, params, text) in [
        ("eth_getBalance", json!([sender(), "LATEST"]), "invalid argument 1: hex string without 0x prefix"),
        (
            "eth_getBalance",
            json!([sender(), "0x00"]),
            "invalid argument 1: hex number with leading zero digits",
        ),
        (
            "eth_getBalance",
            json!([sender(), 0]),
            "invalid argument 1: invalid type: integer `0`, expected a block",
        ),
        ("eth_getBalance", json!([]), "missing value for required argument 0"),
        ("eth_getBalance", json!({ "address": sender() }), "non-array args"),
        (
            "eth_getStorageAt",
            json!([CONTRACT, format!("0x{}", "0".repeat(66))]),
            "invalid argument 1: unable to decode storage key",
        ),
        ("eth_getBlockByNumber", json!([B256::ZERO, false]), "invalid argument 0: hex number"),
        ("eth_getBlockByHash", json!(["latest", false]), "invalid argument 0: hex string without 0x prefix"),
        ("eth_sendRawTransaction", json!([[2, 1]]), "invalid argument 0: invalid type: sequence"),
        (
            "eth_feeHistory",
            json!(["0xg", "latest", []]),
            "invalid argument 0: invalid hex or decimal integer \"0xg\"",
        ),
        ("eth_feeHistory", json!([null, "latest"]), "missing value for required argument 0"),
    ] {
        let (code, message) = rpc.error(method, params).await;
        assert!(code == -32602 && message.starts_with(text), "{method}: {message}");
    }
}

/// Goal: every method refuses unknown parameters.
#[tokio::test]
async fn no_method_takes_more_parameters_than_it_knows() {
    let rpc = Fixture::new();
    for method in rpc.0.names() {
        let (code, text) = rpc.error(method, json!(vec![Value::Null; 12])).await;
        assert!(code == -32602 && text.starts_with("too many arguments, want at most "), "{method}: {text}");
    }
}

/// Code that loops for ever and reads a nonexistent account each time.
const ENDLESS: &str = "0x5b5a31505f56";

/// Goal: a call ends when its time is over, whatever gas it has left, and says so as geth does.
#[tokio::test]
async fn calls_have_an_end() {
    let rpc = Fixture(table(RpcContext { call_time_max: Duration::from_millis(1), ..context() }));
    for method in ["eth_call", "eth_estimateGas"] {
        let started = Instant::now();
        let (code, text) = rpc.error(method, json!([{ "data": ENDLESS }])).await;
        assert_eq!(code, -32000);
        assert!(text.starts_with("execution aborted (timeout = 1ms)"), "{text}");
        assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
    }
    // A short call gets its answer within that time, unless the machine is busy with something else.
    let mut answer = Value::Null;
    for _ in 0..1_000 {
        answer = rpc.ask("eth_call", json!([{ "to": CONTRACT }])).await["result"].take();
        if answer.is_string() {
            break;
        }
    }
    assert_eq!(answer, json!(B256::with_last_byte(0x2a)));
}

/// Goal: when a caller goes away, its call ends and frees its thread, long before its time is over.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_caller_has_gone_ends() {
    let lanes = Lanes::new();
    let lane = lanes.of(Lane::Calls).clone();
    let all = lane.places().free();
    let context = RpcContext { call_time_max: Duration::from_secs(3_600), ..context() };
    let rpc = Arc::new(Fixture(methods(context, lanes)));
    // Its gas lasts for some 100 ms, in which a busy machine may not come back here.
    for _ in 0..20 {
        let caller = tokio::spawn({
            let rpc = rpc.clone();
            async move { rpc.ask("eth_call", json!([{ "data": ENDLESS }])).await }
        });
        while lane.places().free() == all && !caller.is_finished() {
            tokio::task::yield_now().await;
        }
        caller.abort();
        let gone = caller.await;
        while lane.places().free() < all {
            tokio::task::yield_now().await;
        }
        if gone.is_err_and(|error| error.is_cancelled()) {
            return;
        }
    }
    panic!("each call ran to its end before it could be given up");
}

#[tokio::test]
async fn calls_return_revert_and_are_estimated() {
    let rpc = Fixture::new();
    let answer = rpc.result("eth_call", json!([{ "to": CONTRACT }, "latest"])).await;
    assert_eq!(answer, json!(B256::with_last_byte(0x2a)));
    let reverting = json!([{ "to": CONTRACT, "data": "0x01" }, "latest"]);
    for method in ["eth_call", "eth_estimateGas"] {
        let answer = rpc.ask(method, reverting.clone()).await;
        assert_eq!(
            answer["error"],
            json!({ "code": 3, "message": "execution reverted", "data": "0x" }),
            "{method}"
        );
    }
    let gas = rpc
        .result(
            "eth_estimateGas",
            json!([{ "from": sender(), "to": Address::repeat_byte(2), "value": "0x1" }]),
        )
        .await;
    assert_eq!(gas, "0x5208");
}

/// Goal: a small request cannot produce an answer of unlimited length.
#[tokio::test]
async fn long_outputs_are_refused() {
    let rpc = Fixture::new();
    let request = |len: usize, reverts: bool| {
        let words = [U256::from(len), U256::from(u8::from(reverts))];
        let data =
            words[..1 + usize::from(reverts)].iter().flat_map(U256::to_be_bytes::<32>).collect::<Bytes>();
        json!([{ "to": ZEROS, "data": data }, "latest"])
    };
    let most = rpc.result("eth_call", request(OUTPUT_BYTES_MAX, false)).await;
    assert_eq!(most.as_str().unwrap().len(), 2 + 2 * OUTPUT_BYTES_MAX);
    for (method, reverts) in [("eth_call", false), ("eth_call", true), ("eth_estimateGas", true)] {
        let (code, text) = rpc.error(method, request(OUTPUT_BYTES_MAX + 1, reverts)).await;
        assert_eq!(code, -32005, "{method}: {text}");
        assert!(
            text.starts_with("the call's output has 1048577 bytes, but an answer holds at most 1048576"),
            "{text}"
        );
    }
}
