//! CPU time, of processes and of threads.

use std::fs;

use anyhow::{Context, Result};
use rustix::{
    param::clock_ticks_per_second,
    time::{ClockId, clock_gettime},
};

/// Returns the CPU seconds that a process has used so far, user and system, in steps of the kernel's clock tick (10
/// ms).
///
/// # Errors
/// If no such process exists.
pub fn of_process(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let ticks = ticks(&text).with_context(|| format!("{path} has an unknown format"))?;
    Ok(ticks as f64 / clock_ticks_per_second() as f64)
}

/// Returns the CPU seconds of this process.
pub fn of_this_process() -> f64 {
    seconds(ClockId::ProcessCPUTime)
}

/// Returns the CPU seconds of the calling thread.
pub fn of_this_thread() -> f64 {
    seconds(ClockId::ThreadCPUTime)
}

fn seconds(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Returns the sum of fields 14 and 15. They are counted from after the program's name, which may contain spaces and
/// brackets.
fn ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_system_time_are_found_behind_any_name() {
        let stat = "17 (a (b) c) S 1 17 17 0 -1 4194560 999 0 0 0 250 75 9 9 20 0 5 0 100 0 0";
        assert_eq!(ticks(stat), Some(325));
        assert_eq!(ticks("17 no brackets"), None);
        assert!(of_process(std::process::id()).unwrap() <= of_this_process() + 0.02);
    }
}
