//! [`Relay`]: a hop in front of a QUIC client. Once the server has begun its part, the relay withholds the client's
//! packets, or forwards them from another address. The client's first packets pass, including the answer to a Retry.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Context, Result};
use slipstream_network::PeerAddress;
use tokio::net::UdpSocket;

use super::wire::{QuicSettings, Wire, fresh_key};

const DATAGRAM_BYTES_MAX: usize = 2_048;
/// The Retry type of a packet with a long header, in QUIC 1 (RFC 9000, 17.2): bits 4 and 5 of the first byte.
const RETRY: u8 = 3;
/// Datagrams that leave from a forged address: the client retransmits the lost ones.
const FORGED: usize = 4;

/// A relay in front of one client.
pub(super) struct Relay {
    /// The socket that the client sends to.
    near: UdpSocket,
    /// The socket that the server sees as the client.
    far: UdpSocket,
    then: Then,
}

/// The handling of the client's packets once the server has begun its part.
enum Then {
    Silence,
    /// The first packets after the handshake come from another address. They follow the end of the handshake at once,
    /// before the server has found a slot for the connection. The server's answers to that address are lost, as for any
    /// forger of addresses.
    Forge(Forgery),
}

struct Forgery {
    socket: UdpSocket,
    /// The end of the handshake, withheld until other packets follow it.
    held: Vec<Vec<u8>>,
    /// The number of datagrams that still leave from the forged address.
    left: usize,
}

impl Relay {
    /// Makes a relay that stalls handshakes.
    pub(super) async fn stalls(target: &str, from: IpAddr) -> Result<Relay> {
        Relay::open(target, from, Then::Silence).await
    }

    /// Makes a relay whose connections move to a forged address with their first packets.
    pub(super) async fn forges(target: &str, from: IpAddr, forged: IpAddr) -> Result<Relay> {
        let socket = connected(target, forged).await?;
        let forgery = Forgery { socket, held: Vec::new(), left: FORGED };
        Relay::open(target, from, Then::Forge(forgery)).await
    }

    async fn open(target: &str, from: IpAddr, then: Then) -> Result<Relay> {
        let near = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        Ok(Relay { near, far: connected(target, from).await?, then })
    }

    /// Connects a client through the relay, and runs `meet` for it. Ends when `meet` ends, or with an error.
    pub(super) async fn carry<F: Future<Output = Result<()>>>(
        mut self,
        meet: impl FnOnce(Wire) -> F,
    ) -> Result<()> {
        let at = self.near.local_addr()?;
        let client = async {
            meet(Wire::dial_at(at, Ipv4Addr::LOCALHOST.into(), &fresh_key(), QuicSettings::default()).await?)
                .await
        };
        tokio::select! {
            met = client => met,
            failed = self.run() => failed,
        }
    }

    async fn run(&mut self) -> Result<()> {
        let mut client: Option<SocketAddr> = None;
        let mut begun = false;
        let (mut out, mut back) = ([0; DATAGRAM_BYTES_MAX], [0; DATAGRAM_BYTES_MAX]);
        loop {
            tokio::select! {
                received = self.near.recv_from(&mut out) => {
                    let (bytes, from) = received?;
                    client = Some(from);
                    self.send(&out[..bytes], begun).await?;
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

    async fn send(&mut self, datagram: &[u8], begun: bool) -> Result<()> {
        match &mut self.then {
            Then::Silence if begun => return Ok(()),
            Then::Forge(forgery) if begun && forgery.left > 0 => {
                if is_of_handshake(datagram) {
                    forgery.held.push(datagram.to_vec());
                    return Ok(());
                }
                for held in forgery.held.drain(..) {
                    self.far.send(&held).await?;
                }
                forgery.left -= 1;
                forgery.socket.send(datagram).await?;
            }
            _ => {
                self.far.send(datagram).await?;
            }
        }
        Ok(())
    }
}

/// Returns a socket of this address that is connected to the target.
async fn connected(target: &str, from: IpAddr) -> Result<UdpSocket> {
    let peer: PeerAddress = target.parse()?;
    let socket = UdpSocket::bind((from, 0)).await.with_context(|| format!("cannot bind {from}"))?;
    socket.connect(peer.address).await?;
    Ok(socket)
}

/// Whether a datagram begins with a packet of the handshake: only those have a long header.
fn is_of_handshake(datagram: &[u8]) -> bool {
    datagram.first().is_some_and(|first| first & 0x80 != 0)
}

fn is_retry(datagram: &[u8]) -> bool {
    datagram.first().is_some_and(|first| first & 0x80 != 0 && first >> 4 & 3 == RETRY)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the handshake comes from the client's own address, its end just before the first packets, and these from
    /// another address.
    #[tokio::test]
    async fn first_words_come_from_elsewhere() {
        let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let target = format!("{}@{}", fresh_key().public(), server.local_addr().unwrap());
        let [own, forged] = [1, 2].map(|low| IpAddr::V4(Ipv4Addr::new(127, 63, 0, low)));
        let mut relay = Relay::forges(&target, own, forged).await.unwrap();
        for (word, begun) in
            [(0x80, false), (0x81, true), (1, true), (2, true), (3, true), (4, true), (5, true)]
        {
            relay.send(&[word], begun).await.unwrap();
        }
        let mut seen = Vec::new();
        for _ in 0..7 {
            let mut datagram = [0; 2];
            let (bytes, from) = server.recv_from(&mut datagram).await.unwrap();
            assert_eq!(bytes, 1);
            seen.push((datagram[0], from.ip() == forged));
        }
        let expected = [(0x80, false), (0x81, false), (1, true), (2, true), (3, true), (4, true), (5, false)];
        assert_eq!(seen, expected);
    }

    #[test]
    fn only_a_retry_lets_the_client_speak_again() {
        assert!(is_retry(&[0xf0, 0, 0, 0, 1]));
        assert!(!is_retry(&[0xc0, 0, 0, 0, 1]), "an Initial packet");
        assert!(!is_retry(&[0x70]), "a short header");
        assert!(!is_retry(&[]));
    }
}
