//! Goal: the formats of docs/formats.md do not change unnoticed. A changed vector is a decision, in a commit of its own:
//! `./x bless` writes the file anew.

use std::collections::BTreeMap;

use crate::common::*;
use slipstream_types::{
    Address, B256, Blob, BlobKind, Body, ChainConfig, Delta, Digest, Failures, Genesis, Path, SecretKey,
    StateKey, StateValue, U256, Waypoint,
    batch::content_digest,
    bounded::BoundedVec,
    chain::Fork,
    delta::DeltaEntry,
    genesis::GenesisAccount,
    limits::TRANSACTION_GAS_MAX,
    state::AccountValue,
    tree::{Leaf, root},
};

fn genesis() -> Genesis {
    let account = GenesisAccount {
        balance: U256::from(10).pow(U256::from(18)),
        nonce: 1,
        code: slipstream_types::delta::Code::new(vec![0x60, 0x00]).unwrap(),
        storage: [(B256::repeat_byte(1), U256::from(5))].into(),
    };
    Genesis {
        chain: ChainConfig { fork: Fork::Prague, ..ChainConfig::default() },
        timestamp_ms: 1_700_000_000_000,
        validators: BoundedVec::new(validators(&keys(4)).validators.to_vec()).unwrap(),
        failures: Some(Failures { any: 1, commission: 1 }),
        validators_contract: None,
        accounts: [(Address::repeat_byte(0xaa), account)].into(),
    }
}

fn vectors() -> BTreeMap<&'static str, String> {
    let hex = |bytes: &[u8]| hex::encode(bytes);
    let body = Body::new(vec![vec![0x02, 0xc0], vec![]]).unwrap();
    let account = StateKey::Account(Address::repeat_byte(0x11));
    let slot = StateKey::Slot(Address::repeat_byte(0x11), B256::repeat_byte(0x22));
    let value =
        StateValue::Account(AccountValue { nonce: 7, balance: U256::from(9), code_hash: Some(digest(1)) });
    let entries = vec![
        DeltaEntry { key: account, value: Some(value) },
        DeltaEntry { key: slot, value: Some(StateValue::Slot(U256::from(3))) },
        DeltaEntry { key: StateKey::Slot(Address::repeat_byte(0x12), B256::ZERO), value: None },
    ];
    let delta = Delta::new(entries, vec![vec![0x60, 0x01]]).unwrap();
    let ledger = Ledger::new(11);
    let leaf = |byte| Leaf { path: Path([byte; 32]), value_hash: Digest([byte; 32]) };
    let genesis = genesis();
    let [hints, with_values] = crate::hints::sample();
    BTreeMap::from([
        ("body", hex(&body.content().unwrap())),
        ("body blob", hex(&Blob::seal(BlobKind::Body, &body).unwrap())),
        ("body digest", content_digest(BlobKind::Body, &body.content().unwrap()).to_string()),
        ("header", hex(&bcs::to_bytes(&header(5)).unwrap())),
        ("header digest", header(5).digest().to_string()),
        ("receipts", hex(&bcs::to_bytes(&receipts()).unwrap())),
        ("receipt bloom", hex(receipts().receipts[0].bloom().as_slice())),
        ("delta", hex(&delta.content().unwrap())),
        ("hints", hex(&hints)),
        ("hints with values", hex(&with_values)),
        ("path of an account", format!("{:?}", account.path())),
        ("path of a slot", format!("{:?}", slot.path())),
        ("row hash", value.hash(&account).to_string()),
        ("state root of none", root(&[]).to_string()),
        ("state root of one", root(&[leaf(1)]).to_string()),
        ("state root of three", root(&[leaf(1), leaf(2), leaf(0x80)]).to_string()),
        ("accumulator root of 11", ledger.certificate.info.accumulator_root.to_string()),
        ("accumulator proof 3..7 of 11", hex(&bcs::to_bytes(&ledger.prove(3, 4)).unwrap())),
        ("certificate", hex(&bcs::to_bytes(&ledger.certificate).unwrap())),
        ("waypoint", Waypoint::of(&ledger.certificate.info).to_string()),
        ("genesis", hex(&genesis.content().unwrap())),
        ("genesis header digest", genesis.header().unwrap().digest().to_string()),
        ("genesis file", serde_json::to_string(&genesis).unwrap()),
    ])
}

/// What a changed format needs beside new vectors: nothing else fails.
const RAISE: &str = "If that is meant, raise what keeps old and new programs apart: ALPN (network/src/quic/tls.rs), \
                     VERSION (storage/src/export/mod.rs), VERSION (storage/archive/src/manifest.rs), RECORDS and the \
                     fingerprint (storage/src/directory/fingerprint.rs); adapt light/js; then run `./x bless`. docs/changing.md has the steps";

#[test]
fn formats_are_pinned() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors.json");
    let found = vectors();
    if std::env::var_os("SLIPSTREAM_BLESS").is_some() {
        std::fs::write(path, serde_json::to_string_pretty(&found).unwrap() + "\n").unwrap();
    }
    let pinned: BTreeMap<String, String> =
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(found.len(), pinned.len());
    for (name, value) in found {
        assert_eq!(Some(&value), pinned.get(name), "the format of '{name}' changed. {RAISE}");
    }
}

#[test]
fn a_genesis_file_reads_back() {
    let genesis = genesis();
    let text = serde_json::to_string(&genesis).unwrap();
    assert_eq!(serde_json::from_str::<Genesis>(&text).unwrap(), genesis);
    assert_eq!(Genesis::decode(&genesis.content().unwrap()).unwrap(), genesis);
    let waypoint = Waypoint::of(&genesis.ledger_info().unwrap());
    assert_eq!(waypoint.to_string().parse::<Waypoint>().unwrap(), waypoint);
    assert!("12".parse::<Waypoint>().is_err() && "x:0x00".parse::<Waypoint>().is_err());
}

/// Goal: a chain that admits unprotected transactions says so after all other bytes, and other chains' bytes are
/// unchanged: the vectors above pin them.
#[test]
fn unprotected_transactions_are_part_of_the_identity() {
    let plain = genesis();
    let mut lax = genesis();
    lax.chain.unprotected_transactions = true;
    let (content, text) = (plain.content().unwrap(), serde_json::to_string(&plain).unwrap());
    let [with_false, with_true, with_two] = [0, 1, 2].map(|last| [&content[..], &[last]].concat());
    assert_eq!(lax.content().unwrap(), with_true);
    assert_eq!(Genesis::decode(&with_true).unwrap(), lax);
    assert_eq!(Genesis::decode(&content).unwrap(), plain);
    assert_ne!(lax.header().unwrap().digest(), plain.header().unwrap().digest());

    let lax_text = serde_json::to_string(&lax).unwrap();
    assert_eq!(lax_text, text.strip_suffix('}').unwrap().to_owned() + ",\"unprotected_transactions\":true}");
    assert_eq!(serde_json::from_str::<Genesis>(&lax_text).unwrap(), lax);
    // A file may state the default explicitly, and is the same chain.
    assert_eq!(serde_json::from_str::<Genesis>(&lax_text.replace(":true}", ":false}")).unwrap(), plain);

    // Neither has a second content, nor further bytes.
    let twice = [&content[..], &[1, 1]].concat();
    for refused in [&with_false[..], &with_two, &twice, &content[..content.len() - 1], &[1], &[]] {
        let error = Genesis::decode(refused).unwrap_err().to_string();
        assert!(error.starts_with("malformed genesis"), "{error}");
    }
    assert!(bcs::from_bytes::<Genesis>(&with_true).is_err(), "only `decode` knows the byte");
}

/// Goal: the flag belongs beside `chain`, not inside: a file that has it inside is refused instead of giving a strict
/// chain.
#[test]
fn unprotected_transactions_stand_beside_the_chain() {
    let mut file = serde_json::to_value(genesis()).unwrap();
    file["chain"]["unprotected_transactions"] = serde_json::json!(true);
    let refused = serde_json::from_value::<Genesis>(file).unwrap_err().to_string();
    assert!(refused.contains("unknown field `unprotected_transactions`"), "{refused}");
}

/// Goal: a genesis whose chain could not behave like Ethereum is refused, and the error names the account at fault.
#[test]
fn a_genesis_that_breaks_a_rule_is_refused() {
    let refuse = |change: &dyn Fn(&mut Genesis), text: &str| {
        let mut genesis = genesis();
        change(&mut genesis);
        let refused = genesis.check().unwrap_err().to_string();
        assert!(refused.contains(text), "{refused}");
        assert_eq!(Genesis::decode(&genesis.content().unwrap()).unwrap_err().to_string(), refused);
    };
    assert_eq!(genesis().check(), Ok(()));
    for max in [20_999, TRANSACTION_GAS_MAX + 1] {
        refuse(&|genesis| genesis.chain.transaction_gas_max = max, "transaction_gas_max must be");
    }
    let only_storage = |value: u64| GenesisAccount {
        balance: U256::from(1),
        storage: [(B256::ZERO, U256::from(value))].into(),
        ..GenesisAccount::default()
    };
    let address = Address::repeat_byte(0xbb);
    let named = format!("account {address} has storage but neither code nor a nonce");
    refuse(&|genesis| _ = genesis.accounts.insert(address, only_storage(1)), &named);
    let mut fine = genesis();
    fine.accounts.insert(address, only_storage(0));
    fine.accounts.insert(Address::ZERO, GenesisAccount { nonce: 1, ..only_storage(1) });
    assert_eq!(fine.check(), Ok(()));
}

/// Goal: a genesis file that names no cap has Ethereum's.
#[test]
fn a_genesis_file_may_leave_the_gas_cap_out() {
    let mut file = serde_json::to_value(genesis()).unwrap();
    file["chain"].as_object_mut().unwrap().remove("transaction_gas_max").unwrap();
    assert_eq!(serde_json::from_value::<Genesis>(file).unwrap(), genesis());
}

/// Goal: each validator has its own position, by which signatures are indexed, and other keys have none.
#[test]
fn a_set_knows_the_position_of_each_validator() {
    let (keys, stranger) = (keys(5), SecretKey::from_seed([9; 32]));
    let set = validators(&keys);
    let found: Vec<_> = keys.iter().map(|key| set.index_of(&key.public())).collect();
    assert_eq!(found, [0, 1, 2, 3, 4].map(Some));
    assert_eq!(set.index_of(&stranger.public()), None);
}
