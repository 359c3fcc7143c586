//! The limit of what a chain sustains. Finding it is the longest test of a load, so its name makes it start before
//! them.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use slipnet::{
    devnet::{DevnetOptions, NodeOptions},
    load::{self, Found, LoadOptions, Rule, Saturation, SaturationOptions},
    progress::Progress,
};

use crate::common::{PATIENCE, pair};

const ACCOUNTS: u32 = 20;

/// Searches for at most two and a half minutes, on a chain that carries ten transactions per second.
async fn search(options: &LoadOptions) -> Saturation {
    // A dozen steps with signing, drain and audit take half a minute on an idle machine.
    let until = Some(Instant::now() + Duration::from_secs(150));
    let search = SaturationOptions { rule: Rule::default(), start: 6, step: Duration::from_secs(1), until };
    load::saturate(options, search, Progress::Quiet).await.unwrap()
}

/// Goal: a search finds a rate that the chain sustains, and a higher one that it does not; its steps show both.
#[tokio::test(flavor = "multi_thread")]
async fn the_rate_that_a_chain_sustains_is_found() {
    let validator = NodeOptions {
        overrides: vec!["consensus.batch_transactions_max=1".to_owned()],
        ..NodeOptions::default()
    };
    let nodes = BTreeMap::from([("validator-0".to_owned(), validator)]);
    // Ten batches per second, each with one transaction: the search leaves the machine to other tests.
    let options =
        DevnetOptions { accounts: ACCOUNTS, batch_interval_ms: Some(100), nodes, ..DevnetOptions::default() };
    let devnet = pair(options).await;
    let options = LoadOptions::for_manifest(&devnet.manifest().await.unwrap(), ACCOUNTS as usize).unwrap();
    // On a busy machine the generators themselves are late: such a search says nothing, so it is repeated.
    let deadline = Instant::now() + 3 * PATIENCE;
    let (saturation, rate, failed) = loop {
        let saturation = search(&options).await;
        if let Found::Sustained { rate, failed, .. } = saturation.found {
            break (saturation, rate, failed);
        }
        assert!(Instant::now() < deadline, "{saturation}");
    };
    assert!(0 < rate && rate < failed, "{saturation}");
    let missed = |wanted: u32| -> Vec<bool> {
        let steps = saturation.judged().filter(|(_, step, _)| step.rate == wanted);
        steps.map(|(_, _, missed)| missed.is_some()).collect()
    };
    assert_eq!(missed(rate).last(), Some(&false), "{saturation}");
    // A failed step is tried once more.
    assert_eq!((missed(failed).len(), missed(failed).last()), (2, Some(&true)), "{saturation}");
    assert!(saturation.to_string().contains(&format!("sustained: {rate} tx/s")), "{saturation}");
    devnet.stop().await.unwrap();
}
