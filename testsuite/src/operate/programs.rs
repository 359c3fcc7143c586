//! [`Programs`]: the programs that a node may run in this container: `slipstream`, and `slipstream-NAME` beside it for
//! each other name in a scenario.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};

use super::{OperateOptions, Order, What};
use crate::scenario::CURRENT;

/// The longest name of a program, as in scenarios.
const NAME_BYTES_MAX: usize = 48;

/// The programs that a node may run in this container.
pub(super) struct Programs {
    current: PathBuf,
    /// The name of the program that runs before any upgrade.
    first: Option<String>,
}

impl Programs {
    /// Makes the programs from the node's options; `current` is the default.
    ///
    /// # Errors
    /// If a named program is missing.
    pub(super) fn of(options: &OperateOptions, current: PathBuf) -> Result<Programs> {
        let programs = Programs { current, first: options.program.clone() };
        let ordered = options.orders.iter().filter_map(|order| match &order.what {
            What::Upgrade(name) => Some(name),
            _ => None,
        });
        for name in ordered.chain(&programs.first) {
            let path = programs.path(name)?;
            ensure!(
                path.is_file(),
                "the program {name} is not here as {}: put it into the image, as the Containerfile.programs does that stands beside the files",
                path.display()
            );
        }
        Ok(programs)
    }

    /// Returns the program that runs at a moment, by these orders.
    ///
    /// # Errors
    /// If its name is invalid.
    pub(super) fn at<'a>(
        &self,
        orders: impl Iterator<Item = &'a Order>,
        moment: Option<Duration>,
    ) -> Result<PathBuf> {
        match upgraded(orders, moment).or(self.first.as_deref()) {
            Some(name) => self.path(name),
            None => Ok(self.current.clone()),
        }
    }

    fn path(&self, name: &str) -> Result<PathBuf> {
        check(name)?;
        if name == CURRENT {
            return Ok(self.current.clone());
        }
        let file = self.current.file_name().map(Path::new).context("the program has no name")?;
        Ok(self.current.with_file_name(format!("{}-{name}", file.display())))
    }
}

/// Returns the name of the node's last upgrade; `None` if there was none.
fn upgraded<'a>(orders: impl Iterator<Item = &'a Order>, moment: Option<Duration>) -> Option<&'a str> {
    let upgrades = orders.filter(|order| order.has_begun(moment)).filter_map(|order| match &order.what {
        What::Upgrade(name) => Some((order.from, name.as_str())),
        _ => None,
    });
    upgrades.max_by_key(|(from, _)| *from).map(|(_, name)| name)
}

/// Checks the name of a program, which becomes part of a file's name.
///
/// # Errors
/// If it is invalid.
pub(super) fn check(name: &str) -> Result<()> {
    let is_word = |word: &str| {
        !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    ensure!(
        name.len() <= NAME_BYTES_MAX && name.split('-').all(is_word),
        "{name} is no name of a program: these are lower-case words and digits joined by `-`, at most {NAME_BYTES_MAX} bytes"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::{Args as _, Command, FromArgMatches as _};

    use super::*;

    fn options(arguments: &[&str]) -> OperateOptions {
        let command = OperateOptions::augment_args(Command::new("operate").no_binary_name(true));
        let all = ["--config", "node.yaml"].into_iter().chain(arguments.iter().copied());
        OperateOptions::from_arg_matches(&command.try_get_matches_from(all).unwrap()).unwrap()
    }

    /// Goal: the last order that has begun determines the program; later ones do not count.
    #[test]
    fn the_program_is_that_of_the_last_order() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        ["slipstream", "slipstream-before", "slipstream-next"].iter().for_each(|name| {
            fs::write(at(name), "").unwrap();
        });
        let options = options(&[
            "--program",
            "before",
            "--do",
            "20s..,upgrade=next",
            "--do",
            "10s..,upgrade=current",
            "--do",
            "30s..,kill",
        ]);
        let programs = Programs::of(&options, at("slipstream")).unwrap();
        let moments = [None, Some(9), Some(10), Some(19), Some(20), Some(99)];
        let found = moments
            .map(|moment| programs.at(options.orders.iter(), moment.map(Duration::from_secs)).unwrap());
        let named = ["slipstream-before", "slipstream-before", "slipstream", "slipstream"];
        let expected = named.into_iter().chain(["slipstream-next"; 2]).map(at);
        assert_eq!(found.to_vec(), expected.collect::<Vec<_>>());
    }

    /// Goal: if the image lacks a program that a scenario needs, the error names it before the node starts.
    #[test]
    fn a_program_that_is_missing_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let current = dir.path().join("slipstream");
        fs::write(&current, "").unwrap();
        Programs::of(&options(&["--program", "current"]), current.clone()).unwrap();
        for arguments in [["--program", "before"], ["--do", "1s..,upgrade=before"]] {
            let error = Programs::of(&options(&arguments), current.clone()).err().unwrap().to_string();
            assert!(error.contains("slipstream-before: put it into the image"), "{error}");
        }
        let error = Programs::of(&options(&["--program", "../sh"]), current).err().unwrap().to_string();
        assert!(error.contains("../sh is no name of a program"), "{error}");
    }
}
