//! Programs that are not part of the project: they are installed, or a test is skipped.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use parking_lot::Mutex;

use super::succeed;

/// Tests run in parallel and share programs in the target directory: only one `./x tools` runs at a time.
static INSTALLING: Mutex<()> = Mutex::new(());

/// Whether a test that cannot run counts as failed.
fn is_required() -> bool {
    std::env::var("SLIPSTREAM_REQUIRE_CLIENTS").is_ok_and(|value| value == "1")
}

/// Prints why a test, or a part of it, is skipped; fails if skipping is not allowed.
#[allow(clippy::print_stderr, reason = "tells whoever runs the tests that one was left out")]
pub(crate) fn skip(why: &str) {
    assert!(!is_required(), "{why}");
    eprintln!("SKIPPED: {why} (SLIPSTREAM_REQUIRE_CLIENTS=1 makes this an error)");
}

/// Returns a part of the data that is too large for the repository, from `$SLIPSTREAM_DATA` or `shared/data` beside the
/// workspace. `None` if it is missing, which the test prints; with `SLIPSTREAM_REQUIRE_DATA=1` that is a failure.
#[allow(clippy::print_stderr, reason = "tells whoever runs the tests that one was left out")]
pub(crate) fn data(part: &str) -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data");
    let data = std::env::var_os("SLIPSTREAM_DATA").map_or_else(beside, PathBuf::from);
    let path = data.join(part);
    if path.exists() {
        return Some(path);
    }
    let is_required = std::env::var("SLIPSTREAM_REQUIRE_DATA").is_ok_and(|value| value == "1");
    assert!(!is_required, "no {part} in {}: set SLIPSTREAM_DATA", data.display());
    eprintln!("SKIPPED: no {part} in {}; set SLIPSTREAM_DATA to run this test", data.display());
    None
}

/// Returns the target directory, in which programs are installed.
pub(crate) fn target() -> PathBuf {
    std::env::current_exe().unwrap().ancestors().nth(3).unwrap().to_owned()
}

/// Whether a program of `./x tools` is installed; installs it if it is required. Otherwise the test is skipped.
pub(crate) fn is_installed(what: &str, is_there: impl Fn() -> bool) -> bool {
    let _one = INSTALLING.lock();
    if is_there() {
        return true;
    }
    if !is_required() {
        skip(&format!("{what} is not there; `./x tools` installs it"));
        return false;
    }
    let x = Path::new(env!("CARGO_MANIFEST_DIR")).join("../x");
    succeed(&Command::new(x).arg("tools").env("CARGO_TARGET_DIR", target()).output().unwrap());
    assert!(is_there(), "{what} is not there after `./x tools`");
    true
}
