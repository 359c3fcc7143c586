//! [`Mask`]: takes secrets out of texts that leave the machine.
//!
//! Two ways at once, because neither is enough: what is known to be secret (the node's key, its operator's token, values of the environment) is
//! found however it is written, as text, in hexadecimal or base64; and what looks like a secret is found by the words before it.

use std::sync::LazyLock;

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD},
};
use regex::{Captures, Regex};

/// What stands in place of a secret.
pub(crate) const MASKED: &str = "[masked]";
/// Shorter values are none: masking every `1` would leave nothing to read.
const SECRET_BYTES_MIN: usize = 8;

/// Name and password of a URL.
static URL: LazyLock<Regex> = LazyLock::new(|| pattern(r#"([a-zA-Z][a-zA-Z0-9+.-]*://)[^/\s@"'<>]+@"#));
/// What an `Authorization` header has after its scheme.
static BEARER: LazyLock<Regex> = LazyLock::new(|| pattern(r"(?i)\b(bearer|basic)\s+[a-z0-9+/=._~-]{8,}"));
/// A name that says that its value is secret, and the value, up to the end of its quotes if it has some: as in YAML, JSON, logs and the
/// queries of URLs.
static NAMED: LazyLock<Regex> = LazyLock::new(|| {
    pattern(
        r#"(?i)((?:secret|passw(?:or)?d|passphrase|token|api[_-]?key|access[_-]?key|private[_-]?key|credentials?|amz-signature)[a-z0-9_.-]*["']?\s*[=:]\s*)("(?:[^"\\]|\\.)*"|'[^']*'|[^\s"'&,;}\]]+)"#,
    )
});

fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("the pattern is constant, and tested")
}

/// Whether a name, of an environment variable for example, says that its value is secret.
pub(crate) fn is_secret_name(name: &str) -> bool {
    NAMED.is_match(&format!("{name}=value"))
}

/// Knows some secrets, and masks these and what looks like one.
#[derive(Default)]
pub(crate) struct Mask {
    /// Every way to write each known secret, the longest first.
    known: Vec<String>,
}

impl Mask {
    /// From now on these bytes are masked, however they are written.
    pub(crate) fn hide(&mut self, secret: &[u8]) {
        if secret.len() < SECRET_BYTES_MIN {
            return;
        }
        let hex = hex::encode(secret);
        self.known.extend([hex.to_uppercase(), hex]);
        for engine in [&STANDARD_NO_PAD, &URL_SAFE_NO_PAD] {
            let mut text = engine.encode(secret);
            // The last character also holds bits of what follows.
            if secret.len() % 3 != 0 {
                text.pop();
            }
            self.known.push(text);
        }
        if let Ok(text) = std::str::from_utf8(secret) {
            self.known.push(text.to_owned());
        }
        self.known.sort_by_key(|text| std::cmp::Reverse(text.len()));
        self.known.dedup();
    }

    /// A text without secrets. JSON stays JSON.
    pub(crate) fn text(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for secret in self.known.iter().filter(|secret| !secret.is_empty()) {
            if text.contains(secret) {
                text = text.replace(secret, MASKED);
            }
        }
        let text = URL.replace_all(&text, format!("${{1}}{MASKED}@"));
        let text = BEARER.replace_all(&text, format!("${{1}} {MASKED}"));
        let named = NAMED.replace_all(&text, |found: &Captures<'_>| {
            let (name, value) = (&found[1], &found[2]);
            match value.chars().next() {
                _ if is_plain(name, value) => found[0].to_owned(),
                Some(quote @ ('"' | '\'')) => format!("{name}{quote}{MASKED}{quote}"),
                _ => format!("{name}{MASKED}"),
            }
        });
        named.into_owned()
    }
}

/// Whether a value is none of a secret: what has no quotes in JSON, and has been masked already.
fn is_plain(name: &str, value: &str) -> bool {
    let is_json = name.trim_end().ends_with("\":");
    let is_number = is_json && value.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    is_number || matches!(value, "true" | "false" | "null") || value.starts_with(['{', '['])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a known secret is found however it is written, also within something longer.
    #[test]
    fn known_secrets_are_masked_in_every_form() {
        let secret: Vec<u8> = (0..32).map(|n| n * 7 + 201).collect();
        let mut mask = Mask::default();
        mask.hide(&secret);
        mask.hide(b"hunter2-hunter2");
        mask.hide(b"short");
        let hex = hex::encode(&secret);
        let longer = [&secret[..], b"more"].concat();
        let url = URL_SAFE_NO_PAD.encode(&secret);
        for written in [
            hex.clone(),
            format!("0x{}", hex.to_uppercase()),
            STANDARD_NO_PAD.encode(&longer),
            url.clone(),
            hex::encode("hunter2-hunter2"),
            STANDARD_NO_PAD.encode("hunter2-hunter2"),
            "x hunter2-hunter2 y".into(),
        ] {
            let masked = mask.text(&written);
            assert!(masked.contains(MASKED), "{written} became {masked}");
            for part in [&hex[..], &url[..40], "hunter2"] {
                assert!(!masked.to_lowercase().contains(&part.to_lowercase()), "{written} became {masked}");
            }
        }
        assert_eq!(mask.text("short words stay"), "short words stay");
    }

    #[test]
    fn what_looks_like_a_secret_is_masked_and_nothing_else() {
        let mask = Mask::default();
        for (text, masked) in [
            ("https://user:pw@host:1/x", "https://[masked]@host:1/x"),
            ("see s3://AKIA:x%40y@bucket/p, then", "see s3://[masked]@bucket/p, then"),
            ("GET /x?a=1&X-Amz-Signature=abc123&b=2", "GET /x?a=1&X-Amz-Signature=[masked]&b=2"),
            ("Authorization: Bearer abcdefgh12", "Authorization: Bearer [masked]"),
            ("password: hunter2", "password: [masked]"),
            ("{\"api_key\": \"x \\\" y\", \"n\": 1}", "{\"api_key\": \"[masked]\", \"n\": 1}"),
            ("passphrase='correct horse' x", "passphrase='[masked]' x"),
            ("password=123456", "password=[masked]"),
            ("{\"access_key\":\"abc\"}", "{\"access_key\":\"[masked]\"}"),
            (
                "{\"has_token\":true,\"token_count\":123456789}",
                "{\"has_token\":true,\"token_count\":123456789}",
            ),
            ("AWS_SECRET_ACCESS_KEY=abc", "AWS_SECRET_ACCESS_KEY=[masked]"),
        ] {
            assert_eq!(mask.text(text), masked);
        }
        for plain in [
            "http://127.0.0.1:8545/v1/status",
            "peer ab12@192.0.2.1:7400 connected",
            "head=970 digest=0xabababababab key_file=node.key",
            "{\"signature\":\"0xabab\"}",
        ] {
            assert_eq!(mask.text(plain), plain);
        }
        assert!(
            is_secret_name("AWS_SECRET_ACCESS_KEY")
                && is_secret_name("GITHUB_TOKEN")
                && !is_secret_name("PATH")
        );
    }
}
