//! [`NetworkConfig`]: the `network` section of the configuration file.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddr},
    ops::RangeInclusive,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::{
    MESSAGE_BYTES_MAX, NetworkError, PeerId, PeerName, PeerTarget,
    exchange::{RECORD_ADDRESSES_MAX, Scope},
    names,
};

/// Maximum of `outbound`: a node with more connections of its own choice would burden its peers.
const OUTBOUND_MAX: u64 = 64;
/// Allowed bytes of queues and of messages in flight: at least one message, and few enough that sums do not overflow.
const MESSAGES: RangeInclusive<u64> = MESSAGE_BYTES_MAX as u64..=1 << 40;
/// Allowed times in milliseconds: long enough for a busy machine, and an hour at most.
const TIMES_MS: RangeInclusive<u64> = 10..=3_600_000;

/// The listening address, the peers to dial, and the resources that one peer may use.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkConfig {
    /// UDP address for peers; port 0 takes a free port.
    pub listen: SocketAddr,
    /// Peers `ID@HOST:PORT` to dial, and to redial when they are lost. The host is an IP at which the peer is reached
    /// (not 0.0.0.0; IPv6 in brackets), or a DNS name, as in `ID@fullnode.example.org:7400`. A name is resolved at each
    /// attempt, within 10 s, so that a changed record is followed; one attempt dials up to four of its addresses. A
    /// fullnode needs at least one peer. The node's own entry is skipped, so that one list serves a whole validator
    /// set.
    pub peers: Vec<PeerTarget>,
    /// Names `KEY=NAME` for keys of validators and peers, as in `KEY=validator-0`. They appear beside the keys in the
    /// status, in `/v1/consensus/evidence`, on the node's page, in `slipstream top` and in the log, and before a
    /// missing peer in the reason why a node is not ready. At most 1024, each of 1 to 64 characters: letters of
    /// left-to-right scripts, digits, ASCII symbols, and spaces between them. No two keys have the same name. Only this
    /// node uses them: peers do not learn them, but everybody who reaches the API reads them.
    pub names: Vec<PeerName>,
    /// Addresses at which this node is reached from outside, at most four `IP:PORT`. The node signs them with its key
    /// and tells them to peers, who pass them on. Leave it empty on a node that does not know its address, or that
    /// should stay unknown, as most validators should. Peers then do not tell others about the node.
    pub advertise: Vec<SocketAddr>,
    /// Connections that the node chooses itself among the peers that others tell it about, beside `peers`: by default
    /// as many as Bitcoin has. At most half of the places that `peers` leave. 0 chooses none and asks no peers.
    /// Addresses of private networks or of loopback are dialled only if `advertise`, or `listen` where that is empty,
    /// has one of the same kind: a devnet on 127.0.0.1 listens at `127.0.0.1:PORT`.
    /// [security.md](security.md#peer-exchange) explains how they are chosen.
    pub outbound: usize,
    /// Maximum number of connections at once, dialled and accepted: bounds the memory that all peers can use. `outbound` and one
    /// more are reserved for peers of the node's own choice. Other peers that are not listed get at most 8 of them per
    /// IPv4 address or IPv6 /64, except this machine's, and a quarter of them per IPv4 /24 or IPv6 /48. When none is
    /// free, useless peers and the newest of the most crowded network make room for peers from elsewhere.
    pub peers_max: usize,
    /// Requests of one peer that are handled at once; more wait in the peer's own streams.
    pub request_concurrency_max: usize,
    /// Maximum bytes of one peer's requests that are held; the default is two of the longest messages. Requests above 16
    /// KiB count, as their bytes arrive. Above the limit the peer is told to retry later.
    pub request_bytes_in_flight_max: usize,
    /// Maximum bytes of answers to one peer that are held, from before they are made until the peer has them; the default
    /// is a round trip of 150 ms at 3 Gbit/s. Above it requests wait for 4 s, then the peer is told to retry later. All
    /// peers of one host share twice this limit, those of one network (IPv4 /24, IPv6 /48) three times.
    pub answer_bytes_in_flight_max: usize,
    /// The same for the answers to all peers together, and again for their requests; half of it in each direction for
    /// broadcasts that wait. Strangers leave a quarter of it to the listed peers. Listed peers may use all of it, each
    /// at most an eighth or 48 MiB, whichever is more.
    pub bytes_in_flight_total_max: usize,
    /// Messages of the mesh that wait, per peer and direction: the chunks of some payloads. Above it the oldest of the
    /// least urgent is dropped, and requested again if it is missed.
    pub broadcast_queue_items_max: usize,
    /// The same in bytes; the default is one longest message and room for small ones.
    pub broadcast_queue_bytes_max: usize,
    /// Time for one message; the default moves 48 MiB at 14 Mbit/s. A peer that moves less than 32 KiB/s for a sixth of
    /// it, while something waits to move, is given up earlier.
    pub transfer_timeout_ms: u64,
    /// Time for one attempt to connect; a quarter of it for incoming attempts while many are in progress.
    pub handshake_timeout_ms: u64,
    /// Silence after which a connection is given up: the delay until a killed peer is noticed.
    pub idle_timeout_ms: u64,
    /// Silence after which a keep-alive is sent; at most half of `idle_timeout_ms`.
    pub keep_alive_interval_ms: u64,
}

impl Default for NetworkConfig {
    fn default() -> Self {
        NetworkConfig {
            listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 7400)),
            peers: Vec::new(),
            names: Vec::new(),
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
        names::check(&self.names)?;
        self.check_advertised()?;
        for (key, value, range) in self.ranges() {
            if !range.contains(&value) {
                let (least, most) = (range.start(), range.end());
                let why = if range == MESSAGES { ": the minimum is one message" } else { "" };
                return wrong(key, format!("must be from {least} to {most}, not {value}{why}"));
            }
        }
        let one_peer = self.request_bytes_in_flight_max.max(self.answer_bytes_in_flight_max);
        if self.bytes_in_flight_total_max < one_peer {
            let reason = format!("must be at least {one_peer} bytes, which one peer may use");
            return wrong("network.bytes_in_flight_total_max", reason);
        }
        self.check_times()
    }

    /// Each key, its value, and the allowed range.
    pub fn ranges(&self) -> [(&'static str, u64, RangeInclusive<u64>); 12] {
        let count = |value: usize| value as u64;
        [
            ("network.outbound", count(self.outbound), 0..=OUTBOUND_MAX),
            ("network.peers_max", count(self.peers_max), 1..=4_096),
            ("network.request_concurrency_max", count(self.request_concurrency_max), 1..=4_096),
            ("network.request_bytes_in_flight_max", count(self.request_bytes_in_flight_max), MESSAGES),
            ("network.answer_bytes_in_flight_max", count(self.answer_bytes_in_flight_max), MESSAGES),
            ("network.bytes_in_flight_total_max", count(self.bytes_in_flight_total_max), MESSAGES),
            ("network.broadcast_queue_items_max", count(self.broadcast_queue_items_max), 1..=65_536),
            ("network.broadcast_queue_bytes_max", count(self.broadcast_queue_bytes_max), MESSAGES),
            ("network.transfer_timeout_ms", self.transfer_timeout_ms, TIMES_MS),
            ("network.handshake_timeout_ms", self.handshake_timeout_ms, TIMES_MS),
            ("network.idle_timeout_ms", self.idle_timeout_ms, TIMES_MS),
            ("network.keep_alive_interval_ms", self.keep_alive_interval_ms, TIMES_MS),
        ]
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
                    "other nodes cannot dial {address}; write the IP:PORT at which this machine is reachable by UDP from outside"
                ));
            }
            if !seen.insert(address) {
                return wrong(format!("{address} is listed twice"));
            }
        }
        Ok(())
    }

    fn check_times(&self) -> Result<(), NetworkError> {
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

    /// Number of connections reserved for peers of the node's own choice. One more is needed for a feeler (a trial
    /// connection), and at least one stays for a stranger.
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
        let named =
            |key: &str, name: &str| -> PeerName { format!("{}={name}", key.repeat(32)).parse().unwrap() };
        for (config, name) in [
            (
                NetworkConfig { names: vec![named("01", "a"), named("02", "a")], ..base.clone() },
                "network.names",
            ),
            (
                NetworkConfig { names: vec![named("01", "a"), named("01", "b")], ..base.clone() },
                "network.names",
            ),
            (NetworkConfig { names: vec![named("01", "a"); 1_025], ..base.clone() }, "network.names"),
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
