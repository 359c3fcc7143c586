//! libFuzzer over the target of `SLIPSTREAM_FUZZ_TARGET`, which `./x fuzz` sets. The kept inputs are written to the
//! folder of `SLIPSTREAM_FUZZ_SEEDS` before libFuzzer reads it.

#![no_main]

use std::{env, fs, path::PathBuf, sync::OnceLock};

use slipstream_fuzz::{TARGETS, Target, find, kept};

static TARGET: OnceLock<&Target> = OnceLock::new();

fn begin() {
    let name = env::var("SLIPSTREAM_FUZZ_TARGET").unwrap_or_default();
    let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
    let target = find(&name).unwrap_or_else(|| {
        panic!("SLIPSTREAM_FUZZ_TARGET={name:?} names no target; the targets are {names:?}")
    });
    if let Some(folder) = env::var_os("SLIPSTREAM_FUZZ_SEEDS").map(PathBuf::from) {
        let inputs = kept(target).expect("cannot read the kept inputs");
        for (at, input) in inputs.iter().enumerate() {
            fs::write(folder.join(format!("kept-{at}")), input)
                .expect("cannot write to the folder of SLIPSTREAM_FUZZ_SEEDS");
        }
    }
    assert!(TARGET.set(target).is_ok(), "it begins once");
}

libfuzzer_sys::fuzz_target!(init: begin(), |bytes: &[u8]| {
    if let Some(target) = TARGET.get() {
        (target.run)(bytes);
    }
});
