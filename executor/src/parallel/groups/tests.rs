//! Tests with components assigned to threads beforehand, so that nothing depends on timing.

use super::*;
use crate::{
    evm::tests::{Random, ahead::draw},
    outcome::execute,
};

/// Goal: groups are joined only if one thread gets the same result, however the groups are related. They may call the
/// same contracts or pay from the same accounts. One group may read accounts that another pays, or see accounts that
/// another creates.
#[test]
fn groups_are_joined_only_if_one_thread_does_the_same() {
    let workers = Workers::new(2).unwrap();
    let (mut joined, mut refused) = (0, 0);
    for seed in 0..20_000 {
        let random = &mut Random(seed);
        let (state, env, transactions) = draw(random);
        let mut firsts = AddressMap::default();
        let first =
            |(index, transaction): (usize, &Transaction)| *firsts.entry(transaction.sender).or_insert(index);
        let roots: Vec<usize> = transactions.iter().enumerate().map(first).collect();
        let owners = Owners::new(&roots);
        owners.threads.iter().for_each(|thread| thread.store(random.below(2) as usize, Relaxed));
        let groups = Groups { roots: roots.clone(), threads: 2, total: 0, largest: 0 };
        let found = groups.execute_by(&owners, &state, &env, &transactions, &workers);
        let expected = execute(&state, &env, &transactions);
        match found {
            Ok(Some((found, _))) => {
                joined += 1;
                let expected = expected.unwrap_or_else(|error| panic!("seed {seed}: one thread: {error}"));
                assert!(found == expected, "seed {seed}: {:?} {:?}", found.delta, expected.delta);
            }
            Ok(None) => refused += 1,
            Err(error) => assert_eq!(error.to_string(), expected.unwrap_err().to_string(), "seed {seed}"),
        }
    }
    assert!(joined > 3_000 && refused > 3_000, "{joined} {refused}");
}
