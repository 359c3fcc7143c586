//! [`Load`]: work in the units of the pipeline's stages, for batches that are still to be fetched or wait between
//! stages.

use super::{RangeMode, course::Amount};

/// Compressed bytes of a batch besides its parts: its header, and its share of certificates and proofs.
const BATCH_BYTES: f64 = 500.0;
/// Gas equivalent of a batch without transactions: its system calls, and its comparison with its header.
const BATCH_GAS: f64 = 100e3;
/// Equivalent of a batch without changes, in bytes of changes: the write of its header and of its entry in the
/// accumulator.
const BATCH_CHANGES: f64 = 6e3;

/// Compression ratios of the parts of batches: compressed over uncompressed bytes, as seen lately.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Ratios {
    /// Ratio of bodies.
    pub body: f64,
    /// Ratio of receipts.
    pub receipts: f64,
    /// Ratio of deltas.
    pub delta: f64,
    /// Compressed bytes of hints over uncompressed bytes of deltas.
    pub hints: f64,
}

impl Default for Ratios {
    /// LZ4 halves transactions and outputs (measured: 2.2 times), and takes a sixth off rows.
    fn default() -> Ratios {
        Ratios { body: 0.6, receipts: 0.5, delta: 0.85, hints: 0.5 }
    }
}

/// The weight of one batch in a ratio, if it is as long as [`Ratios::LONG_BYTES`]: some hundred batches decide.
const LEARN: f64 = 0.02;

impl Ratios {
    /// Bytes from which on a part counts in full.
    const LONG_BYTES: f64 = 16e3;

    /// Folds a part into its ratio, given its compressed and its uncompressed bytes.
    pub fn learn(ratio: &mut f64, compressed: f64, content: f64) {
        if content > 0.0 {
            let weight = LEARN * (content / Ratios::LONG_BYTES).min(1.0);
            *ratio += (compressed / content - *ratio) * weight;
        }
    }

    /// Compressed bytes to fetch for batches in a mode.
    pub fn bytes(&self, mode: RangeMode, amount: &Amount, parts: OptionalParts) -> f64 {
        let (body, hints) = (amount.body * self.body, amount.changes * self.hints);
        let parts = match mode {
            RangeMode::Replay if parts.hints => body + hints,
            RangeMode::Replay => body,
            RangeMode::Delta if parts.history => {
                amount.changes * self.delta + body + amount.receipts * self.receipts + hints
            }
            RangeMode::Delta => amount.changes * self.delta,
        };
        parts + amount.batches * BATCH_BYTES
    }
}

/// The optional parts that come beside those that a mode needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OptionalParts {
    /// Whether bodies, receipts and hints come with deltas.
    pub history: bool,
    /// Whether hints come with bodies.
    pub hints: bool,
}

/// The first of the stages that a range still has ahead.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum NextStage {
    /// It has to be fetched: all stages are ahead.
    Fetch,
    /// It has arrived, and has to be prepared.
    Prepare,
    /// It is prepared; a range for replay has to be executed.
    Execute,
    /// It only has to be committed.
    Commit,
}

/// See the module.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Load {
    /// Compressed bytes to fetch and check for replay.
    pub replay_bytes: f64,
    /// Compressed bytes to fetch and check as deltas.
    pub delta_bytes: f64,
    /// Transactions to prepare.
    pub prepare: f64,
    /// Gas to execute.
    pub execute: f64,
    /// Bytes of deltas to open.
    pub open: f64,
    /// Bytes of deltas to commit.
    pub commit: f64,
}

impl Load {
    /// The work on batches in a mode, from the stage `before` on.
    pub fn of(
        mode: RangeMode,
        amount: &Amount,
        before: NextStage,
        ratios: &Ratios,
        parts: OptionalParts,
    ) -> Load {
        let mut load = Load { commit: amount.changes + amount.batches * BATCH_CHANGES, ..Load::default() };
        let bytes = if before == NextStage::Fetch { ratios.bytes(mode, amount, parts) } else { 0.0 };
        match mode {
            RangeMode::Replay => {
                load.replay_bytes = bytes;
                load.prepare =
                    if before <= NextStage::Prepare { amount.transactions + amount.batches } else { 0.0 };
                load.execute =
                    if before <= NextStage::Execute { amount.gas + amount.batches * BATCH_GAS } else { 0.0 };
            }
            RangeMode::Delta => {
                load.delta_bytes = bytes;
                load.open = if before <= NextStage::Prepare { load.commit } else { 0.0 };
            }
        }
        load
    }

    /// Adds `more` to this work.
    pub fn plus(self, more: Load) -> Load {
        Load {
            replay_bytes: self.replay_bytes + more.replay_bytes,
            delta_bytes: self.delta_bytes + more.delta_bytes,
            prepare: self.prepare + more.prepare,
            execute: self.execute + more.execute,
            open: self.open + more.open,
            commit: self.commit + more.commit,
        }
    }

    /// Multiplies this work by `factor`.
    pub fn times(self, factor: f64) -> Load {
        Load {
            replay_bytes: self.replay_bytes * factor,
            delta_bytes: self.delta_bytes * factor,
            prepare: self.prepare * factor,
            execute: self.execute * factor,
            open: self.open * factor,
            commit: self.commit * factor,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTS: OptionalParts = OptionalParts { history: false, hints: true };

    /// Goal: fetched batches cost no network, and executed ones cost their commit alone.
    #[test]
    fn a_stage_that_is_over_costs_nothing() {
        let amount = Amount::presumed(10.0);
        let of = |mode, before| Load::of(mode, &amount, before, &Ratios::default(), PARTS);
        let replay = [NextStage::Fetch, NextStage::Prepare, NextStage::Execute, NextStage::Commit]
            .map(|before| of(RangeMode::Replay, before));
        let has =
            |load: &Load| [load.replay_bytes, load.prepare, load.execute, load.commit].map(|left| left > 0.0);
        assert_eq!(replay.map(|load| has(&load).iter().filter(|has| **has).count()), [4, 3, 2, 1]);
        assert!(replay.iter().all(|load| load.delta_bytes == 0.0 && load.open == 0.0));
        let delta = of(RangeMode::Delta, NextStage::Prepare);
        assert!(delta.open > 0.0 && delta.delta_bytes == 0.0 && delta.execute == 0.0, "{delta:?}");
        assert_eq!(of(RangeMode::Delta, NextStage::Execute), of(RangeMode::Delta, NextStage::Commit));
    }

    /// Goal: batches without transactions take time too.
    #[test]
    fn an_empty_batch_is_some_work() {
        let empty = Amount { batches: 1_000.0, ..Amount::default() };
        for mode in [RangeMode::Replay, RangeMode::Delta] {
            let load = Load::of(mode, &empty, NextStage::Fetch, &Ratios::default(), PARTS);
            assert!(load.replay_bytes + load.delta_bytes > 0.0 && load.commit > 0.0, "{load:?}");
        }
    }

    /// Goal: history adds its parts to the bytes of deltas, and the ratios follow the measured sizes.
    #[test]
    fn bytes_are_those_of_the_parts_that_come() {
        let amount = Amount { changes: 1e6, body: 2e6, receipts: 3e6, ..Amount::default() };
        let mut ratios = Ratios { body: 0.5, receipts: 0.5, delta: 0.5, hints: 0.1 };
        let bytes = |ratios: &Ratios, mode, history, hints| {
            ratios.bytes(mode, &amount, OptionalParts { history, hints })
        };
        assert_eq!(bytes(&ratios, RangeMode::Delta, false, true), 0.5e6);
        assert_eq!(bytes(&ratios, RangeMode::Delta, true, true), 3.1e6);
        assert_eq!(bytes(&ratios, RangeMode::Replay, true, false), 1e6);
        assert_eq!(bytes(&ratios, RangeMode::Replay, true, true), 1.1e6);
        (0..1_000).for_each(|_| Ratios::learn(&mut ratios.delta, 90e3, 100e3));
        assert!((ratios.delta - 0.9).abs() < 0.01, "{ratios:?}");
        Ratios::learn(&mut ratios.delta, 5.0, 0.0);
        assert!(ratios.delta.is_finite());
    }
}
