//! Programs that are not part of the project: they are installed, or a test is left out.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use parking_lot::Mutex;

use super::succeed;

/// Tests run side by side and share programs below the target directory: one `./x tools` at a time.
static INSTALLING: Mutex<()> = Mutex::new(());

/// Whether a test that cannot run has failed.
fn is_required() -> bool {
    std::env::var("SLIPSTREAM_REQUIRE_CLIENTS").is_ok_and(|value| value == "1")
}

/// Says why a test, or a part of it, is left out; fails if nothing may be.
#[allow(clippy::print_stderr, reason = "tells whoever runs the tests that one was left out")]
pub(crate) fn skip(why: &str) {
    assert!(!is_required(), "{why}");
    eprintln!("SKIPPED: {why} (SLIPSTREAM_REQUIRE_CLIENTS=1 makes this an error)");
}

/// A part of the data that is too large for the repository, in `$SLIPSTREAM_DATA` or in `shared/data` beside the workspace. None if it is
/// missing, which the test says aloud; with `SLIPSTREAM_REQUIRE_DATA=1` that is a failure.
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

/// The target directory, in which programs are installed.
pub(crate) fn target() -> PathBuf {
    std::env::current_exe().unwrap().ancestors().nth(3).unwrap().to_owned()
}

/// Whether something is there that `./x tools` installs, which is done here if it is required. Otherwise the test is left out.
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
