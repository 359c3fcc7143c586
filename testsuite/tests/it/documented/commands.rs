//! The command lines of the README and of docs/: the lines of code blocks of kind `sh`, and complete commands within
//! text and tables.
//!
//! Code within text is a command if it begins with one of [`IN_TEXT`] and has no ellipsis. Code that another command
//! begins with is only that command's name, as `slipnet up` is of `slipnet up -d`. `a|b` stands for several commands.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// A line in another block with one of these prefixes is a command all the same.
const PROGRAMS: [&str; 2] = ["slipstream ", "slipnet "];
/// Code within text with one of these prefixes is a command, or the name of one.
const IN_TEXT: [&str; 6] = ["slipstream ", "slipnet ", "./x ", "docker ", "helm ", "cargo "];

/// A command line: continued lines are joined, and the comment is removed.
#[derive(Clone, Debug)]
pub(crate) struct Documented {
    /// The file and line, for messages.
    pub(crate) place: String,
    /// The text with one blank between words, and including optional arguments without their brackets.
    pub(crate) line: String,
}

/// Returns all command lines: those of blocks, then those within text. Of each kind, the README's come first, then
/// those of docs/ by file name.
pub(crate) fn documented() -> Vec<Documented> {
    // Two crates compile this file, at different depths of the tree.
    let above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let root = above.filter(|dir| dir.join("README.md").exists()).last().unwrap();
    let docs = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        docs.filter(|path| path.extension().is_some_and(|kind| kind == "md")).collect();
    files.sort();
    files.insert(0, root.join("README.md"));
    let (mut blocks, mut spans) = (Vec::new(), Vec::new());
    for file in &files {
        let name = file.strip_prefix(root).unwrap().to_string_lossy();
        let text = fs::read_to_string(file).unwrap();
        blocks.extend(of_text(&name, &text));
        spans.extend(within_text(&name, &text));
    }
    with_spans(blocks, spans)
}

/// Adds those of text to those of blocks, without the names of others.
pub(crate) fn with_spans(mut commands: Vec<Documented>, spans: Vec<Documented>) -> Vec<Documented> {
    let lines: Vec<String> =
        commands.iter().chain(&spans).map(|command| command.line.clone() + " ").collect();
    let is_name = |name: &str| lines.iter().any(|line| line.len() > name.len() && line.starts_with(name));
    commands.extend(spans.into_iter().filter(|span| !is_name(&format!("{} ", span.line))));
    commands
}

/// Returns those within the text of one file, including names.
pub(crate) fn within_text(name: &str, text: &str) -> Vec<Documented> {
    let (mut found, mut open) = (Vec::new(), None::<Documented>);
    let mut is_block = false;
    for (index, line) in text.lines().enumerate() {
        let (line, place) = (line.trim(), format!("{name}:{}", index + 1));
        let is_edge = line.starts_with("```");
        is_block ^= is_edge;
        if is_block || is_edge || line.is_empty() {
            assert!(open.is_none(), "{place}: code in the paragraph before has no end");
            continue;
        }
        for (index, part) in line.split('`').enumerate() {
            if index > 0 {
                match open.take() {
                    Some(span) => found.push(span),
                    None => open = Some(Documented { place: place.clone(), line: String::new() }),
                }
            }
            if let Some(span) = &mut open {
                span.line.push_str(if index == 0 { " " } else { "" });
                span.line.push_str(part);
            }
        }
    }
    let is_command = |span: &Documented| {
        IN_TEXT.iter().any(|program| span.line.starts_with(program)) && !span.line.contains('…')
    };
    found.into_iter().filter(is_command).flat_map(|span| alternatives(&span)).collect()
}

/// Returns a command for each choice of `a|b`, which is written `a\|b` in tables.
fn alternatives(span: &Documented) -> Vec<Documented> {
    let line = plain(&span.line.replace("\\|", "|").replace(" | ", "|"));
    let mut lines = vec![String::new()];
    for word in line.split(' ') {
        let choose = |line: &String| -> Vec<String> {
            word.split('|').map(|choice| format!("{line} {choice}")).collect()
        };
        lines = lines.iter().flat_map(choose).collect();
    }
    let command = |line: String| Documented { place: span.place.clone(), line: line.trim_start().to_owned() };
    lines.into_iter().map(command).collect()
}

/// Returns those of one file's blocks.
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

/// Returns a line without its comment and brackets; within quotes both are plain text.
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
