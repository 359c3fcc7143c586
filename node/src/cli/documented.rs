//! What the documents tell people to type.

use std::{fs, path::Path};

use clap::Parser as _;
use regex::Regex;

use super::Cli;

/// What stands for what a reader puts in, and a value of its kind.
const VALUES: [(&str, &str); 10] = [
    (r"NUMBER:0xHASH", "7:0x1111111111111111111111111111111111111111111111111111111111111111"),
    (r"(0x)?HASH", "0x1111111111111111111111111111111111111111111111111111111111111111"),
    (r"(0x)?ADDRESS", "0x1111111111111111111111111111111111111111"),
    (r"KEY|ID", "1111111111111111111111111111111111111111111111111111111111111111"),
    (r"URL", "http://127.0.0.1:8545"),
    (r"HOST", "node.example"),
    (r"PORT", "7400"),
    (r"SLOT", "0x6"),
    (r"N|U|R|SECONDS", "3"),
    (r"BUCKET", "bucket"),
];

/// The lines of code blocks that begin with the program's name, a continued line as one, without comments.
fn commands(text: &str) -> Vec<String> {
    let (mut found, mut in_code) = (Vec::new(), false);
    let joined = text.replace("\\\n", " ");
    for line in joined.lines() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        } else if in_code && line.starts_with("slipstream ") {
            let command = line.split(" #").next().unwrap_or_default();
            found.push(command.replace(['[', ']'], ""));
        }
    }
    found
}

/// A command as a shell divides it: at blanks that are not in single quotes.
fn words(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (n, part) in command.split('\'').enumerate() {
        match n % 2 {
            0 => words.extend(part.split_whitespace().map(ToOwned::to_owned)),
            _ => words.push(part.to_owned()),
        }
    }
    words
}

/// Goal: whatever the README and the documents show is a command that the program knows, with arguments that it takes.
#[test]
fn documented_commands_are_known() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let docs = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let files = docs.filter(|path| path.extension().is_some_and(|kind| kind == "md"));
    let values = VALUES.map(|(name, value)| (Regex::new(&format!(r"\b(?:{name})\b")).unwrap(), value));
    let mut count = 0;
    for file in files.chain([root.join("README.md")]) {
        for command in commands(&fs::read_to_string(&file).unwrap()) {
            let mut filled = command.clone();
            for (name, value) in &values {
                filled = name.replace_all(&filled, *value).into_owned();
            }
            if let Err(error) = Cli::try_parse_from(words(&filled)) {
                panic!("{}: {command}\n{error}", file.display());
            }
            count += 1;
        }
    }
    assert!(count > 50, "only {count} commands were found");
}
