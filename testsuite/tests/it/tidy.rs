//! Rules of the tree that a program can check. The lists of exceptions only shrink: an entry that is no longer needed
//! fails the test too.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use regex::Regex;

/// The longest line of a comment, in characters.
const COMMENT_MAX: usize = 140;
/// The longest file without tests, in lines.
const LINES_MAX: usize = 400;

/// Longer files.
const LONG_FILES: &[&str] = &[];

/// Circles among the top-level modules of a crate: each uses the others, directly or through further ones.
const CIRCLES: &[(&str, &[&str])] = &[];

/// Phrases that a native reader reads twice, as regular expressions.
const PHRASES: &[&str] = &[
    r"\bevery so many\b",
    r"\bwith so (many|much)\b",
    r"\bwhat is so\b",
    r"\bin place of what\b",
    r"\blets? go\b",
    r"; none if\b",
    r"^\s*//[/!] None if\b",
    r"^\s*//[/!] Of (this|that|its|what|whom)\b",
    r"\bof whom\b",
    r"\bwhatever it was\b",
    r"\btells of\b",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The files of the tree with these endings, by their paths.
fn files(endings: &[&str]) -> BTreeMap<String, String> {
    let listed = Command::new("git").arg("-C").arg(root()).args(["ls-files", "-z"]).output().unwrap();
    assert!(listed.status.success(), "git lists no files: {listed:?}");
    let names = String::from_utf8(listed.stdout).unwrap();
    let wanted = names.split('\0').filter(|name| endings.iter().any(|ending| name.ends_with(ending)));
    // A file that was removed and not committed is still listed.
    let read = |name: &str| Some((name.to_owned(), fs::read_to_string(root().join(name)).ok()?));
    let files: BTreeMap<_, _> = wanted.filter_map(read).collect();
    assert!(files.len() > 10, "{endings:?}: {}", files.len());
    files
}

fn is_test(name: &str) -> bool {
    name.contains("/tests/") || name.ends_with("/tests.rs") || name.ends_with("_tests.rs")
}

/// Goal: comments fit beside the code on a screen.
#[test]
fn comments_fit() {
    let mut long = Vec::new();
    for (name, text) in files(&[".rs"]) {
        let comments = text.lines().enumerate().filter(|(_, line)| line.trim_start().starts_with("//"));
        let wide = comments.filter(|(_, line)| line.chars().count() > COMMENT_MAX);
        long.extend(wide.map(|(index, _)| format!("{name}:{}", index + 1)));
    }
    assert!(long.is_empty(), "comments of more than {COMMENT_MAX} characters: {long:#?}");
}

/// Goal: a file is read in one sitting.
#[test]
fn files_are_short() {
    let is_long = |(name, text): &(String, String)| !is_test(name) && text.lines().count() > LINES_MAX;
    let long: Vec<String> = files(&[".rs"]).into_iter().filter(is_long).map(|(name, _)| name).collect();
    assert_eq!(
        long, LONG_FILES,
        "files of more than {LINES_MAX} lines, and the list of those that are known"
    );
}

/// Goal: a reader finds a module with submodules at one place: its mod.rs.
#[test]
fn modules_have_one_style() {
    let names: BTreeSet<String> = files(&[".rs"]).into_keys().collect();
    let has_folder = |name: &&String| {
        let folder = format!("{}/", name.trim_end_matches(".rs"));
        names.range(folder.clone()..).next().is_some_and(|next| next.starts_with(&folder))
    };
    let beside: Vec<_> = names.iter().filter(has_folder).collect();
    assert!(beside.is_empty(), "move these into their folders, as mod.rs: {beside:#?}");
}

/// Goal: comments and pages contain none of the unidiomatic phrases in the list.
#[test]
fn phrases_are_english() {
    let phrases: Vec<Regex> = PHRASES.iter().map(|phrase| Regex::new(phrase).unwrap()).collect();
    let mut found = Vec::new();
    for (name, text) in files(&[".rs", ".md"]) {
        for (index, line) in text.lines().enumerate() {
            let is_read = name.ends_with(".md") || line.trim_start().starts_with("//");
            if let Some(phrase) = phrases.iter().find(|phrase| is_read && phrase.is_match(line)) {
                found.push(format!("{name}:{}: {phrase}", index + 1));
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// The top-level module of a source file of a crate; `None` for lib.rs, main.rs and tests.
fn module<'a>(of_crate: &str, name: &'a str) -> Option<&'a str> {
    let path = name.strip_prefix(of_crate)?.strip_prefix("/src/")?;
    let module = path.split('/').next()?.trim_end_matches(".rs");
    (!is_test(name) && !["lib", "main"].contains(&module)).then_some(module)
}

/// The modules that a source names by `crate::NAME` or `crate::{NAME, …}`, outside of its tests.
fn named(text: &str) -> BTreeSet<String> {
    let code: String = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default().to_owned();
    let code: String = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let mut named = BTreeSet::new();
    for part in code.split("crate::").skip(1) {
        match part.strip_prefix('{') {
            None => named.extend(first_word(part)),
            Some(group) => named.extend(heads(group)),
        }
    }
    named
}

fn first_word(text: &str) -> Option<String> {
    let end = text.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(text.len());
    (end > 0).then(|| text[..end].to_owned())
}

/// The first words of the entries of a group, up to its closing brace.
fn heads(group: &str) -> Vec<String> {
    let (mut depth, mut begins, mut heads) = (0, 0, Vec::new());
    for (at, letter) in group.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => {
                heads.extend(first_word(group[begins..at].trim_start()));
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                heads.extend(first_word(group[begins..at].trim_start()));
                begins = at + 1;
            }
            _ => {}
        }
    }
    heads
}

/// The modules that a module reaches.
fn reached(uses: &BTreeMap<String, BTreeSet<String>>, from: &str) -> BTreeSet<String> {
    let (mut reached, mut open) = (BTreeSet::new(), vec![from.to_owned()]);
    while let Some(module) = open.pop() {
        let further = uses.get(&module).into_iter().flatten();
        open.extend(further.filter(|next| reached.insert((*next).clone())).cloned());
    }
    reached
}

/// The circles of a crate, each once and sorted.
fn circles(of_crate: &str, sources: &BTreeMap<String, String>) -> BTreeSet<Vec<String>> {
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, text) in sources {
        if let Some(module) = module(of_crate, name) {
            uses.entry(module.to_owned()).or_default().extend(named(text));
        }
    }
    let reaches: BTreeMap<&String, BTreeSet<String>> =
        uses.keys().map(|module| (module, reached(&uses, module))).collect();
    let circle = |module: &String| -> Vec<String> {
        let returns =
            |other: &&&String| reaches[module].contains(**other) && reaches[**other].contains(module);
        reaches.keys().filter(|other| **other == module || returns(other)).map(|it| (*it).clone()).collect()
    };
    uses.keys().map(circle).filter(|circle| circle.len() > 1).collect()
}

/// Goal: a crate is layers. A reader of one module need not read a circle of others.
#[test]
fn modules_form_no_circles() {
    let (sources, manifests) = (files(&[".rs"]), files(&["/Cargo.toml"]));
    let mut found = Vec::new();
    for manifest in manifests.keys() {
        let of_crate = manifest.trim_end_matches("/Cargo.toml");
        for circle in circles(of_crate, &sources) {
            found.push((of_crate.to_owned(), circle));
        }
    }
    let known: Vec<(String, Vec<String>)> = CIRCLES
        .iter()
        .map(|(name, circle)| ((*name).to_owned(), circle.iter().map(|it| (*it).to_owned()).collect()))
        .collect();
    assert_eq!(found, known, "circles of modules, and the list of those that are known");
}

/// Goal: the test of circles sees groups, paths and tests as they are.
#[test]
fn uses_are_read() {
    let text = "use crate::{a::{b, c}, d, e::F};\nfn f() { crate::g::h() }\n// crate::no\n#[cfg(test)]\nmod tests {\nuse crate::t;\n}";
    let expected: BTreeSet<String> = ["a", "d", "e", "g"].map(str::to_owned).into();
    assert_eq!(named(text), expected);
    let sources = [
        ("x/src/a.rs", "use crate::b;"),
        ("x/src/b/mod.rs", "use crate::{c, z};"),
        ("x/src/c.rs", "crate::a::f()"),
    ];
    let sources = sources.map(|(name, text)| (name.to_owned(), text.to_owned())).into();
    assert_eq!(circles("x", &sources), [["a", "b", "c"].map(str::to_owned).to_vec()].into());
}
