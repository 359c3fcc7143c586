//! Goal: the rules of a batch follow from its number and time alone, and change exactly where the schedule says. Two
//! schedules that differ before a batch give it different ids.

use slipstream_types::{
    BatchNumber, ChainConfig, Rules, RulesId, Schedule, ScheduledFork,
    chain::Fork,
    limits::{FORKS_MAX, TRANSACTION_GAS_MAX},
    schedule::{Activation, Forks},
};

const BATCH: Activation = Activation::Batch(BatchNumber::new(100));
const TIME: Activation = Activation::TimeMs(5_000);

fn room(name: &str, at: Activation, gas_limit: u64) -> ScheduledFork {
    ScheduledFork { fork: None, gas_limit: Some(gas_limit), ..ScheduledFork::evm(name, at, Fork::Osaka) }
}

fn chain(forks: Vec<ScheduledFork>) -> ChainConfig {
    let schedule = Schedule::new(Forks::new(forks).unwrap());
    ChainConfig { fork: Fork::Prague, schedule, ..ChainConfig::default() }
}

fn osaka(at: Activation) -> ScheduledFork {
    ScheduledFork::evm("osaka", at, Fork::Osaka)
}

/// Goal: a new chain has prices at which MODEXP does not halt it. A genesis that names another fork keeps it.
#[test]
fn a_chain_that_says_no_fork_has_osaka() {
    let mut file = serde_json::json!({ "chain_id": 1, "gas_limit": 21_000, "base_fee_wei": 0 });
    let fork = |file: &serde_json::Value| serde_json::from_value::<ChainConfig>(file.clone()).unwrap().fork;
    assert_eq!((fork(&file), ChainConfig::default().fork), (Fork::Osaka, Fork::Osaka));
    file["fork"] = "prague".into();
    assert_eq!(fork(&file), Fork::Prague);
}

#[test]
fn a_fork_begins_with_its_batch() {
    let chain = chain(vec![osaka(BATCH)]);
    let at = |number| chain.rules_at(BatchNumber::new(number), u64::MAX);
    assert_eq!(at(0), chain.first_rules());
    assert_eq!(at(99), chain.first_rules());
    assert_eq!(at(99).id, RulesId::GENESIS);
    let after = chain.schedule.forks()[0].1;
    assert_eq!(at(100), Rules { id: after, fork: Fork::Osaka, ..chain.first_rules() });
    assert_eq!(at(u64::MAX), at(100));
    assert_eq!(chain.next_fork(BatchNumber::new(99), 0).unwrap().0, osaka(BATCH));
    assert_eq!(chain.next_fork(BatchNumber::new(100), 0), None);
}

#[test]
fn a_fork_begins_with_the_first_batch_of_its_time() {
    let chain = chain(vec![osaka(TIME)]);
    let at = |timestamp_ms| chain.rules_at(BatchNumber::new(7), timestamp_ms).fork;
    assert_eq!((at(4_999), at(5_000), at(5_001)), (Fork::Prague, Fork::Osaka, Fork::Osaka));
}

#[test]
fn a_fork_waits_for_the_one_before_it() {
    let chain = chain(vec![osaka(BATCH), room("room", TIME, 50_000_000)]);
    let at = |number, timestamp_ms| chain.rules_at(BatchNumber::new(number), timestamp_ms);
    let limit = chain.gas_limit;
    assert_eq!((at(99, 9_000).fork, at(99, 9_000).gas_limit), (Fork::Prague, limit));
    assert_eq!((at(100, 4_999).fork, at(100, 4_999).gas_limit), (Fork::Osaka, limit));
    assert_eq!((at(100, 5_000).fork, at(100, 5_000).gas_limit), (Fork::Osaka, 50_000_000));
}

#[test]
fn an_id_binds_all_forks_up_to_it() {
    let ids = |forks| chain(forks).schedule.forks().iter().map(|(_, id)| *id).collect::<Vec<_>>();
    let [first, second] = ids(vec![osaka(BATCH), room("room", TIME, 1 << 30)])[..] else { panic!("two") };
    assert_eq!(ids(vec![osaka(BATCH)]), [first], "what comes later changes nothing before it");
    let others = [
        vec![osaka(TIME), room("room", TIME, 1 << 30)],
        vec![ScheduledFork::evm("osaka2", BATCH, Fork::Osaka), room("room", TIME, 1 << 30)],
        vec![ScheduledFork::evm("osaka", BATCH, Fork::Cancun), room("room", TIME, 1 << 30)],
        vec![ScheduledFork { base_fee_wei: Some(1), ..osaka(BATCH) }, room("room", TIME, 1 << 30)],
        vec![osaka(BATCH), room("room", TIME, 1 << 29)],
        vec![room("room", TIME, 1 << 30), osaka(BATCH)],
    ];
    for other in others {
        assert_ne!(*ids(other.clone()).last().unwrap(), second, "{other:?}");
    }
    assert!(![first, second].contains(&RulesId::GENESIS));
    assert_eq!(serde_json::from_str::<RulesId>(&serde_json::to_string(&first).unwrap()).unwrap(), first);
}

#[test]
fn what_another_schedule_has_and_this_one_lacks() {
    let forks = |forks: &[ScheduledFork]| Forks::new(forks.to_vec()).unwrap();
    let (a, b) = (osaka(BATCH), room("room", TIME, 1 << 30));
    let both = Schedule::new(forks(&[a.clone(), b.clone()]));
    assert_eq!(both.told(), forks(&[a.clone(), b.clone()]));
    assert_eq!(both.unknown_of(&both.told()), []);
    assert_eq!(both.unknown_of(&forks(std::slice::from_ref(&a))), [], "it lacks one of ours: its trouble");
    let none = Schedule::default();
    assert_eq!(none.unknown_of(&both.told()), both.forks());
    let first = Schedule::new(forks(std::slice::from_ref(&a)));
    assert_eq!(first.unknown_of(&both.told()), both.forks()[1..]);
    let other = osaka(Activation::Batch(BatchNumber::new(101)));
    assert_eq!(first.unknown_of(&forks(std::slice::from_ref(&other)))[0].0, other, "moved");
}

#[test]
fn what_is_no_schedule_is_refused_by_name() {
    let refused = |forks: Vec<ScheduledFork>, text: &str| {
        let error = chain(forks).check_schedule().unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    };
    let batch = |number| Activation::Batch(BatchNumber::new(number));
    refused(vec![ScheduledFork::evm("", BATCH, Fork::Osaka)], "needs a name");
    refused(vec![ScheduledFork::evm("New Fork\n", BATCH, Fork::Osaka)], "needs a name");
    refused(vec![ScheduledFork::evm(&"a".repeat(33), BATCH, Fork::Osaka)], "needs a name");
    refused(
        vec![osaka(BATCH), room("osaka", TIME, 1 << 30)],
        "fork 2 of the schedule, \"osaka\", has the name",
    );
    refused(vec![osaka(batch(0))], "after the genesis");
    refused(vec![osaka(BATCH), room("room", BATCH, 1 << 30)], "after the forks before it");
    refused(
        vec![osaka(TIME), room("a", BATCH, 1 << 30), room("b", TIME, 1 << 31)],
        "after the forks before it",
    );
    refused(vec![ScheduledFork::evm("prague", BATCH, Fork::Prague)], "changes nothing");
    refused(vec![room("room", BATCH, 20_999)], "gas_limit must be");
    let cap = ScheduledFork { transaction_gas_max: Some(TRANSACTION_GAS_MAX + 1), ..osaka(BATCH) };
    refused(vec![cap], "transaction_gas_max must be");
    let many =
        |count: usize| (1..=count as u64).map(|n| room(&format!("f{n}"), batch(n), 30_000 + n)).collect();
    assert_eq!(chain(many(FORKS_MAX)).check_schedule(), Ok(()));
    assert!(Forks::new(many(FORKS_MAX + 1)).is_err());
}

/// Goal: the schedule is neither in the genesis' bytes nor in its file.
#[test]
fn a_schedule_changes_no_identity() {
    let (with, without) = (chain(vec![osaka(BATCH)]), chain(Vec::new()));
    assert_eq!(bcs::to_bytes(&with).unwrap(), bcs::to_bytes(&without).unwrap());
    let mut file = serde_json::to_value(&with).unwrap();
    file["schedule"] = serde_json::json!([]);
    assert!(serde_json::from_value::<ChainConfig>(file).unwrap_err().to_string().contains("schedule"));
}
