//! [`Bundle`]: named texts, masked and bounded as they are added, and their archive.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use crate::mask::Mask;
use slipstream_base::client_version;

/// Maximum bytes of one part.
const PART_BYTES_MAX: usize = 4 << 20;
/// Maximum bytes of all parts. Compression leaves a tenth, which fits in a mail.
const BUNDLE_BYTES_MAX: usize = 32 << 20;
/// The usual level: it compresses text to a tenth.
const ZSTD_LEVEL: i32 = 3;

/// Why the archive could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the bundle {}: {source}", path.display())]
pub(super) struct BundleError {
    path: PathBuf,
    source: io::Error,
}

/// Which end of a long text a part keeps.
#[derive(Clone, Copy)]
pub(super) enum KeptEnd {
    Beginning,
    End,
}

/// The parts of a bundle, and the bytes used so far.
pub(super) struct Bundle {
    mask: Mask,
    time: String,
    parts: Vec<(String, String)>,
    bytes: usize,
    missing: Vec<String>,
}

impl Bundle {
    pub(super) fn new(mask: Mask, time: String) -> Bundle {
        Bundle { mask, time, parts: Vec::new(), bytes: 0, missing: Vec::new() }
    }

    /// Adds a text under a file name. The text is masked before it is cut: half a secret could no longer be recognised.
    pub(super) fn add(&mut self, name: &str, text: &str, keep: KeptEnd) {
        let masked = self.mask.text(text);
        let kept = cut(&masked, PART_BYTES_MAX, keep);
        if self.bytes + kept.len() > BUNDLE_BYTES_MAX {
            let all = BUNDLE_BYTES_MAX >> 20;
            return self.miss(name, &format!("the bundle would have more than {all} MiB"));
        }
        self.bytes += kept.len();
        if kept.len() < masked.len() {
            let cut = format!("only {} of {} bytes are in the bundle", kept.len(), masked.len());
            self.missing.push(format!("{name}, a part: {cut}"));
        }
        self.parts.push((name.to_owned(), kept.to_owned()));
    }

    /// Records why a part is missing.
    pub(super) fn miss(&mut self, name: &str, why: &str) {
        let why = self.mask.text(why);
        self.missing.push(format!("{name}: {}", why.trim().replace('\n', " ")));
    }

    /// The missing parts, each with the reason.
    pub(super) fn missing(&self) -> &[String] {
        &self.missing
    }

    /// Writes the archive, readable only by its owner. Returns its size.
    pub(super) fn write(mut self, path: &Path) -> Result<u64, BundleError> {
        let readme = self.readme();
        self.parts.insert(0, ("README.txt".into(), readme));
        let written = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .and_then(|file| self.archive(file).inspect_err(|_| drop(fs::remove_file(path))));
        written.map_err(|source| BundleError { path: path.to_owned(), source })
    }

    fn readme(&self) -> String {
        let mut text = format!(
            "{}, {}\n\nKnown secrets, and text that looks like one, are replaced by {}.\n\nParts:\n",
            client_version(),
            self.time,
            slipstream_config::mask::MASK
        );
        for (name, content) in &self.parts {
            text.push_str(&format!("  {name} ({} bytes)\n", content.len()));
        }
        if !self.missing.is_empty() {
            text.push_str("\nNot here:\n");
            self.missing.iter().for_each(|missing| text.push_str(&format!("  {missing}\n")));
        }
        text
    }

    fn archive(&self, file: File) -> io::Result<u64> {
        let mut archive = tar::Builder::new(zstd::Encoder::new(file, ZSTD_LEVEL)?);
        for (name, content) in &self.parts {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(0o600);
            archive.append_data(&mut header, Path::new("slipstream-debug").join(name), content.as_bytes())?;
        }
        let file = archive.into_inner()?.finish()?;
        file.sync_all()?;
        Ok(file.metadata()?.len())
    }
}

/// At most `bytes_max` bytes of a text, from its beginning or its end.
fn cut(text: &str, bytes_max: usize, keep: KeptEnd) -> &str {
    if text.len() <= bytes_max {
        return text;
    }
    match keep {
        KeptEnd::Beginning => &text[..text.floor_char_boundary(bytes_max)],
        KeptEnd::End => &text[text.ceil_char_boundary(text.len() - bytes_max)..],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_cut_at_the_end_that_matters_less() {
        assert_eq!(cut("añb", 2, KeptEnd::Beginning), "a");
        assert_eq!(cut("añb", 2, KeptEnd::End), "b");
        let mut bundle = Bundle::new(Mask::default(), String::new());
        bundle.add("long", &"x".repeat(PART_BYTES_MAX + 1), KeptEnd::End);
        assert!(
            bundle.missing()[0].contains("long, a part: only 4194304 of 4194305"),
            "{:?}",
            bundle.missing()
        );
        for _ in 0..20 {
            bundle.add("more", &"x".repeat(PART_BYTES_MAX), KeptEnd::End);
        }
        assert!(bundle.bytes <= BUNDLE_BYTES_MAX && bundle.missing().len() == 14, "{:?}", bundle.missing());
    }
}
