//! That the search finds nothing in what validators run, and something where a defence is missing.

use std::{collections::BTreeSet, time::Duration};

use slipstream_eve::Fault;
use stateright::{Checker, Model};

use crate::{
    Bounds, Row,
    report::{Order, search},
    search::{Consensus, State},
};

/// Reached only by a search that never ends: one that does takes seconds.
const LONG: Duration = Duration::from_secs(1_800);

fn with(fault: Option<Fault>, bounds: Bounds, order: Order) -> Row {
    let mut model = Consensus::new(bounds);
    model.atlas.ground.fault = fault;
    search(model, LONG, 2, order)
}

/// Goal: within small bounds nothing is wrong, all states are reached, and the chain goes on from a share of them.
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
        let row = with(None, bounds, Order::Depth);
        println!("{row}");
        assert!(row.found.is_empty() && row.is_exhaustive && row.lives > 0, "{row}");
    }
}

/// Goal: each of these defences is needed within the bounds beside it, and the search shows the way to what happens without it.
#[test]
fn a_missing_defence_is_found() {
    let liar = |seat| Bounds { liar: Some(seat), ..Bounds::SMALL };
    let lying_primary = Bounds { last_view: 0, ..liar(0) };
    let crash = Bounds { silent: Some(3), crashes: 1, ..Bounds::SMALL };
    let silent = Bounds { silent: Some(3), ..Bounds::SMALL };
    let faults = [
        (Fault::FewPrepares, Bounds { live_every: 1, ..silent }),
        (Fault::FewCommits, lying_primary),
        (Fault::CountTwice, lying_primary),
        (Fault::OneToken, Bounds { last_view: 0, ..liar(3) }),
        (Fault::IgnorePrepared, liar(1)),
        (Fault::BelievePrepared, liar(3)),
        (Fault::ForgetView, Bounds { is_prompt: true, ..crash }),
        (Fault::ForgetPrepare, Bounds { crashes: 1, ..lying_primary }),
        (Fault::ForgetOutcomes, crash),
        (Fault::NeverTell, Bounds { live_every: 1, ..silent }),
    ];
    let mut missed = Vec::new();
    for (fault, bounds) in faults {
        let row = with(Some(fault), bounds, Order::Breadth);
        println!("{fault:?}: {row}");
        missed.extend(row.found.is_empty().then_some(fault));
    }
    assert_eq!(missed, [], "nothing shows that these are missing");
}

/// The words, commits and proofs of the honest validators, over all states.
fn reached(bounds: Bounds) -> BTreeSet<String> {
    let reached = std::sync::Arc::new(std::sync::Mutex::new(BTreeSet::new()));
    let seen = reached.clone();
    let visit = move |path: stateright::Path<State, _>| {
        let state: &State = path.last_state();
        let said: BTreeSet<_> = state.said.items().map(|item| item.key).collect();
        let chains: Vec<_> = state.places.iter().map(|place| place.node.head()).collect();
        seen.lock().unwrap().insert(format!("{said:?} {chains:?}"));
    };
    Consensus::new(bounds).checker().visitor(visit).spawn_dfs().join();
    let reached = reached.lock().unwrap();
    reached.clone()
}

/// Goal: what is left out by taking messages together changes nothing that can be seen.
#[test]
fn taking_messages_singly_shows_nothing_else() {
    let bounds = Bounds { silent: Some(3), last_view: 0, ..Bounds::SMALL };
    let (together, singly) = (reached(bounds), reached(Bounds { takes_singly: true, ..bounds }));
    assert!(together.len() > 50, "{}", together.len());
    let apart: Vec<_> = together.symmetric_difference(&singly).collect();
    assert_eq!(apart, Vec::<&String>::new());
}
