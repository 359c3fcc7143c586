//! Goal: no object of an archive can be changed, swapped, cut, padded or lost unnoticed, and the wrong one is named.

use std::{fs, path::Path, sync::Arc};

use slipstream_archive::{Archive, ArchiveError};
use slipstream_types::BatchNumber;

use super::{by_genesis, empty, export, imported, stage, verified};

/// Checks that both commands refuse, and that the head does not move.
async fn refused(archive: &Archive, object: &Path, how: &str) {
    let name = object.file_name().unwrap().to_str().unwrap();
    let (store, _dir) = empty();
    let errors = [
        verified(archive, None).await.unwrap_err(),
        imported(archive, &store, &by_genesis()).await.unwrap_err(),
    ];
    for error in errors {
        let is_kind = matches!(error, ArchiveError::Damaged { .. } | ArchiveError::Store { .. });
        assert!(is_kind && error.to_string().contains(name), "{how}: {error} does not name {name}");
    }
    assert!(!store.is_initialized() || store.head().unwrap().header.number == BatchNumber::GENESIS);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_changed_object_is_refused_by_name() {
    let (server, archive, ledger) = stage().await;
    export(&archive, &ledger).await;
    let pieces = server.objects("/pieces/");
    let objects = [
        pieces[pieces.len() / 2].clone(),
        server.objects("/codes/")[0].clone(),
        server.objects("/genesis/")[0].clone(),
        server.objects("/snapshots/")[0].clone(),
    ];
    for object in &objects {
        let good = fs::read(object).unwrap();
        let mut flipped = good.clone();
        flipped[good.len() / 2] ^= 4;
        fs::write(object, &flipped).unwrap();
        if object.to_str().unwrap().contains("/snapshots/") {
            // A changed list may blame an object that it names.
            assert!(verified(&archive, None).await.is_err());
        } else {
            refused(&archive, object, "flipped").await;
        }
        fs::write(object, &good[..good.len() - 1]).unwrap();
        refused(&archive, object, "cut").await;
        fs::write(object, [&good[..], &[0]].concat()).unwrap();
        refused(&archive, object, "padded").await;
        fs::write(object, b"").unwrap();
        refused(&archive, object, "emptied").await;
        fs::remove_file(object).unwrap();
        if !object.to_str().unwrap().contains("/snapshots/") {
            refused(&archive, object, "lost").await;
        }
        fs::write(object, good).unwrap();
    }
    let (one, other) = (&pieces[3], &pieces[4]);
    let good = fs::read(one).unwrap();
    fs::copy(other, one).unwrap();
    refused(&archive, one, "swapped").await;

    // The refused object is accepted once it is right, and the import continues where it was.
    let (store, _dir) = empty();
    let snapshot = Arc::new(archive.snapshot(None, &by_genesis()).await.unwrap());
    snapshot.import(&store).await.unwrap_err();
    fs::write(one, good).unwrap();
    snapshot.import(&store).await.unwrap();
    super::check_store(&store, &ledger, ledger.number());
}

/// Goal: an object that is longer than its kind may be is not read at all.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_long_is_not_read() {
    let (server, archive, ledger) = stage().await;
    export(&archive, &ledger).await;
    let piece = server.objects("/pieces/")[7].clone();
    fs::File::create(&piece).unwrap().set_len(8 << 20).unwrap();
    let error = verified(&archive, None).await.unwrap_err();
    assert!(error.to_string().contains("the limit is"), "{error}");
    let manifest = server.objects("/snapshots/")[0].clone();
    fs::File::create(&manifest).unwrap().set_len(300 << 20).unwrap();
    let error = verified(&archive, None).await.unwrap_err();
    assert!(error.to_string().contains("the limit is"), "{error}");
}

/// Goal: a manifest of a later format is recognised by its version, and one under another's name is refused.
#[tokio::test(flavor = "multi_thread")]
async fn manifests_are_what_their_names_say() {
    let (server, archive, mut ledger) = stage().await;
    export(&archive, &ledger).await;
    ledger.touch([1]);
    export(&archive, &ledger).await;
    let [first, second] = &server.objects("/snapshots/")[..] else { panic!("two snapshots") };
    let good = fs::read(second).unwrap();
    fs::copy(first, second).unwrap();
    let error = verified(&archive, None).await.unwrap_err();
    assert!(error.to_string().contains("its content belongs to another batch than its name says"), "{error}");
    let mut later = good;
    later[0] += 1;
    fs::write(second, later).unwrap();
    let error = verified(&archive, None).await.unwrap_err();
    assert!(error.to_string().contains("it has format 2, but this program reads format 1"), "{error}");
    // The older one is as good as ever, and the damaged one does not stop an export.
    verified(&archive, Some(BatchNumber::new(1))).await.unwrap();
    ledger.touch([2]);
    export(&archive, &ledger).await;
    verified(&archive, None).await.unwrap();
}
