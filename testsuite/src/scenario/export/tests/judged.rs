//! Tests the input of the judge, and the senders of its deliveries.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::Value;

use super::*;

/// Goal: the judge reads exactly the scenario that was written.
#[test]
fn the_judge_reads_the_same_scenario() {
    for shipped in shipped::ALL {
        let scenario = shipped.scenario().unwrap();
        let read = parsed(&text(&scenario).unwrap());
        assert_eq!(read, scenario, "{}", shipped.name);
    }
    assert_eq!(parsed(&text(&parsed(TEXT)).unwrap()), parsed(TEXT));
}

/// Goal: a load has its access lists on targets that mount directories, whatever the directory's name. On others the
/// load is left out, and criteria about it are not judged.
#[test]
fn access_lists_are_mounted_or_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let lists = dir.path().join("$lists");
    fs::create_dir(&lists).unwrap();
    let text = format!(
        "name: a\ndescription: b\nduration: 30s\ncriteria:\n- equal_roots\n- throughput: {{ phase: main, at_least: 1 }}\n\
         workload:\n- {{ name: main, for: 9s, rate: {{ constant: 5 }}, mix: {{ access-lists: 1 }}, access_lists: '{}' }}\n",
        lists.display()
    );
    let scenario = parsed(&text);
    let written = |target, file: &str| {
        let dir = tempfile::tempdir().unwrap();
        let notes = write_files(target, &scenario, dir.path(), None).unwrap().notes.join("\n");
        (fs::read_to_string(dir.path().join(file)).unwrap(), notes)
    };
    let (text, notes) = written(Target::Compose, "compose.yaml");
    let source = lists.canonicalize().unwrap().display().to_string();
    assert!(text.contains(&source.replace("$lists", "$$lists")) && notes.is_empty(), "{text}{notes}");
    assert_eq!(text.matches("--access-lists").count(), 2, "of the load and of the judge: {text}");
    let value: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
    let services = &value["services"];
    assert!(services["load-main"]["user"].is_string(), "the directory may be its owner's alone");
    assert_eq!(services["load-main"]["user"], services["validator-0"]["user"]);
    let (text, notes) = written(Target::Kubernetes, "values.yaml");
    assert!(!text.contains("--access-lists") && notes.contains("the phase main"), "{text}{notes}");
    assert!(notes.contains("throughput of main is not judged: the load main is left out"), "{notes}");
}

/// Goal: the judge, the loads and the nodes with orders share a secret derived from the seed; nobody else has it.
#[test]
fn whoever_tells_the_judge_has_its_secret() {
    let scenario = parsed(TEXT);
    let secret = accounts::judge_secret(&scenario.seed);
    assert_ne!(secret, accounts::judge_secret("another"));
    let written = |target| {
        let dir = tempfile::tempdir().unwrap();
        write_files(target, &scenario, dir.path(), None).unwrap();
        dir
    };
    let read =
        |path: PathBuf| -> Value { serde_saphyr::from_str(&fs::read_to_string(path).unwrap()).unwrap() };
    let dir = written(Target::Compose);
    let services = read(dir.path().join("compose.yaml"))["services"].clone();
    for teller in ["judge", "load-flat", "load-search", "validator-0", "late"] {
        assert_eq!(services[teller]["env_file"], json!(["./judge.env"]), "{teller}");
    }
    let relay = &services["relay-near"];
    assert!(relay["image"].is_string() && relay["env_file"].is_null(), "{relay}");
    let file = dir.path().join("judge.env");
    assert_eq!(fs::read_to_string(&file).unwrap(), format!("SLIPNET_JUDGE_SECRET={secret}\n"));
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);

    let dir = written(Target::Kubernetes);
    let values = read(dir.path().join("values.yaml"));
    let of = json!({ "secretKeyRef": { "name": "devnet-keys", "key": "judge.secret" } });
    for (kind, teller) in
        [("jobs", "judge"), ("jobs", "load-flat"), ("groups", "validator-0"), ("groups", "late")]
    {
        let variable = &values[kind][teller]["env"][1];
        assert_eq!(*variable, json!({ "name": "SLIPNET_JUDGE_SECRET", "valueFrom": of }), "{teller}");
    }
    let sidecar = &values["groups"]["near"]["sidecars"][0];
    assert!(!sidecar.to_string().contains("SLIPNET_JUDGE_SECRET"), "{sidecar}");
    assert_eq!(read(dir.path().join("keys.yaml"))["stringData"]["judge.secret"], json!(secret));
    // Devnets have no judge.
    let plain = parsed("name: a\ndescription: b\nduration: 30s\ncriteria: [equal_roots]\n");
    let quiet = Blueprint { judged: None, ..blueprint_of(&plain) };
    let dir = tempfile::tempdir().unwrap();
    target::write_blueprint(Target::Compose, &Blueprint { dir: dir.path().to_owned(), ..quiet }).unwrap();
    assert!(!dir.path().join("judge.env").exists());
}
