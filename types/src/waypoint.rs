//! [`Waypoint`]: where trust starts if it does not start at genesis.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{BatchNumber, Digest, LedgerInfo};

/// A ledger info that the operator trusts, `number:hash`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waypoint {
    /// Number of the trusted batch.
    pub number: BatchNumber,
    /// [`LedgerInfo::digest`] at that batch.
    pub hash: Digest,
}

impl Waypoint {
    /// Returns the waypoint of a ledger info.
    pub fn of(info: &LedgerInfo) -> Waypoint {
        Waypoint { number: info.number, hash: info.digest() }
    }
}

impl fmt::Display for Waypoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.number, self.hash)
    }
}

/// Text that is not `number:hash`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "a waypoint is NUMBER:0xHASH with 64 hexadecimal digits, as `slipstream status` of a trusted node prints it"
)]
pub struct ParseWaypointError;

impl FromStr for Waypoint {
    type Err = ParseWaypointError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (number, hash) = text.split_once(':').ok_or(ParseWaypointError)?;
        Ok(Waypoint {
            number: BatchNumber::new(number.parse().map_err(|_| ParseWaypointError)?),
            hash: hash.parse().map_err(|_| ParseWaypointError)?,
        })
    }
}

impl Serialize for Waypoint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Waypoint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}
