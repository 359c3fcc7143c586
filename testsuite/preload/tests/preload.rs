//! The library preloaded into common programs: `date` shows another time, and `sync` takes longer.

#![allow(clippy::unwrap_used)] // a panic is how a test fails

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::{Duration, Instant},
};

#[path = "../layout.rs"]
mod layout;

/// The path where cargo puts it: tests are in `deps`, beside `examples`.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.ancestors().nth(2).unwrap().join("examples/libslipnet_preload.so");
    assert!(
        path.is_file(),
        "{} is missing: cargo build --package slipstream-preload --examples",
        path.display()
    );
    path
}

fn words(dir: &Path) -> PathBuf {
    let path = dir.join("words");
    fs::write(&path, [0; layout::WORDS * layout::WORD_BYTES]).unwrap();
    path
}

fn set(path: &Path, word: usize, value: u64) {
    let file = File::options().write(true).open(path).unwrap();
    file.write_all_at(&value.to_ne_bytes(), (word * layout::WORD_BYTES) as u64).unwrap();
}

fn get(path: &Path, word: usize) -> u64 {
    let mut bytes = [0; layout::WORD_BYTES];
    File::open(path).unwrap().read_exact_at(&mut bytes, (word * layout::WORD_BYTES) as u64).unwrap();
    u64::from_ne_bytes(bytes)
}

fn run(program: &str, arguments: &[&str], words: Option<&Path>) -> Output {
    let mut command = Command::new(program);
    command.args(arguments).env("LD_PRELOAD", library());
    if let Some(words) = words {
        command.env(layout::VARIABLE.to_str().unwrap(), words);
    }
    command.output().unwrap()
}

/// Returns the seconds since 1970, according to `date`.
fn date(words: Option<&Path>) -> i64 {
    let output = run("date", &["+%s"], words);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}

/// Goal: the wall clock jumps by the file's time, in both directions, and is true without the variable.
#[test]
fn the_clock_jumps_as_the_file_says() {
    let dir = tempfile::tempdir().unwrap();
    let words = words(dir.path());
    let true_time = date(None);
    // A minute of tolerance, for a busy machine and for a clock that is set meanwhile.
    let is_near = |time: i64, by: i64| (time - true_time - by).abs() < 60;
    assert!(is_near(date(Some(&words)), 0));
    assert_eq!(get(&words, layout::LOADED), 1, "the library says that it is there");
    for by_s in [3_600, -3_600, 90_000] {
        set(&words, layout::CLOCK, (by_s * 1_000_i64).cast_unsigned());
        assert!(is_near(date(Some(&words)), by_s), "{by_s}");
    }
    assert!(is_near(date(None), 0));
}

/// Goal: a flush takes at least as much longer as the file says, and the file is still flushed.
#[test]
fn flushes_take_longer() {
    const DELAY: Duration = Duration::from_millis(700);
    let dir = tempfile::tempdir().unwrap();
    let words = words(dir.path());
    let flushed = dir.path().join("flushed");
    fs::write(&flushed, "a").unwrap();
    set(&words, layout::FLUSH, DELAY.as_micros() as u64);
    for arguments in [vec![flushed.to_str().unwrap()], vec!["--data", flushed.to_str().unwrap()]] {
        let begin = Instant::now();
        let output = run("sync", &arguments, Some(&words));
        assert!(output.status.success() && begin.elapsed() >= DELAY, "{output:?} {:?}", begin.elapsed());
    }
    // A call that fails by itself still fails.
    let output = run("sync", &[dir.path().join("none").to_str().unwrap()], Some(&words));
    assert!(!output.status.success());
}

/// Goal: a program that requests the library without a valid file exits with the reason.
#[test]
fn a_file_that_is_not_there_or_too_short_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let short = dir.path().join("short");
    fs::write(&short, "short").unwrap();
    for file in [short, dir.path().join("none")] {
        let output = run("date", &[], Some(&file));
        assert_eq!(output.status.code(), Some(97));
        assert!(String::from_utf8_lossy(&output.stderr).contains("SLIPNET_PRELOAD"), "{output:?}");
    }
}
