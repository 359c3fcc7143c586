//! Compares searches with a full scan, over chains of crafted batches.

use std::ops::Range;

use alloy_primitives::{Address, B256};
use alloy_rpc_types_eth::Filter;
use proptest::{collection::vec, prelude::*};
use serde_json::{Value, json};
use slipstream_fair::{Origin, Probation, Quota};
use slipstream_storage::{CommitBatch, Store};
use slipstream_types::{
    BatchHeader, Blob, BlobKind, Body, Delta, Digest, Log, Receipt, Receipts,
    bounded::{BoundedBytes, BoundedVec},
};
use tokio_util::sync::CancellationToken;

use super::{
    index::{SECTION_BATCHES, Section},
    *,
};
use crate::{
    Caller,
    fixture::context,
    tests::{Fixture, loose, loose_until},
};

const MUCH: Budget = Budget { work_bytes: usize::MAX, logs: usize::MAX, data_bytes: usize::MAX };

pub(crate) fn log(address: u8, topics: &[u8], data: usize) -> Log {
    let topics = topics.iter().map(|topic| Digest([*topic; 32])).collect();
    Log {
        address: Address::repeat_byte(address),
        topics: BoundedVec::new(topics).unwrap(),
        data: BoundedBytes::new(vec![7; data]).unwrap(),
    }
}

/// A chain whose batches have the logs that a test specifies, and change no state.
struct Chain {
    context: RpcContext,
    logs: Vec<(BatchNumber, Log)>,
}

impl Chain {
    fn new() -> Chain {
        Chain { context: context(), logs: Vec::new() }
    }

    /// Commits one batch whose transactions have these logs, in order.
    fn commit(&mut self, transactions: Vec<Vec<Log>>) {
        commit(&self.context.store, &transactions);
        let number = self.context.store.head().unwrap().header.number;
        self.logs.extend(transactions.into_iter().flatten().map(|log| (number, log)));
    }

    fn index(&self) {
        self.context.log_index.fill(&CancellationToken::new()).unwrap();
    }

    fn found(&self, filter: &Filter, range: Range<u64>, budget: Budget) -> FoundLogs {
        let criteria = Criteria::new(filter.clone());
        let leash = loose();
        let search = self.context.search(&criteria, &leash);
        search
            .run(LogPosition::before(BatchNumber::new(range.start)), BatchNumber::new(range.end - 1), budget)
            .unwrap()
    }

    /// The positions and addresses that a full scan finds.
    fn scanned(&self, filter: &Filter, range: &Range<u64>) -> Vec<(u64, Address)> {
        let matches = |log: &Log| {
            let address = filter.address.is_empty() || filter.address.contains(&log.address);
            let topic = |index: usize| log.topics.get(index).map(|topic| B256::from(*topic));
            let mut positions = filter.topics.iter().enumerate();
            address
                && positions.all(|(index, wanted)| {
                    wanted.is_empty() || topic(index).is_some_and(|topic| wanted.contains(&topic))
                })
        };
        let found = self.logs.iter().filter(|(number, log)| range.contains(&number.get()) && matches(log));
        found.map(|(number, log)| (number.get(), log.address)).collect()
    }
}

pub(crate) fn commit(store: &Store, transactions: &[Vec<Log>]) {
    let head = store.head().unwrap();
    let number = head.header.number.next();
    let body =
        (0..transactions.len()).map(|index| [number.get().to_be_bytes(), index.to_be_bytes()].concat());
    let body = Body::new(body.collect()).unwrap();
    let receipt = |logs: &Vec<Log>| Receipt {
        tx_type: 2,
        success: true,
        gas_used: 21_000,
        logs: BoundedVec::new(logs.clone()).unwrap(),
    };
    let receipts = BoundedVec::new(transactions.iter().map(receipt).collect()).unwrap();
    let header = BatchHeader {
        number,
        parent: head.digest,
        timestamp_ms: head.header.timestamp_ms + 100,
        tx_count: transactions.len() as u32,
        ..head.header
    };
    let body = Blob::seal(BlobKind::Body, &body).unwrap();
    let receipts = Blob::seal(BlobKind::Receipts, &Receipts { receipts }).unwrap();
    let delta = Delta::default();
    let batch =
        CommitBatch { body: Some(&body), receipts: Some(&receipts), ..CommitBatch::new(&header, &delta) };
    store.commit(batch, None).unwrap();
}

fn places(logs: &[alloy_rpc_types_eth::Log]) -> Vec<(u64, Address)> {
    logs.iter().map(|log| (log.block_number.unwrap(), log.address())).collect()
}

fn filter(addresses: &[u8], topics: &[Vec<u8>]) -> Filter {
    let mut filter = Filter::new();
    filter.address = addresses.iter().map(|byte| Address::repeat_byte(*byte)).collect();
    for (wanted, topics) in filter.topics.iter_mut().zip(topics) {
        *wanted = topics.iter().map(|byte| B256::repeat_byte(*byte)).collect();
    }
    filter
}

fn some_log() -> impl Strategy<Value = Log> {
    (0u8..4, vec(0u8..6, 0..=4), 0usize..40).prop_map(|(address, topics, data)| log(address, &topics, data))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Goal: a search finds the same logs as a full scan, in order, with no filters built, with some, and with all. A
    /// search in parts finds each log once, whatever the budget.
    #[test]
    fn searches_find_what_a_full_scan_finds(
        batches in vec(vec(vec(some_log(), 0..3), 0..3), 1..150),
        indexed in 0usize..150,
        asked in vec((vec(0u8..5, 0..3), vec(vec(0u8..7, 0..3), 0..=4), 0u64..150, 1u64..150, 1usize..5), 1..8),
    ) {
        let mut chain = Chain::new();
        for (count, batch) in batches.into_iter().enumerate() {
            if count == indexed {
                chain.index();
            }
            chain.commit(batch);
        }
        let head = chain.context.store.head().unwrap().header.number.get();
        for _ in 0..2 {
            for (addresses, topics, first, len, step) in &asked {
                let filter = filter(addresses, topics);
                let first = *first.min(&head);
                let range = first..(first + len).min(head + 1);
                let found = chain.found(&filter, range.clone(), MUCH);
                prop_assert_eq!(found.end, SearchEnd::Reached);
                prop_assert_eq!(places(&found.logs), chain.scanned(&filter, &range));

                let budget = Budget { logs: *step, data_bytes: 30, work_bytes: 40 << 10 };
                let (criteria, leash) =
                    (Criteria::new(filter.clone()), loose());
                let (mut place, mut parts) = (LogPosition::before(BatchNumber::GENESIS), Vec::new());
                while place.batch.get() <= head {
                    parts.extend(
                        filters::new_logs(&chain.context, &criteria, &mut place, &leash, budget).unwrap(),
                    );
                }
                prop_assert_eq!(places(&parts), chain.scanned(&filter, &(0..head + 1)));
                let indices: Vec<_> = parts.iter().map(|log| (log.block_number, log.log_index)).collect();
                prop_assert!(indices.is_sorted_by(|one, other| one < other));
            }
            chain.index();
        }
    }
}

/// Goal: batches that cannot match stay closed, even after a restart. Batches without a record are searched all the
/// same.
#[test]
fn batches_that_cannot_match_are_not_opened() {
    let mut chain = Chain::new();
    for number in 0..3 * SECTION_BATCHES {
        chain.commit(vec![vec![log(1, &[(number % 200) as u8], 0)]]);
    }
    let head = chain.context.store.head().unwrap().header.number.get();
    // Enough for the filters of all sections and a probe of each, but not for one more batch.
    let budget = Budget { work_bytes: 4 * ((1 << 10) + 64 + 2 * SECTION_BATCHES as usize), ..MUCH };
    let absent = filter(&[9], &[]);
    let without = chain.found(&absent, 0..head + 1, budget);
    assert!(matches!(without.end, SearchEnd::Work(_)), "nothing is indexed yet");
    chain.index();
    for _ in 0..2 {
        let found = chain.found(&absent, 0..head + 1, budget);
        assert_eq!((found.end, found.logs.len()), (SearchEnd::Reached, 0));
        // As after a start: only the open section is rebuilt.
        chain.context.log_index = std::sync::Arc::new(LogIndex::new(chain.context.store.clone()));
        chain.index();
    }
    let name = format!("log_blooms/{:016x}", 1);
    assert!(chain.context.store.record(&name).unwrap().is_some());
    chain.context.store.put_derived_record(&name, b"damaged").unwrap();
    let found = chain.found(&filter(&[1], &[vec![100]]), 0..head + 1, MUCH);
    assert_eq!(places(&found.logs), [(101, Address::repeat_byte(1))]);
}

/// Goal: a batch with the value at another position stays closed, as does a batch without logs.
#[test]
fn filters_know_the_place_of_a_topic() {
    let mut chain = Chain::new();
    chain.commit(vec![vec![log(1, &[2, 3], 0)]]);
    chain.commit(vec![vec![]]);
    chain.index();
    let budget = Budget { work_bytes: 2 << 10, ..MUCH };
    for none in [filter(&[1], &[vec![3]]), filter(&[], &[vec![], vec![2]]), filter(&[2], &[])] {
        assert_eq!(chain.found(&none, 0..3, budget).end, SearchEnd::Reached);
    }
    assert!(matches!(chain.found(&filter(&[1], &[vec![2]]), 0..3, budget).end, SearchEnd::Work(_)));
    assert_eq!(chain.found(&filter(&[], &[]), 2..3, budget).end, SearchEnd::Reached);
}

/// Goal: stored filters keep their form. Another form needs another record name.
#[test]
fn the_filter_is_pinned() {
    let receipt = Receipt {
        tx_type: 2,
        success: true,
        gas_used: 1,
        logs: BoundedVec::new(vec![log(1, &[2, 3, 4, 5], 6), log(1, &[2], 6)]).unwrap(),
    };
    let receipts = Receipts { receipts: BoundedVec::new(vec![receipt]).unwrap() };
    assert_eq!(alloy_primitives::hex::encode(bloom::of(&receipts)), "12554cf8ab3f5886ab6c");
    assert!(bloom::of(&Receipts::default()).is_empty());
    let section =
        Section::new(vec![Some(BoundedBytes::new(vec![1, 2]).unwrap()), None, Some(BoundedBytes::default())]);
    assert_eq!(slipstream_types::codec::encode("section", &section).unwrap(), [3, 1, 2, 1, 2, 0, 1, 0]);
}

/// Goal: large batches do not let everything through, as Ethereum's fixed 256 bytes would.
#[test]
fn few_absent_entries_seem_to_be_there() {
    let word = |number: u32| {
        let mut topic = [0; 32];
        topic[28..].copy_from_slice(&number.to_be_bytes());
        topic
    };
    let entry =
        |number| Log { topics: BoundedVec::new(vec![Digest(word(number))]).unwrap(), ..log(1, &[], 0) };
    let receipt = Receipt {
        tx_type: 2,
        success: true,
        gas_used: 1,
        logs: BoundedVec::new((0..20_000).map(entry).collect()).unwrap(),
    };
    let bloom = bloom::of(&Receipts { receipts: BoundedVec::new(vec![receipt]).unwrap() });
    assert_eq!(bloom.len(), 2 * 20_001);
    let may_hold = |number| bloom::may_hold(&bloom, bloom::Entry::topic(0, &word(number)));
    assert!((0..20_000).all(may_hold));
    let wrong = (20_000..120_000).filter(|number| may_hold(*number)).count();
    assert!(wrong < 150, "{wrong} of 100,000");
}

/// Goal: an abandoned search ends.
#[test]
fn a_search_ends_when_nobody_waits() {
    let mut chain = Chain::new();
    chain.commit(vec![vec![log(1, &[], 0)]]);
    let gone = CancellationToken::new();
    gone.cancel();
    let criteria = Criteria::new(Filter::new());
    let leash = loose_until(gone);
    let search = chain.context.search(&criteria, &leash);
    let ended = search.run(LogPosition::before(BatchNumber::GENESIS), BatchNumber::new(1), MUCH);
    assert!(matches!(ended, Err(RpcError::NobodyWaits)), "{ended:?}");
}

/// Goal: the error of a search that is too large says how far one call gets, in the words that clients match.
#[test]
fn a_call_that_asks_for_too_much_is_told_what_fits() {
    let mut chain = Chain::new();
    for _ in 0..4 {
        chain.commit(vec![vec![log(1, &[], 10), log(1, &[], 10)]]);
    }
    let told = |filter: Filter, budget: Budget| {
        let criteria = Criteria::new(filter);
        all(&chain.context, &criteria, &loose(), budget).unwrap_err().to_string()
    };
    let from = |number: u64| Filter::new().from_block(number).to_block(4u64);
    assert_eq!(
        told(from(1), Budget { logs: 5, ..MUCH }),
        format!(
            "query returned more than 5 results or {} bytes of data; ask for batches 1 to 2 (0x1 to 0x2), then for the rest",
            usize::MAX
        )
    );
    assert!(told(from(3), Budget { logs: 1, ..MUCH }).ends_with("batch 3 alone is too large"));
    let work = told(from(1), Budget { work_bytes: 40 << 10, ..MUCH });
    assert!(
        work.starts_with("query exceeds the limit of what one call may read: the block range is too large")
    );
    assert!(work.contains("ask for batches 1 to 2 "), "{work}");
}

#[tokio::test]
async fn ranges_that_are_reversed_or_in_the_future_are_refused() {
    let context = context();
    for _ in 0..3 {
        commit(&context.store, &[vec![log(1, &[2], 3)]]);
    }
    let rpc = Fixture(crate::table(context));
    for (asked, text) in [
        (json!({ "fromBlock": "0x2", "toBlock": "0x1" }), "invalid block range params"),
        (json!({ "fromBlock": "0x4" }), "block range extends beyond current head block"),
        (json!({ "fromBlock": "0x0", "toBlock": "0x4" }), "block range extends beyond current head block"),
        (
            json!({ "address": vec![B256::ZERO.to_string()[..42].to_owned(); 1] , "topics": vec![
            (0..1_001).map(|byte| B256::from(alloy_primitives::U256::from(byte))).collect::<Vec<_>>()] }),
            "exceed max addresses or topics per search position",
        ),
    ] {
        let (code, message) = rpc.error("eth_getLogs", json!([asked])).await;
        assert_eq!(code, -32602, "{message}");
        assert!(message.starts_with(text), "{message}");
    }
    // A filter is read as strictly as everything else.
    for loose in [
        json!({ "fromBlock": "LATEST" }),
        json!({ "fromBlock": "0x01" }),
        json!({ "address": "00".repeat(20) }),
        json!({ "topics": [[vec![0; 32]]] }),
        json!({ "topics": [null, null, null, null, null] }),
        json!({ "blockHash": B256::ZERO, "toBlock": "latest" }),
    ] {
        for method in ["eth_getLogs", "eth_newFilter"] {
            let (code, message) = rpc.error(method, json!([loose])).await;
            assert_eq!(code, -32602, "{loose}: {message}");
        }
    }
    let pending = rpc.error("eth_getLogs", json!([{ "fromBlock": "pending" }])).await;
    assert_eq!(pending, (-32602, "pending logs are not supported".to_owned()));
    let more = json!([{ "fromBlock": "earliest", "limit": 100 }]);
    assert_eq!(rpc.result("eth_getLogs", more).await.as_array().unwrap().len(), 3, "as without the limit");
    let logs = rpc.result("eth_getLogs", json!([{ "fromBlock": "earliest" }])).await;
    assert_eq!(logs.as_array().unwrap().len(), 3);
    assert_eq!(rpc.result("eth_getLogs", json!([{}])).await.as_array().unwrap().len(), 1, "the head's");
}

/// Goal: a poll that restarts as a long call reports what its first attempt would have reported.
#[tokio::test]
async fn a_poll_that_begins_again_loses_nothing() {
    let context = context();
    let store = context.store.clone();
    let rpc = Fixture(crate::table(context));
    let id = rpc.result("eth_newFilter", json!([{}])).await;
    commit(&store, &[vec![log(1, &[], 0)]]);
    let room = Quota::new(2, 0);
    let mut place = room.share(Origin::Trusted);
    assert!(place.grow_to(1));
    let probation = Probation::new(place, room.share(Origin::Trusted));
    assert!(!probation.lengthen(false), "its thread is wanted");
    let caller = Caller { origin: Origin::Trusted, listening: None, probation: Some(probation) };
    let params = serde_json::value::to_raw_value(&json!([id])).unwrap();
    let reply = rpc.0.call(caller, "eth_getFilterChanges", Some(&params)).await.unwrap();
    let logs: Value = serde_json::from_str(reply.result.unwrap().get()).unwrap();
    assert_eq!(logs.as_array().unwrap().len(), 1);
}

/// Goal: each kind of filter reports its changes once, in order; an unknown filter is an error.
#[tokio::test]
async fn filters_tell_what_is_new_once() {
    let context = context();
    let store = context.store.clone();
    let rpc = Fixture(crate::table(context));
    let make = |logs: Vec<Log>| commit(&store, &[logs]);
    make(vec![log(1, &[], 0)]);

    let logs = rpc
        .result("eth_newFilter", json!([{ "address": Address::repeat_byte(1), "fromBlock": "0x0" }]))
        .await;
    let late = rpc.result("eth_newFilter", json!([{ "fromBlock": "0x4", "toBlock": "0x4" }])).await;
    let blocks = rpc.result("eth_newBlockFilter", json!([])).await;
    let pending = rpc.result("eth_newPendingTransactionFilter", json!([])).await;
    let poll = async |id: &Value| rpc.result("eth_getFilterChanges", json!([id])).await;
    for id in [&logs, &late, &blocks, &pending] {
        assert_eq!(poll(id).await, json!([]));
    }
    make(vec![log(1, &[], 0), log(2, &[], 0), log(1, &[], 0)]);
    make(vec![]);
    let seen = poll(&logs).await;
    let indices: Vec<_> = seen.as_array().unwrap().iter().map(|log| log["logIndex"].clone()).collect();
    assert_eq!(indices, ["0x0", "0x2"]);
    let hashes = poll(&blocks).await;
    let block = rpc.result("eth_getBlockByNumber", json!(["0x3", false])).await;
    assert_eq!((hashes.as_array().unwrap().len(), &hashes[1]), (2, &block["hash"]));
    make(vec![log(1, &[], 0)]);
    make(vec![log(1, &[], 0)]);
    assert_eq!(poll(&logs).await.as_array().unwrap().len(), 2);
    assert_eq!(poll(&late).await.as_array().unwrap().len(), 1, "only those of batch 4");
    assert_eq!(rpc.result("eth_getFilterLogs", json!([logs])).await.as_array().unwrap().len(), 5);
    for id in [&logs, &late] {
        assert_eq!(poll(id).await, json!([]));
    }
    let hash = rpc.result("eth_sendRawTransaction", json!([crate::fixture::raw()])).await;
    assert_eq!(poll(&pending).await, json!([hash]));
    assert_eq!(poll(&pending).await, json!([]));

    assert_eq!(rpc.result("eth_uninstallFilter", json!([logs])).await, true);
    assert_eq!(rpc.result("eth_uninstallFilter", json!([logs])).await, false);
    for (method, id) in
        [("eth_getFilterChanges", &logs), ("eth_getFilterLogs", &blocks), ("eth_getFilterLogs", &json!("x"))]
    {
        let (code, text) = rpc.error(method, json!([id])).await;
        assert_eq!(code, -32000);
        assert!(text.starts_with("filter not found"), "{text}");
    }
    let reversed = rpc.error("eth_newFilter", json!([{ "fromBlock": "0x9", "toBlock": "0x8" }])).await;
    assert!(reversed.1.starts_with("invalid block range params"), "{}", reversed.1);
}

/// Goal: sections below the built ones follow once their receipts arrive, a few at a time, even across a restart.
#[test]
fn sections_of_a_backfill_are_made_from_the_newest_down() {
    let mut chain = Chain::new();
    let batches = 8 * SECTION_BATCHES;
    (0..batches).for_each(|number| chain.commit(vec![vec![log((number % 7) as u8, &[], 1)]]));
    chain.index();
    let (store, last) = (chain.context.store.clone(), 7);
    let made = |number: u64| LogIndex::new(store.clone()).section(number).unwrap().bytes() > 0;
    // As after a snapshot: only the last sections are built.
    let (first, _) = log_records_behind(BatchNumber::GENESIS);
    let (last_before, _) = log_records_behind(BatchNumber::new((last - 1) * SECTION_BATCHES - 1));
    store.remove_records(&first, &last_before).unwrap();
    assert!((0..last).all(|number| !made(number)));
    store.put_derived_record("log_blooms_from", &last.to_be_bytes()).unwrap();
    chain.commit(Vec::new());
    for left in [3, 0, 0] {
        // The head's section is open; it is rebuilt as after a restart.
        chain.context.log_index = std::sync::Arc::new(LogIndex::new(store.clone()));
        chain.index();
        assert_eq!((0..last).filter(|number| !made(*number)).count(), left);
    }
    let filter = Filter::new().address(Address::repeat_byte(3));
    let found = chain.found(&filter, 1..batches, MUCH);
    assert_eq!(found.logs.len(), chain.scanned(&filter, &(1..batches)).len());
}
