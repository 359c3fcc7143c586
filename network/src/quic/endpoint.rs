//! The socket of the network, and quinn's settings: windows, streams, and packets that wait before a handshake.

use std::{
    io,
    net::{SocketAddr, UdpSocket},
    sync::Arc,
    time::Duration,
};

use quinn::{
    AckFrequencyConfig, AsyncUdpSocket, Endpoint, EndpointConfig, IdleTimeout, ServerConfig, TransportConfig,
    VarInt, congestion::CubicConfig,
};
use tokio_util::task::TaskTracker;
use tracing::debug;

use super::{door::HANDSHAKES_MAX, runtime::TrackedRuntime, tls};
use crate::{NetworkConfig, NetworkError};

/// Receive windows for bulk transfer over 150 ms: 16 MiB per round trip is about 850 Mbit/s on one stream.
const STREAM_WINDOW_BYTES: u32 = 16 << 20;
pub(super) const CONNECTION_WINDOW_BYTES: u32 = 32 << 20;
/// The same for connections that strangers opened: their unread bytes are held, and strangers may be many. Dialled and
/// known peers have the larger window.
const STRANGER_WINDOW_BYTES: u32 = 8 << 20;
/// Maximum bytes in flight to a stranger's connection: quinn holds them until they are acknowledged. One answer over
/// 150 ms keeps its speed.
const STRANGER_SEND_WINDOW_BYTES: u32 = STREAM_WINDOW_BYTES;
/// Bytes sent before the first acknowledgement, paced. From the usual 14 KB, a link of 150 ms takes a second to get to
/// full speed. This window is 56 Mbit/s in a first round trip of 150 ms. A slower link loses some of it once and then
/// continues as usual.
const INITIAL_WINDOW_BYTES: u64 = 1 << 20;
/// Maximum number of broadcasts in flight at once, each on a stream of its own. So it is also the maximum that a peer
/// can send per round trip. A batch in coded form takes some twenty; at ten batches a second and 300 ms that is 60. The
/// windows bound their bytes.
pub(super) const BROADCAST_STREAMS_MAX: u32 = 256;
/// Packets that are acknowledged together, unless 25 ms pass before. With two, a quarter of the datagrams between
/// validators were acknowledgements.
const ACKNOWLEDGED_TOGETHER: u32 = 10;
/// First guess of the round-trip time; a lost first packet is resent after three times this.
const RTT_GUESS: Duration = Duration::from_millis(100);
/// First packets that wait for a decision, and bytes that may follow each of them.
const INCOMING_MAX: usize = 1_024;
const INCOMING_BUFFER_BYTES: u64 = 64 << 10;
/// Requested size of the socket's buffers; the system may give less.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;

/// Opens the socket. A busy port has an error of its own, because operators meet it often.
pub(super) fn open(
    address: SocketAddr,
    server: ServerConfig,
    tasks: TaskTracker,
) -> Result<Endpoint, NetworkError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::AddrInUse => NetworkError::AddressInUse { address },
        _ => NetworkError::Bind { address, source },
    };
    let socket = UdpSocket::bind(address).map_err(failed)?;
    enlarge_buffers(&socket);
    let runtime = Arc::new(TrackedRuntime { tasks });
    Endpoint::new(EndpointConfig::default(), Some(server), socket, runtime).map_err(failed)
}

/// Opens an endpoint on a socket that the caller supplies, with randomness from a seed.
pub(super) fn open_on(
    socket: Arc<dyn AsyncUdpSocket>,
    seed: [u8; 32],
    server: ServerConfig,
    tasks: TaskTracker,
) -> io::Result<Endpoint> {
    let mut endpoint = EndpointConfig::default();
    endpoint.rng_seed(Some(seed));
    let runtime = Arc::new(TrackedRuntime { tasks });
    Endpoint::new_with_abstract_socket(endpoint, Some(server), socket, runtime)
}

/// Settings for connections that others open. They are strangers until they prove a key.
pub(super) fn server_config(
    config: &NetworkConfig,
    identity: &tls::Identity,
) -> Result<ServerConfig, rustls::Error> {
    let mut server = ServerConfig::with_crypto(identity.server()?);
    let mut strangers = transport_config(config);
    strangers
        .receive_window(VarInt::from_u32(STRANGER_WINDOW_BYTES))
        .send_window(u64::from(STRANGER_SEND_WINDOW_BYTES));
    server
        .transport_config(Arc::new(strangers))
        // A packet from another address would move the connection before that address is proven. A peer with one
        // address could then speak, and be counted, as any other. A peer whose address changes reconnects.
        .migration(false)
        .max_incoming(INCOMING_MAX)
        .incoming_buffer_size(INCOMING_BUFFER_BYTES)
        .incoming_buffer_size_total(INCOMING_BUFFER_BYTES * HANDSHAKES_MAX as u64);
    Ok(server)
}

/// Settings for all connections, except the windows of strangers.
pub(super) fn transport_config(config: &NetworkConfig) -> TransportConfig {
    let bounded = |n: usize| VarInt::from_u32(u32::try_from(n).expect("NetworkConfig::check bounds it"));
    let idle = Duration::from_millis(config.idle_timeout_ms);
    let idle = IdleTimeout::try_from(idle).expect("NetworkConfig::check bounds it");
    let mut congestion = CubicConfig::default();
    congestion.initial_window(INITIAL_WINDOW_BYTES);
    let mut acknowledging = AckFrequencyConfig::default();
    acknowledging
        .ack_eliciting_threshold(VarInt::from_u32(ACKNOWLEDGED_TOGETHER - 1))
        // As without the extension: packets out of order are acknowledged at once.
        .reordering_threshold(VarInt::from_u32(1));
    let mut quic = TransportConfig::default();
    quic.ack_frequency_config(Some(acknowledging));
    quic.congestion_controller_factory(Arc::new(congestion));
    quic.max_concurrent_bidi_streams(bounded(config.request_concurrency_max))
        .max_concurrent_uni_streams(VarInt::from_u32(BROADCAST_STREAMS_MAX))
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW_BYTES))
        .receive_window(VarInt::from_u32(CONNECTION_WINDOW_BYTES))
        .send_window(u64::from(CONNECTION_WINDOW_BYTES))
        .datagram_receive_buffer_size(None)
        .max_idle_timeout(Some(idle))
        .send_fairness(false)
        .keep_alive_interval(Some(Duration::from_millis(config.keep_alive_interval_ms)))
        .initial_rtt(RTT_GUESS);
    quic
}

/// Enlarges the socket's buffers, which hold bursts that the process is too busy to read. Best effort: a smaller buffer
/// only costs retransmissions.
fn enlarge_buffers(socket: &UdpSocket) {
    let enlarged = quinn::udp::UdpSocketState::new(socket.into()).and_then(|state| {
        state.set_recv_buffer_size(socket.into(), SOCKET_BUFFER_BYTES)?;
        state.set_send_buffer_size(socket.into(), SOCKET_BUFFER_BYTES)
    });
    if let Err(error) = enlarged {
        debug!(%error, "the socket keeps the system's buffer sizes");
    }
}
