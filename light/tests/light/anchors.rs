//! Goal: a client begins with a genesis, or with a waypoint that names validators, and with nothing else.

use slipstream_light::{Encoded, LightClient, LightError, WaypointProof};
use slipstream_types::{Digest, Epoch, Waypoint};

use crate::chain::{Chain, RICH, ask, keys, set};

/// Goal: a client from the genesis' own waypoint, or from that of an epoch's last batch, equals one that followed the
/// chain from the genesis.
#[test]
fn waypoints_and_the_genesis_begin_alike() {
    let mut chain = Chain::new(1, 6);
    chain.grow(Epoch(1), &[]);
    let (first, second) = (set(0, &keys(1, 4)), set(1, &keys(11, 4)));
    let by = |number, next| {
        let proof = chain.waypoint_proof(number, next);
        let text = serde_json::to_string(&proof).unwrap();
        assert_eq!(WaypointProof::from_json(&text).unwrap(), proof);
        LightClient::from_waypoint(&Waypoint::of(&proof.ledger_info.0), &proof)
    };
    assert_eq!(by(0, Some(first)).unwrap(), chain.client());
    let mut followed = chain.client();
    assert_eq!(followed.genesis(), chain.headers[0].digest());
    followed.learn(&[chain.certify(6, Some(second.clone()), &keys(1, 4), &[0, 1, 2])]).unwrap();
    let begun = by(6, Some(second)).unwrap();
    assert_eq!(begun, followed);
    let proof = chain.proof(7, chain.certify(7, None, &keys(11, 4), &[0, 1, 3]), RICH, &[]);
    assert!(begun.verify(&ask(7, RICH, &[]), &proof).is_ok());
    let inside = by(5, None).unwrap_err();
    assert!(matches!(inside, LightError::WaypointInsideEpoch { .. }), "{inside}");
}

/// Goal: the client checks everything that comes with a waypoint: ledger info, genesis and validators.
#[test]
fn what_comes_with_a_waypoint_is_checked() {
    let (chain, other) = (Chain::new(1, 6), Chain::new(2, 6));
    let next = Some(set(1, &keys(11, 4)));
    let good = chain.waypoint_proof(6, next.clone());
    let waypoint = Waypoint::of(&good.ledger_info.0);
    let begin = |proof: &WaypointProof| LightClient::from_waypoint(&waypoint, proof);
    assert!(begin(&good).is_ok());
    let foreign = other.waypoint_proof(6, next.clone());
    assert!(matches!(begin(&foreign), Err(LightError::OtherWaypoint { .. })));
    let mut bent = good.ledger_info.0.clone();
    bent.next_validators = Some(set(1, &keys(91, 4)));
    let bent = WaypointProof { ledger_info: Encoded(bent), ..good.clone() };
    assert!(matches!(begin(&bent), Err(LightError::OtherWaypoint { .. })));
    for genesis in [foreign.genesis, Digest::ZERO] {
        let bent = WaypointProof { genesis, ..good.clone() };
        assert!(matches!(begin(&bent), Err(LightError::OtherChain { .. })));
    }
    for bad in [set(2, &keys(11, 4)), set(0, &keys(11, 4)), set(1, &[])] {
        let proof = chain.waypoint_proof(6, Some(bad));
        let begun = LightClient::from_waypoint(&Waypoint::of(&proof.ledger_info.0), &proof);
        assert!(matches!(begun, Err(LightError::EpochEnd { .. })));
    }
}

/// Goal: a client cannot begin with a genesis that breaks a rule.
#[test]
fn a_genesis_without_validators_is_refused() {
    let mut genesis = Chain::new(1, 0).genesis;
    genesis.validators = Default::default();
    assert!(matches!(LightClient::from_genesis(&genesis), Err(LightError::Genesis(_))));
}
