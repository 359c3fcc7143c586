//! Reading, parsing and checking.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use serde_saphyr::{Options, SnippetMode};
use slipstream_network::{NetworkError, PeerAddress};
use slipstream_sync::{Mode, SyncConfig};

use crate::{
    ConfigError, NodeConfig, Role,
    error::Place,
    locate::locate,
    ranges::{self, BODY_BYTES_MIN},
};

/// Longest configuration file: keeps a wrong path (a database, a log) from being read into memory.
pub const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// The longest line of the file that an error quotes.
const SNIPPET_CHARS_MAX: usize = 160;

/// Reads a file and checks it. Relative paths in it are taken from its own directory.
pub fn load(path: &Path) -> Result<NodeConfig, ConfigError> {
    let read = |source| ConfigError::Read { path: path.to_owned(), source };
    let mut text = String::new();
    let file = File::open(path).map_err(read)?;
    let len = file.take(CONFIG_BYTES_MAX + 1).read_to_string(&mut text).map_err(read)?;
    if len as u64 > CONFIG_BYTES_MAX {
        return Err(ConfigError::TooLong { path: path.to_owned(), max: CONFIG_BYTES_MAX });
    }
    parse(&text, path)
}

/// Checks a text that stands, or would stand, in the file `path`.
pub fn parse(text: &str, path: &Path) -> Result<NodeConfig, ConfigError> {
    let mut config = decode(text, path)?;
    check(&config).map_err(|Problem { key, text: problem }| {
        let place = locate(text, key).map(|(line, column)| quote(text, line, column).0);
        ConfigError::Rule { path: path.to_owned(), place, key, problem }
    })?;
    let dir = path.parent().unwrap_or(Path::new(""));
    for file in [&mut config.data_dir, &mut config.key_file]
        .into_iter()
        .chain(&mut config.genesis)
        .chain(&mut config.schedule)
        .chain(config.log.file.as_mut().map(|file| &mut file.path))
    {
        *file = join(dir, file);
    }
    Ok(config)
}

fn join(dir: &Path, path: &Path) -> PathBuf {
    // `Path::join` keeps an absolute path as it is.
    dir.join(path)
}

fn decode(text: &str, path: &Path) -> Result<NodeConfig, ConfigError> {
    // The snippet is ours: one line and a caret, the same for every kind of error.
    let options: Options = serde_saphyr::options! { with_snippet: false };
    let mut key = String::new();
    serde_saphyr::with_deserializer_from_str_with_options(text, options, |deserializer| {
        serde_path_to_error::deserialize(deserializer).map_err(|error| {
            key = error.path().to_string();
            error.into_inner()
        })
    })
    .map_err(|error| describe(text, path, &key, &error))
}

/// Puts the parser's message, the key's full name and the line together.
fn describe(text: &str, path: &Path, key: &str, error: &serde_saphyr::Error) -> ConfigError {
    // What is not there has no line: the parser's place is that of another key.
    if let serde_saphyr::Error::SerdeMissingField { field, .. } = error {
        let key = if is_root(key) { (*field).to_owned() } else { format!("{key}.{field}") };
        let advice = match key.as_str() {
            "role" => "write `role: validator` or `role: fullnode`",
            _ => "docs/configuration.md says what it takes",
        };
        return ConfigError::Missing { path: path.to_owned(), key, advice };
    }
    let (line, column) = error.location().map_or((1, 1), |location| (location.line(), location.column()));
    let rendered = error.render_with_options(serde_saphyr::render_options! { snippets: SnippetMode::Off });
    let suffix = format!(" at line {line}, column {column}");
    let mut message = rendered.strip_suffix(&suffix).unwrap_or(&rendered).to_owned();
    // Advice to programmers who call the parser is of no use to an operator.
    for advice in [", set DuplicateKeyPolicy", "; use from_str_multiple"] {
        message.truncate(message.find(advice).unwrap_or(message.len()));
    }
    let (place, token) = quote(text, line, column);
    // The parser names the types of numbers, not the value that did not fit.
    if message.starts_with("invalid ") && !message.contains('`') && !token.is_empty() {
        message = format!("{message}, found `{token}`");
    }
    if !is_root(key) {
        message = format!("{key}: {message}");
    }
    ConfigError::Yaml { path: path.to_owned(), place, message }
}

/// A place in the file with its line, and the word that stands there.
fn quote(text: &str, line: u64, column: u64) -> (Place, String) {
    let quoted = text.lines().nth(line.saturating_sub(1) as usize).unwrap_or_default();
    let rest: String = quoted.chars().skip(column.saturating_sub(1) as usize).collect();
    let token = rest.split([' ', '#', ',', ']', '}']).next().unwrap_or_default();
    let width = token.trim_end_matches(':').chars().count().max(1);
    (Place { line, column, snippet: snippet(quoted, line, column, width) }, token.to_owned())
}

/// Whether the name of a key is that of the whole file.
fn is_root(key: &str) -> bool {
    matches!(key, "" | "." | "?")
}

fn snippet(quoted: &str, line: u64, column: u64, width: usize) -> String {
    let number = line.to_string();
    let indent = " ".repeat(number.len());
    let quoted: String = quoted.chars().take(SNIPPET_CHARS_MAX).collect();
    let before = (column.saturating_sub(1) as usize).min(SNIPPET_CHARS_MAX);
    let carets = "^".repeat(width.min(SNIPPET_CHARS_MAX - before).max(1));
    format!("{indent} |\n{number} | {quoted}\n{indent} | {}{carets}", " ".repeat(before))
}

/// What is wrong with a value that its key's type takes, and what to write.
pub(crate) struct Problem {
    key: &'static str,
    text: String,
}

impl Problem {
    pub(crate) fn new(key: &'static str, text: impl Into<String>) -> Problem {
        Problem { key, text: text.into() }
    }
}

/// The rules that concern several keys, and the numbers' ranges.
fn check(config: &NodeConfig) -> Result<(), Problem> {
    let rule = |key, text: &str| Err(Problem::new(key, text));
    match config.role {
        Role::Validator if config.genesis.is_none() => {
            return rule(
                "genesis",
                "a validator needs the chain's genesis file; set `genesis: FILE` to the file that all validators of the chain share",
            );
        }
        Role::Validator if !config.storage.fsync => {
            return rule(
                "storage.fsync",
                "a validator that does not wait for the disk may forget a vote in a power cut, and then sign two different batches \
                 of one number; leave `fsync` out or set it to `true`",
            );
        }
        Role::Fullnode if config.genesis.is_none() && config.waypoint.is_none() => {
            return rule(
                "genesis",
                "a fullnode needs a place where its trust starts, and there is neither a genesis file nor a waypoint; set \
                 `genesis: FILE`, or `waypoint: NUMBER:0xHASH` as `slipstream status` prints it on a node that you trust",
            );
        }
        Role::Fullnode if config.network.peers.is_empty() => {
            return rule(
                "network.peers",
                "a fullnode has nobody to follow; list at least one peer as `ID@IP:PORT`, as `slipstream status` prints it on \
                 that peer",
            );
        }
        Role::Validator | Role::Fullnode => {}
    }
    let unreachable = |peer: &&PeerAddress| peer.address.ip().is_unspecified() || peer.address.port() == 0;
    if let Some(peer) = config.network.peers.iter().find(unreachable) {
        let problem = format!(
            "nobody can be dialled at {peer}: that is where a peer listens, on any address of its machine; write the IP at \
             which that machine is reached from here, and the peer's UDP port, as `ID@IP:PORT`"
        );
        return rule("network.peers", &problem);
    }
    if let Some((key, problem, advice)) = sync_problem(&config.sync) {
        return rule(key, &format!("{problem}; {advice}"));
    }
    config.network.check().map_err(|error| match error {
        NetworkError::Config { key, reason } => Problem::new(key, reason),
        other => Problem::new("network", other.to_string()),
    })?;
    let body_bytes = config.api.max_body_bytes;
    if (body_bytes as u64) < BODY_BYTES_MIN {
        let problem = format!(
            "{body_bytes} bytes cannot carry the largest transaction; set it to {BODY_BYTES_MIN} or more"
        );
        return rule("api.max_body_bytes", &problem);
    }
    let is_name = |host: &&String| {
        !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte))
    };
    if let Some(host) = config.api.allowed_hosts.iter().find(|host| *host != "*" && !is_name(host)) {
        let problem = format!(
            "`{host}` is no host name; write names as `node1.example`, without scheme and port, or `*` for all"
        );
        return rule("api.allowed_hosts", &problem);
    }
    ranges::check(config)
}

/// What in the sync section cannot be followed: the key, what is wrong, what to write.
fn sync_problem(sync: &SyncConfig) -> Option<(&'static str, String, &'static str)> {
    if !(0.0..=1.0).contains(&sync.audit) {
        let problem = format!("{} is no share of the batches", sync.audit);
        return Some(("sync.audit", problem, "set it to a number from 0 (audit none) to 1 (audit all)"));
    }
    if sync.forbid.contains(&Mode::Auto) {
        let problem = "`auto` is the choice among the modes, not one of them".to_owned();
        let advice =
            "take it out of `forbid`; to follow in one mode only, set `sync.mode` to `replay` or `delta`";
        return Some(("sync.forbid", problem, advice));
    }
    // A snapshot or a range delta ends at a batch that others certified some time ago: the batches after it need one of these.
    let follows = match sync.mode {
        Mode::Replay | Mode::Delta => true,
        _ => [Mode::Replay, Mode::Delta].iter().any(|mode| !sync.forbid.contains(mode)),
    };
    let problem = "with `replay` and `delta` forbidden nothing is left to follow new batches by".to_owned();
    (!follows).then_some(("sync.forbid", problem, "leave one of the two out of `forbid`"))
}
