//! [`Knobs`]: the settings of the library between a node and libc for its clock and flushes, changed while the node
//! runs.
//!
//! The library is the crate `slipstream-preload`; nodes without a fault of that kind do not load it.

use std::{
    collections::BTreeMap,
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};

use super::RunOptions;
use crate::scenario::{
    model::Scenario,
    names::{Names, NodeIndex},
};

#[path = "../../../preload/layout.rs"]
mod layout;

/// The library's file name from cargo.
const LIBRARY: &str = "libslipnet_preload.so";
/// The directory, beside its programs, in which cargo puts the library.
const EXAMPLES: &str = "examples";
/// The suffix of the file's name, after its node's.
const SUFFIX: &str = "knobs";

/// The settings file that one node's library reads.
pub(crate) struct Knobs {
    name: String,
    file: File,
}

/// Makes the files of all nodes that need one.
pub(super) fn lay(
    scenario: &Scenario,
    names: &Names,
    options: &RunOptions,
) -> Result<BTreeMap<NodeIndex, Knobs>> {
    let needed = names.all().filter(|place| is_needed(scenario, names, *place));
    needed.map(|place| Ok((place, Knobs::make(&options.dir, names.name(place))?))).collect()
}

/// Whether a fault that needs the library may affect this node.
pub(super) fn is_needed(scenario: &Scenario, names: &Names, place: NodeIndex) -> bool {
    let mut faults = scenario.faults.iter().filter(|fault| fault.what.needs_preload());
    faults.any(|fault| fault.what.may_meet(&scenario.topology, names, place))
}

/// Returns the environment variables for the loader and the library.
pub(crate) fn environment(dir: &Path, name: &str) -> Result<BTreeMap<String, String>> {
    let library = library()?;
    let file = path(dir, name);
    let text = |path: &Path| {
        let text = path.to_str().context("the directory's name is not valid UTF-8")?;
        ensure!(!text.contains([' ', ':']), "the loader accepts no path with a space or a colon: {text}");
        Ok(text.to_owned())
    };
    let variable = layout::VARIABLE.to_str().context("a constant")?.to_owned();
    Ok([("LD_PRELOAD".to_owned(), text(&library)?), (variable, text(&file)?)].into())
}

fn path(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.{SUFFIX}"))
}

/// Returns the path of the library, which cargo puts beside this program; a test program lies one directory deeper.
fn library() -> Result<PathBuf> {
    let this = std::env::current_exe().context("this program's path is unknown")?;
    let dirs = this.ancestors().skip(1).take(2);
    let mut places = dirs.flat_map(|dir| [dir.join(EXAMPLES).join(LIBRARY), dir.join(LIBRARY)]);
    places.find(|path| path.is_file()).with_context(|| {
        format!(
            "{LIBRARY}, which slow disks and wrong clocks need, is not beside {}: `./x build` makes it, and \
             `cargo build --package slipstream-preload --examples`",
            this.display()
        )
    })
}

impl Knobs {
    /// Makes the settings of a true clock and a fast disk.
    pub(crate) fn make(dir: &Path, name: &str) -> Result<Knobs> {
        let path = path(dir, name);
        let made = File::options().create(true).truncate(true).read(true).write(true).open(&path);
        let file = made.with_context(|| format!("cannot create {}", path.display()))?;
        file.write_all_at(&[0; layout::WORDS * layout::WORD_BYTES], 0)
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Knobs { name: name.to_owned(), file })
    }

    /// Delays each flush by `delay_ms` milliseconds from now on.
    ///
    /// # Errors
    /// If the node does not have the library, or the file cannot be written.
    pub(crate) fn slow_down(&self, delay_ms: u64) -> Result<()> {
        self.set(layout::FLUSH, delay_ms * 1_000)
    }

    /// Moves the wall clock ahead by `by_ms` milliseconds from now on, or back if negative.
    ///
    /// # Errors
    /// As [`Knobs::slow_down`].
    pub(crate) fn jump(&self, by_ms: i64) -> Result<()> {
        self.set(layout::CLOCK, by_ms.cast_unsigned())
    }

    fn set(&self, word: usize, value: u64) -> Result<()> {
        ensure!(
            self.is_loaded()?,
            "{} runs without {LIBRARY}: its program must be linked with libc dynamically, and its log says what the loader found",
            self.name
        );
        let written = self.file.write_all_at(&value.to_ne_bytes(), place(word));
        written.with_context(|| format!("the clock and the disk of {}", self.name))
    }

    /// Whether a process of the node has loaded the library: a process that has just started has not yet.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(crate) fn is_loaded(&self) -> Result<bool> {
        let mut loaded = [0; layout::WORD_BYTES];
        let read = self.file.read_exact_at(&mut loaded, place(layout::LOADED));
        read.with_context(|| format!("the clock and the disk of {}", self.name))?;
        Ok(u64::from_ne_bytes(loaded) == 1)
    }
}

/// Returns the offset of a word in the file.
fn place(word: usize) -> u64 {
    (word * layout::WORD_BYTES) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
name: a
description: b
duration: 30s
criteria: [equal_roots]
topology: { groups: [{ name: one }, { name: other }] }
faults:
- { at: 1s, what: { slow_disk: { who: { nodes: [one] }, delay: 1s } } }
- { at: 2s, what: { kill: { nodes: [other] } } }
";

    /// Goal: exactly the nodes that may be affected load the library, and nothing is set before a process has loaded
    /// it.
    #[test]
    fn those_that_may_be_met_get_the_library() {
        let needed = |text: &str| {
            let scenario =
                Scenario::parse(text, Path::new("a.yaml")).unwrap_or_else(|error| panic!("{error}"));
            let names = Names::of(&scenario);
            let all = names.all().filter(|place| is_needed(&scenario, &names, *place));
            all.map(|place| names.name(place).to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(needed(TEXT), ["one"]);
        let primary = "- { at: 3s, what: { clock_jump: { who: { nodes: [primary] }, back: 1m } } }\n";
        let validators = ["validator-0", "validator-1", "validator-2", "validator-3"];
        assert_eq!(needed(&format!("{TEXT}{primary}")), [&validators[..], &["one"]].concat());

        let dir = tempfile::tempdir().unwrap();
        let knobs = Knobs::make(dir.path(), "one").unwrap();
        assert!(!knobs.is_loaded().unwrap());
        assert!(knobs.jump(-1).unwrap_err().to_string().contains("one runs without"));
        knobs.file.write_all_at(&1_u64.to_ne_bytes(), place(layout::LOADED)).unwrap();
        assert!(knobs.is_loaded().unwrap());
        knobs.jump(-1).unwrap();
        knobs.slow_down(2).unwrap();
        let words = std::fs::read(path(dir.path(), "one")).unwrap();
        let words: Vec<u64> = words.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
        assert_eq!(words, [u64::MAX, 2_000, 1]);
    }
}
