use super::*;

const GOOD: &str = "name: a\ndescription: b\nduration: 30s\ncriteria:\n- equal_roots\n";

fn error(text: &str) -> String {
    Scenario::parse(text, Path::new("a.yaml")).unwrap_err().to_string()
}

#[test]
fn the_smallest_scenario_has_defaults() {
    let scenario = Scenario::parse(GOOD, Path::new("a.yaml")).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((scenario.topology.validators, scenario.seed.as_str()), (4, "slipnet"));
    assert!(scenario.workload.is_empty() && scenario.faults.is_empty());
}

/// Goal: a mistake is reported with its line, its key and what to write, like mistakes in node.yaml.
#[test]
fn mistakes_are_told_with_their_line_and_a_caret() {
    let text = error(&GOOD.replace("duration: 30s", "duration: 30"));
    assert!(text.starts_with("a.yaml:3:11: duration: ") && text.contains("`30s`"), "{text}");
    assert!(text.ends_with("3 | duration: 30\n  |           ^^"), "{text}");
    let text = error(&format!("{GOOD}faults:\n- {{ at: 10, what: {{ kill: {{ nodes: [all] }} }} }}\n"));
    assert!(text.starts_with("a.yaml:7:9: faults.0.at: ") && text.ends_with("       ^^"), "{text}");
    let text = error(&format!("{GOOD}topologie: {{}}\n"));
    assert!(
        text.starts_with("a.yaml:6:1: ") && text.contains("topologie") && text.contains("topology"),
        "{text}"
    );
    let text = error(&format!("{GOOD}name: again\n"));
    assert!(text.starts_with("a.yaml:6:"), "{text}");
    let text = error(&GOOD.replace("equal_roots", "equal_rots"));
    assert!(text.starts_with("a.yaml:5:3: ") && text.contains("equal_rots"), "{text}");
    let text = error(&format!("{GOOD}faults:\n- at: 3s\n  what: {{ quake: {{ nodes: [all] }} }}\n"));
    assert!(text.starts_with("a.yaml:8:") && text.contains("kill"), "names what there is: {text}");
    let lie = "faults:\n- at: 3s\n  what: { lying_peers: { who: { nodes: [all] }, lie: fibs } }\n";
    let text = error(&format!("{GOOD}{lie}"));
    assert!(text.starts_with("a.yaml:8:") && text.contains("forged_heads"), "names what there is: {text}");
}

/// Goal: a value that can be decoded but not run is reported at its own position, even deep in a list.
#[test]
fn values_that_cannot_be_run_are_told_at_their_place() {
    let text = error(&format!("{GOOD}topology:\n  validators: 400\n"));
    assert!(text.starts_with("a.yaml:7:15: topology.validators: must be from 1 to 32"), "{text}");
    let faults = "faults:\n- { at: 1s, what: { kill: { nodes: [all] } } }\n- at: 2s\n  for: 31s\n  what: { pause: { nodes: [all] } }\n";
    let text = error(&format!("{GOOD}{faults}"));
    assert!(text.starts_with("a.yaml:9:8: faults.1.for: "), "{text}");
    let text = error(&GOOD.replace("equal_roots", "memory: { nodes: [all, nobody], mib_max: 1 }"));
    assert!(text.starts_with("a.yaml:5:26: criteria.0.memory.nodes.1: no node is called `nobody`"), "{text}");
    let liars = "faults:\n- at: 2s\n  what:\n    lying_peers: { who: { nodes: [all] }, lie: literal_blobs, count: 99 }\n";
    let text = error(&format!("{GOOD}{liars}"));
    assert!(text.starts_with("a.yaml:9:70: faults.0.what.lying_peers.count: must be from 1 to 16"), "{text}");
    let text = error(&format!("{GOOD}- liars_banned: {{ at_most: 5s, lie: literal_blobs }}\n"));
    assert!(text.starts_with("a.yaml:6:37: criteria.1.liars_banned.lie: no node can prove"), "{text}");
    let topology = "topology:\n  settings:\n  - nodes: [validator-0]\n    config: { sync.mod: delta }\n";
    let text = error(&format!("{GOOD}{topology}"));
    assert!(text.starts_with("a.yaml:9:25: topology.settings.0.config.sync.mod: there is no key"), "{text}");
    assert!(text.contains("the nearest is sync.mode") && text.ends_with(" ^^^^^"), "{text}");
    let attack = "faults:\n- at: 2s\n  what: { attack: { name: junk-transaction, victim: validator-0 } }\n";
    let text = error(&format!("{GOOD}{attack}"));
    assert!(text.starts_with("a.yaml:8:27: faults.0.what.attack.name: there is no attack"), "{text}");
    // A missing key has the position of the section that lacks it.
    let text = error(&format!("{GOOD}faults:\n- what: {{ kill: {{ nodes: [all] }} }}\n"));
    assert!(text.starts_with("a.yaml:7:3: faults.0: write either `at: 20s`"), "{text}");
}

/// Goal: an error of the decoder says what to write instead, and names bounds and units.
#[test]
fn mistakes_come_with_what_to_write() {
    const LINK: &str =
        "topology: { settings: [{ nodes: [all], region: eu }], links: [{ between: [eu, eu], shape: ";
    let link = |shape: &str| error(&format!("{GOOD}{LINK}{{ {shape} }} }}] }}\n"));
    let text = link("loss: 5%");
    assert!(
        text.contains("shape.loss: must be a share from 0 to 1, such as 0.05 for 5 %, found `5%`"),
        "{text}"
    );
    for rate in ["99999999999999999999999", "1e23", "-4", "fast"] {
        let text = link(&format!("kib_per_second: {rate}"));
        let said = format!("kib_per_second: must be KiB per second, from 1 to 104857600, found `{rate}`");
        assert!(text.contains(&said), "{text}");
    }
    let what = |what: &str| error(&format!("{GOOD}faults:\n- {{ at: 3s, what: {what} }}\n"));
    for (fault, said) in [
        ("{ kill: validator-1 }", "; write `{ nodes: [validator-1] }`"),
        ("{ kill: [validator-1] }", "such as `{ nodes: [validator-1] }`"),
        ("{ kill: { nodes: [all] }, pause: { nodes: [all] } }", "leave one of them out"),
        ("{ lying_peers: { who: { nodes: [all] }, lie: forged-heads } }", "; the nearest is `forged_heads`"),
    ] {
        let text = what(fault);
        assert!(text.contains(said), "{text}");
    }
    let text = error(&format!("{GOOD}workload: [{{ name: x, for: 9s, rate: 100 }}]\n"));
    assert!(text.contains("; write `{ constant: 100 }`"), "{text}");
    let text = error(&format!("{GOOD}- equal_roots: {{}}\n"));
    assert!(text.contains("this takes no value; write its name alone"), "{text}");
    assert!(error("").contains("is the file empty"), "{}", error(""));
    let text = error(&GOOD.replace("equal_roots", "zebra"));
    assert!(text.contains("unknown variant `zebra`") && !text.contains("the nearest"), "{text}");
}

/// Goal: an error can be shown to others, even if it is next to an address with a password.
#[test]
fn errors_show_no_password() {
    let topology = "{ config: { sync.archives: [https://user:canary@host] }, validators: many }";
    let text = error(&format!("{GOOD}topology: {topology}\n"));
    assert!(text.contains("many") && text.contains("***@host") && !text.contains("canary"), "{text}");
    let text = error(&GOOD.replace("30s", "https://user:canary@host"));
    assert!(text.contains("***@host") && !text.contains("canary"), "{text}");
}

#[test]
fn files_that_cannot_be_scenarios_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("long.yaml");
    assert!(matches!(Scenario::load(&path), Err(ScenarioError::Read { .. })));
    std::fs::write(&path, "#".repeat(SCENARIO_BYTES_MAX as usize + 1)).unwrap();
    assert!(matches!(Scenario::load(&path), Err(ScenarioError::TooLong { .. })));
    // The limit lies within a character.
    let long = format!("xy{}", "é".repeat(SCENARIO_BYTES_MAX as usize / 2 + 1));
    std::fs::write(&path, long).unwrap();
    assert!(matches!(Scenario::load(&path), Err(ScenarioError::TooLong { .. })));
    std::fs::write(&path, b"name: a\ndescription: caf\xe9\n").unwrap();
    let error = Scenario::load(&path).unwrap_err().to_string();
    assert!(error.contains("long.yaml:2: ") && error.contains("save the file in UTF-8"), "{error}");
    for text in ["", "[]", "a: [", "\u{0}", "&a [*a]"] {
        assert!(Scenario::parse(text, &path).is_err(), "{text:?}");
    }
}

/// Goal: missing access lists are reported with their line before a node starts, and not half a minute later. A
/// relative directory is looked for beside the file, from any working directory.
#[test]
fn access_lists_are_found_beside_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.yaml");
    let phase =
        "{ name: main, for: 9s, rate: { constant: 1 }, mix: { access-lists: 1 }, access_lists: lists }";
    std::fs::write(&path, format!("{GOOD}workload:\n- {phase}\n")).unwrap();
    let lists = dir.path().join("lists");
    let refused = || Scenario::load_whole(&path).unwrap_err().to_string();
    let error = refused();
    let place =
        format!("{}:7:{}: workload.0.access_lists: ", path.display(), phase.find("lists }").unwrap() + 3);
    assert!(error.starts_with(&place) && error.contains(&lists.display().to_string()), "{error}");
    std::fs::create_dir(&lists).unwrap();
    assert!(refused().contains("holds no access list"), "{}", refused());
    std::fs::write(lists.join("5.rlp.gz"), "").unwrap();
    let scenario = Scenario::load_whole(&path).unwrap();
    assert_eq!(scenario.workload[0].access_lists.as_deref(), lists.to_str());
    // A judge elsewhere does not have them.
    assert_eq!(Scenario::load(&path).unwrap().workload[0].access_lists.as_deref(), Some("lists"));
}
