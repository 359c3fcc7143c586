//! [`Wire`]: a peer that breaks the protocol, built on quinn itself. `slipstream_network` cannot misbehave, for example
//! by leaving answers unread, so this needs the raw streams.

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, ensure};
use quinn::{
    Connection, Endpoint, EndpointConfig, RecvStream, SendStream, TokioRuntime, TransportConfig, VarInt,
    crypto::rustls::QuicClientConfig,
};
use rustls::{
    DigitallySignedStruct, Error, SignatureScheme,
    client::{
        AlwaysResolvesClientRawPublicKeys, Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime},
    sign::CertifiedKey,
    version::TLS13,
};
use slipstream_network::{PeerAddress, Protocol};
use slipstream_sync::protocol::{ANSWER_BYTES_MAX, Parts, Range, RangeRequest, Request, Summary};
use slipstream_types::{BatchNumber, SecretKey, codec};

/// The application protocol of peers.
const ALPN: &[u8] = b"slipstream/2";
/// DER of an ed25519 SubjectPublicKeyInfo up to the key, and of a PKCS#8 private key up to the seed (RFC 8410).
const SPKI_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
const PKCS8_PREFIX: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];
/// The time for a handshake, and for an answer that is read.
const PATIENCE: Duration = Duration::from_secs(10);
/// The bytes before an answer: its status and its length.
const HEAD_BYTES: usize = 5;
/// The status byte of an answer, as in network's lib.rs.
const ANSWER: u8 = 0;

/// An attacker's QUIC settings.
#[derive(Clone, Copy, Debug)]
pub(super) struct QuicSettings {
    /// The flow-control window of a stream, in bytes.
    pub(super) window: u32,
    /// The flow-control window of all streams together, in bytes.
    pub(super) window_of_all: u32,
    /// Broadcasts that the other side may have open at a time.
    pub(super) broadcasts: u32,
}

impl Default for QuicSettings {
    fn default() -> Self {
        QuicSettings { window: 16 << 20, window_of_all: u32::MAX, broadcasts: 100 }
    }
}

/// A connection to a node, with its own key.
pub(super) struct Wire {
    pub(super) connection: Connection,
    /// Kept, because the connection ends when the endpoint is dropped.
    _endpoint: Endpoint,
}

/// Returns a new random key.
pub(super) fn fresh_key() -> SecretKey {
    SecretKey::from_seed(rand::random())
}

impl Wire {
    /// Connects from an address with a fresh key.
    pub(super) async fn dial(target: &str, from: IpAddr, manner: QuicSettings) -> Result<Wire> {
        let peer: PeerAddress = target.parse()?;
        Wire::dial_at(peer.address, from, &fresh_key(), manner).await
    }

    /// Connects from address `from` to a node at address `at`.
    pub(super) async fn dial_at(
        at: SocketAddr,
        from: IpAddr,
        key: &SecretKey,
        manner: QuicSettings,
    ) -> Result<Wire> {
        let socket = UdpSocket::bind((from, 0)).with_context(|| format!("cannot bind {from}"))?;
        let runtime = Arc::new(TokioRuntime);
        let endpoint = Endpoint::new(EndpointConfig::default(), None, socket, runtime)?;
        let connecting = endpoint.connect_with(client_config(key, manner)?, at, "slipstream.invalid")?;
        let connection =
            tokio::time::timeout(PATIENCE, connecting).await.context("the handshake timed out")??;
        Ok(Wire { connection, _endpoint: endpoint })
    }

    /// Opens a stream and writes a whole request; the caller may read the answer.
    pub(super) async fn send(&self, protocol: Protocol, payload: &[u8]) -> Result<(SendStream, RecvStream)> {
        let (mut send, receive) = self.connection.open_bi().await?;
        send.write_all(&head(protocol, payload.len())).await?;
        send.write_all(payload).await?;
        send.finish()?;
        Ok((send, receive))
    }

    /// Sends a request and reads the answer; an error if it is a refusal.
    pub(super) async fn ask(&self, protocol: Protocol, payload: &[u8]) -> Result<Vec<u8>> {
        let asked = async {
            let (_send, mut receive) = self.send(protocol, payload).await?;
            anyhow::Ok(receive.read_to_end(HEAD_BYTES + ANSWER_BYTES_MAX).await?)
        };
        let answer = tokio::time::timeout(PATIENCE, asked).await.context("the answer timed out")??;
        let (status, rest) = answer.split_first().context("an empty answer")?;
        ensure!(*status == ANSWER, "refused: {}", String::from_utf8_lossy(rest));
        rest.get(HEAD_BYTES - 1..).map(<[u8]>::to_vec).ok_or_else(|| anyhow!("an answer without a length"))
    }

    /// Requests a node's summary.
    pub(super) async fn summary(&self) -> Result<Summary> {
        let answer = self.ask(Protocol::SYNC, &encoded(&Request::Summary)?).await?;
        Ok(codec::decode("summary", &answer, ANSWER_BYTES_MAX)?)
    }

    /// Requests one batch with its body.
    pub(super) async fn batch(&self, number: u64) -> Result<Range> {
        let request = range(number, 1, Parts::BODY);
        let answer = self.ask(Protocol::SYNC, &encoded(&request)?).await?;
        Ok(codec::decode("range", &answer, ANSWER_BYTES_MAX)?)
    }

    /// Sends a broadcast to the victim.
    pub(super) async fn broadcast(&self, payload: &[u8]) -> Result<()> {
        let mut stream = self.connection.open_uni().await?;
        stream.write_all(&length(payload.len())).await?;
        stream.write_all(payload).await?;
        stream.finish()?;
        Ok(())
    }
}

/// Returns a request for a range with the most bytes that a server puts into an answer.
pub(super) fn range(first: u64, batches_max: u32, parts: Parts) -> Request {
    Request::Range(RangeRequest { first: BatchNumber::new(first), batches_max, bytes_max: u32::MAX, parts })
}

/// Returns the bytes of a sync request.
pub(super) fn encoded(request: &Request) -> Result<Vec<u8>> {
    Ok(codec::encode("sync request", request)?)
}

/// Returns the bytes before a request, as in network's lib.rs. The attacker chooses the longest answer, and takes the
/// maximum.
pub(super) fn head(protocol: Protocol, bytes: usize) -> [u8; 9] {
    let ([a, b, c, d], [e, f, g, h]) = (length(ANSWER_BYTES_MAX), length(bytes));
    [protocol.0, a, b, c, d, e, f, g, h]
}

/// Returns the bytes before a broadcast.
pub(super) fn length(bytes: usize) -> [u8; 4] {
    u32::try_from(bytes).unwrap_or(u32::MAX).to_le_bytes()
}

/// Returns a client that proves its key and accepts any key of the other side.
pub(super) fn client_config(key: &SecretKey, manner: QuicSettings) -> Result<quinn::ClientConfig> {
    let provider = Arc::new(ring::default_provider());
    let pkcs8 = [PKCS8_PREFIX.as_slice(), &key.seed()].concat();
    let signing =
        provider.key_provider.load_private_key(PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(pkcs8)))?;
    let spki = [SPKI_PREFIX.as_slice(), &key.public().0].concat();
    let certified = Arc::new(CertifiedKey::new(vec![CertificateDer::from(spki)], signing));
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer))
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(certified)));
    tls.alpn_protocols = vec![ALPN.to_vec()];
    tls.enable_sni = false;
    tls.resumption = Resumption::disabled();
    let mut config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
    let mut transport = TransportConfig::default();
    transport
        .stream_receive_window(VarInt::from_u32(manner.window))
        .receive_window(VarInt::from_u32(manner.window_of_all))
        .max_concurrent_uni_streams(VarInt::from_u32(manner.broadcasts))
        .keep_alive_interval(Some(Duration::from_secs(1)));
    config.transport_config(Arc::new(transport));
    Ok(config)
}

/// A verifier that accepts any server: attackers do not care which node answers.
#[derive(Debug)]
struct AnyServer;

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
