//! The chain's schedule of forks as a JSON file.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use serde::Deserialize;
use slipstream_types::{Schedule, schedule::Forks};

/// The longest allowed file in bytes. Thirty-two forks take a fifth of it.
const SCHEDULE_FILE_BYTES_MAX: u64 = 64 << 10;

/// Why a schedule file was refused.
#[derive(Debug, thiserror::Error)]
pub enum ScheduleFileError {
    /// The file is missing, or it cannot be read.
    #[error("cannot read the schedule {}: {source}; get it from the chain's operators; `schedule` in the configuration names it", path.display())]
    Read {
        /// The file that cannot be read.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The file is longer than any schedule.
    #[error("the schedule {} is longer than {max} bytes", path.display())]
    TooLong {
        /// The file that is too long.
        path: PathBuf,
        /// The longest allowed schedule, in bytes.
        max: u64,
    },
    /// The file is not a schedule in JSON.
    #[error("{}:{}:{}: not a schedule: {source}", path.display(), source.line(), source.column())]
    Json {
        /// The file with the error.
        path: PathBuf,
        /// The parser's error, with its place.
        source: serde_json::Error,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScheduleFile {
    forks: Forks,
}

/// Reads a schedule. Whether it fits the chain is checked once the chain is known.
pub fn load(path: &Path) -> Result<Schedule, ScheduleFileError> {
    let read = |source| ScheduleFileError::Read { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(read)?;
    file.take(SCHEDULE_FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(read)?;
    if bytes.len() as u64 > SCHEDULE_FILE_BYTES_MAX {
        return Err(ScheduleFileError::TooLong { path: path.to_owned(), max: SCHEDULE_FILE_BYTES_MAX });
    }
    let file: ScheduleFile = serde_json::from_slice(&bytes)
        .map_err(|source| ScheduleFileError::Json { path: path.to_owned(), source })?;
    Ok(Schedule::new(file.forks))
}

#[cfg(test)]
mod tests {
    use slipstream_types::{BatchNumber, ScheduledFork, chain::Fork, schedule::Activation};

    use super::*;

    /// Goal: the schedule of docs/configuration.md is accepted, and a misspelt one is refused by place and name.
    #[test]
    fn read_and_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("schedule.json");
        assert!(load(&path).unwrap_err().to_string().contains("`schedule` in the configuration"));
        let text = r#"{"forks": [
            {"name": "osaka", "at": {"batch": 120000}, "fork": "osaka"},
            {"name": "room", "at": {"time_ms": 1800000000000}, "gas_limit": 600000000}
        ]}"#;
        std::fs::write(&path, text).unwrap();
        let schedule = load(&path).unwrap();
        let osaka = ScheduledFork::evm("osaka", Activation::Batch(BatchNumber::new(120_000)), Fork::Osaka);
        assert_eq!(schedule.forks()[0].0, osaka);
        let room = &schedule.forks()[1].0;
        assert_eq!((room.at, room.gas_limit), (Activation::TimeMs(1_800_000_000_000), Some(600_000_000)));

        std::fs::write(&path, text.replace("gas_limit", "gas_max")).unwrap();
        let refused = load(&path).unwrap_err().to_string();
        assert!(
            refused.contains("schedule.json:3:") && refused.contains("unknown field `gas_max`"),
            "{refused}"
        );
        std::fs::write(&path, [b' '; 70_000]).unwrap();
        assert!(matches!(load(&path), Err(ScheduleFileError::TooLong { .. })));
    }
}
