//! The gauge: a few milliseconds of work that show how fast this machine is, before it has followed anything.

use std::time::Duration;

use slipstream_types::{Digest, SecretKey};

use crate::plan::price::Costs;

/// How long each kind of work is repeated.
const RUN: Duration = Duration::from_millis(2);
/// Maximum number of repetitions, so that a clock that stands still ends the measurement.
const REPEATS_MAX: u32 = 4_096;
/// Seconds that checking a signature takes on the machine of [`Costs::presumed`].
const SIGNATURE_SECONDS: f64 = 50e-6;
/// Seconds that hashing 64 KiB takes there.
const HASH_SECONDS: f64 = 50e-6;
/// No machine counts as more than this many times faster or slower than that one.
const SCALE_MAX: f64 = 50.0;

/// Estimates the costs on this machine with `cores` cores from how fast it checks signatures and hashes. `now` returns
/// the time since an arbitrary point.
pub(crate) fn measure(cores: f64, now: impl Fn() -> Duration) -> Costs {
    let key = SecretKey::from_seed([7; 32]);
    let (public, signature) = (key.public(), key.sign(b"gauge"));
    let arithmetic = seconds(&now, || public.verify(b"gauge", &signature));
    let content = vec![7; 64 << 10];
    let hashing = seconds(&now, || Digest::tagged("slipstream/gauge/1", &content) != Digest::ZERO);
    let scale = |seconds: f64, there: f64| (seconds / there).clamp(1.0 / SCALE_MAX, SCALE_MAX);
    Costs::presumed(cores).scaled(scale(arithmetic, SIGNATURE_SECONDS), scale(hashing, HASH_SECONDS))
}

/// Seconds of the fastest repetition: the others shared the core with other work.
fn seconds(now: &impl Fn() -> Duration, work: impl Fn() -> bool) -> f64 {
    let begun = now();
    let (mut before, mut fastest) = (begun, Duration::MAX);
    for _ in 0..REPEATS_MAX {
        std::hint::black_box(work());
        let after = now();
        fastest = fastest.min(after.saturating_sub(before));
        if after.saturating_sub(begun) >= RUN {
            break;
        }
        before = after;
    }
    fastest.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Goal: a machine that takes ten times as long has ten times the costs, and a stopped clock ends the measurement.
    #[test]
    fn costs_are_as_this_machine_is_fast() {
        let by = |step: Duration| {
            let ticks = Cell::new(0);
            measure(2.0, || {
                ticks.set(ticks.get() + 1);
                step * ticks.get()
            })
        };
        let (fast, slow) = (by(Duration::from_micros(50)), by(Duration::from_micros(500)));
        assert!((9.9..10.1).contains(&(slow.prepare / fast.prepare)), "{fast:?} {slow:?}");
        assert!((9.9..10.1).contains(&(slow.commit / fast.commit)), "{fast:?} {slow:?}");
        assert!(by(Duration::ZERO).check > 0.0);
    }
}
