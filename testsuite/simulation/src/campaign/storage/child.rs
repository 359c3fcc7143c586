//! Copies of a store, and the process that examines one.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

/// A process that takes longer counts as hung.
const DEADLINE: Duration = Duration::from_secs(120);

/// Returns another process' verdict on a store: the database library may crash on the damaged files.
pub(super) fn verdict(program: &Path, args: &[&str]) -> Result<String> {
    let mut child = Command::new(program)
        .arg("campaign-child")
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if start.elapsed() > DEADLINE {
            child.kill()?;
            child.wait()?;
            bail!("the process {args:?} did not end in time");
        }
        std::thread::park_timeout(Duration::from_millis(2));
    };
    let (mut text, mut errors) = (String::new(), String::new());
    child.stdout.take().context("piped")?.read_to_string(&mut text)?;
    child.stderr.take().context("piped")?.read_to_string(&mut errors)?;
    ensure!(status.success(), "{status}: {}", errors.trim());
    Ok(text)
}

/// Copies a directory's files; hard links to the same file stay hard links.
pub(super) fn copy_links(from: &Path, to: &Path) -> Result<()> {
    use std::{collections::BTreeMap, os::unix::fs::MetadataExt};
    fn copy(from: &Path, to: &Path, copied: &mut BTreeMap<u64, PathBuf>) -> Result<()> {
        fs::create_dir_all(to)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            let (meta, target) = (entry.metadata()?, to.join(entry.file_name()));
            match copied.get(&meta.ino()) {
                _ if meta.is_dir() => copy(&entry.path(), &target, copied)?,
                Some(first) => fs::hard_link(first, &target)?,
                None => {
                    fs::copy(entry.path(), &target)?;
                    copied.insert(meta.ino(), target);
                }
            }
        }
        Ok(())
    }
    copy(from, to, &mut BTreeMap::new())
}
