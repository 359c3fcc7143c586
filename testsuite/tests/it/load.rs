//! Load on a devnet: generator processes, every kind of transaction, concurrent reads, and an audit without
//! differences.

use std::time::Duration;

use alloy_primitives::{Address, U256};
use serde_json::{Value, json};
use slipnet::{
    devnet::{Devnet, DevnetOptions},
    load::{self, Call, Chain, Found, LoadOptions, Rate, ReadWay, Rule, SaturationOptions, Workload},
    progress::Progress,
    rpc::quantity,
};

use crate::common::{data, pair, until};

const ACCOUNTS: u32 = 20;

async fn devnet() -> (Devnet, LoadOptions) {
    let devnet = pair(DevnetOptions { accounts: ACCOUNTS, ..DevnetOptions::default() }).await;
    let options = LoadOptions::for_manifest(&devnet.manifest().await.unwrap(), ACCOUNTS as usize).unwrap();
    (devnet, options)
}

/// Goal: two generators send every kind of transaction in a burst and a ramp. Each node has its latencies, reads are
/// answered over both transports, and subscriptions announce every head. Receipts, balances, nonces and slots are
/// right, also in a second run on the same chain.
#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_transaction_is_followed_and_audited() {
    let (devnet, options) = devnet().await;
    let rates = [
        Rate::Burst { base: 20, peak: 200, period_ms: 1_000, peak_ms: 200 },
        Rate::Ramp { from: 20, to: 100 },
    ];
    for rate in rates {
        let options = LoadOptions {
            workload: "transfers=3,erc20=3,amm=2,storage,hot-spot,deploy".parse().unwrap(),
            rate,
            duration: Duration::from_secs(3),
            generators: 2,
            reads_per_second: 40,
            ..options.clone()
        };
        let mut summary = load::run(&options, Progress::Quiet).await.unwrap();
        // Reads that a stalled node has not answered by the end of the load count as failed, so the load is repeated.
        for _ in 0..2 {
            if summary.reads.iter().any(|reads| reads.failed > 0)
                || summary.news.iter().any(|news| news.missed > 0)
            {
                summary = load::run(&options, Progress::Quiet).await.unwrap();
            }
        }
        let audit = &summary.audit;
        assert!(audit.is_clean() && audit.figures.lost == 0, "{audit:?}");
        assert_eq!((summary.committed, audit.figures.receipts_failed), (summary.offered, 0), "{summary}");
        assert_eq!((audit.figures.receipts, summary.followed), (summary.committed, Some(summary.committed)));
        // At least the nonce, ether and three tokens of each account.
        assert!(audit.figures.balances > 5 * u64::from(ACCOUNTS), "{audit:?}");
        assert!(summary.generators == 2 && summary.capacity_per_second > 0.0, "{summary}");
        assert_eq!(summary.follow_ms["fullnode-0"].unwrap().count, summary.committed);
        for way in [ReadWay::Http, ReadWay::WebSocket] {
            let reads: Vec<_> = summary.reads.iter().filter(|reads| reads.way == way).collect();
            assert_eq!(reads.len(), 2, "both nodes");
            assert!(
                reads.iter().all(|reads| reads.failed == 0 && reads.read_ms.unwrap().count == 60),
                "{summary}"
            );
        }
        assert_eq!(summary.news.len(), 2, "both nodes");
        assert!(summary.news.iter().all(|news| news.missed == 0 && news.news_ms.is_some()), "{summary}");
    }
    devnet.stop().await.unwrap();
}

/// Goal: calls with the slots that mainnet transactions read and wrote are sent and executed. Each written slot has the
/// sum of all calls' increments.
#[tokio::test(flavor = "multi_thread")]
async fn access_lists_of_mainnet_are_replayed() {
    let Some(lists) = data("access-lists") else { return };
    let (devnet, options) = devnet().await;
    let options = LoadOptions {
        workload: Workload::AccessLists.into(),
        rate: Rate::constant(20),
        duration: Duration::from_secs(3),
        access_lists: Some(lists),
        ..options
    };
    let summary = load::run(&options, Progress::Quiet).await.unwrap();
    let audit = &summary.audit;
    assert!(audit.is_clean() && audit.figures.lost == 0, "{audit:?}");
    assert_eq!((summary.committed, audit.figures.receipts_failed), (60, 0), "{summary}");
    // The nonce and ether of each account; the rest are slots. A mainnet transaction writes several.
    assert!(audit.figures.balances > 2 * u64::from(ACCOUNTS) + summary.committed, "{audit:?}");
    devnet.stop().await.unwrap();
}

/// Goal: another program takes a nonce of an account in the middle of a run. The load continues with the next nonces
/// and loses nothing, and the audit reports the foreign transaction.
#[tokio::test(flavor = "multi_thread")]
async fn a_nonce_that_another_program_took_is_survived_and_named() {
    let (devnet, options) = devnet().await;
    // Each account sends every two and a half seconds.
    let options = LoadOptions { rate: Rate::constant(8), duration: Duration::from_secs(10), ..options };
    let (chain, account) =
        (Chain::connect(devnet.proposer().rpc().clone()).await.unwrap(), options.accounts[3].clone());
    let running = tokio::spawn(async move { load::run(&options, Progress::Quiet).await });
    let nonce = || async {
        let count: Value =
            chain.rpc().call("eth_getTransactionCount", json!([account.address, "latest"])).await.unwrap();
        quantity(&count).unwrap()
    };
    let before = nonce().await;
    until("the account sends", async || {
        let now = nonce().await;
        (now > before).then_some(()).ok_or_else(|| format!("its nonce is {now}"))
    })
    .await;
    // The account's next transaction is due two and a half seconds after the last, so this one comes first, unless the
    // machine is busy. In that case the next nonce is tried.
    until("the stranger has a nonce", async || {
        let call = Call { value: U256::from(1), ..Call::to(Address::repeat_byte(0x77), 21_000) };
        let executed = chain.execute(&[chain.sign(&account, nonce().await, call)]).await;
        executed.map(drop).map_err(|error| format!("{error:#}"))
    })
    .await;
    let summary = running.await.unwrap().unwrap();
    assert_eq!((summary.committed, summary.given_up), (summary.offered, 0), "{summary}");
    assert!(summary.displaced > 0, "{summary}");
    assert_eq!(
        (summary.audit.figures.foreign, summary.audit.figures.lost, summary.audit.is_clean()),
        (1, 0, false)
    );
    devnet.stop().await.unwrap();
}

/// Goal: a search for the chain's limit ends, and names the limit and the rule.
#[tokio::test(flavor = "multi_thread")]
async fn a_limit_below_every_rate_is_found() {
    let (devnet, options) = devnet().await;
    // No batch is committed at once, so this rule fails at every rate.
    let rule = Rule { p99_ms_max: 1.0, ..Rule::default() };
    let search = SaturationOptions { rule, start: 2, step: Duration::from_secs(1), until: None };
    let saturation = load::saturate(&options, search, Progress::Quiet).await.unwrap();
    assert!(matches!(saturation.found, Found::Nothing { .. } | Found::AtLeast { rate: 0 }), "{saturation}");
    assert!(saturation.to_string().contains("p99 is at most 1 ms"), "{saturation}");
    devnet.stop().await.unwrap();
}
