//! The command lines of the README and of docs/, from their code blocks of kind `sh`.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// A line in another block that begins so is a command all the same.
const PROGRAMS: [&str; 2] = ["slipstream ", "slipnet "];

/// A command line: a continued one as one, without its comment.
#[derive(Clone, Debug)]
pub(crate) struct Documented {
    /// Its file and line, for messages.
    pub(crate) place: String,
    /// With one blank between words, and with the arguments that stand in brackets because they may be left out.
    pub(crate) line: String,
}

/// All of them: the README's first, then those of docs/ by the names of the files.
pub(crate) fn documented() -> Vec<Documented> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let docs = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        docs.filter(|path| path.extension().is_some_and(|kind| kind == "md")).collect();
    files.sort();
    files.insert(0, root.join("README.md"));
    let read = |file: &PathBuf| {
        let name = file.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
        of_text(&name, &fs::read_to_string(file).unwrap())
    };
    files.iter().flat_map(read).collect()
}

/// Those of one file.
pub(crate) fn of_text(name: &str, text: &str) -> Vec<Documented> {
    let mut found = Vec::new();
    let mut block: Option<&str> = None;
    let mut continued: Option<Documented> = None;
    for (index, line) in text.lines().enumerate() {
        let (line, place) = (line.trim(), format!("{name}:{}", index + 1));
        if let Some(kind) = line.strip_prefix("```") {
            assert!(continued.is_none(), "{place}: the block ends in the middle of a command");
            block = if block.is_some() { None } else { Some(kind) };
        } else if block == Some("sh") && !line.is_empty() && !line.starts_with('#') {
            let (part, goes_on) = line.strip_suffix('\\').map_or((line, false), |part| (part, true));
            let command = match continued.take() {
                None => Documented { place, line: plain(part) },
                Some(Documented { place, line }) => Documented { place, line: line + " " + &plain(part) },
            };
            match goes_on {
                true => continued = Some(command),
                false => found.push(command),
            }
        } else if block.is_some() {
            let is_command = PROGRAMS.iter().any(|program| line.starts_with(program));
            assert!(!is_command, "{place}: a command stands in a block that is not marked `sh`: {line}");
        }
    }
    found
}

/// A line without its comment and brackets; in quotes both are plain text.
fn plain(line: &str) -> String {
    let mut kept = String::new();
    for (index, part) in line.split('\'').enumerate() {
        if index > 0 {
            kept.push('\'');
        }
        if index % 2 == 1 {
            kept.push_str(part);
            continue;
        }
        let (part, is_end) = part.split_once(" #").map_or((part, false), |(part, _)| (part, true));
        kept.push_str(&part.replace(['[', ']'], ""));
        if is_end {
            break;
        }
    }
    kept.split_whitespace().collect::<Vec<_>>().join(" ")
}
