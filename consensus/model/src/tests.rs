//! Tests that the search finds nothing in the code that validators run, and something where a defence is missing.

use std::{collections::BTreeSet, time::Duration};

use slipstream_eve::Fault;
use stateright::{Checker, HasDiscoveries, Model};

use crate::{
    Bounds, SearchReport,
    report::{SearchOrder, search},
    search::{Consensus, State},
    violation::{GOES_ON, ViolationKind},
};

/// Reached only by a search that never ends: others take seconds.
const LONG: Duration = Duration::from_secs(1_800);

fn with(fault: Option<Fault>, bounds: Bounds, order: SearchOrder, until: HasDiscoveries) -> SearchReport {
    let mut model = Consensus::new(bounds);
    model.node_states.constants.fault = fault;
    search(model, LONG, 2, order, until)
}

/// Goal: within small bounds nothing is wrong, all states are reached, and the chain makes progress from a share of
/// them.
#[test]
fn small_worlds_are_safe_and_live() {
    let silent = Bounds { silent: Some(3), ..Bounds::SMALL };
    let liar = Bounds { last_view: 0, live_every: 20, ..Bounds::SMALL };
    for bounds in [
        Bounds { live_every: 50, ..silent },
        Bounds { crashes: 1, last_view: 0, live_every: 200, ..silent },
        Bounds { batches: 2, is_prompt: true, live_every: 200, ..silent },
        Bounds { liar: Some(3), ..liar },
    ] {
        let row = with(None, bounds, SearchOrder::Depth, HasDiscoveries::AnyFailures);
        println!("{row}");
        assert!(row.found.is_empty() && row.is_exhaustive && row.lives > 0, "{row}");
    }
}

/// Goal: each of these defences is needed within the bounds next to it. Without the defence, the search shows a path to
/// the violation of the property.
#[test]
fn a_missing_defence_is_found() {
    let liar = |seat| Bounds { liar: Some(seat), ..Bounds::SMALL };
    let lying_primary = Bounds { last_view: 0, ..liar(0) };
    let crash = Bounds { silent: Some(3), crashes: 1, ..Bounds::SMALL };
    let silent = Bounds { silent: Some(3), ..Bounds::SMALL };
    let faults = [
        (Fault::FewPrepares, GOES_ON, Bounds { live_every: 1, ..silent }),
        (Fault::FewCommits, ViolationKind::Unfounded.property(), lying_primary),
        (Fault::CommitAnything, ViolationKind::Unfounded.property(), lying_primary),
        (Fault::CountTwice, ViolationKind::Unfounded.property(), lying_primary),
        (Fault::OneToken, ViolationKind::Lost.property(), Bounds { last_view: 0, ..liar(3) }),
        (Fault::IgnorePrepared, ViolationKind::Forgotten.property(), liar(1)),
        (Fault::BelievePrepared, ViolationKind::Forgotten.property(), liar(3)),
        (Fault::ForgetView, ViolationKind::TwoFaced.property(), Bounds { is_prompt: true, ..crash }),
        (Fault::ForgetPrepare, ViolationKind::TwoFaced.property(), Bounds { crashes: 1, ..lying_primary }),
        (
            Fault::ForgetKeptPrepares,
            ViolationKind::TwoFaced.property(),
            Bounds { crashes: 1, ..lying_primary },
        ),
        (Fault::ForgetOutcomes, ViolationKind::TwoFaced.property(), crash),
        (Fault::NeverTell, GOES_ON, Bounds { live_every: 1, ..silent }),
    ];
    let mut missed = Vec::new();
    for (fault, property, bounds) in faults {
        let until = HasDiscoveries::AnyOf([property].into());
        let row = with(Some(fault), bounds, SearchOrder::Breadth, until);
        println!("{fault:?}: {row}");
        missed.extend(row.found.iter().all(|found| found.property != property).then_some((fault, property)));
    }
    assert_eq!(missed, [], "nothing shows that these are missing");
    // Another property is violated before there are two certificates, and no fault here convicts an honest validator.
    let violated: BTreeSet<_> = faults.iter().map(|(_, property, _)| *property).collect();
    let all: BTreeSet<_> = Consensus::new(Bounds::SMALL).properties().iter().map(|it| it.name).collect();
    let others: BTreeSet<_> = all.difference(&violated).copied().collect();
    assert_eq!(
        others,
        BTreeSet::from([ViolationKind::Convicted.property(), ViolationKind::Forked.property()])
    );
}

/// The statements and chain lengths of the honest validators, over all states.
fn reached(bounds: Bounds) -> BTreeSet<String> {
    let reached = std::sync::Arc::new(std::sync::Mutex::new(BTreeSet::new()));
    let seen = reached.clone();
    let visit = move |path: stateright::Path<State, _>| {
        let state: &State = path.last_state();
        let said: BTreeSet<_> = state.said.items().map(|item| item.key).collect();
        let chains: Vec<_> = state.node_states.iter().map(|node_state| node_state.node.head()).collect();
        seen.lock().unwrap().insert(format!("{said:?} {chains:?}"));
    };
    Consensus::new(bounds).checker().visitor(visit).spawn_dfs().join();
    let reached = reached.lock().unwrap();
    reached.clone()
}

/// Goal: a search that takes messages together leaves out nothing observable.
#[test]
fn taking_messages_singly_shows_nothing_else() {
    let bounds = Bounds { silent: Some(3), last_view: 0, ..Bounds::SMALL };
    let (together, singly) = (reached(bounds), reached(Bounds { takes_singly: true, ..bounds }));
    assert!(together.len() > 50, "{}", together.len());
    let apart: Vec<_> = together.symmetric_difference(&singly).collect();
    assert_eq!(apart, Vec::<&String>::new());
}
