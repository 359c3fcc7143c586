//! [`Registry`]: the directory in which commands find this user's devnets.

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};

use crate::{file_lock::FileLock, plan::Plan};

/// The longest name: it is part of a socket's path, which is limited to 107 characters.
const NAME_CHARS_MAX: usize = 32;
/// The longest path of a Unix socket, without the terminating zero.
const SOCKET_PATH_MAX: usize = 107;
/// How long a keeper waits for its lock: a command may hold the lock briefly, to check whether a keeper does.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(20);

/// The registry of this user's devnets: `$SLIPNET_HOME`, or `slipnet` in `$XDG_STATE_HOME` or `~/.local/state`.
#[derive(Clone, Debug)]
pub struct Registry {
    dir: PathBuf,
}

/// A devnet's name and directory in the registry.
#[derive(Clone, Debug)]
pub struct Entry {
    name: String,
    dir: PathBuf,
}

impl Registry {
    /// Returns this user's registry.
    ///
    /// # Errors
    /// If no environment variable gives the directory.
    pub fn of_user() -> Result<Registry> {
        let of =
            |variable: &str| std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
        let dir = of("SLIPNET_HOME")
            .or_else(|| Some(of("XDG_STATE_HOME")?.join("slipnet")))
            .or_else(|| Some(of("HOME")?.join(".local/state/slipnet")))
            .context(
                "cannot find the directory where devnets are registered: set SLIPNET_HOME to a directory",
            )?;
        Ok(Registry {
            dir: std::path::absolute(&dir).with_context(|| format!("{} is not a path", dir.display()))?,
        })
    }

    /// Returns the registry in a directory.
    pub fn at(dir: &Path) -> Registry {
        Registry { dir: dir.to_owned() }
    }

    /// Returns the entry of a devnet, whether the devnet exists or not.
    ///
    /// # Errors
    /// If the name is invalid, or the socket's path would be too long.
    pub fn entry(&self, name: &str) -> Result<Entry> {
        let is_name = (1..=NAME_CHARS_MAX).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
            && !name.starts_with('-');
        ensure!(
            is_name,
            "`{name}` is not a name for a devnet: use 1 to {NAME_CHARS_MAX} of a to z, 0 to 9 and -, but not - first"
        );
        let entry = Entry { name: name.to_owned(), dir: self.dir.join(name) };
        let length = entry.socket().as_os_str().len();
        ensure!(
            length <= SOCKET_PATH_MAX,
            "the path {} has {length} bytes, and a socket's path has at most {SOCKET_PATH_MAX}: set SLIPNET_HOME to a shorter directory",
            entry.socket().display()
        );
        Ok(entry)
    }

    /// Returns all devnets that have files, by name.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn entries(&self) -> Result<Vec<Entry>> {
        let files = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            files => files.with_context(|| format!("cannot read the registry {}", self.dir.display()))?,
        };
        let names = files.flatten().filter_map(|file| file.file_name().into_string().ok());
        let mut entries: Vec<_> =
            names.filter_map(|name| self.entry(&name).ok()).filter(Entry::exists).collect();
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    /// Returns the devnet with this name, or the only one if no name is given.
    ///
    /// # Errors
    /// If there is none, or if there are several and no name is given.
    pub fn find(&self, name: Option<&str>) -> Result<Entry> {
        let entries = self.entries()?;
        let names = || entries.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>().join(", ");
        match name {
            Some(name) => match entries.iter().find(|entry| entry.name == name) {
                Some(entry) => Ok(entry.clone()),
                None if entries.is_empty() => {
                    bail!("there is no devnet `{name}`: `slipnet up -d {name}` starts one")
                }
                None => bail!("there is no devnet `{name}`; there are: {}", names()),
            },
            None => match &entries[..] {
                [] => bail!("there is no devnet: `slipnet up -d` starts one"),
                [only] => Ok(only.clone()),
                _ => bail!("say which devnet with --devnet NAME; there are: {}", names()),
            },
        }
    }
}

impl Entry {
    /// The devnet's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The directory of its keeper's files, and of the devnet's own unless it has another directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The directory of the devnet's files, if no other was given.
    pub fn net(&self) -> PathBuf {
        self.dir.join("net")
    }

    /// The keeper's log, which says how nodes ended.
    pub fn log(&self) -> PathBuf {
        self.dir.join("keeper.log")
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.dir.join("control")
    }

    fn plan_file(&self) -> PathBuf {
        self.dir.join("plan.json")
    }

    fn exists(&self) -> bool {
        self.plan_file().is_file()
    }

    /// Creates the entry, readable by this user alone: the control socket does not authenticate.
    ///
    /// # Errors
    /// If the directory cannot be made.
    pub fn make(&self) -> Result<()> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.dir);
        made.with_context(|| format!("cannot create the directory {}", self.dir.display()))
    }

    /// Reads the devnet's plan.
    ///
    /// # Errors
    /// If the file is missing, or of another version of slipnet.
    pub fn plan(&self) -> Result<Plan> {
        let path = self.plan_file();
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| {
            format!(
                "{} is not a plan that this slipnet can read; `slipnet clean` removes the devnet",
                path.display()
            )
        })
    }

    /// Writes the devnet's plan.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_plan(&self, plan: &Plan) -> Result<()> {
        let path = self.plan_file();
        let text = serde_json::to_string_pretty(plan)? + "\n";
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Whether its keeper runs.
    ///
    /// # Errors
    /// If the lock cannot be opened.
    pub fn is_running(&self) -> Result<bool> {
        Ok(self.dir.is_dir() && self.try_lock(FileLock::shared)?.is_none())
    }

    /// Takes the lock, which the keeper holds while it runs, and `clean` while it works. `None` if the devnet runs.
    ///
    /// # Errors
    /// If the lock cannot be opened.
    pub async fn lock(&self) -> Result<Option<FileLock>> {
        let deadline = tokio::time::Instant::now() + LOCK_PATIENCE;
        loop {
            let lock = self.try_lock(FileLock::exclusive)?;
            if lock.is_some() || tokio::time::Instant::now() >= deadline {
                return Ok(lock);
            }
            tokio::time::sleep(POLL).await;
        }
    }

    fn try_lock(&self, how: impl Fn(File) -> io::Result<Option<FileLock>>) -> Result<Option<FileLock>> {
        let path = self.dir.join("lock");
        let file = File::options().create(true).truncate(false).write(true).mode(0o600).open(&path);
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        how(file).with_context(|| format!("cannot lock {}", path.display()))
    }

    /// Removes the keeper's files, and the devnet's unless it has another directory.
    ///
    /// # Errors
    /// If they cannot be removed.
    pub fn remove(&self, _lock: FileLock) -> Result<()> {
        fs::remove_dir_all(&self.dir).with_context(|| format!("cannot remove {}", self.dir.display()))
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;
    use crate::{devnet::DevnetOptions, relay::Limits};

    fn plan() -> Plan {
        let limits = Limits { loss: 0.005, kib_per_second: NonZeroU64::new(4_096) };
        Plan { devnet: DevnetOptions::default(), regions: Vec::new(), limits }
    }

    /// Goal: devnets are found by name, or without a name if there is only one.
    #[test]
    fn devnets_are_found_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::at(dir.path());
        let said = |name| registry.find(name).unwrap_err().to_string();
        assert!(said(None).contains("`slipnet up -d` starts one"));
        for name in ["b", "a"] {
            let entry = registry.entry(name).unwrap();
            entry.make().unwrap();
            entry.write_plan(&plan()).unwrap();
            assert_eq!(registry.find(Some(name)).unwrap().name(), name);
            let again = entry.plan().unwrap();
            assert_eq!((again.devnet.validators, again.limits), (4, plan().limits));
        }
        assert!(said(None).ends_with("there are: a, b"));
        assert!(said(Some("c")).ends_with("there are: a, b"));
        assert!(registry.entry("../a").unwrap_err().to_string().contains("`../a` is not a name"));
        let long = dir.path().join("a".repeat(100));
        assert!(Registry::at(&long).entry("a").unwrap_err().to_string().contains("shorter directory"));
    }

    /// Goal: a devnet counts as running exactly while its lock is held.
    #[tokio::test]
    async fn the_lock_says_who_runs() {
        let dir = tempfile::tempdir().unwrap();
        let entry = Registry::at(dir.path()).entry("a").unwrap();
        assert!(!entry.is_running().unwrap());
        entry.make().unwrap();
        let lock = entry.lock().await.unwrap().unwrap();
        assert!(entry.is_running().unwrap());
        assert!(entry.lock().await.unwrap().is_none());
        drop(lock);
        assert!(!entry.is_running().unwrap());
        let lock = entry.lock().await.unwrap().unwrap();
        entry.remove(lock).unwrap();
        assert!(!entry.dir().exists());
    }
}
