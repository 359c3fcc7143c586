//! The secrets that a bundle must omit: the node's key, its operator's token, and secrets of the environment.

use std::fs;

use slipstream_base::{
    keys,
    operator_token::{OperatorToken, TOKEN_FILE},
};
use slipstream_config::{NodeConfig, mask::is_secret};

use super::{collect::Holder, system::read_head};
use crate::mask::Mask;

/// Maximum bytes of an environment: the kernel allows some MiB.
const ENVIRONMENT_BYTES_MAX: usize = 1 << 20;

/// Returns a mask that hides these secrets. Files that this user cannot read cannot get into the bundle.
pub(super) fn mask(config: &NodeConfig, holder: Option<&Holder>) -> Mask {
    let mut mask = Mask::default();
    if let Ok(key) = keys::load(&config.key_file) {
        hide_hex(&mut mask, &hex::encode(key.seed()));
    }
    if let Ok(token) = OperatorToken::load(&config.data_dir.join(TOKEN_FILE)) {
        hide_hex(&mut mask, &token.reveal());
    }
    for (name, value) in std::env::vars_os() {
        hide_variable(&mut mask, &name.to_string_lossy(), value.as_encoded_bytes());
    }
    // The node's own environment may differ from this command's.
    let environment = holder.and_then(|holder| holder.pid).map(|pid| format!("/proc/{pid}/environ"));
    let environment = environment
        .and_then(|path| fs::File::open(path).ok())
        .map(|file| read_head(file, ENVIRONMENT_BYTES_MAX));
    for variable in environment.unwrap_or_default().split(|byte| *byte == 0) {
        if let Some(equals) = variable.iter().position(|byte| *byte == b'=') {
            hide_variable(&mut mask, &String::from_utf8_lossy(&variable[..equals]), &variable[equals + 1..]);
        }
    }
    mask
}

/// Hides 32 bytes, both raw and as the digits in a file.
fn hide_hex(mask: &mut Mask, digits: &str) {
    mask.hide(digits.as_bytes());
    if let Ok(bytes) = hex::decode(digits) {
        mask.hide(&bytes);
    }
}

/// Hides the value of a variable whose name marks it as secret, and the password of a URL in any other variable.
fn hide_variable(mask: &mut Mask, name: &str, value: &[u8]) {
    if is_secret(name) {
        mask.hide(value);
    }
    let value = String::from_utf8_lossy(value);
    // A password may contain an unencoded `/` or `@`.
    let user = value.split_once("://").and_then(|(_, rest)| rest.rsplit_once('@'));
    if let Some((user, _)) = user {
        mask.hide(user.as_bytes());
        mask.hide(user.split_once(':').map_or(user, |(_, password)| password).as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a password from the environment is hidden even without its URL, or with characters that usually end a
    /// host.
    #[test]
    fn passwords_of_the_environment_are_hidden() {
        for (name, value) in [
            ("PROXY", "http://user:correct/horse@battery@host:1/x"),
            ("DB_PASSWORD", "correct/horse@battery"),
            ("URL", "http://host:1/x"),
        ] {
            let mut mask = Mask::default();
            hide_variable(&mut mask, name, value.as_bytes());
            let shown = mask.text("refused: correct/horse@battery");
            assert_eq!(shown.contains("horse"), name == "URL", "{name}: {shown}");
        }
    }
}
