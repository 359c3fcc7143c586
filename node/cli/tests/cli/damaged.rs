//! Commands on a store that lost a file, or the end of one.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use serde_json::json;

use crate::{
    chain::{Chain, PATIENCE, Running, ended, wait},
    offline::transaction,
};

/// The files below a directory, except RocksDB's own text log: names and contents.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for path in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            found.extend(files(&path));
        } else if !path.file_name().unwrap().to_string_lossy().starts_with("LOG") {
            let content = fs::read(&path).unwrap();
            found.insert(path, content);
        }
    }
    found
}

/// Goal: each command on a damaged store reports the damage with the exit code for it, and leaves every file unchanged.
/// Once repaired, the store opens.
#[test]
fn commands_refuse_a_damaged_store_and_leave_it_alone() {
    let chain = Chain::new();
    chain.configure(
        "consensus: { empty_batch_interval_ms: 0 }\nstorage: { prune: { bodies: 1 }, snapshot_interval_batches: 2 }\n",
    );
    // Tables of the first run, and a log of the second.
    for nonces in [0..3, 3..6] {
        let node = Running::start(&chain);
        for nonce in nonces {
            node.rpc("eth_sendRawTransaction", json!([transaction(nonce)]));
            let begun = std::time::Instant::now();
            while node.head() <= nonce {
                assert!(begun.elapsed() < PATIENCE, "no batch takes transaction {nonce}");
                wait();
            }
        }
        node.stop();
    }
    let (store, config) = (chain.path("data/db"), chain.config());
    // The longest file of a kind: a log that was just started is empty.
    let of_kind = |kind: &str| {
        let found =
            files(&store.join("db")).into_iter().filter(|(path, _)| path.to_string_lossy().contains(kind));
        found.max_by_key(|(_, content)| content.len()).unwrap().0
    };
    let (log, manifest, table) = (of_kind(".log"), of_kind("MANIFEST-"), of_kind(".sst"));
    let export = chain.path("export");
    let commands: [&[&str]; 11] = [
        &["run"],
        &["db", "stats"],
        &["db", "get", "header", "1"],
        &["db", "check"],
        &["db", "prune"],
        &["db", "repair"],
        &["db", "alarm"],
        &["db", "rollback", "--to", "1"],
        &["snapshot", "list"],
        &["snapshot", "create"],
        &["snapshot", "export", export.to_str().unwrap()],
    ];
    // The remaining part of the file, in percent; `None` if it is removed.
    let losses: [(&Path, Option<usize>); 9] = [
        (&store.join("FORMAT"), None),
        (&store.join("FORMAT"), Some(0)),
        (&store.join("db/CURRENT"), None),
        (&store.join("db/CURRENT"), Some(0)),
        (&manifest, None),
        (&manifest, Some(50)),
        (&log, None),
        (&log, Some(50)),
        (&table, None),
    ];
    let whole = files(&store);
    for (file, kept) in losses {
        let lost = &whole[file];
        match kept {
            None => fs::remove_file(file).unwrap(),
            Some(percent) => fs::write(file, &lost[..lost.len() * percent / 100]).unwrap(),
        }
        let before = files(&store);
        for args in commands {
            let (code, text) = ended(&[args, &["--config", &config]].concat());
            assert_eq!(code, 65, "{args:?} without {}: {text}", file.display());
            assert!(
                text.contains("Never start this validator"),
                "{args:?} without {}: {text}",
                file.display()
            );
            assert!(files(&store) == before, "{args:?} without {} changed files", file.display());
        }
        assert!(!export.exists());
        fs::write(file, lost).unwrap();
        let (code, text) = ended(&["db", "check", "--config", &config]);
        assert_eq!(code, 0, "{} is put back: {text}", file.display());
        fs::remove_dir_all(&store).unwrap();
        for (path, content) in &whole {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
    }
}
