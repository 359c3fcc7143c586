//! [`Stream`]: a connection to a node's API, with TLS where a proxy speaks it.

use std::{
    io::{self, Read, Write},
    net::{TcpStream, ToSocketAddrs as _},
    sync::Arc,
    time::Duration,
};

use rustls::{ClientConfig, ClientConnection, StreamOwned, crypto::ring, pki_types::ServerName};
use rustls_platform_verifier::BuilderVerifierExt as _;

use super::node_url::NodeUrl;

pub(in crate::cli) enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Stream {
    /// Connects to the first address that answers: a name such as `localhost` has several. Each step may take so long, and from then on a
    /// read as long as a silence may last.
    pub(super) fn connect(
        address: &NodeUrl,
        patience: Duration,
        silence_max: Duration,
    ) -> io::Result<Stream> {
        let mut tcp = connect(address, patience)?;
        tcp.set_read_timeout(Some(patience))?;
        tcp.set_write_timeout(Some(patience))?;
        if !address.is_tls {
            tcp.set_read_timeout(Some(silence_max))?;
            return Ok(Stream::Plain(tcp));
        }
        let name = ServerName::try_from(address.host.clone()).map_err(io::Error::other)?;
        let config = config().map_err(io::Error::other)?;
        let mut tls = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
        while tls.is_handshaking() {
            tls.complete_io(&mut tcp)?;
        }
        tcp.set_read_timeout(Some(silence_max))?;
        Ok(Stream::Tls(Box::new(StreamOwned::new(tls, tcp))))
    }
}

fn connect(address: &NodeUrl, patience: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in (address.host.as_str(), address.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, patience) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Trusts the certificates that this machine trusts, as an archive's client does, or those that SSL_CERT_FILE names.
fn config() -> Result<ClientConfig, rustls::Error> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions()?;
    Ok(builder.with_platform_verifier()?.with_no_client_auth())
}

/// Whether it is TLS that failed, and not the connection below it.
pub(super) fn is_of_tls(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>())
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.read(buffer),
            Stream::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.write(bytes),
            Stream::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(stream) => stream.flush(),
            Stream::Tls(stream) => stream.flush(),
        }
    }
}
