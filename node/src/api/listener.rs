//! The TCP side of the API: bound before anything else is touched, never more than a fixed number of connections, and none
//! that keeps its place without using it.

use std::{
    io,
    net::SocketAddr,
    num::NonZeroUsize,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, Sleep, sleep_until},
};

use crate::NodeError;

/// How long a connection may be without a request, and how long one may take from its first byte to the answer's: above the
/// time that the API gives itself for an answer.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// How often a reader that cannot keep up is looked at, and the bytes that it must have taken by then: 17 kbit/s.
const STALL_WINDOW: Duration = Duration::from_secs(30);
const STALL_BYTES_MIN: usize = 64 << 10;
/// What is asked of the kernel for each connection's answers. By itself it takes up to 4 MiB, and says so seldom that something
/// was read that a slow reader looks like one that has stopped.
const SEND_BUFFER_BYTES: u32 = 256 << 10;
/// Connections that wait in the kernel's queue, as in the standard library.
const BACKLOG: u32 = 1_024;

/// Binds the API's address.
pub(crate) fn bind(address: SocketAddr) -> Result<TcpListener, NodeError> {
    listen(address).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => NodeError::ApiInUse { address },
        _ => NodeError::ApiBind { address, source },
    })
}

/// What `TcpListener::bind` does, with a send buffer that accepted connections inherit.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// A listener that accepts a connection only when there is room for it; the others wait in the kernel's queue.
pub(crate) struct Limited {
    listener: TcpListener,
    room: Arc<Semaphore>,
}

impl Limited {
    pub(crate) fn new(listener: TcpListener, connections_max: NonZeroUsize) -> Limited {
        let room = connections_max.get().min(Semaphore::MAX_PERMITS);
        Limited { listener, room: Arc::new(Semaphore::new(room)) }
    }
}

impl axum::serve::Listener for Limited {
    type Io = Counted<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Counted<TcpStream>, SocketAddr) {
        let room = self.room.clone().acquire_owned().await.expect("the semaphore is never closed");
        // The implementation for TcpListener logs and retries errors.
        let (stream, address) = axum::serve::Listener::accept(&mut self.listener).await;
        // Answers are small and waited for; a failure to set this costs latency, nothing else.
        let _ = stream.set_nodelay(true);
        (Counted::new(stream, room), address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that gives its place back when it ends, and ends when its client neither asks nor reads.
pub(crate) struct Counted<S> {
    stream: S,
    _room: OwnedSemaphorePermit,
    /// Whether bytes have come since the last were sent. Only the first of them count as a sign of life: a client that sends a
    /// request byte by byte gets no more time than others.
    asked: bool,
    quiet_since: Instant,
    idle: Pin<Box<Sleep>>,
    /// Since a write had to wait: when to look, and the bytes that the reader has taken.
    stall: Option<(Pin<Box<Sleep>>, usize)>,
    /// Whether a write waits.
    waiting: bool,
}

impl<S> Counted<S> {
    fn new(stream: S, room: OwnedSemaphorePermit) -> Counted<S> {
        let now = Instant::now();
        let idle = Box::pin(sleep_until(now + IDLE_MAX));
        Counted { stream, _room: room, asked: false, quiet_since: now, idle, stall: None, waiting: false }
    }

    fn received(&mut self, bytes: usize) {
        if bytes > 0 && !self.asked {
            self.asked = true;
            self.quiet_since = Instant::now();
        }
    }

    fn sent(&mut self, bytes: usize) -> io::Result<()> {
        self.asked = false;
        let now = Instant::now();
        self.quiet_since = now;
        let waited = std::mem::take(&mut self.waiting);
        if let Some((window, taken)) = &mut self.stall {
            *taken += bytes;
            if window.deadline() <= now {
                if waited && *taken < STALL_BYTES_MIN {
                    return Err(too_slow());
                }
                self.stall = None;
            }
        }
        Ok(())
    }

    /// Ready with an error when nothing has been heard for too long.
    fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            ready!(self.idle.as_mut().poll(cx));
            let deadline = self.quiet_since + IDLE_MAX;
            if deadline <= Instant::now() {
                return Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, "no request for too long"));
            }
            self.idle.as_mut().reset(deadline);
        }
    }

    /// Called when a write has to wait; ready with an error when the reader has taken too little of what came before.
    fn poll_stall(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let next = || Instant::now() + STALL_WINDOW;
        // What is over since an earlier answer says nothing about this one.
        let first = !std::mem::replace(&mut self.waiting, true);
        self.stall.take_if(|(window, _)| first && window.deadline() <= Instant::now());
        let (window, taken) = self.stall.get_or_insert_with(|| (Box::pin(sleep_until(next())), 0));
        loop {
            ready!(window.as_mut().poll(cx));
            if *taken < STALL_BYTES_MIN {
                return Poll::Ready(too_slow());
            }
            *taken = 0;
            window.as_mut().reset(next());
        }
    }

    /// What a write gives, with its effect on the timers.
    fn wrote(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Ok(bytes)) => Poll::Ready(self.sent(bytes).map(|()| bytes)),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => self.poll_stall(cx).map(Err),
        }
    }
}

fn too_slow() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the answer is read too slowly")
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        match Pin::new(&mut self.stream).poll_read(cx, buf) {
            Poll::Ready(result) => {
                self.received(buf.filled().len() - before);
                Poll::Ready(result)
            }
            Poll::Pending => self.poll_idle(cx).map(Err),
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.wrote(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.wrote(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
        time::{advance, sleep},
    };

    use super::*;

    const PIPE_BYTES: usize = 1 << 10;

    async fn connection() -> (Counted<DuplexStream>, DuplexStream, Arc<Semaphore>) {
        let room = Arc::new(Semaphore::new(1));
        let place = room.clone().acquire_owned().await.unwrap();
        let (server, client) = duplex(PIPE_BYTES);
        (Counted::new(server, place), client, room)
    }

    /// Reads until the connection is given up; the time that this took.
    async fn given_up(server: &mut Counted<DuplexStream>) -> Duration {
        let started = Instant::now();
        let mut buf = [0; 16];
        loop {
            match server.read(&mut buf).await {
                Ok(read) => assert!(read > 0, "the client went away"),
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
                    return started.elapsed();
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_client_loses_its_place() {
        let (mut server, _client, room) = connection().await;
        assert_eq!(given_up(&mut server).await.as_secs(), IDLE_MAX.as_secs());
        drop(server);
        assert_eq!(room.available_permits(), 1);
    }

    /// Goal: a request in single bytes gets as much time as any other; the next request gets it anew.
    #[tokio::test(start_paused = true)]
    async fn a_request_byte_by_byte_is_given_up() {
        let (mut server, mut client, _room) = connection().await;
        client.write_all(b"a request").await.unwrap();
        let mut buf = [0; 9];
        server.read_exact(&mut buf).await.unwrap();
        advance(IDLE_MAX - Duration::from_secs(1)).await;
        server.write_all(b"an answer").await.unwrap();
        advance(IDLE_MAX - Duration::from_secs(1)).await;
        let slow = tokio::spawn(async move {
            while client.write_all(b"x").await.is_ok() {
                sleep(Duration::from_secs(10)).await;
            }
        });
        assert_eq!(given_up(&mut server).await.as_secs(), IDLE_MAX.as_secs());
        drop(server);
        slow.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_stops_or_trickles_is_given_up() {
        for trickle in [false, true] {
            let (mut server, mut client, _room) = connection().await;
            let reader = tokio::spawn(async move {
                let mut byte = [0];
                while trickle && client.read_exact(&mut byte).await.is_ok() {
                    sleep(Duration::from_secs(1)).await;
                }
                sleep(Duration::from_secs(3_600)).await;
                drop(client);
            });
            let started = Instant::now();
            let error = server.write_all(&[0; 2 * PIPE_BYTES]).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert_eq!(started.elapsed().as_secs(), STALL_WINDOW.as_secs());
            reader.abort();
        }
    }

    /// Goal: a long answer to a slow but steady reader arrives, and a wait in it is forgotten by the next answer.
    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_is_served() {
        let (mut server, mut client, _room) = connection().await;
        let answer = vec![7; 4 * STALL_BYTES_MIN];
        let reader = tokio::spawn(async move {
            let mut chunk = vec![0; PIPE_BYTES];
            let mut read = 0;
            while read < 4 * STALL_BYTES_MIN + 2 * PIPE_BYTES {
                read += client.read(&mut chunk).await.unwrap();
                sleep(Duration::from_millis(200)).await;
            }
        });
        server.write_all(&answer).await.unwrap();
        assert!(server.stall.is_some());
        advance(2 * STALL_WINDOW).await;
        server.write_all(&[7; 2 * PIPE_BYTES]).await.unwrap();
        reader.await.unwrap();
    }
}
