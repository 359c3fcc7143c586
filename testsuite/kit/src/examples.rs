//! Runs a crate's examples, which cargo builds with the crate's tests.

use std::{env, process::Command};

/// Runs an example of the crate under test, and returns the last line of its output.
///
/// # Panics
/// If the example is not built, or fails.
pub fn run_example(name: &str) -> String {
    let test = env::current_exe().expect("a test program has a path");
    // Test programs are in `deps`, beside `examples`.
    let target = test.ancestors().nth(2).expect("cargo puts test programs two directories deep");
    let example = target.join("examples").join(name);
    assert!(
        example.is_file(),
        "{} is missing: `cargo test -p CRATE` makes it, and with a selection of targets `--examples` does",
        example.display()
    );
    let output = Command::new(&example).env_remove("RUST_LOG").output().expect("a built example starts");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "the example {name} ended with {}: {out}{err}", output.status);
    out.lines().last().unwrap_or_default().to_owned()
}
