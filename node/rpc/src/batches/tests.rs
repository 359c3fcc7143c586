//! What readers of batches open, how often, and what it weighs.

use std::{sync::atomic::Ordering::SeqCst, thread};

use alloy_primitives::keccak256;
use slipstream_types::{Log, bounded::BoundedVec};

use super::*;
use crate::{
    RpcContext,
    fixture::{BOMB_LOGS, commit, commit_bomb, context},
    tests::loose,
};

fn opens(context: &RpcContext) -> [usize; 2] {
    let Batches { receipts, bodies, .. } = &context.batches;
    [receipts.opens.load(SeqCst), bodies.opens.load(SeqCst)]
}

/// Goal: a batch of very many logs is opened once for all concurrent callers, and not again for callers that follow
/// soon. It uses the memory that it weighs. Threads for short work refuse it, open or not.
#[test]
fn a_large_batch_has_one_opener() {
    let context = context();
    let number = commit_bomb(&context.store, 6);
    let leash = loose();
    let short = |parts| context.batches.get(number, parts, Reader::on(Lane::Reads, &leash));
    assert!(matches!(short(BatchParts::Receipts), Err(RpcError::LargeBatch)));
    assert_eq!(opens(&context), [0, 0], "the header told");
    thread::scope(|scope| {
        let read = || {
            let leash = loose();
            let batch = context.batches.get(number, BatchParts::Both, Reader::long(&leash)).unwrap().unwrap();
            assert_eq!(batch.receipt(6).unwrap().unwrap().logs.len(), 1);
            assert!(context.batches.receipts.used_bytes()[1] <= RECEIPTS[1].open_bytes_max);
        };
        (0..12).for_each(|_| drop(scope.spawn(read)));
    });
    assert_eq!(opens(&context), [1, 1]);
    let weight = 6 * BOMB_LOGS * size_of::<Log>();
    let [small, large] = context.batches.receipts.kept_bytes();
    assert!(small == 0 && (weight..weight + (1 << 20)).contains(&large), "{small} {large}");
    assert_eq!(context.batches.receipts.used_bytes(), [0, large]);
    assert!(matches!(short(BatchParts::Receipts), Err(RpcError::LargeBatch)), "it is open, and large");
    assert!(short(BatchParts::Body).unwrap().unwrap().body().is_ok(), "the body is small");
    assert_eq!(opens(&context), [1, 1]);
}

/// Goal: large batches evict no small ones, and those that exceed the whole cache evict nothing.
#[test]
fn large_batches_drive_out_no_small_ones() {
    let context = context();
    let small = commit_bomb(&context.store, 0);
    let leash = loose();
    let get =
        |number| context.batches.get(number, BatchParts::Receipts, Reader::long(&leash)).unwrap().unwrap();
    drop(get(small));
    let large = commit_bomb(&context.store, 6);
    drop(get(large));
    // 24 transactions weigh 71 MB.
    let monster = commit_bomb(&context.store, 24);
    drop(get(monster));
    assert!(context.batches.receipts.open_one(monster).is_none());
    assert!(context.batches.receipts.open_one(small).is_some(), "it has a memory of its own");
    assert!(context.batches.receipts.open_one(large).is_none(), "it made room");
    assert_eq!(context.batches.receipts.used_bytes(), context.batches.receipts.kept_bytes());
    // A passing reader leaves nothing in the cache.
    let passed = commit_bomb(&context.store, 0);
    drop(context.batches.get(passed, BatchParts::Both, Reader::passing(&leash)).unwrap());
    assert!(context.batches.receipts.open_one(passed).is_none());
}

/// Goal: readers of distinct large batches share a bounded memory: they wait for each other before they unpack, and
/// cached parts give way.
#[test]
fn readers_wait_for_memory() {
    let context = context();
    let numbers: Vec<_> = (0..6).map(|_| commit_bomb(&context.store, 6)).collect();
    thread::scope(|scope| {
        for number in &numbers {
            let context = &context;
            scope.spawn(move || {
                let leash = loose();
                let batch = context.batches.get(*number, BatchParts::Receipts, Reader::long(&leash));
                assert_eq!(batch.unwrap().unwrap().receipt(0).unwrap().unwrap().logs.len(), BOMB_LOGS);
                assert!(context.batches.receipts.used_bytes()[1] <= RECEIPTS[1].open_bytes_max);
            });
        }
    });
    assert_eq!(opens(&context), [6, 0], "each once");
    assert!(context.batches.receipts.kept_bytes()[1] <= RECEIPTS[1].kept_bytes_max);
}

/// Goal: only what is requested is opened: no receipts for a transaction, one hash for one transaction, and no body for
/// a header.
#[test]
fn only_what_is_asked_for_is_opened() {
    let context = context();
    let raws: Vec<_> = (0..50u64).map(|n| n.to_be_bytes().to_vec()).collect();
    let hashes: Vec<_> = raws.iter().map(keccak256).collect();
    let receipt = Receipt { tx_type: 2, success: true, gas_used: 21_000, logs: Default::default() };
    let receipts = Receipts { receipts: BoundedVec::new(vec![receipt; 50]).unwrap() };
    let number = commit(&context.store, raws, receipts, 50 * 21_000);
    let leash = loose();
    let reader = Reader::on(Lane::Reads, &leash);
    drop(context.batches.get(number, BatchParts::Receipts, reader).unwrap());
    assert_eq!(opens(&context), [1, 0]);
    let batch = context.batches.get(number, BatchParts::Body, reader).unwrap().unwrap();
    assert_eq!(batch.transaction_hash(31), Some(hashes[31]));
    assert_eq!(batch.open_body().unwrap().hashed(), 1);
    assert_eq!(opens(&context), [1, 1]);
    assert!(batch.receipts().is_err() && batch.hashes().eq(hashes));
}

/// Goal: a long answer is built on threads for long work, in memory that is reserved until it is written. An answer too
/// long to send is refused.
#[test]
fn long_answers_are_weighed() {
    let context = context();
    let batches = &context.batches;
    let leash = loose();
    let weigh = |logs, reader| {
        let weight = Weight { items: 1, logs, data_bytes: 0 };
        batches.weigh(weight, reader, || Ok(logs))
    };
    let (short, long) = (Reader::on(Lane::Reads, &leash), Reader::long(&leash));
    assert!(weigh(1_000, short).is_ok());
    assert!(matches!(weigh(BOMB_LOGS, short), Err(RpcError::LargeBatch)));
    let used = || batches.answers.each_ref().map(|memory| memory.used());
    assert_eq!(used(), [0, 0]);
    let held = weigh(BOMB_LOGS, long).unwrap();
    assert_eq!(used(), [0, BOMB_LOGS * ANSWER_LOG_BYTES + ANSWER_ITEM_BYTES]);
    drop(held);
    assert_eq!(used(), [0, 0]);
    let refused = weigh(700_000, long).map(|_| ()).unwrap_err().to_string();
    assert!(
        refused.starts_with("response too large: 1 transactions or receipts with 700000 logs"),
        "{refused}"
    );
}

/// Goal: a memory never hands out more than it has, and gets back what its holders release.
#[test]
fn a_memory_is_shared() {
    let memory = Memory::new(10);
    let mut all = memory.try_take(100).expect("all that there is");
    assert!(memory.used() == 10 && memory.try_take(1).is_none());
    all.shrink_to(7);
    all.shrink_to(9);
    assert!(memory.try_take(4).is_none() && memory.try_take(3).is_some());
    drop(all);
    assert_eq!(memory.used(), 0);
}
