//! [`Mask`]: removes secrets from texts that leave the machine.
//!
//! ```text
//!   text ─▶ known secrets ─▶ JSON? ─▶ its strings, and the values of secret names
//!                             └─no──▶ headers, names with values, URLs (slipstream_config::mask)
//! ```
//! Each method alone is too weak. Known secrets (the node's key, its operator's token, values of the environment) are
//! found in every form: as text, in hexadecimal or base64. Unknown secrets are found by the name before them, or by the
//! URL around them.

use std::sync::LazyLock;

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD},
};
use regex::{Captures, Regex};
use serde_json::Value;
use slipstream_config::mask::{MASK, SECRET_NAMES, is_secret, mask_text};

/// Shorter values stay visible: masking every `1` would make the text unreadable.
const SECRET_BYTES_MIN: usize = 8;
/// Names that mark secrets elsewhere, but public values in these texts: a certificate's signatures.
const PUBLIC_NAMES: [&str; 2] = ["signature", "signatures"];

/// The whole value of an `Authorization` header, whatever its scheme.
static HEADER: LazyLock<Regex> =
    LazyLock::new(|| pattern(r#"(?i)(authorization\\*["']?\s*[=:]\s*\\*["']?)[^"'\\\r\n]+"#));
/// The credentials of such a header after its scheme, for texts that quote only the credentials.
static BEARER: LazyLock<Regex> = LazyLock::new(|| pattern(r"(?i)\b(bearer|basic)\s+[a-z0-9+/=._~-]{8,}"));
/// The name of a secret, and its value up to the end of its quotes if it has any, as in YAML, logs and URL queries.
static NAMED: LazyLock<Regex> = LazyLock::new(|| {
    let spelled = SECRET_NAMES.map(|name| name.split("").collect::<Vec<_>>().join("[_-]?"));
    let name = format!(r"[a-z0-9_.-]*(?:{})[a-z0-9_.-]*", spelled.join("|"));
    let value = r#"\\+"[^"\\]*|"(?:[^"\\]|\\.)*"|'[^']*'|[^\s"'&,;}\]\\]+"#;
    pattern(&format!(r#"(?i)({name})(\\*["']?\s*[=:]\s*)({value})"#))
});

fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("the pattern is constant, and tested")
}

/// Masks the secrets that it knows, and everything that looks like a secret.
#[derive(Default)]
pub(crate) struct Mask {
    /// Every form of each known secret, longest first.
    known: Vec<String>,
}

impl Mask {
    /// Masks these bytes from now on, in every form.
    pub(crate) fn hide(&mut self, secret: &[u8]) {
        if secret.len() < SECRET_BYTES_MIN {
            return;
        }
        let hex = hex::encode(secret);
        self.known.extend([hex.to_uppercase(), hex]);
        for engine in [&STANDARD_NO_PAD, &URL_SAFE_NO_PAD] {
            let mut text = engine.encode(secret);
            // The last character also encodes bits of the following text.
            if !secret.len().is_multiple_of(3) {
                text.pop();
            }
            self.known.push(text);
        }
        if let Ok(text) = std::str::from_utf8(secret) {
            let quoted = format!("{text:?}");
            self.known.extend([text.to_owned(), quoted[1..quoted.len() - 1].to_owned()]);
        }
        self.known.sort_by(|one, other| other.len().cmp(&one.len()).then_with(|| one.cmp(other)));
        self.known.dedup();
    }

    /// A text without secrets. JSON stays JSON.
    pub(crate) fn text(&self, text: &str) -> String {
        let text = self.without_known(text);
        if let Some(masked) = self.json(&text) {
            return masked;
        }
        // A log may have one document per line.
        let lines = text.split_inclusive('\n').map(|line| match self.json(line) {
            Some(masked) => masked + if line.ends_with('\n') { "\n" } else { "" },
            None => looks_masked(line),
        });
        lines.collect()
    }

    fn without_known(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for secret in self.known.iter().filter(|secret| !secret.is_empty()) {
            if text.contains(secret) {
                text = text.replace(secret, MASK);
            }
        }
        text
    }

    /// Masks a JSON document; `None` for any other text.
    fn json(&self, text: &str) -> Option<String> {
        let text = text.trim();
        if !text.starts_with(['{', '[']) {
            return None;
        }
        let mut value: Value = serde_json::from_str(text).ok()?;
        self.value(&mut value, false);
        let is_pretty = text.contains('\n');
        if is_pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.ok()
    }

    /// Masks the texts of a value, and all of them if the value's own name marks a secret.
    fn value(&self, value: &mut Value, is_secret: bool) {
        match value {
            Value::String(text) if is_secret => *text = MASK.to_owned(),
            Value::String(text) => *text = looks_masked(&self.without_known(text)),
            Value::Array(items) => items.iter_mut().for_each(|item| self.value(item, is_secret)),
            Value::Object(fields) => {
                fields.iter_mut().for_each(|(name, field)| self.value(field, is_secret || is_hidden(name)));
            }
            // Numbers and the like only count secrets, or say whether there is one.
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

fn is_hidden(name: &str) -> bool {
    is_secret(name) && !PUBLIC_NAMES.contains(&name)
}

/// Masks everything in a text that looks like a secret.
fn looks_masked(text: &str) -> String {
    let text = HEADER.replace_all(text, format!("${{1}}{MASK}"));
    let text = BEARER.replace_all(&text, format!("${{1}} {MASK}"));
    let text = NAMED.replace_all(&text, |found: &Captures<'_>| {
        let (name, between, value) = (&found[1], &found[2], &found[3]);
        if !is_hidden(name) || matches!(value, "true" | "false" | "null") {
            return found[0].to_owned();
        }
        let quote = &value[..value.find(['"', '\'']).map_or(0, |at| at + 1)];
        // A value that ends at an escaped quote keeps the rest of its text.
        let end = if quote.starts_with('\\') { "" } else { quote };
        format!("{name}{between}{quote}{MASK}{end}")
    });
    mask_text(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a known secret is found in every form, even within a longer text.
    #[test]
    fn known_secrets_are_masked_in_every_form() {
        let secret: Vec<u8> = (0..32_u8).map(|n| n.wrapping_mul(7).wrapping_add(201)).collect();
        let mut mask = Mask::default();
        mask.hide(&secret);
        mask.hide(b"hunter2-hunter2");
        mask.hide(b"-----BEGIN\nhunter2\"\n-----END");
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
            "x -----BEGIN\nhunter2\"\n-----END y".into(),
            format!("{:?}", "-----BEGIN\nhunter2\"\n-----END"),
            serde_json::json!({ "a": ["-----BEGIN\nhunter2\"\n-----END"] }).to_string(),
        ] {
            let masked = mask.text(&written);
            assert!(masked.contains(MASK), "{written} became {masked}");
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
            ("https://user:p@w@host:1/x", "https://***@host:1/x"),
            ("see s3://AKIA:x%40y@bucket/p, then", "see s3://***@bucket/p, then"),
            ("GET /x?a=1&X-Amz-Signature=abc123&b=2", "GET /x?a=1&X-Amz-Signature=***&b=2"),
            ("dial url=x?token=abc", "dial url=x?token=***"),
            ("Authorization: Digest a=\"b\"", "Authorization: ***\"b\""),
            ("authorization=\"Bearer abcdefgh12\"", "authorization=\"***\""),
            ("sent Bearer abcdefgh12 twice", "sent Bearer *** twice"),
            ("password: {hunter2}", "password: ***}"),
            ("passphrase='correct horse' x", "passphrase='***' x"),
            ("password=123456", "password=***"),
            ("AWS_SECRET_ACCESS_KEY=abc apikey=def", "AWS_SECRET_ACCESS_KEY=*** apikey=***"),
            (r#"why="{\"api_key\": \"abc\", \"n\": 1}""#, r#"why="{\"api_key\": \"***\", \"n\": 1}""#),
            ("{\"api_key\": \"x \\\" y\", \"n\": 1}", "{\"api_key\":\"***\",\"n\":1}"),
            (
                "{\"has_token\":true,\"tokens\":[\"a\"],\"token_count\":123}",
                "{\"has_token\":true,\"token_count\":123,\"tokens\":[\"***\"]}",
            ),
            (
                r#"{"why":"{\"token\":\"abc\"} and \"https://h/x?token=abc\""}"#,
                r#"{"why":"{\"token\":\"***\"} and \"https://h/x?token=***\""}"#,
            ),
            ("one\n{\"secret\":\"abc\"}\npassword=abc\n", "one\n{\"secret\":\"***\"}\npassword=***\n"),
        ] {
            assert_eq!(sorted(&mask.text(text)), sorted(masked), "{text}");
            assert_eq!(mask.text(&mask.text(text)), mask.text(text), "once is enough: {text}");
        }
        for plain in [
            "http://127.0.0.1:8545/v1/status",
            "peer ab12@192.0.2.1:7400 connected",
            "head=970 digest=0xabababababab key_file=node.key has_token=true",
            "{\"signature\":\"0xabab\",\"signatures\":[\"0xab\"]}",
            "{\n  \"a\": [\n    1\n  ]\n}",
        ] {
            assert_eq!(mask.text(plain), plain);
        }
    }

    /// A document, independent of the order of its fields; any other line unchanged.
    fn sorted(text: &str) -> Result<Value, String> {
        serde_json::from_str(text).map_err(|_| text.to_owned())
    }
}
