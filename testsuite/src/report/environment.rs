//! [`Environment`]: the machine and program of a run.

use std::fs;

use serde::{Deserialize, Serialize};

use super::{built::commit, figures::cores};

/// The machine and the program of a run. Comparisons note different environments.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Environment {
    /// The commit from which the program was built, with the suffix `-dirty` if files differed; `unknown` if it cannot
    /// be determined.
    pub commit: String,
    /// The program's version.
    pub version: String,
    /// The number of threads that may run at once.
    pub cores: usize,
    /// The processor's name, from the kernel.
    pub processor: String,
    /// The machine's memory in MiB; 0 if unknown.
    pub memory_mib: u64,
    /// The kernel's release.
    pub kernel: String,
    /// Whether the harness was built with debug assertions, which make its figures slower.
    pub debug: bool,
}

impl Environment {
    /// Reads this machine's environment. Unknown values are left empty.
    pub fn detect() -> Environment {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        Environment {
            commit: commit(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            cores: cores(),
            processor: field(&read("/proc/cpuinfo"), "model name"),
            memory_mib: kib(&field(&read("/proc/meminfo"), "MemTotal")) / 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            debug: cfg!(debug_assertions),
        }
    }
}

/// Returns the first value of this name in lines `name : value`.
fn field(text: &str, name: &str) -> String {
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    let found = pairs.into_iter().find(|(key, _)| key.trim() == name);
    found.map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
}

/// Parses the number in `16384 kB`.
fn kib(text: &str) -> u64 {
    text.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_the_kernel_are_read() {
        let text = "processor\t: 0\nmodel name\t: A: fast one\nmodel name\t: B\n";
        assert_eq!(field(text, "model name"), "A: fast one");
        assert_eq!(kib(&field("MemTotal:       16384 kB\n", "MemTotal")), 16_384);
        assert_eq!(kib(&field("", "MemTotal")), 0);
    }
}
