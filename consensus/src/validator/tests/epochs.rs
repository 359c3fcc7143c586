//! The end of an epoch: the certificate of its last batch names the next validators, and nobody orders anything after it.

use slipstream_executor::validators::add_call;
use slipstream_types::{Address, BatchNumber, Epoch, Validator as Member, validators_contract};

use super::*;
use crate::{
    error::ProposalError,
    testing::{NOW_MS, genesis},
    validator::{execution::Failure, stop::Stop},
};

/// A chain of four validators, which account 0 may change.
fn changing() -> Genesis {
    genesis(4).with_validators_contract(Account::new(0).address, 1).unwrap()
}

fn added() -> slipstream_executor::Transaction {
    let member = Member { public_key: validator_key(4).public(), fee_recipient: Address::repeat_byte(0xf4) };
    Account::new(0).invoke(0, validators_contract::ADDRESS, &add_call(&member))
}

/// Goal: the primary and the others read the same next set from their own state. No batch is built or executed after
/// the batch that names the set.
#[test]
fn the_last_batch_names_the_next_set_and_is_the_last() {
    let genesis = changing();
    let [own, other] = [(), ()].map(|()| ledger(&genesis, &store(&genesis)));
    let pool = pool(&genesis, &own.store);
    pool.add(added()).unwrap();
    let last = made(build(&own, &[], &pool, NOW_MS, true));
    let next = last.parts.info.next_validators.clone().unwrap();
    assert_eq!((next.epoch, next.validators.len()), (Epoch(1), 5));
    assert_eq!(next.index_of(&validator_key(4).public()), Some(4));
    let executed = other.execute(&[], &ordered(&last), false, NOW_MS, &Stop::default()).unwrap();
    assert_eq!(executed.parts.info, last.parts.info);
    let adopted = other.adopt(&[], None, last.parts.outcome()).unwrap();
    assert_eq!(adopted.parts.info, last.parts.info);

    pool.add(Account::new(0).transfer(1, 7)).unwrap();
    let chain = [last];
    assert!(matches!(build(&own, &chain, &pool, NOW_MS, true), BuildOutcome::Overtaken));
    let mut behind = ordered(&chain[0]);
    behind.order.order.number = BatchNumber::new(2);
    let executed = own.execute(&chain, &behind, false, NOW_MS, &Stop::default());
    let Err(Failure::Refused(error)) = executed else { panic!("a batch behind the last is executed") };
    assert!(matches!(*error, ProposalError::EpochOver { .. }), "{error}");
    own.commit(&chain[0], &certificate(&genesis.validator_set(), &chain[0]), &pool).unwrap();
    assert_eq!(*own.store.next_set().unwrap(), next);
    assert!(matches!(build(&own, &[], &pool, NOW_MS, true), BuildOutcome::Overtaken));
}

/// Goal: a statement signed in one epoch, or on one chain, means nothing in another. Views begin anew with each epoch,
/// so a view change from another epoch would hide what was prepared in this one.
#[test]
fn each_epoch_of_each_chain_has_a_domain_of_its_own() {
    let set = genesis(4).validator_set();
    let places = [Digest([1; 32]), Digest([2; 32])].map(|chain| [0, 1, 2].map(|epoch| (chain, Epoch(epoch))));
    let domain = |(chain, epoch): &(Digest, Epoch)| {
        Ledger::domain(*chain, &ValidatorSet { epoch: *epoch, ..set.clone() })
    };
    let domains: std::collections::BTreeSet<Digest> = places.iter().flatten().map(domain).collect();
    assert_eq!(domains.len(), 6);
}

/// Goal: four validators end their epoch together, and none continues by itself.
#[tokio::test(start_paused = true)]
async fn an_epoch_ends_for_all() {
    let (hub, genesis, clock) = (MemoryHub::new(), changing(), clock());
    let nodes = start_all(&hub, &genesis, &clock);
    connect_all(&hub, &[0, 1, 2, 3]);
    nodes[0].forwarder.submit(&added().raw, None).unwrap();
    for node in &nodes {
        node.reaches(1).await;
    }
    let head = nodes[0].store.head().unwrap().header.number;
    for node in &nodes {
        node.forwarder.submit(&Account::new(1).transfer(0, 7).raw, None).unwrap();
    }
    tokio::time::sleep(std::time::Duration::from_secs(30)).await;
    for node in &nodes {
        assert_eq!(node.store.next_set().unwrap().validators.len(), 5);
        assert_eq!(node.store.head().unwrap().header.number, head);
    }
}
