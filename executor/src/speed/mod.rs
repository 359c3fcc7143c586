//! Measures how fast this machine executes each kind of work. Gas bounds a batch, but a consensus view lasts only
//! seconds. In one second, a machine executes ten times as much gas of one kind of work as of another.
//!
//! [`measure`] runs [`programs`] in the EVM and keeps the slowest speed of each kind of work. The caller supplies the
//! clock.

mod programs;

use std::{collections::BTreeMap, time::Duration};

use alloy_primitives::Address;
use serde::{Deserialize, Serialize};
use slipstream_types::chain::Fork;

pub use programs::{Program, Runner, programs};

use crate::error::ExecuteError;

/// A kind of work with its own gas speed.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Debug,
    Serialize,
    Deserialize,
    schemars::JsonSchema,
    strum::VariantArray,
    strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Work {
    /// Opcodes that move words: stack, memory, jumps, calls.
    Plain,
    /// Opcodes that divide: DIV, MOD, MULMOD, EXP.
    Arithmetic,
    /// KECCAK256.
    Keccak,
    /// ECRECOVER.
    Ecrecover,
    /// SHA2-256.
    Sha256,
    /// RIPEMD-160.
    Ripemd160,
    /// MODEXP.
    Modexp,
    /// The curve BN254: addition, multiplication, pairing.
    Bn254,
    /// BLAKE2F.
    Blake2f,
    /// KZG point evaluation (EIP-4844).
    PointEvaluation,
    /// The curve BLS12-381 (EIP-2537).
    Bls12381,
    /// P256VERIFY (EIP-7951).
    P256,
}

impl Work {
    /// Every kind.
    pub const ALL: &'static [Work] = <Work as strum::VariantArray>::VARIANTS;

    /// The serialized name.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// The work of the precompile at an address; `None` where no fork has one. Copying (IDENTITY) is plain.
    pub fn of_precompile(address: &Address) -> Option<Work> {
        let (high, low) = address.split_at(18);
        if high.iter().any(|byte| *byte != 0) {
            return None;
        }
        Some(match (low[0], low[1]) {
            (0, 1) => Work::Ecrecover,
            (0, 2) => Work::Sha256,
            (0, 3) => Work::Ripemd160,
            (0, 4) => Work::Plain,
            (0, 5) => Work::Modexp,
            (0, 6..=8) => Work::Bn254,
            (0, 9) => Work::Blake2f,
            (0, 0x0a) => Work::PointEvaluation,
            (0, 0x0b..=0x11) => Work::Bls12381,
            (1, 0) => Work::P256,
            _ => return None,
        })
    }
}

/// Gas per second of each kind of work, on one otherwise idle core.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(transparent)]
pub struct Speeds(BTreeMap<Work, u64>);

impl Speeds {
    /// Gas per second of a kind, at least 1; `None` if the fork has no such work.
    pub fn of(&self, work: Work) -> Option<u64> {
        self.0.get(&work).copied()
    }

    /// Every measured kind.
    pub fn iter(&self) -> impl Iterator<Item = (Work, u64)> {
        self.0.iter().map(|(work, speed)| (*work, *speed))
    }

    /// The kind with the least gas per second, and its speed; `None` if nothing was measured.
    pub fn slowest(&self) -> Option<(Work, u64)> {
        self.iter().min_by_key(|(_, speed)| *speed)
    }

    /// Records a program's speed. The slowest program of a kind counts.
    fn learn(&mut self, work: Work, speed: u64) {
        let slowest = self.0.entry(work).or_insert(u64::MAX);
        *slowest = speed.max(1).min(*slowest);
    }
}

impl FromIterator<(Work, u64)> for Speeds {
    fn from_iter<T: IntoIterator<Item = (Work, u64)>>(all: T) -> Speeds {
        let mut speeds = Speeds::default();
        all.into_iter().for_each(|(work, speed)| speeds.learn(work, speed));
        speeds
    }
}

/// Minimum duration of a measured run. Shorter runs are mostly set-up. With longer runs, some thirty programs would
/// keep a core busy for a second.
const RUN: Duration = Duration::from_millis(4);
/// Number of measured runs per program. The fastest counts, because the others may have shared the core.
const RUNS: usize = 3;
/// Gas of the first run: enough for one call of each precompile.
const GAS_MIN: u64 = 250_000;
/// Maximum gas of a run, so that the measurement ends even if the clock stands still.
const GAS_MAX: u64 = 32_000_000;

/// Measures this machine under a fork's prices: about a third of a second, on the calling thread. `now` returns the
/// time since a fixed point. Calls `goes_on` before each program, and returns `None` if that returns false.
///
/// # Errors
/// If a program cannot be run at all, which is a bug.
pub fn measure(
    fork: Fork,
    now: impl Fn() -> Duration,
    goes_on: impl Fn() -> bool,
) -> Result<Option<Speeds>, ExecuteError> {
    let mut speeds = Speeds::default();
    for program in &programs(fork) {
        if !goes_on() {
            return Ok(None);
        }
        speeds.learn(program.work, program.speed(fork, &now)?);
    }
    Ok(Some(speeds))
}

impl Program {
    /// Gas per second of this program.
    fn speed(&self, fork: Fork, now: &impl Fn() -> Duration) -> Result<u64, ExecuteError> {
        let runner = Runner::new(self, fork);
        let mut gas = GAS_MIN;
        let run = |gas| -> Result<(u128, u64), ExecuteError> {
            let begun = now();
            let used = runner.run(gas)?;
            let nanos = now().saturating_sub(begun).as_nanos().max(1);
            Ok((nanos, (u128::from(used) * 1_000_000_000 / nanos) as u64))
        };
        let mut fastest = loop {
            let (nanos, speed) = run(gas)?;
            if nanos >= RUN.as_nanos() || gas >= GAS_MAX {
                break speed;
            }
            gas *= 2;
        };
        for _ in 1..RUNS {
            fastest = fastest.max(run(gas)?.1);
        }
        Ok(fastest)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn names_are_those_on_the_wire() {
        for &work in Work::ALL {
            assert_eq!(serde_json::to_value(work).unwrap(), work.name());
        }
    }

    /// Goal: each kind of work that a fork has is measured, by its slowest program. A clock that stands still ends the
    /// measurement.
    #[test]
    fn every_kind_is_measured() {
        let all = |speeds: Speeds| speeds.iter().map(|(work, _)| work).collect::<Vec<_>>();
        // The clock advances by a run's duration at each reading.
        let ticks = Cell::new(0);
        let clock = || {
            ticks.set(ticks.get() + 1);
            RUN * ticks.get()
        };
        let measure = |fork| super::measure(fork, clock, || true).unwrap().unwrap();
        let osaka = measure(Fork::Osaka);
        assert!(osaka.iter().all(|(_, speed)| speed == GAS_MIN * 250), "{osaka:?}");
        assert_eq!(all(osaka), Work::ALL);
        let before = |work: &Work| *work != Work::P256;
        assert_eq!(all(measure(Fork::Prague)), Work::ALL.iter().copied().filter(before).collect::<Vec<_>>());
        assert_eq!(super::measure(Fork::Osaka, clock, || false).unwrap(), None);
        let plain = Program::named(Fork::Osaka, "stack");
        assert!(plain.speed(Fork::Osaka, &|| Duration::ZERO).is_ok());
        let slow: Speeds = [(Work::Plain, 7), (Work::Keccak, 3), (Work::Plain, 5)].into_iter().collect();
        assert_eq!((slow.of(Work::Plain), slow.slowest()), (Some(5), Some((Work::Keccak, 3))));
    }

    #[test]
    fn precompiles_have_kinds() {
        for fork in [Fork::Cancun, Fork::Prague, Fork::Osaka] {
            for (name, address) in crate::precompiles(fork) {
                assert!(Work::of_precompile(&address).is_some(), "{name} at {address}");
            }
        }
        for other in
            ["0x0000000000000000000000000000000000000012", "0x0100000000000000000000000000000000000001"]
        {
            assert_eq!(Work::of_precompile(&other.parse().unwrap()), None);
        }
    }
}
