//! [`Stall`]: a handshake of QUIC that never ends. The client's first words pass, also those that answer a Retry; nothing that it says
//! once the server has begun its part does.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
};

use anyhow::{Context, Result};
use quinn::{Endpoint, EndpointConfig, TokioRuntime};
use slipstream_network::PeerAddress;
use tokio::net::UdpSocket;

use super::wire::{Manner, client_config, fresh_key};

const DATAGRAM_BYTES_MAX: usize = 2_048;
/// The type of a packet with a long header, in QUIC 1 (RFC 9000, 17.2): bits 4 and 5 of the first byte.
const RETRY: u8 = 3;

/// A relay in front of one client.
struct Stall {
    /// Where the client speaks to.
    near: UdpSocket,
    /// Where the server sees the client.
    far: UdpSocket,
}

/// Begins a handshake from an address and leaves it open until the future is dropped or the server is silent for long.
pub(super) async fn stall(target: &str, from: IpAddr) -> Result<()> {
    let peer: PeerAddress = target.parse()?;
    let near = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let far = UdpSocket::bind((from, 0)).await.with_context(|| format!("cannot bind {from}"))?;
    far.connect(peer.address).await?;
    let at = near.local_addr()?;
    let client = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let client = Endpoint::new(EndpointConfig::default(), None, client, Arc::new(TokioRuntime))?;
    let connecting =
        client.connect_with(client_config(&fresh_key(), Manner::default())?, at, "slipstream.invalid")?;
    let relay = Stall { near, far };
    tokio::select! {
        // It never completes: it fails when the client gives up.
        _ = connecting => Ok(()),
        failed = relay.run() => failed,
    }
}

impl Stall {
    async fn run(&self) -> Result<()> {
        let mut client: Option<SocketAddr> = None;
        let mut begun = false;
        let (mut out, mut back) = ([0; DATAGRAM_BYTES_MAX], [0; DATAGRAM_BYTES_MAX]);
        loop {
            tokio::select! {
                received = self.near.recv_from(&mut out) => {
                    let (bytes, from) = received?;
                    client = Some(from);
                    if !begun {
                        self.far.send(&out[..bytes]).await?;
                    }
                }
                received = self.far.recv(&mut back) => {
                    let bytes = received?;
                    begun |= !is_retry(&back[..bytes]);
                    if let Some(client) = client {
                        self.near.send_to(&back[..bytes], client).await?;
                    }
                }
            }
        }
    }
}

fn is_retry(datagram: &[u8]) -> bool {
    datagram.first().is_some_and(|first| first & 0x80 != 0 && first >> 4 & 3 == RETRY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_retry_lets_the_client_speak_again() {
        assert!(is_retry(&[0xf0, 0, 0, 0, 1]));
        assert!(!is_retry(&[0xc0, 0, 0, 0, 1]), "an Initial packet");
        assert!(!is_retry(&[0x70]), "a short header");
        assert!(!is_retry(&[]));
    }
}
