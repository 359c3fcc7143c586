//! Memory of this process, as the kernel notes it.

use std::fs;

use anyhow::{Context, Result};

/// The memory of this process now.
pub(crate) fn resident_mib() -> Result<f64> {
    status_mib("VmRSS:")
}

/// The most that it has had.
pub(crate) fn peak_mib() -> Result<f64> {
    status_mib("VmHWM:")
}

fn status_mib(field: &str) -> Result<f64> {
    let status = fs::read_to_string("/proc/self/status").context("cannot read /proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let line = line.with_context(|| format!("/proc/self/status has no {field}"))?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib / 1024.0)
}
