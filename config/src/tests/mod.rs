use std::path::{Path, PathBuf};

mod layers;
mod schema;

use crate::{CONFIG_BYTES_MAX, ConfigError, LogFileConfig, LogFormat, Overrides, Role, load, parse};

const PEER: &str = "1111111111111111111111111111111111111111111111111111111111111111@127.0.0.1:7400";

fn fullnode(rest: &str) -> String {
    format!(
        "role: fullnode\ngenesis: genesis.json\nnetwork:\n  listen: 127.0.0.1:0\n  peers:\n    - {PEER}\n{rest}"
    )
}

fn refused(text: &str) -> String {
    parse(text, Path::new("conf/node.yaml")).expect_err("must be refused").to_string()
}

/// Goal: a minimal file is enough, and relative paths start at the file's directory.
#[test]
fn defaults_and_paths() {
    let config = parse(&fullnode("key_file: /keys/a.key\n"), Path::new("conf/node.yaml")).unwrap();
    assert_eq!(config.role, Role::Fullnode);
    assert_eq!(config.data_dir, PathBuf::from("conf/data"));
    assert_eq!(config.genesis, Some(PathBuf::from("conf/genesis.json")));
    assert_eq!(config.key_file, PathBuf::from("/keys/a.key"));
    assert_eq!(config.api.listen.to_string(), "127.0.0.1:8545");
    assert_eq!(config.log.format, LogFormat::Text);
    assert_eq!(config.network.peers.len(), 1);
}

#[test]
fn validator_needs_no_peers() {
    parse("role: validator\ngenesis: g.json\n", Path::new("node.yaml")).unwrap();
}

/// Goal: an error about a missing key does not point at another key's line.
#[test]
fn a_missing_key_has_no_line() {
    for text in ["genesis: a\n", "# A node.\n\ndata_dir: data\nnetwork:\n  listen: 127.0.0.1:0\n"] {
        assert_eq!(
            refused(text),
            "conf/node.yaml: role is missing; write `role: validator` or `role: fullnode`"
        );
    }
}

/// Goal: the error about a misspelt key has exactly this text.
#[test]
fn unknown_key_at_the_top() {
    let text = refused("role: fullnode\ngenesys: g.json\n");
    let (first, snippet) = text.split_once('\n').unwrap();
    assert!(
        first.starts_with(
            "conf/node.yaml:2:1: genesys: unknown field `genesys`, expected one of role, preset, data_dir, genesis,"
        ),
        "{first}"
    );
    assert_eq!(snippet, "  |\n2 | genesys: g.json\n  | ^^^^^^^");
}

#[test]
fn unknown_key_in_a_section() {
    let text = refused(&fullnode("api:\n  listn: 127.0.0.1:1\n"));
    assert_eq!(
        text,
        "conf/node.yaml:8:3: api.listn: unknown field `listn`, expected one of listen, max_body_bytes, max_connections, \
         max_connections_per_address, trusted_addresses, call_time_max_ms, send_sync_time_max_ms, trace_time_max_ms, trace_mib_max, cors, allowed_hosts\n  |\n8 |   listn: 127.0.0.1:1\n  |   ^^^^^"
    );
}

#[test]
fn wrong_values() {
    assert_eq!(
        refused("role: full\n"),
        "conf/node.yaml:1:7: role: unknown variant `full`, expected one of validator, fullnode\n  |\n1 | role: full\n  |       ^^^^"
    );
    assert_eq!(
        refused(&fullnode("api: { listen: 1.2.3 }\n")),
        "conf/node.yaml:7:16: api.listen: invalid socket address syntax, found `1.2.3`\n  |\n7 | api: { listen: 1.2.3 }\n  |                ^^^^^"
    );
    let text = refused(&fullnode("waypoint: 7\n"));
    assert!(text.starts_with("conf/node.yaml:7:11: waypoint: a waypoint is NUMBER:0xHASH"), "{text}");
    assert!(
        refused(&fullnode("api: { max_connections: 0 }\n"))
            .contains("api.max_connections: invalid value: integer `0`")
    );
    assert!(
        refused("role: fullnode\nnetwork:\n  peers: [abc]\n")
            .starts_with("conf/node.yaml:3:11: network.peers[0]: ")
    );
}

#[test]
fn not_one_yaml_mapping() {
    assert!(
        refused("role: fullnode\nrole: validator\n")
            .starts_with("conf/node.yaml:2:1: duplicate mapping key: role; remove one of the two\n")
    );
    assert!(refused("role: fullnode\n---\nrole: validator\n").contains("multiple YAML documents detected\n"));
    // The environment may set every key, so an empty file only lacks keys that no layer sets.
    assert!(refused("").starts_with("conf/node.yaml: role is missing; "));
    assert!(refused("role: fullnode\nlog:\n   filter: a\n  format: b\n").starts_with("conf/node.yaml:4:3: "));
}

#[test]
fn rules_across_sections() {
    assert_eq!(
        refused("role: validator\n"),
        "conf/node.yaml: genesis: a validator needs the chain's genesis file; set `genesis: FILE` to the file that all \
         validators of the chain share"
    );
    let text = refused("role: fullnode\n");
    assert!(
        text.contains("a fullnode needs a genesis file or a waypoint, from which its trust starts; set `genesis: FILE`, or `waypoint: "),
        "{text}"
    );
    assert!(
        refused("role: fullnode\ngenesis: g.json\n")
            .starts_with("conf/node.yaml: network.peers: a fullnode needs a peer to follow")
    );
    let text = refused("role: validator\ngenesis: g.json\nnetwork: { peers_max: 0 }\n");
    assert_eq!(
        text,
        "conf/node.yaml:3:23: network.peers_max: must be from 1 to 4096, not 0\n  |\n3 | network: { peers_max: 0 }\n  |                       ^"
    );
    let text = refused(&fullnode("api: { max_body_bytes: 1000 }\n"));
    assert!(
        text.contains(
            "api.max_body_bytes: 1000 bytes cannot carry the largest transaction; set it to 263168"
        ),
        "{text}"
    );
    for host in ["http://node1.example", "node1.example:8545", ""] {
        let text = refused(&fullnode(&format!("api: {{ allowed_hosts: [\"{host}\"] }}\n")));
        assert!(
            text.contains(&format!("api.allowed_hosts: `{host}` is not a host name; write names as")),
            "{text}"
        );
    }
    let text = refused(&fullnode("api: { allowed_hosts: [\"https://user:ca`nary@host\"] }\n"));
    assert!(text.contains("`https://***@host` is not a host name") && !text.contains("nary"), "{text}");
}

/// Goal: an archive's URL is checked on load, and errors repeat no URL that may hold a secret.
#[test]
fn archives_are_urls_without_credentials() {
    let archives = |list: &str| fullnode(&format!("sync: {{ archives: [{list}] }}\n"));
    let good = archives("\"s3://bucket/net\", \"https://host.example/net\"");
    let config = parse(&good, Path::new("conf/node.yaml")).unwrap();
    assert_eq!(config.sync.archives.len(), 2);
    for secret in ["s3://key:hidden@bucket/net", "https://host.example/net?signature=hidden"] {
        let text = refused(&archives(&format!("\"{secret}\"")));
        assert!(text.contains("sync.archives[0]: ") && text.contains("AWS_ACCESS_KEY_ID"), "{text}");
        assert!(!text.contains("hidden"), "{text}");
    }
    // A misspelt key, a list without an end, and a text instead of a list.
    for wrong in [
        "archive: [\"s3://key:hidden@b\"] }",
        "archives: [s3://key:hidden@b",
        "archives: \"s3://key:hidden@b\" }",
    ] {
        let text = refused(&fullnode(&format!("sync: {{ {wrong}\n")));
        assert!(!text.contains("hidden"), "{text}");
    }
    let text = refused(&archives("7"));
    assert!(text.contains("s3://BUCKET/PREFIX") || text.contains("sync.archives[0]"), "{text}");
    let text = refused(&archives("\"s3://a/b\", \"s3://a/b\""));
    assert!(text.contains("one archive is named twice"), "{text}");
    let many: Vec<String> = (0..17).map(|i| format!("\"s3://bucket/{i}\"")).collect();
    let text = refused(&archives(&many.join(", ")));
    assert!(text.contains("17 archives exceed the limit of 16"), "{text}");
}

/// Goal: a number with which the node would fail is refused with its key, line and range, in every section.
#[test]
fn numbers_are_within_their_ranges() {
    const MEMORY: &str = "0 to 16777216";
    let huge = u64::MAX.to_string();
    let huge = huge.as_str();
    for (section, key, range, wrong) in [
        ("storage", "block_cache_mib", MEMORY, vec![huge]),
        ("storage", "tree_memory_mib", MEMORY, vec![huge]),
        ("storage", "snapshots_kept", "0 to 1000", vec![huge]),
        ("storage", "disk_free_min_mib", MEMORY, vec![huge]),
        ("executor", "prefetch_threads", "0 to 1024", vec!["100000"]),
        ("executor", "readahead_batches", "0 to 4096", vec![huge]),
        ("executor", "readahead_mib", MEMORY, vec![huge]),
        ("executor", "hot_cache_mib", MEMORY, vec![huge]),
        ("executor", "threads", "0 to 1024", vec!["1025"]),
        ("sync", "range_batches_max", "1 to 1024", vec!["1025"]),
        ("sync", "range_bytes_max", "65536 to 16777216", vec!["1", "4294967295"]),
        ("sync", "request_deadline_ms", "100 to 600000", vec!["1", huge]),
        ("sync", "buffer_mib", "1 to 16777216", vec!["4294967295"]),
        ("sync", "serve_cache_mib", MEMORY, vec!["4294967295"]),
        ("sync", "serve_peer_work_ms_per_second", "10 to 1000000", vec!["1"]),
        ("consensus", "batch_interval_ms", "0 to 60000", vec![huge]),
        ("consensus", "empty_batch_interval_ms", "0 to 86400000", vec![huge]),
        ("consensus", "batch_transactions_max", "1 to 65536", vec!["65537"]),
        ("consensus", "view_timeout_ms", "100 to 600000", vec!["1", huge]),
        ("consensus", "rotate_after", "0 to 1000000000", vec![huge]),
        ("consensus", "protect_after", "0 to 1000000000", vec![huge]),
        ("consensus", "protect_wait_ms", "0 to 60000", vec![huge]),
        ("consensus.pool", "transactions_max", "1 to 10000000", vec!["0", huge]),
        ("consensus.pool", "bytes_max", "131072 to 1099511627776", vec!["0", "131071", huge]),
        ("consensus.pool", "per_sender_max", "1 to 10000000", vec!["0", huge]),
        ("consensus.pool", "price_bump_percent", "1 to 1000", vec!["0", huge]),
        ("consensus.pool", "journal_mib", "0 to 1024", vec!["1025", huge]),
        ("api", "max_body_bytes", "263168 to 1073741824", vec![huge]),
        ("api", "max_connections", "1 to 65536", vec![huge]),
        ("api", "max_connections_per_address", "1 to 65536", vec![huge]),
        ("api", "call_time_max_ms", "10 to 20000", vec!["9", huge]),
        ("api", "send_sync_time_max_ms", "1 to 20000", vec!["20001", huge]),
        ("api", "trace_time_max_ms", "10 to 20000", vec!["9", huge]),
        ("api", "trace_mib_max", "1 to 4096", vec!["4097", huge]),
    ] {
        for value in wrong {
            let line = match section.split_once('.') {
                Some((outer, inner)) => format!("{outer}:\n  {inner}:\n    {key}: {value}\n"),
                None => format!("{section}:\n  # counted\n  {key}: {value}\n"),
            };
            let text = refused(&fullnode(&line));
            let (first, snippet) = text.split_once('\n').unwrap();
            assert!(first.starts_with("conf/node.yaml:9:"), "{text}");
            assert!(
                first.ends_with(&format!(": {section}.{key}: must be from {range}, not {value}")),
                "{text}"
            );
            assert!(snippet.contains(&format!("{key}: {value}\n")), "{text}");
        }
        let documented = include_str!("../../../docs/configuration.md");
        let row = format!("| `{section}.{key}` | {} |", range.replace(" to ", " | "));
        assert!(documented.contains(&row), "docs/configuration.md lacks {row}");
    }
}

/// Goal: two contradicting intervals are refused, even if one of them is a default.
#[test]
fn empty_batches_are_no_more_frequent_than_others() {
    let consensus = |keys: &str| fullnode(&format!("consensus: {{ {keys} }}\n"));
    let text = refused(&consensus("batch_interval_ms: 500, empty_batch_interval_ms: 100"));
    assert!(
        text.starts_with(
            "conf/node.yaml:7:63: consensus.empty_batch_interval_ms: must be 0, or at least the 500 of \
             consensus.batch_interval_ms, not 100: "
        ),
        "{text}"
    );
    let text = refused(&consensus("batch_interval_ms: 2000"));
    assert!(
        text.starts_with(
            "conf/node.yaml: consensus.empty_batch_interval_ms: must be 0, or at least the 2000 of"
        ),
        "{text}"
    );
    for keys in ["batch_interval_ms: 2000, empty_batch_interval_ms: 0", "empty_batch_interval_ms: 100"] {
        parse(&consensus(keys), Path::new("node.yaml")).unwrap();
    }
}

/// Goal: a policy that sync cannot follow is refused, and the error says what to write.
#[test]
fn sync_policies_are_checked() {
    let sync = |section: &str| fullnode(&format!("sync: {{ {section} }}\n"));
    assert_eq!(
        refused(&sync("audit: 1.5")),
        "conf/node.yaml:7:16: sync.audit: 1.5 is not a share of the batches; set it to a number from 0 (audit none) to 1 (audit all)\n  \
         |\n7 | sync: { audit: 1.5 }\n  |                ^^^"
    );
    for audit in ["-0.1", ".nan"] {
        let text = refused(&sync(&format!("audit: {audit}")));
        assert!(text.starts_with("conf/node.yaml:7:16: sync.audit: "), "{text}");
    }
    let text = refused(&sync("forbid: [auto]"));
    assert!(text.contains(":7:17: sync.forbid: `auto` chooses among the modes"), "{text}");
    for mode in ["auto", "snapshot", "range_delta"] {
        let text = refused(&sync(&format!("mode: {mode}, forbid: [replay, delta]")));
        assert!(
            text.contains("no mode is left to follow new batches; leave one of the two out of `forbid`\n"),
            "{text}"
        );
    }
    for allowed in [
        "audit: 0",
        "audit: 1.0",
        "mode: replay, forbid: [replay, delta]",
        "forbid: [snapshot, range_delta, replay]",
    ] {
        parse(&sync(allowed), Path::new("node.yaml")).unwrap();
    }
    assert!(refused(&sync("forbid: [fast]")).contains("sync.forbid[0]: unknown variant `fast`"));
}

/// Goal: a listening address is refused as a peer's address: the node would dial itself.
#[test]
fn peers_without_an_address_are_refused() {
    let id = "11".repeat(32);
    for address in ["0.0.0.0:7400", "[::]:7400", "192.0.2.7:0"] {
        let text = refused(&fullnode("").replace(PEER, &format!("\"{id}@{address}\"")));
        assert!(
            text.starts_with(&format!("conf/node.yaml:6:5: network.peers: cannot dial {id}@{address}: ")),
            "{text}"
        );
    }
}

/// Goal: a name that could garble a screen, or that names two keys, is refused with its place.
#[test]
fn names_are_printable_and_each_means_one_key() {
    let (a, b) = ("11".repeat(32), "22".repeat(32));
    let names = |list: &str| format!("role: validator\ngenesis: g.json\nnetwork:\n  names: [{list}]\n");
    let config =
        parse(&names(&format!("\"{a}=validator-0\", \"{b}=Zürich <2>\"")), Path::new("node.yaml")).unwrap();
    let found: Vec<_> = config.network.names.iter().map(|named| named.name.as_str()).collect();
    assert_eq!(found, ["validator-0", "Zürich <2>"]);
    for (list, said) in [
        (format!("\"{a}=x\", \"{b}=x\""), "network.names: two keys have the name \"x\""),
        (format!("\"{a}=x\", \"{a}=y\""), "has two names"),
        (format!("\"{a}=\\u001b[2J\""), "network.names[0]: "),
        (format!("\"{a}\""), "the = is missing"),
    ] {
        let text = refused(&names(&list));
        assert!(text.contains(said), "{text}");
    }
}

#[test]
fn a_validator_waits_for_the_disk() {
    let text = refused("role: validator\ngenesis: g.json\nstorage: { fsync: false }\n");
    assert!(
        text.starts_with("conf/node.yaml:3:19: storage.fsync: a validator that does not wait for the disk"),
        "{text}"
    );
    parse(&fullnode("storage: { fsync: false }\n"), Path::new("node.yaml")).unwrap();
}

#[test]
fn waypoint_alone_is_enough_for_a_fullnode() {
    let zeros = "0".repeat(64);
    let text = format!("role: fullnode\nwaypoint: 12:0x{zeros}\nnetwork:\n  peers: [\"{PEER}\"]\n");
    let config = parse(&text, Path::new("node.yaml")).unwrap();
    assert_eq!(config.waypoint.unwrap().number.get(), 12);
}

/// Goal: a log file is bounded whatever keys are omitted, and its path starts at the same directory as others.
#[test]
fn a_log_file_has_bounds() {
    let log = |file: &str| fullnode(&format!("log: {{ file: {{ {file} }} }}\n"));
    let file = |file: &str| parse(&log(file), Path::new("conf/node.yaml")).unwrap().log.file;
    let LogFileConfig { path, mib_max, files_kept } = file("path: logs/node.log");
    assert_eq!((path, mib_max.get(), files_kept), (Some("conf/logs/node.log".into()), 64, 4));
    assert_eq!(file("mib_max: 1").path, None);
    for (wrong, said) in [
        ("mib_max: 0", "log.file.mib_max: invalid value"),
        ("mib_max: 65537", "log.file.mib_max: must be from 1 to 65536"),
        ("files_kept: 1001", "log.file.files_kept: must be from 0 to 1000"),
        ("size: 1", "log.file.size: unknown field `size`"),
    ] {
        let text = refused(&log(wrong));
        assert!(text.contains(said), "{text}");
    }
}

/// Goal: a serialised configuration can be loaded again, so tools may write configurations from the type.
#[test]
fn round_trip() {
    let config =
        parse(&fullnode("log: { file: { path: node.log } }\n"), Path::new("/conf/node.yaml")).unwrap();
    let written = serde_saphyr::to_string(&config).unwrap();
    let again = parse(&written, Path::new("/elsewhere/node.yaml")).unwrap();
    assert_eq!(serde_saphyr::to_string(&again).unwrap(), written);
}

#[test]
fn files() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("node.yaml");
    let load = |path| load(path, &Overrides::default());
    assert!(load(&path).unwrap_err().to_string().contains("`slipstream init --dir DIR` writes one"));
    std::fs::write(&path, vec![b' '; CONFIG_BYTES_MAX as usize + 1]).unwrap();
    assert!(matches!(load(&path), Err(ConfigError::TooLong { .. })));
    std::fs::write(&path, fullnode("")).unwrap();
    assert_eq!(load(&path).unwrap().config.data_dir, dir.path().join("data"));
}
