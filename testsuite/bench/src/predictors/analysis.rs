//! The time to analyse contracts.

use std::{collections::BTreeMap, time::Instant};

use alloy_primitives::{B256, Bytes};
use slipstream_predict::{PredictConfig, Predictors, build};

use crate::{Figure, hints::Case};

/// Predictors with a program for every contract that the blocks execute: programs that read slots, and programs that do
/// not.
pub(super) struct Programs {
    pub(super) full: Predictors,
    pub(super) no_slot_reads: Predictors,
}

/// Analyses the distinct contracts of some blocks, and returns the time and the programs' sizes as figures.
pub(super) fn measure(cases: &[Case]) -> (Programs, Vec<Figure>) {
    let codes: BTreeMap<B256, Bytes> = cases
        .iter()
        .flat_map(|case| &case.expected.touched.codes)
        .map(|(hash, code)| (*hash, code.bytes()))
        .collect();
    let config = PredictConfig { programs_bytes_max: usize::MAX, ..PredictConfig::default() };
    let full = Predictors::new(config);
    let no_slot_reads = Predictors::new(PredictConfig { reads_slots: false, ..config });
    let mut ms = Vec::new();
    let mut sizes = Vec::new();
    for (hash, code) in &codes {
        let start = Instant::now();
        let program = build(code, &[]);
        ms.push(1e3 * start.elapsed().as_secs_f64());
        sizes.push(program.size_bytes() as f64);
        for predictors in [&full, &no_slot_reads] {
            predictors.build_now((*hash).into(), code);
        }
    }
    let (code_bytes, program_bytes): (usize, f64) =
        (codes.values().map(|code| code.len()).sum(), sizes.iter().sum());
    let total_ms: f64 = ms.iter().sum();
    let figures = vec![
        Figure::new("analysis.contracts", "", vec![codes.len() as f64]),
        Figure::new("analysis.ms", "ms", vec![total_ms]),
        Figure::new("analysis.ms_per_contract", "ms", ms),
        Figure::new("analysis.us_per_code_kib", "us", vec![1e3 * total_ms / (code_bytes as f64 / 1024.0)]),
        Figure::new("analysis.bytes_per_program", "bytes", sizes),
        Figure::new("analysis.program_share", "ratio", vec![program_bytes / code_bytes as f64]),
    ];
    (Programs { full, no_slot_reads }, figures)
}
