//! The last failure and the last panic of a node, in its data directory. They help an investigation after the node has
//! ended, when the log may be gone too.

use std::{
    fs,
    path::Path,
    time::{Duration, UNIX_EPOCH},
};

use slipstream_types::Clock as _;

use crate::{client_version, clock::SystemClock};

/// Why the node last stopped by itself.
pub const FAILURE_FILE: &str = "last_failure.txt";
/// The last panic, with its backtrace if there was one.
pub const PANIC_FILE: &str = "last_panic.txt";
/// Maximum bytes of a note.
const NOTE_BYTES_MAX: usize = 64 << 10;

/// Writes a note, if the data directory exists. A failure to write it is ignored.
pub fn note(data_dir: &Path, file: &str, text: &str) {
    if !data_dir.is_dir() {
        return;
    }
    let time = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_millis(SystemClock.now_ms()));
    let text = &text[..text.floor_char_boundary(NOTE_BYTES_MAX)];
    let _ = fs::write(data_dir.join(file), format!("{time} {}\n{text}\n", client_version()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_bounded_and_makes_no_directory() {
        let dir = tempfile::tempdir().unwrap();
        note(dir.path(), PANIC_FILE, &"ö".repeat(NOTE_BYTES_MAX));
        let written = fs::read_to_string(dir.path().join(PANIC_FILE)).unwrap();
        assert!(written.contains("slipstream") && written.len() < NOTE_BYTES_MAX + 128, "{}", written.len());
        note(&dir.path().join("none"), FAILURE_FILE, "x");
        assert!(!dir.path().join("none").exists());
    }
}
