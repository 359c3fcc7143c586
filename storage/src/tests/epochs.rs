//! The certificates that end epochs are stored in order, once each, with their batch or before it, and for good.

use std::num::NonZeroUsize;

use slipstream_types::{Path, ValidatorSet, Waypoint};

use super::range_delta::finish;
use super::{
    restore::{headers, served, target},
    *,
};
use crate::{Ancestry, MemoryDisk, RestoreTarget, StorageError, Takeover};

/// A certificate as the end of an epoch.
fn ending(certificate: &Certificate, epoch: u64, next: u64) -> Certificate {
    let validators = genesis().validators;
    let mut info = certificate.info.clone();
    info.epoch = Epoch(epoch);
    info.next_validators = Some(ValidatorSet::new(Epoch(next), validators));
    Certificate::signed(info, 0, [(0, &key())]).unwrap()
}

/// Batches, every third of which ends an epoch.
fn epochs(count: u64) -> Vec<Made> {
    let mut ledger = Ledger::new();
    let mut made = Vec::new();
    for number in 1..=count {
        let mut batch = ledger.make(&[(account_key(number as u8), account(number))], Vec::new());
        ledger.advance(&batch);
        if number % 3 == 0 {
            let epoch = number / 3 - 1;
            batch.certificate = ending(&batch.certificate, epoch, epoch + 1);
        }
        made.push(batch);
    }
    made
}

fn ends(made: &[Made]) -> Vec<Certificate> {
    made.iter()
        .filter(|made| made.certificate.info.next_validators.is_some())
        .map(|made| made.certificate.clone())
        .collect()
}

fn reason(result: Result<(), StorageError>) -> &'static str {
    match result.unwrap_err() {
        StorageError::WrongCertificate { reason, .. } => reason,
        error => panic!("{error}"),
    }
}

#[test]
fn a_certificate_that_comes_with_its_batch_ends_its_epoch() {
    let made = epochs(11);
    let batches: Vec<_> = made.iter().map(Made::batch).collect();
    let commits: [fn(&Store, &[CommitBatch<'_>]); 4] = [
        |store, batches| batches.iter().for_each(|batch| store.commit(*batch, None).unwrap()),
        |store, batches| store.commit_run(batches, NonZeroUsize::new(2).unwrap()).unwrap(),
        |store, batches| store.commit_run(batches, NonZeroUsize::new(100).unwrap()).unwrap(),
        |store, batches| {
            for batch in batches {
                store.commit(CommitBatch { certificate: None, ..*batch }, None).unwrap();
                store.put_certificate(batch.certificate.unwrap()).unwrap();
            }
        },
    ];
    for commit in commits {
        on_both(&config(), |mut fixture| {
            assert_eq!(fixture.store().epoch(), Epoch(0));
            commit(fixture.store(), &batches);
            for _ in 0..2 {
                let store = fixture.store();
                assert_eq!(store.epoch(), Epoch(3));
                assert_eq!(store.epoch_ends(Epoch(0), 10).unwrap(), ends(&made));
                assert_eq!(store.epoch_ends(Epoch(1), 1).unwrap(), ends(&made)[1..2]);
                assert_eq!(store.epoch_ends(Epoch(0), 0).unwrap(), []);
                assert_eq!(store.epoch_ends(Epoch(3), 10).unwrap(), []);
                assert_eq!(store.epoch_ends(Epoch(u64::MAX), 10).unwrap(), []);
                fixture.reopen();
            }
        });
    }
}

/// Goal: within an epoch no batch reads the genesis again, and the end of the epoch is noticed.
#[test]
fn the_next_validators_are_read_once_an_epoch() {
    let made = epochs(3);
    on_both(&config(), |fixture| {
        let store = fixture.store();
        let first = store.next_set().unwrap();
        for batch in &made[..2] {
            store.commit(batch.batch(), None).unwrap();
            assert!(Arc::ptr_eq(&first, &store.next_set().unwrap()));
        }
        store.commit(made[2].batch(), None).unwrap();
        assert_eq!((first.epoch, store.next_set().unwrap().epoch), (Epoch(0), Epoch(1)));
    });
}

#[test]
fn the_end_of_an_epoch_may_come_before_its_batch_and_only_once() {
    let made = epochs(7);
    let ends = ends(&made);
    on_both(&config(), |fixture| {
        let store = fixture.store();
        let put = |certificate: &Certificate| reason(store.put_epoch_end(certificate));
        assert!(put(&made[0].certificate).contains("does not end"));
        assert!(put(&ends[1]).contains("an earlier epoch"));
        for (epoch, next) in [(0, 0), (0, 2)] {
            assert!(put(&ending(&ends[0], epoch, next)).contains("next epoch"));
        }
        let mut empty = ends[0].clone();
        empty.info.next_validators.as_mut().unwrap().validators = BoundedVec::default();
        assert!(put(&empty).contains("next epoch"));
        assert_eq!(store.epoch(), Epoch(0));

        store.put_epoch_end(&ends[0]).unwrap();
        store.put_epoch_end(&ends[0]).unwrap();
        assert!(put(&ending(&made[1].certificate, 0, 1)).contains("another batch"));
        store.put_epoch_end(&ends[1]).unwrap();
        assert_eq!(store.epoch(), Epoch(2));

        // The batch must agree with the epoch end that was known before it.
        let mut other = made.clone();
        other[3].certificate = ending(&made[3].certificate, 1, 2);
        for group in [1, 7] {
            let batches: Vec<_> = other.iter().map(Made::batch).collect();
            let first = store.head().unwrap().header.number.get() as usize;
            let run = store.commit_run(&batches[first..], NonZeroUsize::new(group).unwrap());
            assert!(reason(run).contains("another batch"));
            assert_eq!(store.head().unwrap().header.number, BatchNumber::new(3));
        }
        made[3..].iter().for_each(|made| store.commit(made.batch(), None).unwrap());
        assert_eq!(store.epoch_ends(Epoch(0), 10).unwrap(), ends);
    });
}

#[test]
fn a_restore_ends_the_epoch_of_its_target() {
    let (source, _) = served(false);
    let source = source.store();
    let config = StorageConfig { fsync: true, ..config() };
    let RestoreTarget { header, certificate } = target(source, 20);
    let target = RestoreTarget { header, certificate: ending(&certificate, 1, 2) };
    let before = ending(&source.certificate(BatchNumber::new(5)).unwrap().unwrap(), 0, 1);
    let snapshot = source.snapshot(BatchNumber::new(20)).unwrap().unwrap();
    let disk = MemoryDisk::default();
    let store = Store::memory_on(&disk, &config, &crate::Faults::none()).unwrap();
    store.initialize(&genesis()).unwrap();
    for known in [false, true] {
        let restore = store.restore(&target).unwrap();
        while let Some(next) = restore.next_path() {
            restore.add_chunk(&snapshot.chunk(next, 300).unwrap()).unwrap();
        }
        for hash in restore.missing_codes(10).unwrap() {
            restore.add_code(&snapshot.code(&hash).unwrap().unwrap()).unwrap();
        }
        let (headers, proof, genesis) = headers(source, 20, 3);
        let finished =
            restore.finish(&Ancestry { headers: &headers, proof: &proof, genesis_proof: &genesis });
        if known {
            finished.unwrap();
        } else {
            assert!(reason(finished).contains("an earlier epoch"));
            store.put_epoch_end(&before).unwrap();
        }
    }
    // The certificate was written durably with the head.
    disk.crash(0);
    let store = Store::memory_on(&disk, &config, &crate::Faults::none()).unwrap();
    assert_eq!(store.head().unwrap().header.number, BatchNumber::new(20));
    assert_eq!(store.epoch_ends(Epoch(0), 10).unwrap(), [before, target.certificate]);
}

/// Goal: a store that skips over epochs in one step needs their ends first, and keeps the end of its target's epoch.
#[test]
fn an_advance_keeps_the_end_of_its_epoch() {
    let made = epochs(9);
    let interval = StorageConfig { snapshot_interval_batches: 9, ..config() };
    on_both(&interval, |mut fixture| {
        let source = Fixture::initialized(&interval, false);
        made.iter().for_each(|batch| source.store().commit(batch.batch(), None).unwrap());
        let store = fixture.store();
        made[..3].iter().for_each(|batch| store.commit(batch.batch(), None).unwrap());
        let takeover = store.take_range_delta(&target(source.store(), 9), 0, 1 << 20).unwrap();
        let merged = source.store().range_delta(BatchNumber::new(3), BatchNumber::new(9), 1 << 20).unwrap();
        let snapshot = source.store().snapshot(BatchNumber::new(9)).unwrap().unwrap();
        let chunk = snapshot.range_delta_chunk(&merged, Path::MIN, Path::MAX, 1 << 20).unwrap();
        takeover.add(chunk.check().unwrap()).unwrap();
        let (headers, ..) = headers(source.store(), 9, 6);
        assert!(reason(finish(&takeover, &headers)).contains("the end of an earlier epoch"));
        assert_eq!(store.head().unwrap().header, made[2].header);
        store.put_epoch_end(&made[5].certificate).unwrap();
        finish(&takeover, &headers).unwrap();
        drop(takeover);
        for _ in 0..2 {
            assert_eq!(fixture.store().head().unwrap().header, made[8].header);
            assert_eq!(fixture.store().epoch(), Epoch(3));
            assert_eq!(fixture.store().epoch_ends(Epoch(0), 10).unwrap(), ends(&made));
            fixture.reopen();
        }
    });
}

/// Goal: the waypoint of a batch that ends its epoch names the next validators. They are compared whether the batch's
/// own certificate names them, or an epoch end stored before the batch. A waypoint before that end is not affected.
#[test]
fn a_waypoint_is_compared_with_the_validators_that_its_batch_names() {
    let made = epochs(4);
    let own = |store: &Store| made.iter().try_for_each(|made| store.commit(made.batch(), None));
    let before = |store: &Store| {
        store.put_epoch_end(&made[2].certificate)?;
        let bare = |made: &Made| store.commit(CommitBatch { certificate: None, ..made.batch() }, None);
        made.iter().try_for_each(bare)
    };
    let commit = |store: &Store, ends_first: bool| if ends_first { before(store) } else { own(store) };
    for ends_first in [false, true] {
        for made in &made {
            let info = &made.certificate.info;
            let fixture = Fixture::initialized(&config(), false);
            let waypoint = Waypoint::of(info);
            fixture.store().expect_waypoint(&waypoint).unwrap();
            commit(fixture.store(), ends_first).unwrap();
            assert!(fixture.store().passes_waypoint(&waypoint).unwrap(), "batch {}", info.number);
        }
        let of_nobody = LedgerInfo { next_validators: None, ..made[2].certificate.info.clone() };
        let fixture = Fixture::initialized(&config(), false);
        fixture.store().expect_waypoint(&Waypoint::of(&of_nobody)).unwrap();
        let error = commit(fixture.store(), ends_first).unwrap_err();
        assert!(matches!(error, StorageError::WrongWaypoint { .. }), "{error}");
        assert_eq!(fixture.store().head().unwrap().header.number, BatchNumber::new(2));
    }
}
