//! The machine around a node: its kind, its free resources, and the files of the data directory.

use std::{
    fs::{self, File},
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use rustix::process::{Resource, getrlimit};

/// Maximum bytes of one file of /proc.
const FACT_BYTES_MAX: usize = 64 << 10;
/// Maximum number of files of a directory that are listed, and the greatest depth.
const FILES_MAX: usize = 10_000;
const DEPTH_MAX: usize = 8;

/// At most `bytes_max` bytes from a file's beginning; empty if the file cannot be read.
pub(super) fn read_head(file: File, bytes_max: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = file.take(bytes_max as u64).read_to_end(&mut bytes);
    bytes
}

/// At most `bytes_max` bytes from a file's end, as text, in whole lines: half a secret could no longer be recognised.
pub(super) fn tail(path: &Path, bytes_max: u64) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(bytes_max)))?;
    let mut bytes = Vec::new();
    file.take(bytes_max).read_to_end(&mut bytes)?;
    if length > bytes_max {
        let line = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |end| end + 1);
        bytes.drain(..line);
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Kernel, distribution, processors, memory and limits, including those of the node's process if it runs.
pub(super) fn facts(pid: Option<u32>, dirs: &[(&str, &Path)]) -> String {
    let mut text = String::new();
    for path in ["/proc/version", "/etc/os-release", "/proc/uptime", "/proc/loadavg", "/proc/meminfo"] {
        fact(&mut text, path);
    }
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let files = getrlimit(Resource::Nofile);
    text.push_str(&format!("# cores\n{cores}\n\n# open files of this command\n{files:?}\n\n"));
    for (name, dir) in dirs {
        let room = rustix::fs::statvfs(*dir).map(|found| {
            let mib = |blocks: u64| blocks.saturating_mul(found.f_frsize) >> 20;
            format!(
                "{} MiB free of {}, {} of {} inodes free",
                mib(found.f_bavail),
                mib(found.f_blocks),
                found.f_favail,
                found.f_files
            )
        });
        let room = room.unwrap_or_else(|error| error.to_string());
        text.push_str(&format!("# file system of {name} ({})\n{room}\n\n", dir.display()));
    }
    if let Some(pid) = pid {
        for file in ["status", "limits", "io", "cgroup"] {
            fact(&mut text, &format!("/proc/{pid}/{file}"));
        }
    }
    text
}

fn fact(text: &mut String, path: &str) {
    let content = match File::open(path) {
        Ok(file) => String::from_utf8_lossy(&read_head(file, FACT_BYTES_MAX)).into_owned(),
        Err(error) => error.to_string(),
    };
    text.push_str(&format!("# {path}\n{}\n\n", content.trim_end()));
}

/// Sizes of a directory's files, with the sum first.
pub(super) fn files(dir: &Path) -> String {
    let (mut lines, mut bytes, mut left_out) = (Vec::new(), 0u64, 0usize);
    let mut open: Vec<(PathBuf, usize)> = vec![(dir.to_owned(), 0)];
    while let Some((at, depth)) = open.pop() {
        let Ok(entries) = fs::read_dir(&at) else { continue };
        for entry in entries.flatten() {
            // Symbolic links are not followed: they could lead anywhere.
            let Ok(found) = entry.metadata() else { continue };
            let path = entry.path();
            if found.is_dir() {
                if depth < DEPTH_MAX {
                    open.push((path, depth + 1));
                }
                continue;
            }
            bytes = bytes.saturating_add(found.len());
            match lines.len() < FILES_MAX {
                true => lines.push(format!(
                    "{:>14} {}",
                    found.len(),
                    path.strip_prefix(dir).unwrap_or(&path).display()
                )),
                false => left_out += 1,
            }
        }
    }
    lines.sort_unstable_by(|one, other| other.cmp(one));
    let more = if left_out > 0 { format!("\nand {left_out} more files") } else { String::new() };
    format!("{bytes} bytes in {}\n\n{}{more}\n", dir.display(), lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_listed_with_their_sum_and_without_following_links() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("db")).unwrap();
        fs::write(dir.path().join("db/one"), [0; 70]).unwrap();
        fs::write(dir.path().join("two"), [0; 5]).unwrap();
        std::os::unix::fs::symlink("/", dir.path().join("root")).unwrap();
        let listed = files(dir.path());
        let lines: Vec<_> = listed.lines().map(str::trim).collect();
        assert!(lines.contains(&"70 db/one") && lines.contains(&"5 two"), "{listed}");
        assert_eq!(lines.len(), 5, "{listed}");
        let lines = dir.path().join("lines");
        fs::write(&lines, "one secret\ntwo\n").unwrap();
        assert_eq!((tail(&lines, 8).unwrap().as_str(), tail(&lines, 99).unwrap().len()), ("two\n", 15));
    }
}
