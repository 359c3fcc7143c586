//! The end of an epoch: the certificate of its last batch names the next validators, and nobody signs anything after it.

use slipstream_executor::validators::add_call;
use slipstream_types::{Address, BatchHeader, Epoch, Validator as Member, validators_contract};

use super::*;
use crate::testing::{NOW_MS, genesis};

/// A chain of four whose validators account 0 may change.
fn changing() -> Genesis {
    genesis(4).with_validators_contract(Account::new(0).address, 1).unwrap()
}

/// The proposer's batch in which a fifth validator is added.
fn last_batch(genesis: &Genesis, store: &Store) -> Executed {
    let pool = Pool::new(PoolConfig::default(), genesis.chain.clone(), store.clone()).unwrap();
    let member = Member { public_key: validator_key(4).public(), fee_recipient: Address::repeat_byte(0xf4) };
    pool.add(Account::new(0).invoke(0, validators_contract::ADDRESS, &add_call(&member))).unwrap();
    ledger(genesis, store).build(&pool, 100, NOW_MS, true).unwrap().unwrap().executed.unwrap()
}

/// Goal: proposer and voter read the same next set out of their own state, also after a restart that left only the vote's record; after
/// the batch is certified, none of them makes or signs another one in its epoch.
#[tokio::test(start_paused = true)]
async fn the_last_batch_names_the_next_set_and_is_the_last() {
    let genesis = changing();
    let (own, other) = (store(&genesis), store(&genesis));
    let mut executed = last_batch(&genesis, &own);
    let next = executed.info.next_validators.clone().unwrap();
    assert_eq!((next.epoch, next.validators.len()), (Epoch(1), 5));
    assert_eq!(next.index_of(&validator_key(4).public()), Some(4));

    let last = proposal(&executed);
    let voter = Lone::start(&genesis, &other, 1);
    let signed = voter.propose(&last).await.unwrap();
    voter.stop().await;
    let voter = Lone::start(&genesis, &other, 1);
    assert_eq!(voter.propose(&last).await.unwrap(), signed, "a restarted voter says the same");

    let certificate: Certificate = certificate(&genesis.validator_set(), &executed);
    voter.decide(&certificate).await.unwrap();
    assert_eq!(other.next_set().unwrap(), next);
    assert_eq!(voter.propose(&last).await.unwrap(), signed, "what is committed is voted for again");

    let mut beyond = last.clone();
    let parent = &executed.sealed.header;
    beyond.header = BatchHeader { number: parent.number.next(), parent: parent.digest(), ..parent.clone() };
    let refused = voter.propose(&beyond).await.unwrap_err();
    assert!(refused.contains("epoch 0 is over"), "{refused}");
    voter.stop().await;

    let ledger = ledger(&genesis, &own);
    ledger.commit(&mut executed, &certificate).unwrap();
    assert!(ledger.is_over());
    let pool = Pool::new(PoolConfig::default(), genesis.chain.clone(), own.clone()).unwrap();
    pool.add(Account::new(0).transfer(1, 7)).unwrap();
    assert!(ledger.build(&pool, 100, NOW_MS, true).unwrap().is_none());
}

/// Goal: a vote for one of two batches of a number keeps its outcome, and no second one is signed: by who holds it, nor after a restart.
#[tokio::test(start_paused = true)]
async fn another_batch_of_the_number_is_refused() {
    let genesis = changing();
    let (own, other) = (store(&genesis), store(&genesis));
    let executed = last_batch(&genesis, &own);
    let (last, plain) = (proposal(&executed), proposal(&batch(&genesis, &own, 0..1, NOW_MS)));
    let refuse = async |voter: &Lone| {
        let refused = voter.propose(&plain).await.unwrap_err();
        assert!(refused.contains("voted for another batch"), "{refused}");
    };
    let voter = Lone::start(&genesis, &other, 1);
    voter.propose(&last).await.unwrap();
    refuse(&voter).await;
    voter.stop().await;

    let voter = Lone::start(&genesis, &other, 1);
    refuse(&voter).await;
    voter.propose(&last).await.unwrap();
    refuse(&voter).await;
    voter.decide(&certificate(&genesis.validator_set(), &executed)).await.unwrap();
    assert_eq!(other.head().unwrap().header, executed.sealed.header);
    voter.stop().await;
}
