//! A chain that is longer than one answer. Making it takes the longest of all these tests. They begin in the order of
//! their names, and this one is the first.

use slipstream_sync::Mode;

use crate::{
    chain::Chain,
    following::{Following, peer},
    modes::hub_with,
};

/// Goal: if a range delta spans more batches than one answer has headers, the batches that were requested as deltas are
/// committed first.
#[tokio::test(flavor = "multi_thread")]
async fn a_range_delta_begins_where_its_headers_fit_an_answer() {
    let mut chain = Chain::new(1);
    (1..16_410).for_each(|_| chain.extend_quietly());
    let (hub, _server) = hub_with(&chain);
    let node = Following::start(&hub, peer(2), &chain.genesis, Mode::RangeDelta, &[peer(1)]).await;
    let status = node.reach(chain.head()).await;
    assert_eq!(node.store.head().unwrap().digest, chain.store.head().unwrap().digest);
    assert!(status.batches < 1_000, "{} batches came by their deltas", status.batches);
    assert_eq!(status.peers[0].failures, 0, "{:?}", status.peers[0].last_reason);
}
