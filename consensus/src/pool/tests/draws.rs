//! What a proposer draws: the best that fits, each once, at a bounded cost.

use alloy_primitives::{Address, B256, U256};
use slipstream_executor::RemainingCapacity;

use super::{Cursor, Index, Terms, UNLIMITED, all, index, sender, state, terms};

/// Draws a batch in which every transaction uses `gas_used` of its gas limit.
fn filled(pool: &Index<u64>, mut room: RemainingCapacity, gas_used: u64) -> Vec<u64> {
    let mut cursor = Cursor::default();
    let draw = || {
        let drawn = pool.draw(&mut cursor, room)?;
        room.gas -= gas_used;
        room.bytes -= 100;
        Some(drawn)
    };
    std::iter::from_fn(draw).collect()
}

// A misfit is passed over together with its sender's later ones; other senders are drawn.
#[test]
fn what_does_not_fit_is_passed_over() {
    let mut pool = index(10);
    for (id, from, nonce, fee, gas_limit) in [
        (1, 0, 0, 90, 60_000),
        (2, 0, 1, 80, 21_000),
        (3, 1, 0, 70, 100_000),
        (4, 1, 1, 60, 21_000),
        (5, 2, 0, 50, 50_000),
        (6, 3, 0, 40, 21_000),
    ] {
        pool.put(Terms { gas_limit, ..terms(id, from, nonce, fee) }, id, state(0, 100)).unwrap();
    }
    let room = RemainingCapacity { gas: 100_000, bytes: 10_000 };
    assert_eq!(filled(&pool, room, 21_000), [1, 2, 5, 6], "58,000 gas are left for the fifth");
    assert_eq!(filled(&pool, room, 10_000), [1, 2, 5, 6]);
    assert_eq!(filled(&pool, RemainingCapacity { gas: 103_000, ..room }, 1_000), [1, 2, 3, 4, 5, 6]);
    assert_eq!(filled(&pool, RemainingCapacity { bytes: 299, ..room }, 21_000), [1, 2]);
    // Nothing is remembered: a transaction that was passed over is drawn first as soon as its tip is the best.
    pool.advance(&sender(0), state(2, 100));
    assert_eq!(filled(&pool, room, 21_000), [3, 4, 5, 6]);
}

// A transaction that is drawn and left out takes its sender's later ones along.
#[test]
fn who_is_left_out_is_not_drawn_again() {
    let mut pool = index(10);
    for (id, from, nonce, fee) in [(1, 0, 0, 90), (2, 0, 1, 80), (3, 1, 0, 70), (4, 1, 1, 60)] {
        pool.put(terms(id, from, nonce, fee), id, state(0, 100)).unwrap();
    }
    let mut cursor = Cursor::default();
    assert_eq!(pool.draw(&mut cursor, UNLIMITED), Some(1));
    cursor.leave_out();
    assert_eq!(pool.draw(&mut cursor, UNLIMITED), Some(3));
    assert_eq!(pool.draw(&mut cursor, UNLIMITED), Some(4));
    assert_eq!(pool.draw(&mut cursor, UNLIMITED), None);
}

// The pool changes between two draws: removed transactions stay undrawn, and each is drawn once.
#[test]
fn the_pool_may_change_between_draws() {
    let mut pool = index(10);
    for (id, from, nonce, fee) in [(1, 0, 0, 90), (2, 0, 1, 80), (3, 1, 0, 70), (4, 2, 0, 60)] {
        pool.put(terms(id, from, nonce, fee), id, state(0, 100)).unwrap();
    }
    let mut cursor = Cursor::default();
    assert_eq!(pool.draw(&mut cursor, UNLIMITED), Some(1));
    pool.remove(&B256::from(U256::from(2)));
    pool.remove(&B256::from(U256::from(3)));
    pool.put(terms(5, 3, 0, 900), 5, state(0, 100)).unwrap();
    pool.put(terms(6, 3, 1, 50), 6, state(0, 100)).unwrap();
    assert_eq!(pool.draw(&mut cursor, UNLIMITED), Some(4), "the new best one waits for the next batch");
    assert_eq!(pool.draw(&mut cursor, UNLIMITED), None);
    assert_eq!(all(&pool), [5, 1, 4, 6]);
}

// A pool full of misfits costs one batch a bounded number of looks.
#[test]
fn misfits_cost_a_bounded_search() {
    let mut pool = index(20_000);
    for id in 0..20_000u64 {
        let sender = Address::left_padding_from(&id.to_be_bytes());
        let large = Terms { sender, gas_limit: 90_000, bytes: 0, ..terms(id, 0, 0, 9) };
        pool.put(large, id, state(0, 100)).unwrap();
    }
    pool.put(Terms { bytes: 0, ..terms(20_000, 0, 0, 8) }, 20_000, state(0, 100)).unwrap_err();
    let mut cursor = Cursor::default();
    assert_eq!(pool.draw(&mut cursor, RemainingCapacity { gas: 90_000, ..UNLIMITED }), Some(0));
    assert_eq!(pool.draw(&mut cursor, RemainingCapacity { gas: 69_000, ..UNLIMITED }), None);
    assert_eq!(cursor.misfits, 16_384);
    assert_eq!(pool.draw(&mut cursor, RemainingCapacity { gas: 90_000, ..UNLIMITED }), None);
}
