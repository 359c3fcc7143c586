//! Several threads give exactly the result of one, for any claims about conflicts.

use std::sync::LazyLock;

use alloy_consensus::TxEip1559;
use alloy_primitives::{Address, TxKind, U256, address};
use proptest::{collection::vec, prelude::*};
use slipstream_executor::{
    AccessSet, BatchEnv, ExecuteError, ForcedMethod, Outcome, ParallelStats, Transaction, Workers,
    announced_conflicts, conflicts, execute, execute_parallel,
};
use slipstream_storage::MemoryState;
use slipstream_types::{AccountValue, Conflicts, StateKey, StateValue};

use crate::support::{
    COUNTER, FILLER, PROPOSER, REVERTER, WRITER, account, bytes, chain, create, decode, delegation, dynamic,
    invoke, legacy, sign, transfer, word,
};

/// Stores the balance of the account in its call data in slot 0.
const TELLER: Address = address!("0x00000000000000000000000000000000c0ffee11");
/// Pays 1 wei to the account in its call data, and stores in slot 0 whether that succeeded.
const PAYER: Address = address!("0x00000000000000000000000000000000c0ffee12");
/// Stores the code hash of the account in its call data in slot 0; zero for an empty one.
const HASHER: Address = address!("0x00000000000000000000000000000000c0ffee13");
/// Creates a contract and stores its address, which follows from the creator's nonce, in slot 0.
const CREATOR: Address = address!("0x00000000000000000000000000000000c0ffee14");
/// Stores its own balance in slot 0, then pays all of it to the account in its call data.
const EMPTIER: Address = address!("0x00000000000000000000000000000000c0ffee15");

/// Reads more balances than a transaction can record, then stores the fee recipient's in slot 0.
const LOOKER: Address = address!("0x00000000000000000000000000000000c0ffee16");

/// Pays 1 wei to the account in its call data, and stores nothing.
const SPENDER: Address = address!("0x00000000000000000000000000000000c0ffee17");

const CODES: [(Address, &str); 7] = [
    (TELLER, "5f35315f5500"),
    (PAYER, "5f5f5f5f60015f355af15f5500"),
    (HASHER, "5f353f5f5500"),
    (CREATOR, "5f5f5ff05f5500"),
    (EMPTIER, "475f555f5f5f5f475f355af100"),
    // address = 40; while address != 0 { balance(address); address -= 1 }
    (LOOKER, "60285b803150600190038060025741315f5500"),
    (SPENDER, "5f5f5f5f60015f355af15000"),
];

/// Begins empty, so it can only send what the batch has sent it.
const POOR: u8 = 9;
/// Only signs delegations.
const DELEGATOR: u8 = 10;

static WORKERS: LazyLock<Workers> = LazyLock::new(|| Workers::new(3).unwrap().eager(ForcedMethod::Ahead));
static GROUPS: LazyLock<Workers> = LazyLock::new(|| Workers::new(3).unwrap().eager(ForcedMethod::Groups));

/// The action of one transaction; numbers choose among the parties.
#[derive(Clone, Debug)]
enum Action {
    Transfer { from: u8, to: u8, wei: u64 },
    Call { from: u8, contract: u8, about: u8, wei: u64 },
    Create { from: u8, form: u8 },
    Delegate { from: u8, to: u8 },
    Misnumbered { from: u8 },
}

fn action() -> impl Strategy<Value = Action> {
    // A sender that cannot pay ends the batch.
    let from = || prop_oneof![60 => 1..POOR, 1 => Just(POOR)];
    prop_oneof![
        4 => (from(), 0u8..16, 0u64..3).prop_map(|(from, to, wei)| Action::Transfer { from, to, wei }),
        8 => (from(), 0u8..11, 0u8..16, 0u64..2)
            .prop_map(|(from, contract, about, wei)| Action::Call { from, contract, about, wei }),
        1 => (from(), 0u8..3).prop_map(|(from, form)| Action::Create { from, form }),
        1 => (from(), 0u8..16).prop_map(|(from, to)| Action::Delegate { from, to }),
    ]
}

/// Accounts with and without ether, contracts, the fee recipient, unowned addresses.
fn party(index: u8) -> Address {
    match index {
        1..=DELEGATOR => account(index),
        11 => PROPOSER,
        12 => PAYER,
        13 => EMPTIER,
        _ => Address::repeat_byte(index),
    }
}

fn transactions(actions: &[Action]) -> Vec<Transaction> {
    let mut nonces = [0; POOR as usize + 1];
    let transaction = |action: &Action| {
        let (Action::Transfer { from, .. }
        | Action::Call { from, .. }
        | Action::Create { from, .. }
        | Action::Delegate { from, .. }
        | Action::Misnumbered { from }) = *action;
        let nonce = nonces[from as usize];
        nonces[from as usize] += 1;
        match *action {
            Action::Transfer { to, wei, .. } => transfer(from, nonce, party(to), wei * 1_000_000_000_000_000),
            Action::Call { contract, about, wei, .. } => {
                let contracts = [
                    COUNTER, WRITER, REVERTER, FILLER, TELLER, PAYER, HASHER, CREATOR, EMPTIER, LOOKER,
                    SPENDER,
                ];
                let contract = contracts[contract as usize];
                let input = match contract {
                    FILLER => [word(about.into()), word(u64::from(about) + 2)].concat(),
                    WRITER | COUNTER => word(about.into()).to_vec(),
                    _ => party(about).into_word().to_vec(),
                };
                let to = TxKind::Call(contract);
                let value = U256::from(wei);
                decode(sign(from, TxEip1559 { input: input.into(), to, value, ..dynamic(nonce, contract) }))
            }
            Action::Create { form, .. } => {
                // Writes slot 1, then returns 0 or 1 bytes of code, or destroys itself.
                create(
                    from,
                    nonce,
                    ["60076001 5500", "60076001 5560015ff3", "60076001 5533ff"][form as usize],
                )
            }
            Action::Delegate { to, .. } => {
                decode(sign(from, delegation(nonce, party(to), DELEGATOR, COUNTER)))
            }
            Action::Misnumbered { .. } => invoke(from, nonce + 1, COUNTER, &[]),
        }
    };
    actions.iter().map(transaction).collect()
}

fn start() -> (MemoryState, BatchEnv) {
    let (mut state, _, env) = chain();
    for (address, code) in CODES {
        let code_hash = Some(state.insert_code(bytes(code).into()));
        let value = AccountValue { nonce: 1, balance: U256::from(3), code_hash };
        state.insert(StateKey::Account(address), StateValue::Account(value));
    }
    (state, env)
}

/// All kinds of claims about conflicts.
fn graphs(sets: Option<&[AccessSet]>, transactions: &[Transaction], noise: &[(u8, u8)]) -> Vec<Conflicts> {
    let len = transactions.len();
    let gas = vec![50_000; len];
    let mut random = vec![Vec::new(); len];
    for (from, to) in noise {
        random[usize::from(*to) % len].push(u32::from(*from) % len as u32);
    }
    let everything = (0..len as u32).map(|index| (0..index).collect()).collect();
    let backwards = (0..len as u32).map(|index| vec![index, index + 1, u32::MAX]).collect();
    let mut graphs = vec![
        Conflicts::default(),
        announced_conflicts(transactions),
        Conflicts {
            predecessors: random,
            gas: noise.iter().map(|(gas, _)| (*gas).into()).chain(gas.clone()).take(len).collect(),
        },
        Conflicts { predecessors: everything, gas: gas.clone() },
        Conflicts { predecessors: backwards, gas: vec![u64::MAX; len] },
        Conflicts { predecessors: vec![vec![0]; len + 1], gas: gas.clone() },
    ];
    if let Some(sets) = sets {
        let exact = conflicts(sets, gas);
        let mut permuted = exact.clone();
        permuted.predecessors.reverse();
        graphs.extend([exact, permuted]);
    }
    graphs
}

fn comparable(outcome: Result<Outcome, ExecuteError>) -> Result<Outcome, String> {
    outcome.map_err(|error| error.to_string())
}

fn check(actions: &[Action], noise: &[(u8, u8)]) -> Result<usize, TestCaseError> {
    let (state, env) = start();
    let transactions = transactions(actions);
    let expected = comparable(execute(&state, &env, &transactions));
    let sets = expected.as_ref().ok().map(|outcome| &outcome.accesses[..]);
    let mut accepted = 0;
    for graph in graphs(sets, &transactions, noise) {
        let found = execute_parallel(&state, &env, &transactions, &graph, &WORKERS);
        if let Ok((_, stats)) = &found {
            prop_assert!(stats.is_parallel);
            prop_assert!(stats.accepted + stats.repeated <= transactions.len());
            accepted += stats.accepted;
        }
        prop_assert_eq!(&comparable(found.map(|(outcome, _)| outcome)), &expected);
        let found = execute_parallel(&state, &env, &transactions, &graph, &GROUPS);
        prop_assert_eq!(&comparable(found.map(|(outcome, _)| outcome)), &expected);
    }
    Ok(accepted)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Goal: receipts, delta, gas, hints and access sets equal those of one thread. The claimed conflicts may be empty,
    /// exact, permuted, random or absurd, and the batches are full of hot spots.
    #[test]
    fn random_batches_have_the_outcome_of_one_thread(
        actions in vec(action(), 1..60),
        noise in vec(any::<(u8, u8)>(), 0..100),
    ) {
        check(&actions, &noise)?;
    }

    /// Goal: a batch that breaks a rule fails at the same transaction for the same reason.
    #[test]
    fn an_invalid_batch_fails_as_on_one_thread(
        mut actions in vec(action(), 8..30),
        at in 0usize..30,
        from in 1..POOR,
    ) {
        actions.insert(at.min(actions.len()), Action::Misnumbered { from });
        check(&actions, &[])?;
    }
}

/// Goal: running ahead is useful: results of independent calls are accepted.
#[test]
fn independent_transactions_run_ahead() {
    let (state, env) = start();
    let actions: Vec<_> = (0..64)
        .map(|index| Action::Call { from: 1 + index % 8, contract: 3, about: index, wei: 0 })
        .collect();
    let transactions = transactions(&actions);
    let expected = execute(&state, &env, &transactions).unwrap();
    let graph = expected.conflicts();
    // Helpers may be late on a busy machine, but not always. So the number of results that they have in time is not
    // checked.
    let runs_ahead = || {
        let (outcome, stats) = execute_parallel(&state, &env, &transactions, &graph, &WORKERS).unwrap();
        assert_eq!(outcome, expected);
        assert_eq!(stats.repeated, 0, "exact conflicts leave nothing to repeat");
        stats.accepted > 0
    };
    assert!((0..20_000).any(|_| runs_ahead()), "no result was of use in 20,000 runs");
}

/// Goal: independent transactions of several senders run in groups, and unnamed conflicts among them are noticed. One
/// thread then executes the batch, and the next batches are not grouped for a while.
#[test]
fn groups_are_of_use_and_hidden_conflicts_are_seen() {
    let (state, env) = start();
    let call = |index: u8, contract| Action::Call { from: 1 + index % 8, contract, about: 2 * index, wei: 1 };
    let apart: Vec<_> = (0..64).map(|index| call(index, 3)).collect();
    let together: Vec<_> = (0..64).map(|index| call(index, 0)).collect();
    let grouped = |actions: &[Action], graph: Option<Conflicts>, workers: &Workers| {
        let transactions = transactions(actions);
        let expected = execute(&state, &env, &transactions).unwrap();
        let graph = graph.unwrap_or_else(|| expected.conflicts());
        let (outcome, stats) = execute_parallel(&state, &env, &transactions, &graph, workers).unwrap();
        assert_eq!(outcome, expected);
        stats
    };
    let stats = grouped(&apart, None, &GROUPS);
    assert_eq!(stats.groups, 3);
    let hidden = || Some(Conflicts { predecessors: vec![vec![]; 64], gas: vec![200_000; 64] });
    let workers = Workers::new(2).unwrap();
    let groups = |actions: &[Action]| grouped(actions, hidden(), &workers).groups;
    assert_eq!(groups(&apart), 2);
    // One thread may have taken everything before the other woke up: then the groups were correct.
    assert!((0..20_000).any(|_| groups(&together) == 0), "hidden conflicts are never seen");
    assert_eq!(groups(&apart), 0, "groups pause, and transactions run ahead of their turn");
}

/// Executes independent calls and then this transaction of account 8, in groups that know of no conflict.
fn behind_others(last: Transaction) -> ParallelStats {
    let (state, env) = start();
    let filler = |index: u8| Action::Call { from: 1 + index % 7, contract: 3, about: 2 * index, wei: 0 };
    let mut transactions = transactions(&(0..31).map(filler).collect::<Vec<_>>());
    transactions.push(last);
    let expected = execute(&state, &env, &transactions).unwrap();
    let conflicts = || Conflicts { predecessors: vec![vec![]; 32], gas: vec![200_000; 32] };
    for _ in 0..50 {
        let (found, _) = execute_parallel(&state, &env, &transactions, &conflicts(), &WORKERS).unwrap();
        assert_eq!(found, expected);
    }
    let (found, stats) = execute_parallel(&state, &env, &transactions, &conflicts(), &GROUPS).unwrap();
    assert_eq!(found, expected);
    stats
}

/// Goal: a transaction that observes the fee recipient's balance or existence cannot run in one of several groups,
/// because fees in the others change both. A transaction with more observations than are recorded cannot either: it
/// counts as having observed everything.
#[test]
fn who_looks_at_the_fee_recipient_depends_on_all_fees() {
    for (contract, looks_at) in [(LOOKER, PROPOSER), (TELLER, PROPOSER), (HASHER, PROPOSER)] {
        let stats = behind_others(invoke(8, 0, contract, looks_at.into_word().as_slice()));
        assert_eq!(stats.groups, 0, "{contract}");
    }
    let apart = behind_others(invoke(8, 0, TELLER, Address::repeat_byte(0x77).into_word().as_slice()));
    assert_eq!(apart.groups, 3, "who looks at somebody else is in a group");
}

/// Goal: batches with an authorization (EIP-7702) are not grouped. An authorization names the nonce of an account that
/// may send transactions in another group.
#[test]
fn authorizations_depend_on_what_their_authors_send() {
    let authorized = decode(sign(8, delegation(0, party(12), 1, COUNTER)));
    assert_eq!(behind_others(authorized).groups, 0);
}

/// Goal: an account that pays in several groups spends its balance only once. Forty calls make a contract pay that has
/// three wei.
#[test]
fn who_pays_in_several_groups_pays_once() {
    let (state, env) = start();
    let call = |index: u8| Action::Call { from: 1 + index % 8, contract: 10, about: 20 + index, wei: 0 };
    let transactions = transactions(&(0..40).map(call).collect::<Vec<_>>());
    let expected = execute(&state, &env, &transactions).unwrap();
    let conflicts = Conflicts { predecessors: vec![vec![]; 40], gas: vec![200_000; 40] };
    // One thread may have taken everything before the others woke up: then only one group exists.
    for _ in 0..200 {
        let (found, _) = execute_parallel(&state, &env, &transactions, &conflicts, &GROUPS).unwrap();
        assert_eq!(found, expected);
    }
}

/// Goal: batches without anything to gain stay on one thread, also those whose transactions do little each.
#[test]
fn small_serial_and_light_batches_stay_on_one_thread() {
    let (state, env) = start();
    let workers = Workers::new(2).unwrap();
    assert_eq!(workers.threads(), 2);
    let calls =
        |count: u64| (0..count).map(|nonce| decode(sign(1, legacy(nonce, COUNTER)))).collect::<Vec<_>>();
    for (count, is_chain, gas) in [(4, false, 100_000), (100, true, 100_000), (200, false, 35_000)] {
        let transactions = calls(count);
        let predecessors =
            (0..count as u32).map(|index| index.checked_sub(u32::from(is_chain)).into_iter().collect());
        let graph = Conflicts { predecessors: predecessors.collect(), gas: vec![gas; count as usize] };
        let (_, stats) = execute_parallel(&state, &env, &transactions, &graph, &workers).unwrap();
        assert!(!stats.is_parallel, "{count} transactions of {gas} gas");
    }
    let graph = Conflicts { predecessors: vec![vec![]; 100], gas: vec![100_000; 100] };
    let (_, stats) = execute_parallel(&state, &env, &calls(100), &graph, &workers).unwrap();
    assert!(stats.is_parallel);
}
