//! A batch under other rules than the schedule's is not stored, whichever way it comes, and the error names the fork.

use std::num::NonZeroUsize;

use slipstream_types::{
    RulesId, Schedule, ScheduledFork,
    chain::Fork,
    schedule::{Activation, Forks},
};

use super::*;
use crate::{FORKS_HEARD_MAX, RestoreTarget, StorageError};

fn fork(name: &str, number: u64) -> ScheduledFork {
    ScheduledFork::evm(name, Activation::Batch(BatchNumber::new(number)), Fork::Osaka)
}

fn forks(fork: ScheduledFork) -> Forks {
    Forks::new(vec![fork]).unwrap()
}

fn osaka() -> Schedule {
    Schedule::new(forks(fork("osaka", 3)))
}

/// Two batches under the genesis' rules, and the first under Osaka's.
fn made() -> [Made; 3] {
    let mut ledger = Ledger::new();
    [1, 2, 3].map(|number| {
        let mut made = ledger.make(&[(account_key(number as u8), account(number))], Vec::new());
        if number == 3 {
            made.header.rules = osaka().forks()[0].1;
            let mut accumulator = ledger.accumulator.clone();
            accumulator.append(made.header.digest());
            made.certificate = certify(&made.header, accumulator.root());
        }
        ledger.advance(&made);
        made
    })
}

#[test]
fn a_batch_under_unknown_rules_is_refused_by_name() {
    let made = made();
    on_both(&config(), |fixture| {
        let store = fixture.store();
        made[..2].iter().for_each(|made| store.commit(made.batch(), None).unwrap());
        let refuse = |text: &str| {
            let target =
                RestoreTarget { header: made[2].header.clone(), certificate: made[2].certificate.clone() };
            let run = [made[2].batch()];
            for error in [
                store.commit(made[2].batch(), None).unwrap_err(),
                store.commit_run(&run, NonZeroUsize::MIN).unwrap_err(),
                store.restore(&target).err().unwrap(),
                store.take_range_delta(&target, 0, 1 << 20).err().unwrap(),
            ] {
                assert!(matches!(error, StorageError::OtherRules { .. }), "{error}");
                assert!(!error.is_bad_supply() && !error.is_retryable(), "no peer is at fault");
                assert!(error.to_string().contains(text), "{error}");
            }
            assert_eq!(store.head().unwrap().header.number, BatchNumber::new(2));
        };
        refuse("batch 3 has the rules");
        assert_eq!(store.hear_forks(&osaka().told()).unwrap(), [fork("osaka", 3)]);
        assert_eq!(store.hear_forks(&osaka().told()).unwrap(), [], "once");
        refuse("of fork osaka at batch 3, but this node's schedule says 0000000000000000:");

        store.follow_schedule(osaka()).unwrap();
        store.commit(made[2].batch(), None).unwrap();
        assert_eq!(store.next_rules().unwrap().fork, Fork::Osaka);
        // Removing the fork again fails at the start.
        let error = store.follow_schedule(Schedule::default()).unwrap_err();
        assert!(
            matches!(error, StorageError::OtherRules { number, .. } if number == BatchNumber::new(3)),
            "{error}"
        );
    });
}

#[test]
fn a_node_that_forks_alone_stops_at_its_fork() {
    let mut ledger = Ledger::new();
    let store = Store::memory(&config());
    store.initialize(&genesis()).unwrap();
    store.follow_schedule(osaka()).unwrap();
    ledger.commit_up_to(&store, 2);
    let old = ledger.make(&[(account_key(9), account(9))], Vec::new());
    let error = store.commit(old.batch(), None).unwrap_err().to_string();
    assert!(error.contains("of fork osaka at batch 3: give this node the validators' schedule"), "{error}");
}

#[test]
fn what_peers_tell_is_bounded_and_changes_nothing() {
    let store = Store::memory(&config());
    store.initialize(&genesis()).unwrap();
    let before = store.chain().unwrap();
    for number in 0..2 * FORKS_HEARD_MAX as u64 {
        let announced = forks(fork(&format!("f{number}"), number + 1));
        assert_eq!(store.hear_forks(&announced).unwrap().len(), usize::from(number < FORKS_HEARD_MAX as u64));
    }
    assert_eq!(store.unknown_forks().len(), FORKS_HEARD_MAX);
    assert_eq!(store.hear_forks(&forks(fork("\u{1b}[2J", 1))).unwrap(), [], "nothing that cannot be shown");
    assert_eq!(store.chain().unwrap(), before);
    assert!(matches!(
        store.follow_schedule(Schedule::new(forks(fork("osaka", 0)))),
        Err(StorageError::Schedule(_))
    ));
    assert_eq!(store.next_rules().unwrap().id, RulesId::GENESIS);
}
