//! Goal: old snapshots leave the list at once, and their objects after the grace time. Nobody who exports or imports
//! meanwhile loses anything.

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use slipstream_archive::{Archive, ArchiveError, ArchivePruneReport, DamagePolicy, GRACE};
use slipstream_types::BatchNumber;

use super::{by_genesis, empty, export, stage, verified};

const KEEP_ONE: NonZeroUsize = NonZeroUsize::MIN;
const HOUR: Duration = Duration::from_secs(3_600);

/// Keeps the newest snapshot, and what a damaged one may name.
async fn prune(archive: &Archive) -> ArchivePruneReport {
    archive.prune(KEEP_ONE, DamagePolicy::Hold).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_needs_goes_after_the_grace_time() {
    let (server, archive, mut ledger) = stage().await;
    let first = export(&archive, &ledger).await;
    ledger.touch([5, 6, 7]);
    let second = export(&archive, &ledger).await;
    let reading = Arc::new(archive.snapshot(Some(BatchNumber::new(1)), &by_genesis()).await.unwrap());

    // All of it is old, but the first snapshot is retired only now.
    server.age(GRACE + HOUR);
    let all = server.objects("/pieces/").len();
    let pruned = prune(&archive).await;
    assert_eq!(pruned, ArchivePruneReport { kept: 1, retired: 1, ..ArchivePruneReport::default() });
    let gone = archive.snapshot(Some(BatchNumber::new(1)), &by_genesis()).await.unwrap_err();
    assert!(matches!(gone, ArchiveError::NoSnapshot { .. }), "{gone}");
    // A reader that began with it can finish.
    let (store, _dir) = empty();
    assert_eq!(reading.import(&store).await.unwrap(), first.summary);

    server.age(GRACE + HOUR);
    let pruned = prune(&archive).await;
    assert_eq!((pruned.kept, pruned.retired, pruned.deleted), (1, 0, second.uploaded));
    assert_eq!(server.objects("/pieces/").len(), all - second.uploaded);
    assert!(server.objects("/retired/").is_empty());
    assert_eq!(verified(&archive, None).await.unwrap(), second.summary);
    let again = prune(&archive).await;
    assert_eq!(again, ArchivePruneReport { kept: 1, ..ArchivePruneReport::default() });
}

/// Goal: an export that begins before a prune and ends after it keeps everything that it named.
#[tokio::test(flavor = "multi_thread")]
async fn an_export_beside_prunes_loses_nothing() {
    let (server, archive, mut ledger) = stage().await;
    export(&archive, &ledger).await;
    server.age(GRACE + HOUR);
    ledger.touch([5]);
    export(&archive, &ledger).await;
    // A third, slow export of the first state plus a little relies on the first snapshot, which prunes retire
    // meanwhile.
    ledger.touch(0..40);
    server.faults.delay_ms.store(100, std::sync::atomic::Ordering::SeqCst);
    let exporting = tokio::spawn({
        let (archive, store, number) = (archive.clone(), ledger.store.clone(), ledger.number());
        async move { archive.export(&store, number).await }
    });
    // The last prune comes after the export, which on a busy machine may end before the first prune.
    let mut has_ended = false;
    while !has_ended {
        has_ended = exporting.is_finished();
        prune(&archive).await;
    }
    let third = exporting.await.unwrap().unwrap();
    server.faults.delay_ms.store(0, std::sync::atomic::Ordering::SeqCst);
    assert!(third.uploaded < third.summary.pieces, "{third:?}");
    assert_eq!(verified(&archive, Some(ledger.number())).await.unwrap(), third.summary);
}

/// Goal: objects that an export left unnamed are reused while they are young. An old one is left to the prune, whose
/// late delete misses the new object.
#[tokio::test(flavor = "multi_thread")]
async fn no_object_that_may_be_deleted_is_named() {
    let (server, archive, ledger) = stage().await;
    server.faults.pieces_left.store(20, std::sync::atomic::Ordering::SeqCst);
    archive.export(&ledger.store, ledger.number()).await.unwrap_err();
    server.faults.revive();
    let orphans = server.objects("/pieces/");
    assert!(!orphans.is_empty());

    // Young: no prune takes them.
    let pruned = prune(&archive).await;
    assert_eq!(pruned, ArchivePruneReport::default());
    server.age(GRACE / 2 + HOUR);
    assert_eq!(prune(&archive).await, ArchivePruneReport::default());

    // Older than what an export may rely on: they are written again, under new names.
    let exported = export(&archive, &ledger).await;
    assert_eq!(exported.uploaded, exported.summary.pieces + 1);
    for orphan in &orphans {
        let hash = orphan.file_name().unwrap().to_str().unwrap().split('-').next().unwrap();
        assert_eq!(server.objects(hash).len(), 2, "{hash}");
    }
    // Only they are deleted when their time has come.
    server.age(GRACE / 2);
    let pruned = prune(&archive).await;
    assert_eq!(pruned.deleted, orphans.len());
    assert!(orphans.iter().all(|orphan| !orphan.exists()));
    assert_eq!(verified(&archive, None).await.unwrap(), exported.summary);
}

/// Goal: a damaged manifest is named, and protects what it may name and nothing else; sound snapshots are kept in its
/// place. On request, the manifest is deleted together with what it named.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_damaged_manifest_may_name_stays() {
    let (server, archive, mut ledger) = stage().await;
    let first = export(&archive, &ledger).await;
    ledger.touch([5]);
    let second = export(&archive, &ledger).await;
    let newest = server.objects("/snapshots/")[1].clone();
    std::fs::write(&newest, b"nonsense").unwrap();
    // What is written later cannot be named in it.
    server.age(HOUR * 2);
    let before = server.objects("/pieces/").len();
    ledger.touch(0..40);
    server.faults.pieces_left.store(5, std::sync::atomic::Ordering::SeqCst);
    archive.export(&ledger.store, ledger.number()).await.unwrap_err();
    server.faults.revive();
    let orphans = server.objects("/pieces/").len() - before;
    assert!(orphans > 0);
    server.age(GRACE + HOUR);

    let pruned = prune(&archive).await;
    assert_eq!((pruned.kept, pruned.retired), (1, 0), "the older one is the newest that can be read");
    assert_eq!((pruned.deleted, pruned.held), (orphans, second.uploaded));
    let [damaged] = &pruned.damaged[..] else { panic!("{pruned:?}") };
    assert!(newest.ends_with(&damaged.name) && damaged.reason.contains("format"), "{damaged:?}");
    assert_eq!(server.objects("/pieces/").len(), before);
    assert_eq!(verified(&archive, Some(BatchNumber::new(1))).await.unwrap(), first.summary);
    let again = prune(&archive).await;
    assert_eq!((again.deleted, again.held, again.damaged.len()), (0, second.uploaded, 1));

    let dropped = archive.prune(KEEP_ONE, DamagePolicy::Drop).await.unwrap();
    assert_eq!((dropped.kept, dropped.deleted, dropped.held), (1, second.uploaded, 0));
    assert_eq!(dropped.damaged, pruned.damaged);
    assert!(!newest.exists());
    assert_eq!(verified(&archive, None).await.unwrap(), first.summary);
    let clean = prune(&archive).await;
    assert_eq!(clean, ArchivePruneReport { kept: 1, ..ArchivePruneReport::default() });
}

/// Goal: a damaged manifest that is older than those to keep is retired like any other, and protects for as long.
#[tokio::test(flavor = "multi_thread")]
async fn an_old_damaged_manifest_is_taken_out() {
    let (server, archive, mut ledger) = stage().await;
    export(&archive, &ledger).await;
    ledger.touch([5]);
    let second = export(&archive, &ledger).await;
    std::fs::write(&server.objects("/snapshots/")[0], b"nonsense").unwrap();
    server.age(GRACE + HOUR);
    let pruned = prune(&archive).await;
    assert_eq!((pruned.kept, pruned.retired, pruned.deleted, pruned.damaged.len()), (1, 1, 0, 1));
    assert_eq!(pruned.held, second.uploaded, "what only the first one named");
    server.age(GRACE + HOUR);
    let pruned = prune(&archive).await;
    assert_eq!((pruned.deleted, pruned.damaged.len()), (second.uploaded, 0));
    assert!(server.objects("/retired/").is_empty());
    assert_eq!(verified(&archive, None).await.unwrap(), second.summary);
}

/// Goal: a snapshot may be exported again after a prune unlisted it. If it is unlisted again, it also protects what it named the first
/// time.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_can_be_taken_out_twice() {
    let (server, archive, mut ledger) = stage().await;
    let first = ledger.number();
    archive.export(&ledger.store, first).await.unwrap();
    let reading = Arc::new(archive.snapshot(Some(first), &by_genesis()).await.unwrap());
    ledger.touch([5]);
    export(&archive, &ledger).await;
    server.age(GRACE + HOUR);
    for retired in 1..=2 {
        assert_eq!(prune(&archive).await.retired, 1);
        assert_eq!(server.objects("/retired/").len(), retired);
        archive.export(&ledger.store, first).await.unwrap();
    }
    let (store, _dir) = empty();
    reading.import(&store).await.unwrap();
}
