//! Small JSON files in the data directory that outlive the node. Each is read before the network starts, when nothing
//! may be changed yet, and rewritten completely at each change. A damaged file loses only its own content: it is named
//! and set aside, and the node continues without it.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
    time::Duration,
};

use parking_lot::Mutex;
use serde::Deserialize;
use slipstream_network::BanEnd;
use tokio::time::Instant;

use crate::small_file::{self, Placement, Readers};

/// The description of one kind of file.
pub struct FileForm {
    /// The file's name in the data directory.
    pub name: &'static str,
    /// The name under which a damaged file is set aside.
    pub damaged_name: &'static str,
    /// The only version that this program supports.
    pub version: u32,
    /// The greatest length; a longer file counts as damaged.
    pub bytes_max: u64,
    /// What is lost if the file is damaged, and what to do.
    pub loss: &'static str,
}

/// The result of reading a file.
pub struct KeptContent<T> {
    /// The content of the file, or the default.
    pub content: T,
    /// Why the file cannot be used.
    pub damage: Option<String>,
    /// The text that was read; `None` if the file is missing or unreadable.
    text: Option<Vec<u8>>,
}

impl FileForm {
    /// Reads the file in a data directory and changes nothing. A missing file means default content.
    pub fn read<T: Default>(
        &self,
        data_dir: &Path,
        decode: impl FnOnce(&[u8]) -> serde_json::Result<T>,
    ) -> KeptContent<T> {
        let text = self.text_of(&data_dir.join(self.name));
        let content = match &text {
            Ok(Some(text)) => self.check(text).and_then(|()| decode(text).map_err(|error| error.to_string())),
            Ok(None) => Ok(T::default()),
            Err(error) => Err(error.to_string()),
        };
        let text = text.ok().flatten();
        match content {
            Ok(content) => KeptContent { content, damage: None, text },
            Err(damage) => KeptContent { content: T::default(), damage: Some(damage), text },
        }
    }

    /// Takes over the file that [`FileForm::read`] read before the lock was taken, and sets it aside if it is damaged.
    ///
    /// # Errors
    /// If the file's content has changed since: what another process wrote would be lost.
    pub fn establish<T>(&self, data_dir: &Path, kept: &KeptContent<T>) -> io::Result<KeptFile> {
        let path = data_dir.join(self.name);
        if self.text_of(&path).ok().flatten() != kept.text {
            let changed = format!("{} changed while this node started; start it again", path.display());
            return Err(io::Error::other(changed));
        }
        if let Some(problem) = &kept.damage {
            let aside = data_dir.join(self.damaged_name);
            let moved = fs::rename(&path, &aside).map_or_else(
                |error| format!("it stays where it is: {error}"),
                |()| format!("it is set aside as {}", aside.display()),
            );
            tracing::warn!(file = %path.display(), %problem, %moved, "{}", self.loss);
        }
        Ok(KeptFile { path, writing: Mutex::default() })
    }

    /// The text of a file; `None` if the file is missing. Other kinds of files are refused: reading a pipe would block
    /// the start.
    fn text_of(&self, path: &Path) -> io::Result<Option<Vec<u8>>> {
        match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Ok(metadata) if !metadata.is_file() => return Err(io::Error::other("it is not a regular file")),
            metadata => metadata?,
        };
        let mut text = Vec::new();
        // One more byte than allowed reveals a file that is too long.
        File::open(path)?.take(self.bytes_max + 1).read_to_end(&mut text)?;
        Ok(Some(text))
    }

    fn check(&self, text: &[u8]) -> Result<(), String> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        if text.len() as u64 > self.bytes_max {
            return Err(format!("it is longer than {} bytes", self.bytes_max));
        }
        let Version { version } = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        if version != self.version {
            return Err(format!("it has version {version}, and this program knows {}", self.version));
        }
        Ok(())
    }
}

/// A file in a data directory that this process has locked.
pub struct KeptFile {
    path: PathBuf,
    writing: Mutex<()>,
}

impl KeptFile {
    /// Writes the complete result of `text`. With concurrent writers, the last one writes the newest text.
    pub fn write(&self, text: impl FnOnce() -> serde_json::Result<String>) -> io::Result<()> {
        let _writing = self.writing.lock();
        let text = text()? + "\n";
        small_file::write(&self.path, text.as_bytes(), Readers::Owner, Placement::Instead)
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Converts the end of a ban from milliseconds since 1970; `None` if the ban has ended. The end is at most `longest`
/// away, because the clock may have been wrong when it was written.
pub(crate) fn ban_end(until_ms: u64, longest: Duration, now_ms: u64, now: Instant) -> Option<BanEnd> {
    let left = until_ms.checked_sub(now_ms).filter(|left| *left > 0)?;
    Some(BanEnd::At(now + Duration::from_millis(left).min(longest)))
}

/// The end of a ban in milliseconds since 1970; `None` if the ban holds until it is lifted.
pub(crate) fn until_ms(until: BanEnd, now_ms: u64, now: Instant) -> Option<u64> {
    let left = until.instant()?.saturating_duration_since(now);
    Some(now_ms.saturating_add(left.as_millis() as u64))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const FORM: FileForm = FileForm {
        name: "it.json",
        damaged_name: "it.damaged",
        version: 1,
        bytes_max: 64,
        loss: "it is lost",
    };

    fn read(dir: &Path) -> KeptContent<String> {
        FORM.read(dir, |text| Ok(String::from_utf8_lossy(text).into_owned()))
    }

    /// Goal: a start reads only a bounded part of anything at the file's path, without blocking, and leaves it
    /// unchanged.
    #[test]
    fn what_is_no_file_is_set_aside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FORM.name);
        assert!(read(dir.path()).damage.is_none());
        symlink("/dev/zero", &path).unwrap();
        let kept = read(dir.path());
        assert_eq!((kept.content.as_str(), kept.damage.as_deref()), ("", Some("it is not a regular file")));
        let file = FORM.establish(dir.path(), &kept).unwrap();
        assert_eq!(fs::read_link(dir.path().join(FORM.damaged_name)).unwrap(), Path::new("/dev/zero"));
        file.write(|| Ok(r#"{"version":1}"#.to_owned())).unwrap();
        let kept = read(dir.path());
        assert_eq!((kept.content.as_str(), kept.damage), ("{\"version\":1}\n", None));
    }

    /// Goal: ends follow the clock, an ended ban is dropped, and no clock makes a ban longer than the longest.
    #[test]
    fn ends_of_bans_are_those_of_the_clock() {
        let (now, hour) = (Instant::now(), Duration::from_secs(3_600));
        let end = |until_ms, now_ms| ban_end(until_ms, hour, now_ms, now);
        assert_eq!(end(3_500, 1_000), Some(BanEnd::At(now + Duration::from_millis(2_500))));
        assert_eq!((end(3_500, 3_500), end(3_500, 9_000)), (None, None));
        assert_eq!(end(u64::MAX, 0), Some(BanEnd::At(now + hour)));
        assert_eq!(until_ms(BanEnd::At(now + hour), 1_000, now), Some(3_601_000));
        assert_eq!(until_ms(BanEnd::At(now + hour), u64::MAX, now), Some(u64::MAX));
        assert_eq!(until_ms(BanEnd::Never, 1_000, now), None);
    }
}
