//! Finds data that is too large for the repository.

use std::path::{Path, PathBuf};

/// A file in `$SLIPSTREAM_DATA`, or in `shared/data` beside the workspace. Returns `None` if it is missing, and prints
/// that; with `SLIPSTREAM_REQUIRE_DATA=1` a missing file is a failure.
#[allow(clippy::print_stderr, reason = "tells whoever runs the tests that one was left out")]
pub(crate) fn find(file: &str) -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data");
    let data = std::env::var_os("SLIPSTREAM_DATA").map_or_else(beside, PathBuf::from);
    let path = data.join(file);
    if path.exists() {
        return Some(path);
    }
    let required = std::env::var("SLIPSTREAM_REQUIRE_DATA").is_ok_and(|value| value == "1");
    assert!(!required, "no {file} in {}: set SLIPSTREAM_DATA", data.display());
    eprintln!("SKIPPED: no {file} in {}; set SLIPSTREAM_DATA to run this test", data.display());
    None
}
