//! [`Directory`]: where a devnet stores its files, and whether they stay.

use std::path::PathBuf;

use anyhow::{Context, Result};

use super::DevnetOptions;
use crate::leftovers::RunDir;

/// The devnet's directory. It is removed at the end only if it is temporary and the user did not ask to keep it.
pub(super) struct Directory {
    pub(super) path: PathBuf,
    temporary: Option<RunDir>,
}

impl Directory {
    pub(super) fn open(options: &DevnetOptions) -> Result<Directory> {
        if let Some(dir) = &options.dir {
            std::fs::create_dir_all(dir)
                .with_context(|| format!("cannot create the directory {}", dir.display()))?;
            let path =
                dir.canonicalize().with_context(|| format!("cannot open the directory {}", dir.display()))?;
            return Ok(Directory { path, temporary: None });
        }
        let temporary = RunDir::new("");
        let temporary = temporary.context("cannot create a temporary directory; name one with --dir")?;
        let mut directory = Directory { path: temporary.path().to_owned(), temporary: Some(temporary) };
        if options.keep {
            directory.keep();
        }
        Ok(directory)
    }

    pub(super) fn keep(&mut self) {
        if let Some(temporary) = self.temporary.take() {
            let _ = temporary.keep();
        }
    }
}
