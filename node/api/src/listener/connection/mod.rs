//! [`Connection`]: a stream that ends when its client falls silent, when its seat is needed, or when the API ends.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep, sleep_until},
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::seats::Seat;

/// The interval at which a slow reader is checked, and the bytes that it must have read in each: at least 17 kbit/s.
const STALL_WINDOW: Duration = Duration::from_secs(30);
const STALL_BYTES_MIN: usize = 64 << 10;
/// A reader that reads nothing for this long releases the places of its call, which others need. It keeps its seat
/// until another connection needs one. The kernel reports reads in steps of some 100 KiB, so readers below 200 kbit/s
/// release their places, too.
const CALL_PATIENCE: Duration = Duration::from_secs(5);

/// A connection that ends when its client stops sending and reading, and then leaves its seat.
pub(crate) struct Connection<S> {
    stream: S,
    seat: Seat,
    /// Fires at the seat's deadline, or earlier.
    timer: Pin<Box<Sleep>>,
    dismissal: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Fires when the API ends for all clients.
    end: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Set once a write had to wait: the next check, and the bytes read since the last check.
    stall: Option<(Pin<Box<Sleep>>, usize)>,
    /// Whether a write is waiting.
    waiting: bool,
    /// Set while a write waits: fires when the write has waited so long that the call must release its places.
    pause: Option<Pin<Box<Sleep>>>,
}

impl<S> Connection<S> {
    pub(super) fn new(stream: S, seat: Seat, end: CancellationToken) -> Connection<S> {
        let timer = Box::pin(sleep_until(seat.deadline()));
        let dismissal = Box::pin(seat.dismissal().clone().cancelled_owned());
        let end = Box::pin(end.cancelled_owned());
        Connection { stream, seat, timer, dismissal, end, stall: None, waiting: false, pause: None }
    }

    pub(super) fn seat(&self) -> &Seat {
        &self.seat
    }

    fn sent(&mut self, bytes: usize) -> io::Result<()> {
        self.seat.read_on();
        let now = Instant::now();
        if self.seat.answer_end().is_some_and(|end| end <= now) {
            return Err(too_slow());
        }
        let waited = std::mem::take(&mut self.waiting);
        self.pause = None;
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

    /// Ready with an error when the connection's present activity takes too long.
    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            let deadline = self.seat.deadline();
            if self.timer.deadline() != deadline {
                self.timer.as_mut().reset(deadline);
            }
            ready!(self.timer.as_mut().poll(cx));
            if self.seat.deadline() <= Instant::now() {
                return Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, "no request for too long"));
            }
        }
    }

    /// Ready with an error when another connection needs the seat, or when the API ends.
    fn poll_dismissal(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        if self.end.as_mut().poll(cx).is_ready() {
            return Poll::Ready(io::Error::new(io::ErrorKind::ConnectionAborted, "the node stops"));
        }
        let told = self.seat.dismissal().is_cancelled() || self.dismissal.as_mut().poll(cx).is_ready();
        if told && self.seat.has_to_go() {
            return Poll::Ready(io::Error::new(io::ErrorKind::ConnectionAborted, "the seat is needed"));
        }
        Poll::Pending
    }

    /// Called when a write must wait; ready with an error when the reader has read too little.
    fn poll_stall(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let pause = self.pause.get_or_insert_with(|| Box::pin(sleep(CALL_PATIENCE)));
        if pause.as_mut().poll(cx).is_ready() {
            self.seat.left_unread();
        }
        let next = || Instant::now() + STALL_WINDOW;
        // The deadline of an earlier wait says nothing about this one.
        let first = !std::mem::replace(&mut self.waiting, true);
        self.stall.take_if(|(window, _)| first && window.deadline() <= Instant::now());
        let (window, taken) = self.stall.get_or_insert_with(|| (Box::pin(sleep_until(next())), 0));
        loop {
            ready!(window.as_mut().poll(cx));
            let is_over = self.seat.answer_end().is_some_and(|end| end <= Instant::now());
            if is_over || *taken < STALL_BYTES_MIN {
                return Poll::Ready(too_slow());
            }
            *taken = 0;
            window.as_mut().reset(next());
        }
    }

    /// Returns a write's result, and sets the timers accordingly.
    fn wrote(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Ok(bytes)) => Poll::Ready(self.sent(bytes).map(|()| bytes)),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                if let Poll::Ready(error) = self.poll_dismissal(cx) {
                    return Poll::Ready(Err(error));
                }
                self.poll_stall(cx).map(Err)
            }
        }
    }
}

impl<S> Drop for Connection<S> {
    fn drop(&mut self) {
        self.seat.leave();
    }
}

fn too_slow() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the answer is read too slowly")
}

impl<S: AsyncRead + Unpin> AsyncRead for Connection<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.seat.head_is_too_long() {
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the head of the request is too long",
            )));
        }
        let before = buf.filled().len();
        match Pin::new(&mut self.stream).poll_read(cx, buf) {
            Poll::Ready(result) => {
                let bytes = buf.filled().len() - before;
                if bytes > 0 {
                    self.seat.heard(bytes);
                }
                if let Some(reason) = self.seat.overrun() {
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, reason)));
                }
                Poll::Ready(result)
            }
            Poll::Pending => {
                if let Poll::Ready(error) = self.poll_dismissal(cx) {
                    return Poll::Ready(Err(error));
                }
                self.poll_deadline(cx).map(Err)
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Connection<S> {
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
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        if let Poll::Ready(Ok(())) = flushed {
            self.seat.flushed();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
