//! [`Stream`]: a connection to a node's API, with TLS if a proxy requires it.

use std::{
    io::{self, Read, Write},
    net::{TcpStream, ToSocketAddrs as _},
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use rustls::{ClientConfig, ClientConnection, StreamOwned, crypto::ring, pki_types::ServerName};
use rustls_platform_verifier::BuilderVerifierExt as _;

use super::node_url::NodeUrl;

/// Time that each received byte adds: a second for 128 KiB, the rate that a node requires of its readers.
const TIME_OF_A_BYTE: Duration = Duration::from_nanos(1_000_000_000 >> 17);

pub(crate) enum Stream {
    Plain(Timed),
    Tls(Box<StreamOwned<ClientConnection, Timed>>),
}

impl Stream {
    /// Connects to the first address that answers, because a name such as `localhost` has several. Each address gets
    /// `patience`. Everything after the connection shares another `patience`, and each received byte adds some time.
    pub(super) fn connect(address: &NodeUrl, patience: Duration) -> io::Result<Stream> {
        let mut tcp = Timed { tcp: connect(address, patience)?, end: StreamEnd::within(patience) };
        if !address.is_tls {
            return Ok(Stream::Plain(tcp));
        }
        let name = ServerName::try_from(address.host.clone()).map_err(io::Error::other)?;
        let config = config().map_err(io::Error::other)?;
        let mut tls = ClientConnection::new(config, name).map_err(io::Error::other)?;
        while tls.is_handshaking() {
            tls.complete_io(&mut tcp)?;
        }
        Ok(Stream::Tls(Box::new(StreamOwned::new(tls, tcp))))
    }

    /// Sets a new deadline for everything that follows; each received byte adds some time.
    pub(super) fn end_within(&mut self, patience: Duration) {
        self.timed().end = StreamEnd::within(patience);
    }

    /// Removes the deadline: from now on each read and write only has to finish within `silence_max`.
    pub(super) fn go_on(&mut self, silence_max: Duration) {
        self.timed().end = StreamEnd::Never { silence_max };
    }

    fn timed(&mut self) -> &mut Timed {
        match self {
            Stream::Plain(timed) => timed,
            Stream::Tls(stream) => &mut stream.sock,
        }
    }
}

/// A connection with a deadline: a server that sends a byte now and then cannot hold the program for ever.
pub(crate) struct Timed {
    tcp: TcpStream,
    end: StreamEnd,
}

enum StreamEnd {
    At(Instant),
    Never { silence_max: Duration },
}

impl StreamEnd {
    fn within(patience: Duration) -> StreamEnd {
        StreamEnd::At(Instant::now() + patience)
    }

    /// The time left for one step.
    fn left(&self) -> io::Result<Duration> {
        let left = match self {
            StreamEnd::At(end) => end.saturating_duration_since(Instant::now()),
            StreamEnd::Never { silence_max } => *silence_max,
        };
        // The kernel takes zero for no limit, and the standard library refuses it.
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.tcp.set_read_timeout(Some(self.end.left()?))?;
        let read = self.tcp.read(buffer)?;
        if let StreamEnd::At(end) = &mut self.end {
            *end += TIME_OF_A_BYTE.saturating_mul(u32::try_from(read).unwrap_or(u32::MAX));
        }
        Ok(read)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.tcp.set_write_timeout(Some(self.end.left()?))?;
        self.tcp.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.tcp.flush()
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
/// The certificates are loaded once, because loading reads many files.
fn config() -> Result<Arc<ClientConfig>, rustls::Error> {
    static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    if let Some(config) = CONFIG.get() {
        return Ok(config.clone());
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions()?;
    let config = builder.with_platform_verifier()?.with_no_client_auth();
    Ok(CONFIG.get_or_init(|| Arc::new(config)).clone())
}

/// Whether TLS failed, rather than the connection below it.
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
