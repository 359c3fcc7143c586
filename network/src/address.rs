//! [`PeerAddress`]: a peer's key and the address that it listens at.

use std::{fmt, net::SocketAddr, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::PeerId;

/// A peer's key and its UDP address. Text: `<64 hexadecimal digits>@ip:port`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PeerAddress {
    /// The key that the peer must prove.
    pub id: PeerId,
    /// The address that the peer listens at.
    pub address: SocketAddr,
}

/// Text that is not a peer address.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{found:?} is not a peer address: {reason}; write <64 hexadecimal digits of the peer's key>@host:port, \
     as `slipstream status` of that peer prints it"
)]
pub struct ParsePeerAddressError {
    /// The refused text, cut to 120 characters.
    pub found: String,
    /// The part of the text that is wrong, and why.
    pub reason: &'static str,
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.id, self.address)
    }
}

impl FromStr for PeerAddress {
    type Err = ParsePeerAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = |reason| ParsePeerAddressError { found: text.chars().take(120).collect(), reason };
        let (id, address) = text.split_once('@').ok_or_else(|| wrong("the @ is missing"))?;
        Ok(PeerAddress {
            id: id.parse().map_err(|_| wrong("the key before the @ is invalid"))?,
            address: address.parse().map_err(|_| wrong("the ip:port after the @ is invalid"))?,
        })
    }
}

impl Serialize for PeerAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PeerAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips_in_both_families() {
        for address in ["10.0.0.1:7400", "[::1]:7400"] {
            let text = format!("{}@{address}", "0f".repeat(32));
            let peer: PeerAddress = text.parse().unwrap();
            assert_eq!(peer.to_string(), text);
            assert_eq!(
                serde_json::from_str::<PeerAddress>(&serde_json::to_string(&peer).unwrap()).unwrap(),
                peer
            );
        }
    }

    #[test]
    fn a_wrong_part_is_named() {
        let key = "0f".repeat(32);
        for (text, part) in [
            ("10.0.0.1:7400".to_string(), "the @ is missing"),
            ("0f@10.0.0.1:7400".into(), "key"),
            (format!("{key}@host:1"), "ip:port"),
        ] {
            let error = text.parse::<PeerAddress>().unwrap_err();
            assert!(error.to_string().contains(part), "{error}");
        }
    }
}
