//! The values of the documents' placeholders.

/// All placeholders, in the order in which they are replaced. `DIR` and other file names are used as they are.
const PLACEHOLDERS: [&str; 23] = [
    // A peer in the node's configuration cannot be added by hand, so this one is another node.
    "--peer KEY@HOST:PORT",
    "KEY@HOST:PORT",
    "KEY",
    "NUMBER:0xHASH",
    "0:0xHASH",
    "TX_HASH",
    "CODE_HASH",
    "ADDRESS",
    "SLOT",
    "N",
    "U",
    "R",
    "URL",
    "http://127.0.0.1:8545",
    "http://a:8545",
    "http://b:8545",
    "http://c:8545",
    "http://d:8545",
    "s3://BUCKET/PREFIX",
    // A genesis without a validators contract.
    "GENESIS",
    // A built-in scenario, and one of the simulator.
    "NAME",
    "SCENARIO",
    "SEED",
];

/// The values known so far.
#[derive(Default)]
pub(crate) struct Values([Option<String>; PLACEHOLDERS.len()]);

impl Values {
    /// Sets the value of a placeholder, replacing an earlier one.
    pub(crate) fn set(&mut self, placeholder: &str, value: impl Into<String>) {
        let place = PLACEHOLDERS.iter().position(|known| *known == placeholder);
        self.0[place.unwrap_or_else(|| panic!("{placeholder} is no placeholder"))] = Some(value.into());
    }

    /// Returns a command line with the known values.
    pub(crate) fn fill(&self, line: &str) -> String {
        let known =
            PLACEHOLDERS.iter().zip(&self.0).filter_map(|(name, value)| Some((name, value.as_ref()?)));
        known.fold(line.to_owned(), |line, (name, value)| replace_words(&line, name, value))
    }
}

/// Replaces complete words.
fn replace_words(text: &str, words: &str, value: &str) -> String {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let (mut replaced, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once(words) {
        replaced.push_str(before);
        let is_option = replaced.ends_with(" -");
        let is_within = is_option || replaced.ends_with(is_part) || after.starts_with(is_part);
        replaced.push_str(if is_within { words } else { value });
        rest = after;
    }
    replaced + rest
}

/// Goal: a placeholder is replaced only as a complete word, and a longer one before those that it contains.
#[test]
fn placeholders_are_words() {
    let mut values = Values::default();
    for (placeholder, value) in
        [("N", "7"), ("KEY", "ab"), ("KEY@HOST:PORT", "cd@127.0.0.1:1"), ("NUMBER:0xHASH", "7:0x12")]
    {
        values.set(placeholder, value);
    }
    assert_eq!(
        values.fill("ban KEY KEYS KEY@HOST:PORT --at N --to NUMBER:0xHASH batch=N IN"),
        "ban ab KEYS cd@127.0.0.1:1 --at 7 --to 7:0x12 batch=7 IN"
    );
    values.set("N", "8");
    assert_eq!(values.fill("N, 0:0xHASH; curl -N"), "8, 0:0xHASH; curl -N");
}
