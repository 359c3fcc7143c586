//! The programs of predictors, made before anything is timed.

use std::collections::BTreeMap;

use alloy_primitives::{B256, Bytes};
use slipstream_predict::{PredictConfig, Predictors};

use crate::hints::Case;

/// Predictors with a program for every contract that the blocks execute: programs that read slots, and programs that do
/// not.
pub(super) struct Programs {
    pub(super) full: Predictors,
    pub(super) no_slot_reads: Predictors,
}

impl Programs {
    /// Analyses the distinct contracts of some blocks.
    pub(super) fn of(cases: &[Case]) -> Programs {
        let codes: BTreeMap<B256, Bytes> = cases
            .iter()
            .flat_map(|case| &case.expected.touched.codes)
            .map(|(hash, code)| (*hash, code.bytes()))
            .collect();
        let config = PredictConfig { programs_bytes_max: usize::MAX, ..PredictConfig::default() };
        let full = Predictors::new(config);
        let no_slot_reads = Predictors::new(PredictConfig { reads_slots: false, ..config });
        for (hash, code) in &codes {
            for predictors in [&full, &no_slot_reads] {
                predictors.build_now((*hash).into(), code);
            }
        }
        Programs { full, no_slot_reads }
    }
}
