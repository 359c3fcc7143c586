//! Memory use of processes, as recorded by the kernel.

use std::fs;

use anyhow::{Context, Result};

/// Returns the resident memory of a process, in MiB.
///
/// # Errors
/// If no such process exists, or it has ended.
pub fn resident_mib(pid: u32) -> Result<f64> {
    status_mib(pid, "VmRSS:")
}

/// Returns the peak of a process's resident memory, in MiB.
///
/// # Errors
/// As [`resident_mib`].
pub fn peak_mib(pid: u32) -> Result<f64> {
    status_mib(pid, "VmHWM:")
}

fn status_mib(pid: u32, field: &str) -> Result<f64> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let line = line.with_context(|| format!("{path} has no {field}"))?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory() {
        let me = std::process::id();
        let (resident, peak) = (resident_mib(me).unwrap(), peak_mib(me).unwrap());
        assert!(resident > 0.0 && resident <= peak + 1.0, "{resident} {peak}");
        assert!(resident_mib(u32::MAX).unwrap_err().to_string().contains("/proc/4294967295/status"));
    }
}
