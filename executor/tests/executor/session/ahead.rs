//! Tests of a session's read-ahead: where it is used, what it skips, and wrong values.

use alloy_primitives::B256;
use slipstream_executor::seal_hints_with_values;
use slipstream_types::{StateKey, StateValue};

use super::*;

/// Goal: the read-ahead from an older state serves a batch while the layers hold the changes since that state.
/// Afterwards the read-ahead is harmless.
#[test]
fn what_was_read_ahead_is_used_where_the_state_covers_it() {
    let config = ExecutorConfig { predict: PredictMode::Accounts, ..config() };
    for keeps_layers in [true, false] {
        let mut node = Node::new(&config);
        let second = transactions(1, 1);
        let ahead = node.prepare(&second, None, Trust::Keys);
        assert!(!ahead.is_hinted());
        let first = node.run(&transactions(0, 0));
        assert!(first.named > 5 && first.used > 5, "validators have predictors too: {first:?}");
        let expected = node.expected(&second);
        node.commit();
        node.session.forget();
        if !keeps_layers {
            node.overlay.forget_up_to(BatchNumber::new(1));
        }
        let executed = node.execute(&ahead, &second, ExecutionMethod::Fitting).unwrap();
        assert_eq!(executed.outcome, expected);
        assert_eq!(executed.ahead.used > 0, keeps_layers, "{:?}", executed.ahead);
    }
}

/// Goal: rows in the cache or in a layer are not read again.
#[test]
fn what_is_at_hand_is_not_read_ahead() {
    for threads in [0, 2] {
        let config = ExecutorConfig { hints: HintsMode::Keys, prefetch_threads: threads, ..config() };
        let mut node = Node::new(&config);
        let mut named = Vec::new();
        for round in 0..4 {
            let next = transactions(round, round);
            let hints = seal_hints(&node.expected(&next), PROPOSER, &next).unwrap();
            let ahead = node.prepare(&next, Some(&hints), Trust::Keys);
            assert!(ahead.is_hinted() && ahead.conflicts().is_none());
            let executed = node.execute(&ahead, &next, ExecutionMethod::Fitting).unwrap();
            assert_eq!(executed.outcome, node.expected(&next));
            assert_eq!(executed.ahead.used, executed.ahead.reads, "honest hints leave nothing to read");
            node.keep(&next, executed.outcome);
            named.push(executed.ahead.named);
            if round == 2 {
                // Moves the rows from the layers to the cache.
                (0..3).for_each(|_| _ = node.commit());
                node.overlay = Overlay::default();
                node.ahead.clear();
                break;
            }
        }
        assert!(named[0] > 2 * named[1] && named[1] == named[2], "{named:?}");
        let next = transactions(3, 3);
        let (parent, view) = (node.parent(), node.store.view().unwrap());
        let env = node.basis(&parent).env(&node.genesis.chain);
        let expected = execute(&view, &env, &next).unwrap();
        let hints = seal_hints(&expected, PROPOSER, &next).unwrap();
        let ahead = node.prepare(&next, Some(&hints), Trust::Keys);
        let executed = node.execute(&ahead, &next, ExecutionMethod::Fitting).unwrap();
        assert!(executed.outcome == expected);
        assert_eq!(executed.ahead.named, named[2]);
    }
}

/// Goal: wrong values of hints are found before their results are used. Only a caller that trusts values is affected.
#[test]
fn wrong_values_stay_with_who_believes_them() {
    for threads in [0, 2] {
        let config = ExecutorConfig { hints: HintsMode::Values, prefetch_threads: threads, ..config() };
        let mut node = Node::new(&config);
        let batch = transactions(0, 0);
        let expected = node.expected(&batch);
        let mut told = expected.clone();
        let counter = StateKey::Slot(COUNTER, B256::ZERO);
        told.touched.rows.iter_mut().filter(|(key, _)| *key == counter).for_each(|(_, value)| {
            *value = Some(StateValue::Slot(U256::from(41)));
        });
        let hints = seal_hints_with_values(&told, PROPOSER, &batch).unwrap();

        let careful = node.prepare(&batch, Some(&hints), Trust::Keys);
        assert_eq!(node.execute(&careful, &batch, ExecutionMethod::Fitting).unwrap().outcome, expected);
        assert!(careful.confirm().unwrap().is_empty());

        let mut believing = node.prepare(&batch, Some(&hints), Trust::Values);
        let executed = node.execute(&believing, &batch, ExecutionMethod::Fitting).unwrap();
        let wrong = believing.confirm().unwrap();
        // With threads the row may have been read first.
        assert_eq!(wrong.is_empty(), executed.outcome == expected);
        assert!(threads > 0 || wrong == [counter]);
        believing.distrust();
        let again = node.execute(&believing, &batch, ExecutionMethod::Fitting).unwrap();
        assert_eq!(again.outcome, expected);
        assert!(believing.confirm().unwrap().is_empty() && believing.is_confirmable());
        believing.release();
        assert_eq!(
            node.execute(&believing, &batch, ExecutionMethod::Fitting).unwrap().ahead,
            AheadUse::default()
        );
        assert_eq!(node.rows(), 0);
        node.keep(&batch, again.outcome);
        node.run(&transactions(1, 1));
    }
}
