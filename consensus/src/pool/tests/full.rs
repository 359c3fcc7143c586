//! Which transaction leaves a full pool, and what a newcomer has to pay.

use std::time::Duration;

use alloy_primitives::{B256, U256};
use tokio::time::Instant;

use super::{Arrival, Index, PoolConfig, PoolError, Terms, all, index, sender, state, terms};

// A full pool evicts the worst last transaction, waiting ones before executable ones. A newcomer that pays at most as
// much as the worst is refused, and a refusal leaves the pool as it was.
#[test]
fn full_pool_keeps_the_best() {
    let mut pool = index(3);
    pool.put(terms(1, 0, 0, 50), 1, state(0, 100)).unwrap();
    pool.put(terms(2, 0, 1, 5), 2, state(0, 100)).unwrap();
    pool.put(terms(3, 1, 1, 900), 3, state(0, 100)).unwrap();
    pool.put(terms(4, 2, 0, 7), 4, state(0, 100)).unwrap();
    assert!(!pool.contains(&B256::from(U256::from(3))), "it waited for a nonce");
    let cheap = pool.put(terms(5, 3, 0, 5), 5, state(0, 100));
    assert!(matches!(cheap, Err(PoolError::Underpriced { tip_wei: 5, lowest_wei: 5 })));
    assert_eq!(all(&pool), [1, 4, 2]);
    pool.put(terms(6, 3, 0, 6), 6, state(0, 100)).unwrap();
    assert_eq!(all(&pool), [1, 4, 6]);
    // A large one would have to evict several: the last of them pays more, so all of them stay.
    let large = Terms { bytes: 9_950, ..terms(7, 4, 0, 20) };
    assert!(pool.put(large, 7, state(0, 100)).is_err());
    assert_eq!(all(&pool), [1, 4, 6]);
}

/// Goal: a high tip behind many unpaid transactions does not keep those in the pool: any paying transaction takes their
/// place.
#[test]
fn a_high_tip_at_the_end_does_not_keep_what_is_before_it() {
    let mut pool = index(6);
    for nonce in 0..5 {
        pool.put(terms(nonce, 0, nonce, 0), nonce, state(0, 100)).unwrap();
    }
    pool.put(terms(5, 0, 5, 1_000_000), 5, state(0, 100)).unwrap();
    for from in 1..6 {
        pool.put(terms(5 + u64::from(from), from, 0, 1), 0, state(0, 100)).unwrap();
    }
    assert_eq!(pool.pending_nonce(&sender(0)), Some(1));
    // Its first one pays nothing either.
    pool.put(terms(20, 6, 0, 1), 0, state(0, 100)).unwrap();
    assert_eq!(pool.pending_nonce(&sender(0)), None);
    // When the cheap ones before it are executed, the one after them counts by itself.
    let mut pool = index(2);
    pool.put(terms(1, 0, 0, 0), 1, state(0, 100)).unwrap();
    pool.put(terms(2, 0, 1, 9), 2, state(0, 100)).unwrap();
    pool.advance(&sender(0), state(1, 100));
    pool.put(terms(3, 1, 0, 5), 3, state(0, 100)).unwrap();
    pool.put(terms(4, 2, 0, 7), 4, state(0, 100)).unwrap();
    assert_eq!(all(&pool), [2, 4]);
}

/// Goal: at one price for all, one sender's many transactions do not keep others from having a few.
#[test]
fn at_equal_pay_the_few_come_before_the_many() {
    let config = PoolConfig { transactions_max: 20, ..PoolConfig::default() };
    let mut pool = Index::new(config, Instant::now());
    for nonce in 0..20 {
        pool.put(terms(nonce, 0, nonce, 5), nonce, state(0, 1_000)).unwrap();
    }
    for from in 1..5 {
        pool.put(terms(100 + u64::from(from), from, 0, 5), 0, state(0, 100)).unwrap();
    }
    assert_eq!(pool.pending_nonce(&sender(0)), Some(16));
    let refused = pool.put(terms(200, 5, 0, 5), 0, state(0, 100)).unwrap_err();
    assert!(matches!(refused, PoolError::Underpriced { tip_wei: 5, lowest_wei: 5 }), "{refused}");
}

/// Goal: transactions that may never be executed take a quarter of the pool, whatever they offer. They are evicted from
/// the sender with the most.
#[test]
fn what_waits_has_a_budget_of_its_own() {
    let mut pool = index(16);
    for nonce in 1..4 {
        pool.put(terms(nonce, 0, nonce, 1_000), nonce, state(0, 100)).unwrap();
    }
    pool.put(terms(11, 1, 1, 1), 11, state(0, 100)).unwrap();
    assert_eq!(pool.counts().1, 4);
    let refused = pool.put(terms(4, 0, 4, 2_000), 4, state(0, 100)).unwrap_err();
    assert!(matches!(refused, PoolError::Full { .. }), "{refused}");
    pool.put(terms(12, 2, 1, 1), 12, state(0, 100)).unwrap();
    assert!(!pool.contains(&B256::from(U256::from(3))), "the last of the sender with most");
    pool.put(terms(13, 3, 0, 1), 13, state(0, 100)).unwrap();
    assert_eq!(pool.counts(), (1, 4, 500));
    // An executable transaction that has to wait again counts, too.
    for nonce in 0..5 {
        pool.put(terms(20 + nonce, 4, nonce, 9), nonce, state(0, 100)).unwrap();
    }
    pool.advance(&sender(4), state(0, 10));
    assert_eq!(pool.counts(), (2, 4, 600));
}

/// Goal: a longer replacement takes its place from others that are worth less, or is refused. Its own sender's later
/// transactions stay.
#[test]
fn a_replacement_spares_its_own_sender() {
    let mut pool = index(100);
    for nonce in 0..3 {
        let long = Terms { bytes: 3_000, ..terms(nonce, 0, nonce, 10) };
        pool.put(long, nonce, state(0, 1_000)).unwrap();
    }
    let longer = Terms { bytes: 5_000, ..terms(9, 0, 0, 20) };
    let full = pool.put(longer.clone(), 9, state(0, 1_000)).unwrap_err();
    assert!(matches!(full, PoolError::Full { .. }), "{full}");
    assert_eq!(all(&pool), [0, 1, 2]);
    pool.remove(&B256::from(U256::from(2)));
    pool.put(Terms { bytes: 3_000, ..terms(7, 1, 0, 5) }, 7, state(0, 100)).unwrap();
    pool.put(longer, 9, state(0, 1_000)).unwrap();
    assert_eq!(all(&pool), [9, 1], "the other's is worth less");
}

/// Goal: a pool that was full asks for the tip of the evicted transactions, and for more from senders with many. With
/// time, or with room, it asks for less.
#[test]
fn a_full_pool_makes_entry_dearer() {
    let config = PoolConfig { transactions_max: 40, ..PoolConfig::default() };
    let (begun, mut id) = (Instant::now(), 0);
    let mut pool = Index::new(config, begun);
    let mut put = |pool: &mut Index<u64>, from: u8, nonce: u64, fee: u128, seconds: u64| {
        id += 1;
        let arrival = Arrival { at: begun + Duration::from_secs(seconds), is_local: false };
        pool.insert(terms(id, from, nonce, fee), id, state(0, 10_000), arrival)
    };
    for nonce in 0..16 {
        put(&mut pool, 0, nonce, 100, 0).unwrap();
    }
    for nonce in 0..24 {
        put(&mut pool, 1, nonce, 200, 0).unwrap();
    }
    assert_eq!(pool.status(begun).tip_min_wei, 0);
    put(&mut pool, 2, 0, 150, 0).unwrap();
    assert_eq!(pool.status(begun).tip_min_wei, 100);
    // A batch makes room: the price stays for a while, and those with many pay a tenth more.
    pool.advance(&sender(1), state(4, 10_000));
    assert!(matches!(
        put(&mut pool, 3, 0, 99, 0),
        Err(PoolError::Underpriced { tip_wei: 99, lowest_wei: 100 })
    ));
    put(&mut pool, 3, 0, 100, 0).unwrap();
    for nonce in 1..16 {
        put(&mut pool, 2, nonce, 150, 0).ok();
    }
    pool.advance(&sender(0), state(8, 10_000));
    assert!(
        matches!(put(&mut pool, 4, 1, 109, 0), Err(PoolError::Underpriced { lowest_wei, .. }) if lowest_wei >= 110)
    );
    put(&mut pool, 3, 1, 60, 120).unwrap();
    pool.advance(&sender(1), state(24, 10_000));
    pool.advance(&sender(2), state(16, 10_000));
    assert_eq!(pool.status(begun).tip_min_wei, 0, "less than half full");
    put(&mut pool, 5, 0, 0, 0).unwrap();
}

/// Goal: the pool accepts the entry price from anybody new, whether it is empty, full, or was full a while ago. While
/// it has room, it asks for nothing.
#[test]
fn whoever_pays_the_entry_price_gets_in() {
    let config = PoolConfig { transactions_max: 40, ..PoolConfig::default() };
    let begun = Instant::now();
    let mut pool = Index::new(config, begun);
    let mut dearest_wei = 0;
    for step in 0..=250 {
        // Now and then a batch takes the transactions that pay best.
        if step % 100 == 99 {
            (step - 30..step).for_each(|from| pool.advance(&sender(from as u8), state(1, 100)));
        }
        let now = begun + Duration::from_secs(step);
        let tip_wei = pool.entry_tip_wei(now);
        if pool.counts().0 < 20 {
            assert_eq!(tip_wei, 0, "it is less than half full");
        }
        dearest_wei = tip_wei.max(dearest_wei);
        let terms = Terms { bytes: 100 + 10 * step as usize, ..terms(step, step as u8, 0, tip_wei) };
        let arrival = Arrival { at: now, is_local: true };
        let taken = pool.insert(terms, step, state(0, 100), arrival);
        taken.unwrap_or_else(|error| panic!("step {step}: {error}"));
    }
    assert!(dearest_wei > 3, "{dearest_wei}");
}
