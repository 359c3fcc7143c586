//! Goal: an export makes the same store elsewhere, and trusts only a waypoint or the genesis. Changed, swapped or
//! lost files are noticed.

use std::{
    fs,
    path::{Path as FilePath, PathBuf},
};

use slipstream_types::{Path, Waypoint};

use super::*;
use crate::{
    ExportError, ExportSummary, StorageError, Trust, export_snapshot, import_snapshot, verify_export,
};

const CODE: &[u8] = &[0x60, 0x01, 0x50];

fn serving() -> StorageConfig {
    StorageConfig { snapshot_interval_batches: 10, ..config() }
}

/// An export of batch 10 of a ledger with some hundred rows and a contract that genesis does not have.
struct Exported {
    source: Fixture,
    _dir: tempfile::TempDir,
    dir: PathBuf,
    waypoint: Waypoint,
    summary: ExportSummary,
}

fn exported() -> Exported {
    let mut source = Fixture::initialized(&serving(), true);
    let mut ledger = Ledger::new();
    let code_hash = Some(Digest::from(keccak256(CODE)));
    let contract = AccountValue { code_hash, nonce: 1, ..AccountValue::default() };
    let mut changes: Vec<_> =
        (0..600u16).map(|i| (slot_key((i % 250) as u8, (i / 250) as u8), slot(9))).collect();
    changes.push((account_key(0xdd), Some(StateValue::Account(contract))));
    let made = ledger.make(&changes, vec![CODE.to_vec()]);
    source.store().commit(made.batch(), None).unwrap();
    ledger.advance(&made);
    ledger.commit_up_to(source.store(), 12);
    source.reopen();
    let parent = store_dir();
    let dir = parent.path().join("export");
    let summary = export_snapshot(source.store(), BatchNumber::new(10), &dir).unwrap();
    let info = source.store().certificate(BatchNumber::new(10)).unwrap().unwrap().info;
    Exported { source, dir, _dir: parent, waypoint: Waypoint::of(&info), summary }
}

impl Exported {
    fn by_waypoint(&self) -> Trust {
        Trust { waypoint: Some(self.waypoint), genesis: None }
    }

    fn file(&self, of: &str) -> PathBuf {
        let mut files: Vec<PathBuf> =
            fs::read_dir(self.dir.join(of)).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files.swap_remove(0)
    }

    /// Checks that both commands refuse, and name the file.
    fn refused(&self, file: &FilePath) -> String {
        let error = verify_export(&self.dir, &self.by_waypoint()).unwrap_err().to_string();
        let store = Store::memory(&config());
        let imported = import_snapshot(&store, &self.dir, &self.by_waypoint()).unwrap_err().to_string();
        for error in [&error, &imported] {
            assert!(error.contains(file.to_str().unwrap()), "{error} does not name {}", file.display());
        }
        assert!(!store.is_initialized() || store.head().unwrap().header.number == BatchNumber::GENESIS);
        error
    }
}

#[test]
fn an_export_makes_the_same_store_elsewhere() {
    let exported = exported();
    let by_genesis = Trust { waypoint: None, genesis: Some(genesis()) };
    let origin = Waypoint::of(&genesis().ledger_info().unwrap());
    let by_origin = Trust { waypoint: Some(origin), genesis: None };
    for trust in [exported.by_waypoint(), by_genesis, by_origin] {
        assert_eq!(verify_export(&exported.dir, &trust).unwrap(), exported.summary);
        for on_disk in [false, true] {
            let mut fixture = Fixture::new(&serving(), on_disk);
            assert_eq!(import_snapshot(fixture.store(), &exported.dir, &trust).unwrap(), exported.summary);
            fixture.reopen();
            let store = fixture.store();
            assert_eq!(store.genesis().unwrap(), genesis());
            assert_eq!(
                store.head().unwrap().header,
                exported.source.store().header(BatchNumber::new(10)).unwrap().unwrap()
            );
            let view = store.view().unwrap();
            assert_eq!(view.code(&Digest::from(keccak256(CODE))).unwrap().unwrap()[..], *CODE);
            assert_eq!(exported.summary.codes, 2, "the genesis' contract and the new one");
            let again = import_snapshot(store, &exported.dir, &trust).unwrap_err();
            assert!(matches!(again, ExportError::NotFresh { .. }), "{again}");
        }
    }
}

#[test]
fn an_import_that_was_cut_short_goes_on() {
    let exported = exported();
    let chunk = exported.file("chunks");
    let bytes = fs::read(&chunk).unwrap();
    fs::remove_file(&chunk).unwrap();
    let mut fixture = Fixture::new(&serving(), true);
    let error = import_snapshot(fixture.store(), &exported.dir, &exported.by_waypoint()).unwrap_err();
    assert!(matches!(&error, ExportError::Io { path, .. } if *path == chunk), "{error}");
    fixture.reopen();
    fs::write(&chunk, bytes).unwrap();
    import_snapshot(fixture.store(), &exported.dir, &exported.by_waypoint()).unwrap();
    assert_eq!(fixture.store().head().unwrap().header.number, BatchNumber::new(10));
}

#[test]
fn what_was_imported_can_be_exported_as_it_came() {
    let exported = exported();
    let fixture = Fixture::new(&serving(), true);
    import_snapshot(fixture.store(), &exported.dir, &exported.by_waypoint()).unwrap();
    let number = fixture.store().create_snapshot().unwrap().number;
    let parent = store_dir();
    let dir = parent.path().join("again");
    export_snapshot(fixture.store(), number, &dir).unwrap();
    let summary = verify_export(&dir, &exported.by_waypoint()).unwrap();
    assert_eq!((summary.rows, summary.waypoint), (exported.summary.rows, exported.waypoint));
}

#[test]
fn every_changed_file_is_refused_by_name() {
    let exported = exported();
    let files = [
        exported.dir.join("MANIFEST"),
        exported.dir.join("genesis"),
        exported.file("chunks"),
        exported.file("codes"),
    ];
    for file in files {
        let good = fs::read(&file).unwrap();
        for at in [0, good.len() / 3, good.len() / 2, good.len() - 1] {
            let mut bad = good.clone();
            bad[at] ^= 0x04;
            fs::write(&file, bad).unwrap();
            // A changed manifest may blame the file that it describes.
            let error = verify_export(&exported.dir, &exported.by_waypoint()).unwrap_err().to_string();
            assert!(error.contains(exported.dir.to_str().unwrap()), "{error}");
            if !file.ends_with("MANIFEST") {
                exported.refused(&file);
            }
        }
        fs::write(&file, &good[..good.len() - 1]).unwrap();
        exported.refused(&file);
        let longer = [&good[..], &[0]].concat();
        fs::write(&file, longer).unwrap();
        exported.refused(&file);
        fs::remove_file(&file).unwrap();
        exported.refused(&file);
        fs::write(&file, good).unwrap();
    }
    verify_export(&exported.dir, &exported.by_waypoint()).unwrap();
}

/// Goal: numbers at the end of their range are refused like any others that do not follow each other.
#[test]
fn headers_that_overflow_are_refused() {
    let exported = exported();
    let manifest = exported.dir.join("MANIFEST");
    let mut bytes = fs::read(&manifest).unwrap();
    let first = exported.source.store().header(BatchNumber::GENESIS).unwrap().unwrap();
    let first = slipstream_types::codec::encode("header", &first).unwrap();
    let at = bytes.windows(first.len()).position(|window| window == first).unwrap();
    bytes[at..at + 8].fill(0xff);
    fs::write(&manifest, bytes).unwrap();
    let error = exported.refused(&manifest);
    assert!(error.contains("do not form a chain"), "{error}");
}

#[test]
fn swapped_chunks_are_refused() {
    let exported = exported();
    let first = exported.file("chunks");
    let other = exported.dir.join("chunks/01-000000.chunk");
    fs::copy(&other, &first).unwrap();
    exported.refused(&first);
}

#[test]
fn other_ledgers_and_no_trust_are_refused() {
    let exported = exported();
    let verify = |waypoint, genesis| verify_export(&exported.dir, &Trust { waypoint, genesis }).unwrap_err();
    assert!(matches!(verify(None, None), ExportError::NoTrust));
    let other = Waypoint { hash: Digest([1; 32]), ..exported.waypoint };
    let later = Waypoint { number: BatchNumber::new(11), ..exported.waypoint };
    let stranger = Genesis { timestamp_ms: 2, ..genesis() };
    let errors = [verify(Some(other), None), verify(Some(later), None), verify(None, Some(stranger.clone()))];
    for error in errors {
        assert!(matches!(error, ExportError::Untrusted { .. }), "{error}");
    }
    let store = Store::memory(&config());
    store.initialize(&stranger).unwrap();
    let error = import_snapshot(&store, &exported.dir, &exported.by_waypoint()).unwrap_err();
    assert!(matches!(error, ExportError::Storage(StorageError::WrongGenesis { .. })), "{error}");
}

#[test]
fn exports_begin_with_a_new_directory_and_a_snapshot() {
    let exported = exported();
    let store = exported.source.store();
    let again = export_snapshot(store, BatchNumber::new(10), &exported.dir).unwrap_err();
    assert!(matches!(again, ExportError::NotEmpty { .. }), "{again}");
    let none = export_snapshot(store, BatchNumber::new(11), &exported.dir).unwrap_err();
    assert!(matches!(none, ExportError::NoSnapshot { .. }), "{none}");
    let made = store.create_snapshot().unwrap();
    assert_eq!(made.number, BatchNumber::new(12));
    assert_eq!(store.create_snapshot().unwrap(), made);
    let snapshot = store.snapshot(made.number).unwrap().unwrap();
    snapshot.chunk(Path::MIN, 1 << 20).unwrap().verify(made.state_root).unwrap();
}
