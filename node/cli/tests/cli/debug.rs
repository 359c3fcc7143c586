//! A bundle for a helper: its parts, and what every bundle leaves out.

use std::{collections::BTreeMap, fs, io::Read, os::unix::fs::MetadataExt, path::Path, process::Command};

use serde_json::Value;

use crate::chain::{BINARY, Chain, Running, ended, printed};

/// Secrets of the environment, a URL, a query and a path.
const OF_THE_ENVIRONMENT: &str = "canary-of-the-environment";
const OF_A_URL: &str = "canary-of-a-url";
const OF_A_QUERY: &str = "canary-of-a-query";
const OF_A_PATH: &str = "canary-of-a-path";

/// The files of a bundle.
fn unpacked(path: &Path) -> BTreeMap<String, String> {
    let file = fs::File::open(path).unwrap();
    assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
    let mut archive = tar::Archive::new(zstd::Decoder::new(file).unwrap());
    let entries = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().file_name().unwrap().to_str().unwrap().to_owned();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        (name, text)
    });
    entries.collect()
}

fn bundle(chain: &Chain, name: &str) -> (String, BTreeMap<String, String>) {
    let out = chain.path(name);
    let output = Command::new(BINARY)
        .args(["debug", "bundle", "--config", &chain.config(), "--out", out.to_str().unwrap()])
        .env("CLOUD_SECRET_ACCESS_KEY", OF_THE_ENVIRONMENT)
        .env_remove("RUST_LOG")
        .output()
        .unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.success(), "{text}");
    (text, unpacked(&out))
}

/// Every form in which the canaries, the key and the token could be written.
fn secrets(chain: &Chain) -> Vec<String> {
    let read = |name: &str| fs::read_to_string(chain.path(name)).unwrap().trim().to_owned();
    let mut secrets: Vec<String> =
        [OF_THE_ENVIRONMENT, OF_A_URL, OF_A_QUERY, OF_A_PATH].map(str::to_owned).to_vec();
    for digits in [read("node.key"), read("data/operator.token")] {
        let bytes: Vec<u8> =
            (0..32).map(|i| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).unwrap()).collect();
        secrets.extend([digits.clone(), digits.to_uppercase()]);
        secrets.extend([base64(&bytes), base64(digits.as_bytes())]);
    }
    secrets
}

/// A separate implementation, so that a mistake in the mask does not also hide in the test.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let threes = bytes.chunks(3).flat_map(|three| {
        let byte = |at: usize| u32::from(three.get(at).copied().unwrap_or_default());
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        [18, 12, 6, 0].into_iter().take(three.len() + 1).map(move |shift| (bits >> shift & 63) as usize)
    });
    threes.map(|digit| char::from(DIGITS[digit])).collect()
}

/// Whether most of a secret is in a text.
fn leaks(text: &str, secret: &str) -> bool {
    text.contains(&secret[..secret.len() * 9 / 10])
}

/// Goal: a bundle of a running node, and of a stopped one, has all that helps. It is free of secrets, however they got
/// into logs and status.
#[test]
fn a_bundle_has_what_helps_and_no_secret() {
    let chain = Chain::new();
    fs::create_dir(chain.path(&format!("api_key={OF_A_PATH}"))).unwrap();
    chain.configure(&format!("log: {{ file: {{ path: \"api_key={OF_A_PATH}/node.log\" }} }}\n"));
    let node = Running::start(&chain);
    let secrets = secrets(&chain);
    // An operator may write secrets anywhere: they get into the status, the log and its file.
    let config = chain.config();
    let key = "12".repeat(32);
    let planted = [
        format!("see https://me:{OF_A_URL}@host/x?token={OF_A_QUERY}"),
        format!("and {} {}", OF_THE_ENVIRONMENT, &secrets[4]),
        format!("and {}", &secrets[6]),
        format!("and {} {}", &secrets[7], &secrets[9]),
    ];
    for (n, why) in planted.iter().enumerate() {
        let peer = format!("{n}{}", &key[1..]);
        printed(&["peers", "ban", &peer, "--why", why, "--config", &config], true);
    }
    let status = node.http("GET /v1/status", "");
    assert!(secrets[..3].iter().chain([&secrets[4]]).all(|secret| status.contains(secret)), "{status}");

    let (said, parts) = bundle(&chain, "live.tar.zst");
    let names: Vec<&str> = parts.keys().map(String::as_str).collect();
    let expected = [
        "README.txt",
        "configuration.json",
        "database.json",
        "evidence.json",
        "files.txt",
        "health.json",
        "log-file.txt",
        "log.txt",
        "metrics.txt",
        "operator.peers.json",
        "rocksdb.txt",
        "snapshots.json",
        "status.json",
        "system.txt",
    ];
    assert_eq!(names, expected, "{said}");
    assert!(!said.contains("not in it"), "{said}");
    for name in names.iter().filter(|name| name.ends_with(".json")) {
        serde_json::from_str::<Value>(&parts[*name]).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    for (name, part) in [
        ("status.json", "\"role\":\"validator\""),
        ("configuration.json", "\"role\": \"validator\""),
        ("log.txt", "the operator banned a peer"),
        ("log-file.txt", "the operator banned a peer"),
        ("metrics.txt", "slipstream_head_number"),
        ("rocksdb.txt", "RocksDB version"),
        ("files.txt", "operator.token"),
        ("system.txt", "MemTotal"),
        ("system.txt", "# /proc/"),
        ("README.txt", "status.json"),
    ] {
        assert!(parts[name].contains(part), "{part} is not in {name}: {}", parts[name]);
    }
    let all: String = parts.values().map(String::as_str).collect();
    for secret in &secrets {
        assert!(!leaks(&all, secret), "{secret} is in the bundle");
    }
    assert!(all.matches("***").count() >= 4 * 3);

    let again = printed(
        &["debug", "bundle", "--config", &config, "--out", chain.path("live.tar.zst").to_str().unwrap()],
        false,
    );
    assert!(again.contains("cannot write the bundle") && again.contains("File exists"), "{again}");
    node.stop();
    fs::write(chain.path("data/last_failure.txt"), format!("task sync failed at {}", &secrets[4])).unwrap();
    fs::write(chain.path("data/node.bans.json"), format!("{{ \"reason\": \"{}\" }}", &secrets[4])).unwrap();
    let (said, parts) = bundle(&chain, "down.tar.zst");
    assert!(said.contains("not in it:") && said.contains("no node runs on the data directory"), "{said}");
    assert!(parts["last_failure.txt"].contains("task sync failed at ***"));
    assert!(parts["operator.peers.json"].contains("\"bans\"") && parts["node.bans.json"].contains("***"));
    assert!(parts["database.json"].contains("\"columns\"") && !parts.contains_key("status.json"));
    let all: String = parts.values().map(String::as_str).collect();
    assert!(!secrets.iter().any(|secret| leaks(&all, secret)));

    let (code, text) = ended(&["debug", "bundle", "--config", "none.yaml"]);
    assert!(code == 78 && text.contains("none.yaml"), "{code}: {text}");
}
