//! [`NetworkConfig`]: the `network` section of the configuration file.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::{
    MESSAGE_BYTES_MAX, NetworkError, PeerId, PeerTarget,
    exchange::{RECORD_ADDRESSES_MAX, Scope},
};

/// Above this a node would be a burden to its peers.
const OUTBOUND_MAX: usize = 64;

/// Where to listen, whom to dial, and how much one peer may take.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkConfig {
    /// UDP address to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Peers to dial, and to dial again whenever the connection is lost. They have reserved places among `peers_max`.
    /// The node's own entry is skipped, so one list serves a whole validator set.
    pub peers: Vec<PeerTarget>,
    /// Where this node is reached from outside, at most four addresses: peers tell each other of it. Empty tells nobody.
    pub advertise: Vec<SocketAddr>,
    /// Connections that this node chooses by itself among the peers that others tell of, beside `peers`; at most half of the places
    /// that these leave. 0 chooses none.
    pub outbound: usize,
    /// Connections at once, dialled and accepted. Bounds the memory that peers can take together.
    pub peers_max: usize,
    /// Requests of one peer that are handled at once; more wait in the peer's own streams.
    pub request_concurrency_max: usize,
    /// Bytes of one peer's requests that are held until they are handled; a request above that is refused as busy.
    pub request_bytes_in_flight_max: usize,
    /// Bytes of answers to one peer that are held, from before they are made until the peer has them; requests for more wait a
    /// moment and are then refused as busy. All peers of one host have twice as much together, those of one network (IPv4 /24, IPv6
    /// /48) three times.
    pub answer_bytes_in_flight_max: usize,
    /// Bytes that are held for all peers together: of their requests, of answers to them, and half as much of their broadcasts.
    /// Strangers leave a fourth of it to configured peers, who may have all; each of them an eighth, or one longest message.
    pub bytes_in_flight_total_max: usize,
    /// Broadcasts waiting per peer and direction; above that the oldest is dropped.
    pub broadcast_queue_items_max: usize,
    /// Bytes of broadcasts waiting per peer and direction; above that the oldest is dropped.
    pub broadcast_queue_bytes_max: usize,
    /// Time to receive one request or broadcast, or to get rid of one response. The default lets 48 MiB through at 14 Mbit/s.
    /// A peer that moves less than 32 KiB/s for a sixth of it, while something waits to move, is given up earlier.
    pub transfer_timeout_ms: u64,
    /// Time for one connection attempt. Also how long two simultaneous attempts can cross.
    pub handshake_timeout_ms: u64,
    /// A connection without a sign of life for this long is given up: how late a killed peer is noticed.
    pub idle_timeout_ms: u64,
    /// Silence after which a keep-alive is sent.
    pub keep_alive_interval_ms: u64,
}

impl Default for NetworkConfig {
    fn default() -> Self {
        NetworkConfig {
            listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 7400)),
            peers: Vec::new(),
            advertise: Vec::new(),
            outbound: 8,
            peers_max: 64,
            request_concurrency_max: 64,
            request_bytes_in_flight_max: 2 * MESSAGE_BYTES_MAX,
            answer_bytes_in_flight_max: 64 << 20,
            bytes_in_flight_total_max: 512 << 20,
            broadcast_queue_items_max: 1_024,
            broadcast_queue_bytes_max: MESSAGE_BYTES_MAX + (16 << 20),
            transfer_timeout_ms: 30_000,
            handshake_timeout_ms: 5_000,
            idle_timeout_ms: 5_000,
            keep_alive_interval_ms: 1_000,
        }
    }
}

impl NetworkConfig {
    /// Refuses values that cannot work together, naming the key. [`crate::Network::start`] calls it; the configuration
    /// loader may call it earlier.
    pub fn check(&self) -> Result<(), NetworkError> {
        let wrong = |key: &'static str, reason: String| Err(NetworkError::Config { key, reason });
        let mut seen = BTreeSet::new();
        if let Some(twice) = self.peers.iter().find(|peer| !seen.insert(peer.id)) {
            return wrong("network.peers", format!("peer {} is listed twice; keep one address", twice.id));
        }
        if self.peers.len() > self.peers_max {
            let reason = format!("must not be lower than the {} configured peers", self.peers.len());
            return wrong("network.peers_max", reason);
        }
        self.check_advertised()?;
        if self.outbound > OUTBOUND_MAX {
            let reason = format!("must be from 0 to {OUTBOUND_MAX}, not {}", self.outbound);
            return wrong("network.outbound", reason);
        }
        for (key, value, most) in [
            ("network.peers_max", self.peers_max, 4_096),
            ("network.request_concurrency_max", self.request_concurrency_max, 4_096),
            ("network.broadcast_queue_items_max", self.broadcast_queue_items_max, 65_536),
        ] {
            if !(1..=most).contains(&value) {
                return wrong(key, format!("must be from 1 to {most}, not {value}"));
            }
        }
        for (key, value) in [
            ("network.request_bytes_in_flight_max", self.request_bytes_in_flight_max),
            ("network.answer_bytes_in_flight_max", self.answer_bytes_in_flight_max),
            ("network.bytes_in_flight_total_max", self.bytes_in_flight_total_max),
            ("network.broadcast_queue_bytes_max", self.broadcast_queue_bytes_max),
        ] {
            if !(MESSAGE_BYTES_MAX..=1 << 40).contains(&value) {
                return wrong(
                    key,
                    format!("must hold one message of {MESSAGE_BYTES_MAX} bytes and not exceed 1 TiB"),
                );
            }
        }
        let one_peer = self.request_bytes_in_flight_max.max(self.answer_bytes_in_flight_max);
        if self.bytes_in_flight_total_max < one_peer {
            let reason = format!("must hold what one peer may have, {one_peer} bytes");
            return wrong("network.bytes_in_flight_total_max", reason);
        }
        self.check_times()
    }

    fn check_advertised(&self) -> Result<(), NetworkError> {
        let wrong = |reason| Err(NetworkError::Config { key: "network.advertise", reason });
        if self.advertise.len() > RECORD_ADDRESSES_MAX {
            return wrong(format!("must have at most {RECORD_ADDRESSES_MAX} addresses"));
        }
        let mut seen = BTreeSet::new();
        for address in &self.advertise {
            if Scope::of(*address).is_none() {
                return wrong(format!(
                    "nobody can dial {address}; write the IP:PORT at which this machine is reached by UDP from outside"
                ));
            }
            if !seen.insert(address) {
                return wrong(format!("{address} is listed twice"));
            }
        }
        Ok(())
    }

    fn check_times(&self) -> Result<(), NetworkError> {
        for (key, value) in [
            ("network.transfer_timeout_ms", self.transfer_timeout_ms),
            ("network.handshake_timeout_ms", self.handshake_timeout_ms),
            ("network.idle_timeout_ms", self.idle_timeout_ms),
            ("network.keep_alive_interval_ms", self.keep_alive_interval_ms),
        ] {
            if !(10..=3_600_000).contains(&value) {
                let reason = format!("must be from 10 to 3600000 milliseconds, not {value}");
                return Err(NetworkError::Config { key, reason });
            }
        }
        if self.idle_timeout_ms < 2 * self.keep_alive_interval_ms {
            let reason = format!(
                "must be at most half of network.idle_timeout_ms ({}), so that one lost keep-alive does not end a connection",
                self.idle_timeout_ms
            );
            return Err(NetworkError::Config { key: "network.keep_alive_interval_ms", reason });
        }
        Ok(())
    }

    /// The configured peers without the node itself.
    pub(crate) fn others(&self, local: PeerId) -> impl Iterator<Item = &PeerTarget> {
        self.peers.iter().filter(move |peer| peer.id != local)
    }

    /// Places for peers of the node's own choice. One more is needed to look whether somebody is there, and one at least is a stranger's.
    pub(crate) fn chosen_places(&self) -> usize {
        let left = self.peers_max.saturating_sub(self.peers.len());
        self.outbound.min(left.saturating_sub(1) / 2)
    }

    pub(crate) fn transfer_timeout(&self) -> Duration {
        Duration::from_millis(self.transfer_timeout_ms)
    }

    pub(crate) fn handshake_timeout(&self) -> Duration {
        Duration::from_millis(self.handshake_timeout_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_pass_and_an_empty_section_is_the_default() {
        let config: NetworkConfig = serde_json::from_str("{}").unwrap();
        assert_eq!(config, NetworkConfig::default());
        config.check().unwrap();
    }

    #[test]
    fn unknown_keys_are_refused() {
        let error = serde_json::from_str::<NetworkConfig>(r#"{"peer": []}"#).unwrap_err();
        assert!(error.to_string().contains("unknown field `peer`"), "{error}");
    }

    #[test]
    fn each_rule_names_its_key() {
        let peer: PeerTarget = format!("{}@127.0.0.1:1", "01".repeat(32)).parse().unwrap();
        let base = NetworkConfig::default();
        for (config, name) in [
            (NetworkConfig { peers: vec![peer.clone(), peer.clone()], ..base.clone() }, "network.peers"),
            (NetworkConfig { peers: vec![peer], peers_max: 0, ..base.clone() }, "network.peers_max"),
            (
                NetworkConfig { advertise: vec!["0.0.0.0:7400".parse().unwrap()], ..base.clone() },
                "network.advertise",
            ),
            (
                NetworkConfig { advertise: vec!["8.8.8.8:7400".parse().unwrap(); 2], ..base.clone() },
                "network.advertise",
            ),
            (NetworkConfig { outbound: 65, ..base.clone() }, "network.outbound"),
            (NetworkConfig { request_concurrency_max: 0, ..base.clone() }, "network.request_concurrency_max"),
            (
                NetworkConfig { broadcast_queue_bytes_max: 1, ..base.clone() },
                "network.broadcast_queue_bytes_max",
            ),
            (
                NetworkConfig { bytes_in_flight_total_max: 60 << 20, ..base.clone() },
                "network.bytes_in_flight_total_max",
            ),
            (NetworkConfig { transfer_timeout_ms: 0, ..base.clone() }, "network.transfer_timeout_ms"),
            (
                NetworkConfig { keep_alive_interval_ms: 4_000, ..base.clone() },
                "network.keep_alive_interval_ms",
            ),
        ] {
            match config.check() {
                Err(NetworkError::Config { key, .. }) => assert_eq!(key, name),
                other => panic!("{name}: {other:?}"),
            }
        }
    }
}
