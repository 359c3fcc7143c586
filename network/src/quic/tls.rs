//! TLS 1.3 with raw ed25519 public keys (RFC 7250) on both sides: a proven key identifies the peer.
//!
//! TLS uses neither session resumption nor early data, so every connection proves both keys afresh.

use std::sync::{Arc, OnceLock};

use ed25519_dalek::VerifyingKey;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, PeerIncompatible, SignatureScheme,
    client::{
        AlwaysResolvesClientRawPublicKeys, Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls13_signature_with_raw_key},
    pki_types::{
        CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
    },
    server::{
        AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::CertifiedKey,
    version::TLS13,
};
use slipstream_types::SecretKey;

use crate::PeerId;

/// The protocol and its version; a peer with another one fails in the handshake.
pub(crate) const ALPN: &[u8] = b"slipstream/2";

/// DER of an ed25519 SubjectPublicKeyInfo up to the key (RFC 8410), which has exactly one encoding.
const SPKI_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// DER of an ed25519 PKCS#8 v1 private key up to the seed (RFC 8410).
const PKCS8_PREFIX: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];

/// The server name that rustls requires. A ClientHello omits it (no SNI), and it is not checked.
pub(crate) const SERVER_NAME: &str = "slipstream.invalid";

/// The identity that a node presents, and the configurations made from it.
pub(crate) struct Identity {
    provider: Arc<CryptoProvider>,
    certified: Arc<CertifiedKey>,
}

impl Identity {
    pub(crate) fn new(key: &SecretKey) -> Result<Identity, Error> {
        let provider = Arc::new(ring::default_provider());
        let pkcs8 = [PKCS8_PREFIX.as_slice(), &key.seed()].concat();
        let signing =
            provider.key_provider.load_private_key(PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(pkcs8)))?;
        let spki = [SPKI_PREFIX.as_slice(), &key.public().0].concat();
        let certified = Arc::new(CertifiedKey::new(vec![CertificateDer::from(spki)], signing));
        Ok(Identity { provider, certified })
    }

    /// An identity that shows another's key, and signs with its own.
    #[cfg(test)]
    pub(crate) fn posing_as(peer: PeerId, key: &SecretKey) -> Identity {
        let Identity { provider, certified } = Identity::new(key).expect("a key");
        let spki = CertificateDer::from([SPKI_PREFIX.as_slice(), &peer.0].concat());
        Identity { provider, certified: Arc::new(CertifiedKey::new(vec![spki], certified.key.clone())) }
    }

    /// Accepts any peer that proves its key.
    pub(crate) fn server(&self) -> Result<Arc<QuicServerConfig>, Error> {
        let mut config = rustls::ServerConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(Arc::new(self.verifier(None)))
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(self.certified.clone())));
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        QuicServerConfig::try_from(config).map(Arc::new).map_err(no_initial_suite)
    }

    /// Accepts only the expected peer. `found` receives the key that the other side presents, proven or not.
    pub(crate) fn client(
        &self,
        expected: PeerId,
        found: Arc<OnceLock<PeerId>>,
    ) -> Result<Arc<QuicClientConfig>, Error> {
        let mut config = rustls::ClientConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(
                self.verifier(Some(ExpectedPeer { peer: expected, found })),
            ))
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(
                self.certified.clone(),
            )));
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.enable_sni = false;
        config.resumption = Resumption::disabled();
        QuicClientConfig::try_from(config).map(Arc::new).map_err(no_initial_suite)
    }

    fn verifier(&self, expected: Option<ExpectedPeer>) -> KeyVerifier {
        KeyVerifier { expected, algorithms: self.provider.signature_verification_algorithms }
    }
}

fn no_initial_suite(error: impl std::fmt::Display) -> Error {
    Error::General(error.to_string())
}

/// The peer behind a connection whose handshake is complete.
pub(crate) fn peer_of(connection: &quinn::Connection) -> Option<PeerId> {
    let identity = connection.peer_identity()?.downcast::<Vec<CertificateDer<'static>>>().ok()?;
    match identity.as_slice() {
        [spki] => parse_spki(spki).ok(),
        _ => None,
    }
}

/// Extracts the key from its only accepted encoding. Refuses a weak key: anybody can sign for it, so it identifies no
/// peer.
fn parse_spki(spki: &[u8]) -> Result<PeerId, Error> {
    let bad = || Error::InvalidCertificate(CertificateError::BadEncoding);
    let key: [u8; 32] =
        spki.strip_prefix(&SPKI_PREFIX).and_then(|key| key.try_into().ok()).ok_or_else(bad)?;
    match VerifyingKey::from_bytes(&key) {
        Ok(point) if !point.is_weak() => Ok(slipstream_types::PublicKey(key)),
        _ => Err(bad()),
    }
}

/// The peer that a dialler expects, and the peer that it met: rustls' error does not report the latter.
#[derive(Debug)]
struct ExpectedPeer {
    peer: PeerId,
    found: Arc<OnceLock<PeerId>>,
}

/// Checks that the other side owns the key it presents and, when dialling, that it is the expected one.
#[derive(Debug)]
struct KeyVerifier {
    expected: Option<ExpectedPeer>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl KeyVerifier {
    fn check_key(&self, key: &CertificateDer<'_>, others: &[CertificateDer<'_>]) -> Result<(), Error> {
        let found = parse_spki(key)?;
        if !others.is_empty() {
            return Err(Error::InvalidCertificate(CertificateError::BadEncoding));
        }
        let Some(expected) = &self.expected else { return Ok(()) };
        expected.found.get_or_init(|| found);
        match found == expected.peer {
            true => Ok(()),
            false => Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)),
        }
    }

    fn check_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let spki = SubjectPublicKeyInfoDer::from(key.as_ref());
        verify_tls13_signature_with_raw_key(message, &spki, signed, &self.algorithms)
    }
}

/// QUIC speaks TLS 1.3 only, so a TLS 1.2 signature cannot occur.
fn no_tls12() -> Result<HandshakeSignatureValid, Error> {
    Err(Error::PeerIncompatible(PeerIncompatible::Tls13RequiredForQuic))
}

impl ServerCertVerifier for KeyVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check_key(end_entity, intermediates).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for KeyVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check_key(end_entity, intermediates).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_one_encoding_of_a_sound_key_is_a_peer() {
        let key = SecretKey::from_seed([3; 32]).public();
        let spki = [SPKI_PREFIX.as_slice(), &key.0].concat();
        assert_eq!(parse_spki(&spki).unwrap(), key);
        assert!(parse_spki(&spki[..43]).is_err());
        assert!(parse_spki(&[spki.as_slice(), &[0]].concat()).is_err());
        for index in 0..SPKI_PREFIX.len() {
            let mut other = spki.clone();
            other[index] ^= 1;
            assert!(parse_spki(&other).is_err(), "byte {index}");
        }
        // The neutral element: a signature for it can be made without a secret.
        let mut neutral = [0; 32];
        neutral[0] = 1;
        assert!(parse_spki(&[SPKI_PREFIX.as_slice(), &neutral].concat()).is_err());
    }

    /// Goal: a peer presents one key, and a dialled one the key that was dialled; the dialler learns which key it met.
    #[test]
    fn a_peer_shows_one_key_and_the_dialled_one() {
        let [own, other] = [3, 4].map(|seed| SecretKey::from_seed([seed; 32]));
        let identity = Identity::new(&own).unwrap();
        let spki = |key: &SecretKey| CertificateDer::from([SPKI_PREFIX.as_slice(), &key.public().0].concat());
        let listener = identity.verifier(None);
        listener.check_key(&spki(&other), &[]).unwrap();
        assert!(listener.check_key(&spki(&other), &[spki(&own)]).is_err());
        let found = Arc::new(OnceLock::new());
        let dialler = identity.verifier(Some(ExpectedPeer { peer: other.public(), found: found.clone() }));
        assert!(dialler.check_key(&spki(&own), &[]).is_err());
        assert_eq!(found.get(), Some(&own.public()));
        dialler.check_key(&spki(&other), &[]).unwrap();
    }
}
