//! The simulator of validators: many seeds find nothing, a seed is one run, and the absence of a defence is detected.

use slipnet::progress::Progress;
use slipnet_simulation::sim::{
    Seeds,
    validators::{self, ValidatorsOptions},
};
use slipstream_consensus::simulated::Planted;

fn options(seeds: std::ops::Range<u64>) -> ValidatorsOptions {
    ValidatorsOptions { seeds: Seeds(seeds), verbose: false, planted: None }
}

/// Goal: whatever goes wrong, validators have one history, and keep every transaction. Their statements are on disk,
/// and no honest validator is convicted. They recover soon after the faults end, and every kind of fault occurs.
#[test]
fn two_hundred_worlds_hold() {
    let report =
        validators::run(&options(0..200), Progress::Quiet).unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!(report.runs, 200);
    assert!(report.batches > 2_000, "{report}");
}

/// Goal: a failure can be reproduced: only the seed decides what happens.
#[test]
fn a_seed_is_one_run() {
    let run = |seed| validators::run_seed(seed, None, false).unwrap();
    for seed in 0..8 {
        assert_eq!(run(seed), run(seed), "{seed}");
    }
    assert_ne!(run(0).trace, run(1).trace, "other seeds are other runs");
}

/// Goal: explaining a seed shows the run that failed, with faults, lies and the validators' thoughts.
#[test]
fn a_seed_is_explained() {
    let explained = (0..8).map(|seed| validators::explain(seed, None).unwrap());
    let texts: Vec<String> = explained.map(|explained| explained.to_string()).collect();
    assert!(texts.iter().all(|text| text.contains("nothing found in")));
    // A lone validator's thoughts never change.
    let among_others = texts.iter().filter(|text| text.contains("machine 1: "));
    assert!(among_others.clone().count() > 4);
    assert!(among_others.into_iter().all(|text| text.contains("thought  machine 0")));
    assert!(texts.iter().any(|text| text.contains("; a traitor: ")), "no seed has a traitor");
    assert!(texts.iter().any(|text| text.contains(" lies to machine ") || text.contains(" keeps ")));

    let planted = Planted::ALL.iter().copied().find_map(|planted| {
        let options = ValidatorsOptions { planted: Some(planted), ..options(0..50) };
        Some((planted, validators::run(&options, Progress::Quiet).err()?.to_string()))
    });
    let (planted, error) = planted.expect("a defence is missed");
    let seed: u64 = error.split_whitespace().nth(1).unwrap().parse().unwrap_or_else(|_| panic!("{error}"));
    assert!(error.contains(&format!("`slipnet explain {seed} --validators`")), "{error}");
    let explained = validators::explain(seed, Some(planted)).unwrap();
    assert!(explained.failure().is_some(), "{explained}");
}

/// Seeds that detect the absence of a defence, as in `sim`.
const MISSED_AT: &[(Planted, u64)] = &[
    (Planted::EarlyVotes, 0),
    (Planted::UnsavedVotes, 0),
    (Planted::OvertakingVotes, 0),
    (Planted::ForgottenVotes, 1),
    (Planted::UnkeptOutcome, 0),
    (Planted::ForgottenOutcomes, 9),
    (Planted::DroppedOutcomes, 1),
    (Planted::UncheckedOutcome, 54),
    (Planted::EarlyCommit, 12),
    (Planted::UncheckedBody, 13),
    (Planted::UncheckedClock, 15),
    (Planted::ForgottenEvidence, 1),
    (Planted::ForgetPrepare, 0),
    (Planted::ForgetView, 0),
    (Planted::ForgetDecisions, 224),
    (Planted::FewPrepares, 2),
    (Planted::FewCommits, 0),
    (Planted::CountTwice, 0),
    (Planted::OneToken, 29),
    (Planted::AnyView, 2),
    (Planted::IgnorePrepared, 3),
    (Planted::NeverTell, 0),
];

/// Returns how the first failing seed fails without the defence; `None` if none does.
fn missed(planted: Planted, seeds: std::ops::Range<u64>) -> Option<String> {
    let options = ValidatorsOptions { planted: Some(planted), ..options(seeds) };
    validators::run(&options, Progress::Quiet).err().map(|error| error.to_string())
}

/// Goal: for each defence, the oracles detect its absence.
#[test]
fn a_missing_defence_is_noticed() {
    let unnoticed = crate::unnoticed(Planted::ALL.iter().copied(), MISSED_AT, missed);
    assert!(unnoticed.is_empty(), "no run fails without {unnoticed:?}");
}

/// Goal: as in `sim`, for mutants of the validators' agreement.
#[test]
#[ignore = "slow: for ./x mutants"]
fn unseen_worlds_hold() {
    let seeds = std::env::var("SLIPNET_SEEDS").unwrap_or_else(|_| "1000000..1000100".into());
    let options = ValidatorsOptions { seeds: seeds.parse().unwrap(), ..options(0..1) };
    let report = validators::run(&options, Progress::Quiet).unwrap_or_else(|error| panic!("{error:#}"));
    println!("{report}");
}
