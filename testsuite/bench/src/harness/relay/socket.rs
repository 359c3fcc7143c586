//! [`Socket`]: UDP in trains of datagrams, as the kernel delivers them.

use std::{
    io::{self, IoSliceMut},
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Instant,
};

use quinn_udp::{BATCH_SIZE, EcnCodepoint, RecvMeta, Transmit, UdpSocketState};
use tokio::{io::Interest, net::UdpSocket};

/// The size of each socket's buffers: a burst of a whole receive window.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;
/// The longest train of datagrams that the kernel delivers at once.
const TRAIN_BYTES_MAX: usize = 64 << 10;

/// Datagrams of one size, the last of which may be shorter.
pub(super) struct Train {
    pub(super) bytes: Vec<u8>,
    pub(super) stride: usize,
    pub(super) ecn: Option<EcnCodepoint>,
    pub(super) due: Instant,
    pub(super) from: Arc<Socket>,
    pub(super) to: SocketAddr,
}

/// A UDP socket that receives and sends trains.
pub(super) struct Socket {
    io: UdpSocket,
    state: UdpSocketState,
}

/// A train from the address in `meta`.
pub(super) struct Received<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) meta: RecvMeta,
}

/// Buffers for the result of one call to the kernel.
pub(super) struct Buffers {
    trains: Vec<Vec<u8>>,
}

impl Buffers {
    pub(super) fn new() -> Buffers {
        Buffers { trains: vec![vec![0; TRAIN_BYTES_MAX]; BATCH_SIZE] }
    }
}

impl Socket {
    pub(super) fn open() -> io::Result<Socket> {
        let socket = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.set_nonblocking(true)?;
        let state = UdpSocketState::new((&socket).into())?;
        state.set_recv_buffer_size((&socket).into(), SOCKET_BUFFER_BYTES)?;
        state.set_send_buffer_size((&socket).into(), SOCKET_BUFFER_BYTES)?;
        Ok(Socket { io: UdpSocket::from_std(socket)?, state })
    }

    pub(super) fn local_address(&self) -> io::Result<SocketAddr> {
        self.io.local_addr()
    }

    /// Waits for trains, and passes on each of them.
    pub(super) async fn receive(
        &self,
        buffers: &mut Buffers,
        mut each: impl FnMut(Received<'_>),
    ) -> io::Result<()> {
        let mut metas = [RecvMeta::default(); BATCH_SIZE];
        let receive = || {
            let mut slices: Vec<_> = buffers.trains.iter_mut().map(|train| IoSliceMut::new(train)).collect();
            self.state.recv((&self.io).into(), &mut slices, &mut metas)
        };
        let count = match self.io.async_io(Interest::READABLE, receive).await {
            Ok(count) => count,
            // The other side is temporarily unreachable, as an earlier datagram found.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => 0,
            Err(error) => return Err(error),
        };
        for (bytes, meta) in buffers.trains.iter().zip(metas).take(count) {
            each(Received { bytes: &bytes[..meta.len], meta });
        }
        Ok(())
    }

    pub(super) async fn send(&self, train: &Train) -> io::Result<()> {
        let per_call = self.state.max_gso_segments().max(1) * train.stride.max(1);
        for contents in train.bytes.chunks(per_call) {
            let transmit = Transmit {
                destination: train.to,
                ecn: train.ecn,
                contents,
                segment_size: (contents.len() > train.stride).then_some(train.stride),
                src_ip: None,
            };
            let send = || self.state.try_send((&self.io).into(), &transmit);
            self.io.async_io(Interest::WRITABLE, send).await?;
        }
        Ok(())
    }
}
