//! Runs every target over its kept inputs, and over thousands of mutations by a fixed generator.

#![allow(clippy::unwrap_used)] // a panic is how a test fails

use std::{fs, panic, path::Path};

use rand::{SeedableRng, rngs::StdRng};
use slipstream_fuzz::{TARGETS, Target, kept, mutate};

/// Mutations per target: a fixed number, so that a slow machine tries no fewer.
const MADE: usize = 3_000;

/// Runs one input. A failing one is written to a file, for `./x fuzz`.
fn run(target: &Target, input: &[u8]) {
    if panic::catch_unwind(|| (target.run)(input)).is_err() {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-failure", target.name));
        fs::write(&file, input).unwrap();
        panic!("{} fails as it says above; `./x fuzz {0} {}` does it again", target.name, file.display());
    }
}

fn try_all(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name).unwrap();
    let kept = kept(target).unwrap();
    assert!(!kept.is_empty(), "{name} has nothing to begin with");
    kept.iter().for_each(|input| run(target, input));
    let mut rng = StdRng::seed_from_u64(42);
    (0..MADE).for_each(|_| run(target, &mutate(&mut rng, &kept)));
}

macro_rules! tests {
    ($($name:ident),*) => {
        $(
            #[test]
            fn $name() {
                try_all(stringify!($name));
            }
        )*

        /// Goal: every target has a test, and every folder of kept inputs has a target.
        #[test]
        fn every_target_has_its_test() {
            let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
            for folder in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")).unwrap() {
                let folder = folder.unwrap().file_name().into_string().unwrap();
                assert!(names.contains(&folder.as_str()), "testsuite/fuzz/corpus/{folder}");
            }
        }
    };
}

tests![
    accumulator_proof,
    archive,
    certificate,
    chunks,
    config,
    consensus,
    consensus_frames,
    decode_blobs,
    genesis_file,
    hints,
    json_rpc,
    light_proof,
    mesh,
    pieces,
    predictor,
    state_range_proof,
    sync_answers,
    sync_requests,
    transaction
];
