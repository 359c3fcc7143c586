//! Tests of the schema, and of the texts generated from it. `./x bless` writes the files.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::{
    Preset, decode, ranges, rules, schema,
    tree::{KNOWN, Tree},
};

const COMMAND: &str = "./x bless";
const PAGE: &str = "docs/configuration.md";
const SCHEMA: &str = "docs/node.schema.json";
/// Sizes of at least this are also written in MiB or KiB.
const LARGE_BYTES: u64 = 64 << 10;

fn root(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// Compares a file with the expected text, or writes it.
fn compare(path: &str, wanted: &str) {
    if std::env::var_os("SLIPSTREAM_BLESS").is_some() {
        fs::write(root(path), wanted).unwrap();
    }
    let found = fs::read_to_string(root(path)).unwrap_or_default();
    let differs = found.lines().zip(wanted.lines()).find(|(found, wanted)| found != wanted);
    assert!(found == wanted, "{path} is not what the types say, first at {differs:#?}; run `{COMMAND}`");
}

/// Goal: the committed schema, and the tables of the page, agree with the types.
#[test]
fn generated_files_are_up_to_date() {
    compare(SCHEMA, &(serde_json::to_string_pretty(&schema()).unwrap() + "\n"));
    let page = fs::read_to_string(root(PAGE)).unwrap();
    compare(PAGE, &regenerated(&page));
}

/// Returns the page with every generated part regenerated.
fn regenerated(page: &str) -> String {
    const BEGIN: &str = "<!-- generated from the types: ";
    const END: &str = "<!-- end -->";
    let mut parts = page.split(BEGIN);
    let mut text = parts.next().unwrap().to_owned();
    let mut written = Vec::new();
    for part in parts {
        let (name, rest) = part.split_once(" -->\n").unwrap();
        let (_, rest) = rest.split_once(END).unwrap_or_else(|| panic!("{PAGE}: {name} has no end"));
        write!(text, "{BEGIN}{name} -->\n{}{END}{rest}", generated(name)).unwrap();
        written.push(name);
    }
    for section in ["top", "ranges"].into_iter().chain(sections()) {
        assert!(written.contains(&section), "{PAGE} has no place for the keys of {section}");
    }
    text
}

fn sections() -> impl Iterator<Item = &'static str> {
    let Tree::Section(entries) = &*KNOWN else { panic!("a configuration is a section") };
    entries.iter().filter(|(_, tree)| matches!(tree, Tree::Section(_))).map(|(name, _)| name.as_str())
}

fn generated(name: &str) -> String {
    if name == "ranges" {
        let rows = ranges::all();
        let rows =
            rows.iter().map(|(key, range)| format!("| `{key}` | {} | {} |\n", range.start(), range.end()));
        return format!("| key | least | most |\n|---|---|---|\n{}", rows.collect::<String>());
    }
    let mut text =
        "| key | default | what it does, and what the default is tuned for |\n|---|---|---|\n".to_owned();
    for (key, _) in KNOWN.values() {
        let (section, rest) = key.split_once('.').unwrap_or(("top", &key));
        if section == name {
            let property = property(&key);
            let description =
                property["description"].as_str().unwrap_or_else(|| panic!("{key} is not described"));
            let description = description.replace('\n', " ");
            writeln!(text, "| `{rest}` | {} | {description} |", default(&key, &property)).unwrap();
        }
    }
    text
}

fn property(key: &str) -> Value {
    key.split('.').fold(schema(), |schema, name| schema["properties"][name].clone())
}

/// Returns a key's default in words.
fn default(key: &str, property: &Value) -> String {
    match &property["default"] {
        _ if key == "role" => "none, required (a preset has it)".into(),
        Value::Null => "none".into(),
        Value::Array(items) if items.is_empty() => "empty".into(),
        Value::Number(number) => match number.as_u64() {
            Some(bytes) if key.contains("bytes") && bytes >= LARGE_BYTES && bytes.is_multiple_of(1 << 20) => {
                format!("{bytes} ({} MiB)", bytes >> 20)
            }
            Some(bytes) if key.contains("bytes") && bytes >= LARGE_BYTES => {
                format!("{bytes} ({} KiB)", bytes >> 10)
            }
            _ => number.to_string().trim_end_matches(".0").to_owned(),
        },
        Value::String(text) => format!("`{text}`"),
        other => format!("`{other}`"),
    }
}

/// Converts YAML to JSON as editors do: by YAML 1.2, where `off` is a text.
fn value(yaml: &str) -> Value {
    let options = serde_saphyr::options! { strict_booleans: true };
    serde_saphyr::from_str_with_options(yaml, options).unwrap_or_else(|error| panic!("{error}\n{yaml}"))
}

fn problems(validator: &jsonschema::Validator, value: &Value) -> Vec<String> {
    validator.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path)).collect()
}

/// Returns the texts of YAML code blocks.
fn blocks(page: &str) -> impl Iterator<Item = &str> {
    page.split("```yaml\n").skip(1).map(|rest| rest.split_once("```").unwrap().0)
}

/// Whether a YAML document is a node's configuration, with or without mistakes: other programs' files have some of the
/// same keys.
fn is_configuration(value: &Value) -> bool {
    let Some(section) = value.as_object() else { return false };
    let has_all = || !section.is_empty() && section.keys().all(|name| KNOWN.get(name).is_some());
    section.contains_key("role") || section.contains_key("preset") || has_all()
}

/// Goal: every configuration that the project shows or ships passes the schema.
#[test]
fn every_configuration_in_the_project_passes_the_schema() {
    let validator = jsonschema::validator_for(&schema()).unwrap();
    let mut checked = 0;
    let mut check = |place: &str, yaml: &str| {
        let value = value(yaml);
        if is_configuration(&value) {
            assert_eq!(problems(&validator, &value), Vec::<String>::new(), "{place}:\n{yaml}");
            checked += 1;
        }
    };
    for entry in fs::read_dir(root("docs")).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.extension().is_some_and(|extension| extension == "md") {
            let page = fs::read_to_string(&entry).unwrap();
            blocks(&page).for_each(|block| check(&entry.display().to_string(), block));
        }
    }
    for file in files(&root("packaging")) {
        let text = fs::read_to_string(&file).unwrap();
        // Templates of other programs are not YAML yet.
        if !text.contains("{{") {
            check(&file.display().to_string(), &text);
        }
    }
    for &preset in Preset::ALL {
        check(preset.name(), preset.text());
    }
    assert!(checked > Preset::ALL.len(), "{checked}");
}

/// Returns all YAML files below a directory; empty if it is missing.
fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().map(|entry| entry.unwrap().path());
    let below = |path: PathBuf| match path.extension() {
        _ if path.is_dir() => files(&path),
        Some(extension) if extension == "yaml" || extension == "yml" => vec![path],
        _ => Vec::new(),
    };
    entries.flat_map(below).collect()
}

/// Whether a rule refuses the YAML, once it has the keys that every fullnode needs.
fn refused_by_a_rule(yaml: &str) -> bool {
    let mut config = decode::file(yaml, "node.yaml".as_ref()).unwrap();
    config.genesis = Some("genesis.json".into());
    config.network.peers = vec![super::PEER.parse().unwrap()];
    rules::check(&config).is_err()
}

/// Goal: for single keys, the schema refuses the values that the node refuses, and accepts those that the node accepts.
/// These include every default, and every form of a value.
#[test]
fn the_schema_agrees_with_the_node() {
    let validator = jsonschema::validator_for(&schema()).unwrap();
    let known: Value = serde_json::to_value(&*KNOWN).unwrap();
    assert_eq!(problems(&validator, &known), Vec::<String>::new());
    let peer = "ab".repeat(32);
    for good in [
        "storage: { state_history: all, prune: { bodies: 7d, receipts: 50GiB, deltas: 12, headers: all } }",
        &format!(
            "network: {{ peers: [\"{peer}@192.0.2.7:7400\", \"{peer}@[::1]:7400\", \"{peer}@a.example:7400\"] }}"
        ),
        "sync: { audit: 0.5, forbid: [snapshot], repair: off }",
        "sync: { archives: [\"s3://bucket\", \"https://a.example/x@y\", \"file:///a b\"] }",
        "network: { names: [\"0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f=validator 0\"] }",
        "preset: light",
    ] {
        assert_eq!(problems(&validator, &value(good)), Vec::<String>::new(), "{good}");
        decode::file(good, "node.yaml".as_ref()).unwrap();
    }
    for (bad, place) in [
        ("rol: fullnode", ""),
        ("role: full", "/role"),
        ("preset: tiny", "/preset"),
        ("sync: { mod: auto }", "/sync"),
        ("sync: { mode: fast }", "/sync/mode"),
        ("sync: { audit: 1.5 }", "/sync/audit"),
        ("sync: { archives: [\"gs://bucket\"] }", "/sync/archives/0"),
        ("sync: { archives: [\"s3://bucket/x?signature=abc\"] }", "/sync/archives/0"),
        ("storage: { state_history: some }", "/storage/state_history"),
        ("storage: { prune: { bodies: 7w } }", "/storage/prune/bodies"),
        ("storage: { snapshots_kept: 1001 }", "/storage/snapshots_kept"),
        ("network: { peers_max: 0 }", "/network/peers_max"),
        ("network: { peers: [abc] }", "/network/peers/0"),
        ("network: { names: [abc] }", "/network/names/0"),
        ("api: { call_time_max_ms: 9 }", "/api/call_time_max_ms"),
        ("consensus: { pool: { journal_mib: 1025 } }", "/consensus/pool/journal_mib"),
    ] {
        let found = problems(&validator, &value(bad));
        assert!(found.iter().any(|problem| problem.starts_with(&format!("{place}: "))), "{bad}: {found:?}");
        let by_the_node = decode::file(bad, "node.yaml".as_ref()).is_err() || refused_by_a_rule(bad);
        assert!(by_the_node, "{bad}");
    }
}

/// Integer keys that work with any number.
const ANY_NUMBER: &[&str] = &[
    "broadcast.coded_bytes_min",
    "storage.prune.bodies",
    "storage.prune.deltas",
    "storage.prune.headers",
    "storage.prune.hints",
    "storage.prune.receipts",
    "storage.snapshot_interval_batches",
    "storage.state_history",
    "sync.head_age_max_s",
    "sync.head_lag_max_batches",
    "sync.serve_peer_mib_per_second",
];

/// The keys of whole numbers below a part of the schema.
fn integers(all: &Value, part: &Value, path: &str, found: &mut Vec<String>) {
    if let Some(name) = part["$ref"].as_str() {
        let name = name.trim_start_matches("#/$defs/");
        return integers(all, &all["$defs"][name], path, found);
    }
    if part["type"] == "integer"
        || part["type"].as_array().is_some_and(|types| types.contains(&"integer".into()))
    {
        found.push(path.to_owned());
    }
    for alternative in
        ["allOf", "anyOf", "oneOf"].iter().flat_map(|name| part[name].as_array().into_iter().flatten())
    {
        integers(all, alternative, path, found);
    }
    for (name, part) in part["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        integers(all, part, &path, found);
    }
}

/// Goal: a new number gets a range, or somebody decides that it needs none.
#[test]
fn whole_numbers_have_ranges() {
    let (schema, mut found) = (serde_json::to_value(schema()).unwrap(), Vec::new());
    integers(&schema, &schema, "", &mut found);
    let ranged: Vec<&str> = ranges::all().into_iter().map(|(key, _)| key).collect();
    found.sort();
    found.dedup();
    let free: Vec<&str> = found.iter().map(String::as_str).filter(|key| !ranged.contains(key)).collect();
    assert!(found.len() > 40, "{found:?}");
    assert_eq!(free, ANY_NUMBER);
}
