//! Verifies a snapshot in an archive that nobody vouches for: the genesis alone is trusted.
//!
//! The example first exports the snapshot itself, from a chain of one batch with four validators. Your program needs
//! the second half alone, with an `s3://` or `https://` URL and a chain's genesis file.
//!
//! `cargo run -p slipstream-archive --example verify_snapshot`

use std::{
    error::Error,
    fs,
    io::{Write as _, stdout},
    path::{Path, PathBuf},
    sync::Arc,
};

use slipstream_archive::{Archive, ArchiveError, Location, Settings};
use slipstream_storage::{CommitBatch, StorageConfig, Store, Trust};
use slipstream_types::{
    AccountValue, Address, BatchHeader, Blob, BlobKind, Delta, Genesis, Receipts, SecretKey, StateKey,
    StateValue, U256, batch::content_digest, delta::DeltaEntry,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let location: Location = format!("file://{}", dir.path().join("archive").display()).parse()?;

    // The exporter: a node with a certified snapshot.
    let keys = slipstream_testkit::keys(1..=4);
    let genesis = slipstream_testkit::genesis(&keys, 1_000);
    let store = chain(&dir.path().join("db"), &genesis, &keys)?;
    let number = store.head()?.header.number;
    Archive::create(&location, &Settings::from_env())?.export(&store, number).await?;

    // The reader. The manifest has a certificate, and the validators of the genesis lead to its signers.
    let archive = Archive::open(&location, &Settings::from_env())?;
    let trust = Trust { genesis: Some(genesis), waypoint: None };
    let snapshot = Arc::new(archive.snapshot(None, &trust).await?);
    // Every piece is read, and hashes to its name. All names together give the state root that was signed.
    let summary = snapshot.verify().await?;
    writeln!(stdout(), "batch {number} is verified: {summary:?}")?;

    // One flipped bit, anywhere.
    let piece = first_file(&dir.path().join("archive/pieces"))?;
    let mut bytes = fs::read(&piece)?;
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&piece, bytes)?;
    match snapshot.verify().await {
        Err(error @ ArchiveError::Damaged { .. }) => writeln!(stdout(), "refused: {error}")?,
        other => return Err(format!("a damaged piece gave {other:?}").into()),
    }
    writeln!(
        stdout(),
        "proved: the snapshot is that of the genesis' validators, and one flipped bit is refused"
    )?;
    Ok(())
}

/// Makes a store with one batch after the genesis, and the batch's snapshot.
fn chain(dir: &Path, genesis: &Genesis, keys: &[SecretKey]) -> Result<Store, Box<dyn Error>> {
    let config = StorageConfig { snapshot_interval_batches: 1, ..StorageConfig::default() };
    let store = Store::open(&config, dir)?;
    store.initialize(genesis)?;
    let account = |n: u8| DeltaEntry {
        key: StateKey::Account(Address::repeat_byte(n)),
        value: Some(StateValue::Account(AccountValue { balance: U256::from(n), ..AccountValue::default() })),
    };
    let delta = Delta::new((1..=200).map(account).collect(), Vec::new())?;
    let speculation = store.speculate(&delta)?;
    let head = store.head()?;
    let (changes, kind) = (delta.content()?, BlobKind::Receipts);
    let header = BatchHeader {
        delta_bytes: u32::try_from(changes.len())?,
        delta_digest: content_digest(BlobKind::Delta, &changes),
        receipts_root: content_digest(kind, &Blob::seal(kind, &Receipts::default())?.content(kind)?),
        ..slipstream_testkit::next_header(&head.header, speculation.root())
    };
    let certificate = slipstream_testkit::certify(&head.accumulator, &header, None, keys);
    let batch = CommitBatch { certificate: Some(&certificate), ..CommitBatch::new(&header, &delta) };
    store.commit(batch, Some(speculation))?;
    Ok(store)
}

/// Finds a file in a directory or below it.
fn first_file(dir: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let path = fs::read_dir(dir)?.next().ok_or("the directory is empty")??.path();
    if path.is_dir() { first_file(&path) } else { Ok(path) }
}
