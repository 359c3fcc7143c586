//! Masks secrets in texts that people read: `config show`, errors, logs, bundles for support. Code that prints an
//! operator's text uses this module.
//!
//! The module hides too much rather than too little. It treats everything before the last `@` of a URL as credentials,
//! because a password may have an unencoded `/` or `@`.

use std::borrow::Cow;

/// The text that replaces a secret.
pub const MASK: &str = "***";

const SCHEME_END: &str = "://";
/// Parts of names whose values are secret, in lower case and without `-` and `_`.
pub const SECRET_NAMES: [&str; 11] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "credential",
    "privatekey",
    "accesskey",
    "apikey",
    "signature",
    "authorization",
];

/// Whether the name of a key, or of a URL's parameter, marks its value as secret. Case, `-` and `_` do not matter.
pub fn is_secret(name: &str) -> bool {
    names_a_secret(name.rsplit('.').next().unwrap_or_default())
}

fn names_a_secret(text: &str) -> bool {
    let text = text.to_ascii_lowercase().replace(['-', '_'], "");
    SECRET_NAMES.iter().any(|secret| text.contains(secret))
}

/// Masks a command's argument: `KEY=VALUE`, as after `--set`, by its key. A value that itself names a secret is hidden
/// as a whole.
pub fn mask_argument(argument: &str) -> Cow<'_, str> {
    let (key, value) = match argument.strip_prefix("--set=").unwrap_or(argument).split_once('=') {
        Some((_, value)) if names_a_secret(value) => ("secret", value),
        Some((key, value)) => (key, value),
        None => ("", argument),
    };
    match mask_value(key, value) {
        Cow::Borrowed(shown) if shown == value => Cow::Borrowed(argument),
        shown => Cow::Owned(format!("{}{shown}", &argument[..argument.len() - value.len()])),
    }
}

/// Masks the value of a key. A value with a scheme is treated as one URL.
pub fn mask_value<'a>(key: &str, value: &'a str) -> Cow<'a, str> {
    if is_secret(key) {
        return Cow::Borrowed(MASK);
    }
    match value.find(SCHEME_END) {
        Some(at) => {
            rebuilt(value, masked_url(&value[at + SCHEME_END.len()..]), at + SCHEME_END.len(), value.len())
        }
        None => Cow::Borrowed(value),
    }
}

/// Masks a line of a YAML file. Everything before its last `@` is treated as credentials of its first URL, because
/// YAML's quotes allow blanks, quotes and `#` in a password. Everything after a key that names a secret is hidden.
pub fn mask_line(line: &str) -> String {
    let masked = mask_text(&mask_value("", line)).into_owned();
    match secret_from(&masked) {
        Some(at) => format!("{} {MASK}", &masked[..at]),
        None => masked,
    }
}

/// Returns the start of the value whose key, before a colon, names a secret; `None` if the line has no such key.
fn secret_from(line: &str) -> Option<usize> {
    let is_of_name = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_');
    let names = |at: &usize| {
        let key = line[..*at].trim_end_matches(|c: char| c.is_whitespace() || matches!(c, '"' | '\''));
        let name = &key[key.trim_end_matches(is_of_name).len()..];
        names_a_secret(name) && !line[at + 1..].trim().is_empty()
    };
    line.match_indices(':').map(|(at, _)| at).find(names).map(|at| at + 1)
}

/// Masks the credentials and the secret parameters of a text's URLs. A URL after a quote or a backtick ends at the next
/// one on its line. Other URLs end at a blank, or at a character that no URL has: quotes, backticks, angle brackets.
pub fn mask_text(text: &str) -> Cow<'_, str> {
    let mut masked = Cow::Borrowed(text);
    let mut from = 0;
    while let Some(at) = masked[from..].find(SCHEME_END) {
        let start = from + at + SCHEME_END.len();
        let length = quoted_length(&masked[..from + at], &masked[start..]);
        let length = length.or_else(|| masked[start..].find(ends_url));
        let end = length.map_or(masked.len(), |length| start + length);
        if let Some(url) = masked_url(&masked[start..end]) {
            from = start + url.len();
            masked.to_mut().replace_range(start..end, &url);
        } else {
            from = end;
        }
    }
    masked
}

/// Returns the length of the text after a scheme, if a quote or a backtick opens before the scheme and closes on the
/// same line.
fn quoted_length(before: &str, behind: &str) -> Option<usize> {
    let is_of_scheme = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
    let opened = before.trim_end_matches(is_of_scheme);
    let quote = opened.chars().next_back().filter(|c| matches!(c, '"' | '`'))?;
    if opened[..opened.len() - 1].ends_with('\\') {
        // An escaped quote opens a text within a text, and its closing quote is escaped too.
        return None;
    }
    let mut is_escaped = false;
    let closes = |(_, c): &(usize, char)| {
        let is_end = *c == quote && !is_escaped;
        is_escaped = *c == '\\' && !is_escaped;
        is_end
    };
    let line = behind.split(['\n', '\r']).next().unwrap_or_default();
    line.char_indices().find(closes).map(|(at, _)| at)
}

fn ends_url(c: char) -> bool {
    c.is_whitespace() || c.is_control() || matches!(c, '"' | '<' | '>' | '`')
}

fn rebuilt(text: &str, part: Option<String>, start: usize, end: usize) -> Cow<'_, str> {
    match part {
        Some(part) => Cow::Owned(format!("{}{part}{}", &text[..start], &text[end..])),
        None => Cow::Borrowed(text),
    }
}

/// Masks the rest of a URL after its scheme; `None` if it holds no secret.
fn masked_url(rest: &str) -> Option<String> {
    let (credentials, open) = match rest.rsplit_once('@') {
        Some((_, open)) => (true, open),
        None => (false, rest),
    };
    let parameters = masked_parameters(open);
    if !credentials && parameters.is_none() {
        return None;
    }
    let prefix = if credentials { format!("{MASK}@") } else { String::new() };
    Some(format!("{prefix}{}", parameters.as_deref().unwrap_or(open)))
}

/// Masks the secret parameters of a URL that has no credentials; `None` if it has no such parameter.
fn masked_parameters(url: &str) -> Option<String> {
    let (path, query) = url.split_once(['?', '#'])?;
    let separator = &url[path.len()..=path.len()];
    let mut any = false;
    let parameters: Vec<_> = query
        .split('&')
        .map(|parameter| match parameter.split_once('=') {
            Some((name, _)) if is_secret(name) => {
                any = true;
                format!("{name}={MASK}")
            }
            _ => parameter.to_owned(),
        })
        .collect();
    any.then(|| format!("{path}{separator}{}", parameters.join("&")))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_secret_is_masked_and_nothing_else() {
        for (text, shown) in [
            ("https://user:pass@example.org/path", "https://***@example.org/path"),
            ("https://user:pa@ss@example.org", "https://***@example.org"),
            ("https://user:pa/s@example.org", "https://***@example.org"),
            ("https://user:pass@example.org/a@b", "https://***@b"),
            (
                "s3://bucket/prefix?X-Amz-Signature=abc&part=1",
                "s3://bucket/prefix?X-Amz-Signature=***&part=1",
            ),
            ("https://example.org/#access_token=abc", "https://example.org/#access_token=***"),
            ("https://example.org:8443/path?part=1", "https://example.org:8443/path?part=1"),
            ("0f0f@192.0.2.7:7400", "0f0f@192.0.2.7:7400"),
            ("info,slipstream_sync=debug", "info,slipstream_sync=debug"),
        ] {
            assert_eq!(mask_text(text), shown);
            assert_eq!(mask_value("sync.archives", text), shown);
        }
        assert_eq!(
            mask_text("asked https://a:b@c/d, then \"http://e@f\": no answer"),
            "asked https://***@c/d, then \"http://***@f\": no answer"
        );
        // Quotes keep a value's parts together, as the parser found them.
        assert_eq!(
            mask_text(r#"string "https://a:b\"c d@e/f", expected `https://g:h i@j`, "k://l m@n"#),
            r#"string "https://***@e/f", expected `https://***@j`, "k://l m@n"#
        );
        let nested = |url: &str| format!(r#""{{\"a\":\"{url}\",\"b\":\"0f@c\"}}""#);
        assert_eq!(mask_text(&nested("https://d:e@f")), nested("https://***@f"));
        for name in ["archive.secret-access-key", "DB_PASSWD", "ApiKey", "api-key", "GITHUB_TOKEN"] {
            assert_eq!(mask_value(name, "abc"), MASK, "{name}");
        }
        assert_eq!(mask_value("key_file", "node.key"), "node.key");
        // A blank inside a password does not end a value.
        assert_eq!(mask_value("archive", "https://user:pa ss@host/"), "https://***@host/");
    }

    /// Goal: a line of a file shows no password, whatever YAML's quotes allow in it, and no value of a key that names a
    /// secret.
    #[test]
    fn lines_are_masked() {
        for (line, shown) in [
            ("  archives: ['https://a:b \"c#d@e']", "  archives: ['https://***@e']"),
            ("archives: [s3://a/?part=1, s3://b/?token=c]", "archives: [s3://a/?part=1, s3://b/?token=***"),
            (
                "archive: { url: https://a:b@c, secret-key: d }",
                "archive: { url: https://***@c, secret-key: ***",
            ),
            ("{\"api_key\":\"a\"}", "{\"api_key\": ***"),
            ("access_token :", "access_token :"),
            ("key_file: node.key # a:b", "key_file: node.key # a:b"),
        ] {
            assert_eq!(mask_line(line), shown);
        }
    }

    #[test]
    fn arguments_are_masked_by_their_key() {
        for (argument, shown) in [
            ("sync.mode=delta", "sync.mode=delta"),
            ("--set=sync.mode=delta", "--set=sync.mode=delta"),
            ("--config", "--config"),
            ("archive.token=abc", "archive.token=***"),
            ("--set=archive.token=abc", "--set=archive.token=***"),
            ("archive={ url: https://a:b@c, secret-key: abc }", "archive=***"),
            ("archives=[https://a:b@c, https://d:e f@g]", "archives=[https://***@g]"),
            ("http://a:b@c", "http://***@c"),
        ] {
            assert_eq!(mask_argument(argument), shown);
        }
    }

    /// A secret that occurs in no other part of the generated texts.
    const CANARY: &str = "QZX";

    proptest! {
        /// Goal: a password is hidden to its last character, whatever its form, and whatever follows it.
        #[test]
        fn credentials_never_show(
            user in "[a-z0-9:@/?#%&=.-]{0,8}",
            password in "[a-z0-9:@/?#%&=.,;!$'()*+-]{0,12}",
            host in "[a-z0-9.-]{1,12}(:[0-9]{1,5})?",
            path in "(/[a-z0-9@:?&=#.-]{0,8}){0,3}",
            before in "[a-z \"]{0,8}",
            after in "( [a-z@:/ ]{0,8})?",
        ) {
            let url = format!("https://{user}{CANARY}:{CANARY}{password}{CANARY}@{host}{path}");
            let text = format!("{before}{url}{after}");
            prop_assert!(!mask_text(&text).contains(CANARY), "{}", mask_text(&text));
            prop_assert!(!mask_value("archive", &url).contains(CANARY), "{}", mask_value("archive", &url));
            // Masking once is enough.
            let once = mask_text(&text).into_owned();
            prop_assert_eq!(mask_text(&once), once.as_str());
        }

        /// Goal: a line shows neither a password nor its length, whatever YAML's quotes allow in it.
        #[test]
        fn lines_show_no_password(password in "[a-z0-9:@/?#%&=.,;!$'\" \\\\-]{0,12}", after in "[a-z:, #]{0,8}") {
            let line = format!("a: 'https://user:{CANARY}{password}{CANARY}@host'{after}");
            prop_assert!(!mask_line(&line).contains(CANARY), "{}", mask_line(&line));
            let longer = line.replacen(CANARY, &CANARY.repeat(2), 1);
            prop_assert_eq!(mask_line(&line), mask_line(&longer));
        }

        /// Goal: the value of a parameter with a secret name is hidden wherever it is.
        #[test]
        fn secret_parameters_never_show(before in "([a-z]{1,4}=[a-z0-9]{0,4}&){0,3}", after in "(&[a-z]{1,4}=[a-z0-9]{0,4}){0,3}") {
            let url = format!("https://example.org/path?{before}Api-Key={CANARY}{after}");
            prop_assert!(!mask_text(&url).contains(CANARY), "{}", mask_text(&url));
        }
    }
}
