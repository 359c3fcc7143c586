//! The database: single entries, read while the node runs on it, and its head moved back.

use serde_json::{Value, json};
use slipstream_types::Address;

use crate::{
    among::{fullnode, peer_address},
    chain::{Chain, Running, ended, printed, quantity},
    offline::transaction,
    process::until,
};

/// Goal: the database and the node agree, now and after an earlier batch, whether the node runs or not.
#[test]
fn what_is_in_the_database_is_shown_beside_the_node() {
    let chain = Chain::new();
    chain.configure("consensus: { batch_interval_ms: 20, empty_batch_interval_ms: 0 }\n");
    let node = Running::start(&chain);
    let config = chain.config();
    let mut hashes = Vec::new();
    for nonce in 0..3 {
        let sent = node.rpc("eth_sendRawTransaction", json!([transaction(nonce)]));
        hashes.push(sent["result"].as_str().unwrap().to_owned());
        until("it is executed", || {
            node.rpc("eth_getTransactionReceipt", json!([hashes[nonce as usize]]))["result"]
                .is_object()
                .then_some(())
        });
    }
    let look = |args: &[&str]| {
        let command = [&["db", "get"], args, &["--config", &config]].concat();
        // The node may remove a file that is being read; the exit code shows that.
        until("the database is read", || Some(ended(&command)).filter(|(code, _)| *code != 75))
    };
    let get = |args: &[&str]| {
        let (code, text) = look(args);
        assert_eq!(code, 0, "{args:?}: {text}");
        text
    };
    let get_json =
        |args: &[&str]| -> Value { serde_json::from_str(&get(&[args, &["--json"]].concat())).unwrap() };
    let receipt = node.rpc("eth_getTransactionReceipt", json!([hashes[1]]))["result"].clone();
    let number = quantity(&receipt["blockNumber"]).to_string();
    let block = node.rpc("eth_getBlockByNumber", json!([receipt["blockNumber"], false]))["result"].clone();
    let sender = receipt["from"].as_str().unwrap().to_owned();
    let recipient = Address::repeat_byte(2).to_string();

    let check = || {
        let found = get_json(&["transaction", &hashes[1]]);
        assert_eq!(found["batch"].as_u64().unwrap().to_string(), number, "{found}");
        assert_eq!(found["sender"].as_str().unwrap().to_lowercase(), sender, "{found}");
        assert_eq!(found["transaction"]["nonce"], "0x1", "{found}");
        assert_eq!(found["receipt"]["gas_used"].as_u64().unwrap(), quantity(&receipt["gasUsed"]));
        let found = get_json(&["batch", &number]);
        assert_eq!((&found["digest"], &found["parent"]), (&block["hash"], &block["parentHash"]), "{found}");
        assert_eq!(found["transactions"], block["transactions"], "{found}");
        assert!(
            found["kept"]["body_bytes"].as_u64().unwrap() > 50_000,
            "its noise cannot be compressed: {found}"
        );
        assert_eq!(get_json(&["header", &number])["state_root"], block["stateRoot"]);
        assert_eq!(get_json(&["receipts", &number])["receipts"].as_array().unwrap().len(), 1);
        let certificate = get_json(&["certificate", &number]);
        assert!(
            certificate["waypoint"].as_str().unwrap().starts_with(&format!("{number}:0x")),
            "{certificate}"
        );
        assert_eq!(certificate["signatures"].as_array().unwrap().len(), 1);
        assert_eq!(get_json(&["account", &sender])["nonce"], 3);
        let before = (number.parse::<u64>().unwrap() - 1).to_string();
        assert_eq!(get_json(&["account", &sender, "--at", &before])["nonce"], 1);
        assert_eq!(get_json(&["account", &recipient, "--at", &before])["balance_wei"], "0");
        assert_eq!(get_json(&["account", &recipient])["balance_wei"], "2", "what the second one sent");
        let slot = format!("0x{}", "00".repeat(32));
        assert_eq!(get_json(&["slot", &recipient, &slot])["value"], slot);
        let text = get(&["header", &number]);
        assert!(text.contains(&format!("digest             {}", block["hash"].as_str().unwrap())), "{text}");
    };
    check();
    let head = node.head();
    for (args, said) in [
        (
            vec!["batch", "999999"],
            format!("the header of batch 999999 is not stored here; the database has batches up to {head}"),
        ),
        (vec!["account", &sender, "--at", "999999"], "the state after batch 999999 is not kept".into()),
        (vec!["transaction", block["hash"].as_str().unwrap()], "is not stored here".into()),
        (vec!["code", block["hash"].as_str().unwrap()], "code 0x".into()),
    ] {
        let (code, text) = look(&args);
        assert!(code == 1 && text.contains(&said), "{args:?}: {code}: {text}");
    }
    let (code, _) = ended(&["db", "get", "account", "0x12", "--config", &config]);
    assert_eq!(code, 2);
    node.stop();
    check();
    let node = Running::start(&chain);
    node.stop();
}

/// Goal: the head of a stopped fullnode moves back, and the node follows again to the same roots. A validator's head
/// stays above its votes.
#[test]
fn a_fullnode_that_was_rolled_back_follows_again() {
    let chain = Chain::new();
    chain.configure("consensus: { batch_interval_ms: 20, empty_batch_interval_ms: 50 }\n");
    let validator = Running::start(&chain);
    let (home, fullnode) =
        fullnode(&chain, &[&peer_address(&validator)], "storage: { snapshot_interval_batches: 10 }\n");
    let hash = |node: &Running, number: &str| {
        node.rpc("eth_getBlockByNumber", json!([number, false]))["result"]["hash"].clone()
    };
    let sent = fullnode.rpc("eth_sendRawTransaction", json!([transaction(0)]));
    until("it is executed", || {
        fullnode.rpc("eth_getTransactionReceipt", json!([sent["result"]]))["result"].is_object().then_some(())
    });
    until("some batches", || (fullnode.head() >= 30).then_some(()));
    fullnode.stop();

    let (here, there) = (home.config(), chain.config());
    let roll = |more: &[&str], success| {
        printed(&[&["db", "rollback", "--config", &here, "--to", "12"], more].concat(), success)
    };
    let planned = roll(&["--dry-run"], true);
    assert!(planned.contains("a rollback would drop:") && planned.contains("(13 to "), "{planned}");
    assert_eq!(roll(&["--dry-run"], true), planned, "a dry run changes nothing");
    let done = roll(&[], true);
    assert!(done.contains("dropped:") && done.contains("the head is batch 12, state root 0x"), "{done}");
    assert!(roll(&[], false).contains("the head is batch 12: a rollback to batch 12 would drop nothing"));
    let (code, text) = ended(&["db", "get", "header", "13", "--config", &here]);
    assert!(code == 1 && text.contains("has batches up to 12"), "{code}: {text}");
    assert!(printed(&["db", "check", "--config", &here], true).contains("the database is whole"));

    let again = Running::start(&home);
    until("it has followed", || (again.head() >= 40).then_some(()));
    for number in ["0xc", "0xd", "0x1e"] {
        let (own, theirs) = (hash(&again, number), hash(&validator, number));
        assert!(own.is_string() && own == theirs, "{number}: {own} {theirs}");
    }
    assert!(again.rpc("eth_getTransactionReceipt", json!([sent["result"]]))["result"].is_object());
    again.stop();
    validator.stop();
    let (code, text) = ended(&["db", "rollback", "--config", &there, "--to", "12"]);
    assert!(
        code == 1 && text.contains("Never roll back a validator") && text.contains("has voted up to batch"),
        "{code}: {text}"
    );
}
