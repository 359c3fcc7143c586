//! [`Stages`]: how busy and how fast each stage is, and what its work costs.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    plan::{MeasuredCosts, Stage, price::Costs},
    status::StageStatus,
};

/// Half-life of a measurement.
const HALF_LIFE: Duration = Duration::from_secs(2);
/// If nothing came for this long, rates are 0.
pub(super) const IDLE_AFTER: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, Default)]
struct Meter {
    busy: f64,
    bytes: f64,
    busy_total: f64,
    bytes_total: u64,
}

/// The measurements of all stages.
#[derive(Debug)]
pub(super) struct Stages {
    meters: [Meter; Stage::ALL.len()],
    /// Time that the decayed sums cover.
    window: f64,
    at: Instant,
    pub(super) measured: MeasuredCosts,
}

impl Stages {
    pub(super) fn new(costs: Costs, now: Instant) -> Stages {
        Stages { meters: Default::default(), window: 0.0, at: now, measured: MeasuredCosts::new(costs) }
    }

    /// The costs of work on this machine.
    pub(super) fn costs(&self) -> &Costs {
        &self.measured.costs
    }

    /// Records work of a stage.
    pub(super) fn worked(&mut self, stage: Stage, now: Instant, took: Duration, bytes: u64) {
        self.decay(now);
        let meter = &mut self.meters[stage as usize];
        meter.busy += took.as_secs_f64();
        meter.bytes += bytes as f64;
        meter.busy_total += took.as_secs_f64();
        meter.bytes_total += bytes;
    }

    /// The stages' status for operators.
    pub(super) fn status(&self, now: Instant, queues: impl Fn(Stage) -> u64) -> Vec<StageStatus> {
        let idle = now.saturating_duration_since(self.at);
        // An idle stage shows zero to operators, not a fading remainder.
        let fade = if idle < IDLE_AFTER { 0.5f64.powf(idle.div_duration_f64(HALF_LIFE)) } else { 0.0 };
        let window = (self.window * fade + idle.as_secs_f64()).max(1e-3);
        let status = |stage: Stage| {
            let meter = &self.meters[stage as usize];
            StageStatus {
                stage,
                busy_percent: meter.busy * fade / window * 100.0,
                queue_bytes: queues(stage),
                bytes_per_second: meter.bytes * fade / window,
                busy_seconds: meter.busy_total,
                bytes: meter.bytes_total,
            }
        };
        Stage::ALL.iter().copied().map(status).collect()
    }

    fn decay(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        let fade = 0.5f64.powf(passed / HALF_LIFE.as_secs_f64());
        for meter in &mut self.meters {
            meter.busy *= fade;
            meter.bytes *= fade;
        }
        self.window = self.window * fade + passed;
        self.at = self.at.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_shares_follow_the_last_seconds() {
        let start = Instant::now();
        let mut stages = Stages::new(Costs::presumed(2.0), start);
        for second in 1..=20 {
            let now = start + Duration::from_secs(second);
            stages.worked(Stage::Execute, now, Duration::from_millis(500), 1_000);
        }
        let now = start + Duration::from_secs(20);
        let execute = stages.status(now, |_| 7).remove(Stage::Execute as usize);
        assert!((40.0..75.0).contains(&execute.busy_percent), "{execute:?}");
        assert!((800.0..1_500.0).contains(&execute.bytes_per_second), "{execute:?}");
        assert_eq!((execute.queue_bytes, execute.bytes), (7, 20_000));
        let later = stages.status(now + Duration::from_secs(20), |_| 0).remove(Stage::Execute as usize);
        assert_eq!(
            (later.busy_percent, later.bytes_per_second, later.bytes),
            (0.0, 0.0, 20_000),
            "{later:?}"
        );
    }
}
