//! Goal: the configured peers decide when waiting ends; chance visitors do not.

use slipstream_network::{
    BoxFuture, Bytes, ConfiguredPeer, ContactState, Contacts, NetworkError, PeerChanges, PeerStats, Priority,
};
use slipstream_types::{Blob, Digest, PublicKey, accumulator::AccumulatorRangeProof};

use super::*;

const WAYPOINT: Waypoint = Waypoint { number: BatchNumber::new(7), hash: Digest([7; 32]) };
const HOPEFUL: Patience = Patience::WhileHopeful(Duration::from_secs(30));

fn peer(id: u8) -> PeerId {
    PublicKey([id; 32])
}

/// No peer answers; some are configured, some connected.
struct Silent {
    configured: Vec<u8>,
    connected: Vec<u8>,
}

impl Transport for Silent {
    fn local(&self) -> PeerId {
        peer(0)
    }

    fn peers(&self) -> Vec<PeerId> {
        self.connected.iter().copied().map(peer).collect()
    }

    fn peer_changes(&self) -> PeerChanges {
        PeerChanges::default()
    }

    fn connected_since(&self, _: &PeerId) -> Option<Instant> {
        None
    }

    fn request<'a>(
        &'a self,
        peer: PeerId,
        _: Protocol,
        _: Vec<u8>,
        _: RequestLimits,
    ) -> BoxFuture<'a, Result<Vec<u8>, NetworkError>> {
        Box::pin(async move { Err(NetworkError::UnknownPeer { peer }) })
    }

    fn send(&self, _: PeerId, _: Bytes, _: Priority) {}

    fn ban(&self, _: PeerId, _: &str, _: Duration) {}

    fn peer_stats(&self) -> Vec<PeerStats> {
        Vec::new()
    }

    fn contacts(&self) -> Contacts {
        let configured = |id: &u8| ConfiguredPeer {
            peer: format!("{}@127.0.0.1:7400", peer(*id)).parse().unwrap(),
            state: ContactState::Connecting,
            is_added: false,
        };
        Contacts { configured: self.configured.iter().map(configured).collect(), ..Contacts::default() }
    }
}

fn asking(transport: &Silent) -> GenesisFetch<'_> {
    let now = Instant::now();
    GenesisFetch {
        transport,
        waypoint: WAYPOINT,
        answers: BTreeMap::new(),
        met: BTreeSet::new(),
        started: now,
        met_at: now,
        report_at: now + REPORT_INTERVAL,
    }
}

fn contradict(asking: &mut GenesisFetch<'_>, ids: impl IntoIterator<Item = u8>) {
    let found = Waypoint { hash: Digest([1; 32]), ..WAYPOINT };
    ids.into_iter().for_each(|id| {
        asking.answers.insert(peer(id), Some(GenesisRefusal::OtherLedger { found }));
    });
}

#[tokio::test(start_paused = true)]
async fn hostile_peers_end_nothing_while_a_configured_one_may_know() {
    let transport = Silent { configured: vec![1, 2], connected: vec![2, 8, 9] };
    let mut asking = asking(&transport);
    contradict(&mut asking, [2, 8, 9]);
    tokio::time::advance(Duration::from_secs(3_600)).await;
    assert_eq!(asking.verdict(HOPEFUL), None, "peer 1 is not connected yet");
    let told = asking.describe();
    assert!(told.contains(&format!("{}: is not connected", peer(1).short())), "{told}");
    assert_eq!(asking.verdict(Patience::AtMost(Duration::from_secs(10))), Some(Verdict::Unknown));
    contradict(&mut asking, [1]);
    assert_eq!(asking.verdict(HOPEFUL), Some(Verdict::Contradicted));
}

#[tokio::test(start_paused = true)]
async fn a_mistyped_waypoint_is_told_soon() {
    let transport = Silent { configured: vec![1], connected: vec![1] };
    let mut asking = asking(&transport);
    contradict(&mut asking, [1]);
    assert_eq!(asking.verdict(HOPEFUL), None);
    tokio::time::advance(CONTRADICTED_PATIENCE).await;
    assert_eq!(asking.verdict(HOPEFUL), Some(Verdict::Contradicted));
}

#[tokio::test(start_paused = true)]
async fn without_configured_peers_whoever_comes_gives_hope() {
    let transport = Silent { configured: vec![], connected: vec![8] };
    let mut asking = asking(&transport);
    assert_eq!(asking.meet(), [peer(8)]);
    contradict(&mut asking, [8]);
    tokio::time::advance(Duration::from_secs(29)).await;
    assert_eq!(asking.verdict(HOPEFUL), None);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(asking.verdict(HOPEFUL), Some(Verdict::Contradicted));
    let has_file = Patience::AtMost(Duration::from_secs(30));
    assert_eq!(asking.verdict(has_file), Some(Verdict::Unknown), "strangers do not stop who has a genesis");
    // Many strangers do not fill the log.
    contradict(&mut asking, 8..100);
    assert!(asking.describe().ends_with("and 76 more"), "{}", asking.describe());
}

/// Goal: of the geneses that wait for a check, the one with the shortest content is next. All of them together have a
/// bound; above it the longest ones are dropped.
#[test]
fn short_geneses_are_checked_first_and_long_ones_find_no_room() {
    let mut unchecked = UncheckedAnswers::default();
    // `bytes` are sent, and they announce a content of `length`.
    let mut push = |id, bytes: usize, length: u32| {
        let prefix = [&[BlobKind::Genesis as u8][..], &length.to_le_bytes()].concat();
        let genesis = Blob::from_bytes([prefix, vec![0; bytes - 5]].concat()).unwrap();
        let (info, proof) = (slipstream_testkit::info(0, 7), AccumulatorRangeProof::default());
        unchecked.push(peer(id), Origin { info, genesis, proof })
    };
    let half = UNCHECKED_BYTES_MAX / 2;
    assert_eq!(push(1, 10, 3 << 20).unwrap(), []);
    assert_eq!(push(2, half, 1 << 20).unwrap(), []);
    assert_eq!(push(3, half - 10, 2 << 20).unwrap(), []);
    assert_eq!(push(4, 20, 1).unwrap(), [1, 3].map(peer), "the longest contents go");
    assert!(push(5, 20, u32::MAX).is_err(), "no genesis has such a length");
    let order = std::iter::from_fn(|| unchecked.pop()).map(|(peer, _)| peer);
    assert_eq!(order.collect::<Vec<_>>(), [4, 2].map(peer));
    assert_eq!(unchecked.bytes, 0);
}
