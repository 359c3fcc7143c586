//! [`PeerTarget`]: a peer to dial, at an address or at a DNS name.

use std::{borrow::Cow, fmt, net::SocketAddr, str::FromStr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{ParsePeerAddressError, PeerAddress, PeerId};

/// Maximum number of characters of a DNS name, and of one of its labels.
const NAME_CHARS_MAX: usize = 253;
const LABEL_CHARS_MAX: usize = 63;

/// A configured peer: the key that it must prove, and the host to dial. Text: `<64 hexadecimal digits>@host:port`,
/// where the host is an IP address (IPv6 in brackets) or a DNS name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PeerTarget {
    /// The key that the peer must prove. A name that is resolved wrongly, or by a liar, leads to no other peer.
    pub id: PeerId,
    /// The host and port that it listens at.
    pub at: PeerHost,
}

/// The host and port at which a peer is dialled.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PeerHost {
    /// A fixed address.
    Address(SocketAddr),
    /// The addresses that a DNS name has when it is dialled.
    Name {
        /// 1 to 253 characters: labels of letters, digits, `-` and `_`, joined by dots.
        host: String,
        /// The peer's UDP port, not 0.
        port: u16,
    },
}

impl PeerTarget {
    /// The peer's address, or `None` if it is configured by a name.
    pub fn address(&self) -> Option<SocketAddr> {
        match self.at {
            PeerHost::Address(address) => Some(address),
            PeerHost::Name { .. } => None,
        }
    }
}

impl From<PeerAddress> for PeerTarget {
    fn from(PeerAddress { id, address }: PeerAddress) -> PeerTarget {
        PeerTarget { id, at: PeerHost::Address(address) }
    }
}

impl fmt::Display for PeerHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeerHost::Address(address) => address.fmt(f),
            PeerHost::Name { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

impl fmt::Display for PeerTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.id, self.at)
    }
}

impl FromStr for PeerTarget {
    type Err = ParsePeerAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = |reason| ParsePeerAddressError { found: text.chars().take(120).collect(), reason };
        let (id, at) = text.split_once('@').ok_or_else(|| wrong("the @ is missing"))?;
        let id = id.parse().map_err(|_| wrong("the key before the @ is invalid"))?;
        if let Ok(address) = at.parse() {
            return Ok(PeerTarget { id, at: PeerHost::Address(address) });
        }
        let (host, port) = at.rsplit_once(':').ok_or_else(|| wrong("the port after the host is missing"))?;
        if !is_name(host) {
            return Err(wrong("the host after the @ is neither an IP address nor a DNS name"));
        }
        let port = port.parse().ok().filter(|port| *port != 0);
        let port = port.ok_or_else(|| wrong("the port after the host must be from 1 to 65535"))?;
        Ok(PeerTarget { id, at: PeerHost::Name { host: host.to_owned(), port } })
    }
}

/// Whether a text can be a DNS name. If its last label is a number, it is a mistyped address.
fn is_name(host: &str) -> bool {
    let is_label = |label: &str| {
        (1..=LABEL_CHARS_MAX).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    let labels = host.strip_suffix('.').unwrap_or(host);
    let last = labels.rsplit('.').next().unwrap_or_default();
    host.len() <= NAME_CHARS_MAX
        && labels.split('.').all(is_label)
        && !last.bytes().all(|byte| byte.is_ascii_digit())
}

impl JsonSchema for PeerTarget {
    fn schema_name() -> Cow<'static, str> {
        "PeerTarget".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^(0x)?[0-9a-fA-F]{64}@.+:[0-9]{1,5}$" })
    }
}

impl Serialize for PeerTarget {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PeerTarget {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_names_round_trip() {
        let key = "0f".repeat(32);
        for (host, is_name) in [
            ("192.0.2.7:7400", false),
            ("[2001:db8::1]:7400", false),
            ("fullnode.example.org:7400", true),
            ("fullnode.example.org.:7400", true),
            ("validator-0.validators_svc:1", true),
            ("localhost:65535", true),
        ] {
            let text = format!("{key}@{host}");
            let target: PeerTarget = text.parse().unwrap();
            assert_eq!((target.to_string(), target.address().is_none()), (text, is_name));
            let json = serde_json::to_string(&target).unwrap();
            assert_eq!(serde_json::from_str::<PeerTarget>(&json).unwrap(), target);
        }
    }

    #[test]
    fn what_is_neither_is_refused_with_the_part_that_is_wrong() {
        let key = "0f".repeat(32);
        let long = format!("{}.example", "a".repeat(64));
        let longer = vec!["a"; 128].join(".");
        for (host, reason) in [
            ("fullnode.example.org", "the port after the host is missing"),
            ("fullnode.example.org:0", "must be from 1 to 65535"),
            ("fullnode.example.org:65536", "must be from 1 to 65535"),
            ("1.2.3:7400", "neither an IP address nor a DNS name"),
            ("1.2.3.400:7400", "neither an IP address nor a DNS name"),
            ("2001:db8::1:7400", "neither an IP address nor a DNS name"),
            ("-a.example:7400", "neither an IP address nor a DNS name"),
            ("a..example:7400", "neither an IP address nor a DNS name"),
            (":7400", "neither an IP address nor a DNS name"),
            ("user:pass@host:7400", "neither an IP address nor a DNS name"),
            (&format!("{long}:7400"), "neither an IP address nor a DNS name"),
            (&format!("{longer}:7400"), "neither an IP address nor a DNS name"),
        ] {
            let error = format!("{key}@{host}").parse::<PeerTarget>().unwrap_err();
            assert!(error.reason.contains(reason), "{host}: {error}");
        }
        assert_eq!(
            "x@localhost:1".parse::<PeerTarget>().unwrap_err().reason,
            "the key before the @ is invalid"
        );
    }
}
