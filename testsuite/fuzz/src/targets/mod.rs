//! The targets, one per file.

mod world;

use crate::Target;

macro_rules! targets {
    ($($name:ident),* $(,)?) => {
        $(mod $name;)*

        /// Every target, by name.
        pub const TARGETS: &[Target] =
            &[$(Target { name: stringify!($name), run: $name::run, seeds: $name::seeds }),*];
    };
}

targets![
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
    transaction,
];
