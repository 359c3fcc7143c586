//! Runs many worlds, and checks that honest validators never contradict themselves, that each number has one
//! certificate, and that the chain makes progress when faults end.

use std::sync::atomic::{AtomicUsize, Ordering};

use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use slipstream_types::validators::Failures;

use super::{
    traitor::Traitor,
    world::{Climate, World},
};
use crate::{
    Settings,
    planted::{Fault, PLANTED},
};

const SETTINGS: Settings = Settings {
    view_timeout_ms: 500,
    rotate_after: 0,
    protect_after: 0,
    protect_wait_ms: 20,
    recalls_votes: true,
};

fn fair(validators: usize) -> Climate {
    Climate {
        validators,
        failures: Failures::thirds(validators),
        loss: 0.0,
        news_loss: 0.0,
        prepare_loss: 0.0,
        blackouts: false,
        delay_us: 5_000,
        divergence: 0.0,
        crash: 0.0,
        wipe: 0.0,
        partitions: false,
        traitor: None,
        settings: SETTINGS,
        calm_us: 0,
    }
}

/// Goal: without faults every validator commits batch after batch in the first view.
#[test]
fn fair_worlds_go_on() {
    for validators in [1, 2, 3, 4, 7] {
        let mut world = World::new(7, fair(validators));
        (1..=10).for_each(|second| world.run_until(second * 1_000_000));
        assert!(world.height() > 50, "{validators}: {}\n{}", world.height(), world.picture());
        assert_eq!(world.views, 0, "{validators}\n{}", world.picture());
    }
}

/// Goal: a validator that nobody heard when the chain began takes part soon, though the chain makes progress without it
/// all the time. Otherwise the next validator that goes down would take the quorum with it.
#[test]
fn a_latecomer_takes_part_while_the_chain_goes_on() {
    // Three batches a second: the others' certificates bring those that it misses.
    let mut world = World::new(7, Climate { delay_us: 150_000, ..fair(4) });
    world.cut_off(3);
    world.run_until(1_500_000);
    let missed = world.height_of(0);
    assert!(missed > 2 && !world.takes_part(3), "{}", world.picture());
    world.run_until(6_000_000);
    assert!(world.takes_part(3), "{}", world.picture());
    // From now on the other three are one too few without it.
    let before = world.height_of(0);
    for second in 7..=30 {
        world.cut_off(0);
        world.run_until(second * 1_000_000);
    }
    assert!(world.height_of(3) > before + 20, "{}", world.picture());
}

/// The world of a seed.
fn climate(seed: u64) -> Climate {
    let mut random = StdRng::seed_from_u64(seed ^ 0xe7e);
    let sizes =
        [(4, 1, 1), (4, 1, 1), (3, 1, 0), (5, 1, 2), (7, 2, 2), (6, 2, 1), (2, 0, 1), (5, 2, 0), (1, 0, 0)];
    let &(validators, any, commission) = sizes.choose(&mut random).unwrap();
    let traitors = [
        Traitor::Orders,
        Traitor::Votes,
        Traitor::Outcomes,
        Traitor::Forgets,
        Traitor::Invents,
        Traitor::Complains,
        Traitor::Silent,
        Traitor::Anything,
        Traitor::Anything,
    ];
    let lies = any > 0 && commission > 0 && random.random_bool(0.5);
    let mut often = |share: f64, most: f64| match random.random_bool(share) {
        true => random.random_range(0.0..most),
        false => 0.0,
    };
    let (loss, divergence, crash, wipe) =
        (often(0.4, 0.3), often(0.4, 0.6), often(0.5, 0.005), often(0.2, 0.3));
    let (news_loss, prepare_loss) = (often(0.5, 0.95), often(0.3, 0.5));
    Climate {
        validators,
        failures: Failures { any, commission },
        loss,
        news_loss,
        prepare_loss,
        blackouts: random.random_bool(0.3),
        delay_us: if random.random_bool(0.5) { 5_000 } else { random.random_range(5_000..150_000) },
        divergence,
        crash,
        wipe,
        partitions: random.random_bool(0.4),
        traitor: lies.then(|| *traitors.choose(&mut random).unwrap()),
        settings: Settings {
            rotate_after: if random.random_bool(0.2) { random.random_range(1..20) } else { 0 },
            protect_after: if random.random_bool(0.2) { random.random_range(1..10) } else { 0 },
            view_timeout_ms: if news_loss > 0.0 { 150 } else { 500 },
            ..SETTINGS
        },
        calm_us: 8_000_000,
    }
}

/// Plays one world to its end.
fn play(seed: u64, climate: Climate) -> World {
    let mut world = World::new(seed, climate);
    let until = |world: &mut World, end_us: u64| {
        while world.now_us < end_us {
            world.run_until((world.now_us + 500_000).min(end_us));
        }
    };
    let calm_us = world.climate.calm_us;
    until(&mut world, calm_us);
    let before = world.height();
    for _ in 0..120 {
        if world.height() >= before + 10 {
            break;
        }
        let end_us = world.now_us + 1_000_000;
        until(&mut world, end_us);
    }
    assert!(
        world.height() >= before + 10,
        "seed {seed}: from {before} to {} in two minutes of calm\n{:?}\n{}",
        world.height(),
        world.climate,
        world.picture()
    );
    world
}

/// Goal: the invariants of all worlds hold in the worlds of these seeds. `EVE_SEEDS=A..B` plays other seeds.
#[test]
fn worlds_hold() {
    let seeds = std::env::var("EVE_SEEDS").unwrap_or("0..30".into());
    let (first, last) = seeds.split_once("..").expect("EVE_SEEDS is FIRST..LAST");
    let seeds = first.parse::<u64>().unwrap()..last.parse().unwrap();
    let (mut views, mut fetched, mut crashes, mut convicted) = (0, 0, 0, 0);
    for seed in seeds {
        println!("seed {seed}");
        let world = play(seed, climate(seed));
        views += world.views;
        fetched += world.fetched;
        crashes += world.crashes;
        convicted += world.convicted.len();
    }
    assert!(views > 0 && fetched > 0 && crashes > 0 && convicted > 0, "nothing happens in these worlds");
    println!("{views} views, {fetched} outcomes fetched, {crashes} crashes, {convicted} traitors convicted");
}

/// A world in which the defence is needed.
fn scene(fault: Fault, seed: u64) -> Climate {
    let base = climate(seed);
    let four = || Climate {
        validators: 4,
        failures: Failures::thirds(4),
        delay_us: 5_000,
        traitor: None,
        ..base.clone()
    };
    let between_decision_and_news = || {
        let settings = Settings { view_timeout_ms: 150, ..SETTINGS };
        Climate { news_loss: 0.9, prepare_loss: 0.0, settings, ..four() }
    };
    match fault {
        Fault::OneToken => Climate { traitor: Some(Traitor::Outcomes), ..four() },
        Fault::ForgetEvidence => Climate { traitor: Some(Traitor::Votes), ..four() },
        Fault::BelievePrepared => Climate { traitor: Some(Traitor::Invents), ..between_decision_and_news() },
        Fault::IgnorePrepared => between_decision_and_news(),
        Fault::ForgetPrepare | Fault::ForgetKeptPrepares => {
            let settings = Settings { view_timeout_ms: 3_000, ..SETTINGS };
            Climate { divergence: 0.5, crash: 0.01, wipe: 0.0, settings, ..four() }
        }
        Fault::ForgetDecisions => Climate { blackouts: true, ..base },
        _ => base,
    }
}

/// The first seed whose world notices that the defence is missing.
fn noticed(fault: Fault, most: u64) -> Option<u64> {
    PLANTED.set(Some(fault));
    let found = (0..most).find(|&seed| {
        let climate = scene(fault, seed);
        let lies = climate.traitor == Some(Traitor::Votes);
        match std::panic::catch_unwind(|| play(seed, climate)) {
            Ok(world) => lies && world.convicted.is_empty(),
            Err(_) => true,
        }
    });
    PLANTED.set(None);
    found
}

/// Goal: every missing defence is noticed. `EVE_FAULT_SEEDS` bounds the search.
#[test]
fn every_missing_defence_is_noticed() {
    std::panic::set_hook(Box::new(|_| {}));
    let most = std::env::var("EVE_FAULT_SEEDS").map_or(100, |seeds| seeds.parse().unwrap());
    let faults = [
        Fault::ForgetRecord,
        Fault::ForgetPrepare,
        Fault::ForgetKeptPrepares,
        Fault::ForgetView,
        Fault::ForgetDecisions,
        Fault::ForgetOutcomes,
        Fault::FewPrepares,
        Fault::FewCommits,
        Fault::OneToken,
        Fault::AnyView,
        Fault::IgnorePrepared,
        Fault::BelievePrepared,
        Fault::ForgetEvidence,
        Fault::NeverTell,
    ];
    let next = AtomicUsize::new(0);
    let search = || {
        let mut missed = Vec::new();
        while let Some(&fault) = faults.get(next.fetch_add(1, Ordering::Relaxed)) {
            let begun = std::time::Instant::now();
            let found = noticed(fault, most);
            println!("{fault:?}: {found:?} after {:?}", begun.elapsed());
            missed.extend(found.is_none().then_some(fault));
        }
        missed
    };
    // A fault is planted in one thread alone. The searches take longest of this crate's tests: two threads share them.
    let missed = std::thread::scope(|scope| {
        let beside = scope.spawn(search);
        [search(), beside.join().unwrap()].concat()
    });
    _ = std::panic::take_hook();
    assert_eq!(missed, [], "nothing notices that these are missing");
}
