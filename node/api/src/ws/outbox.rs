//! [`Outbox`]: the messages to a socket, bounded in bytes.
//!
//! Answers and news are produced only while there is room. So the queue never holds more than its limit plus the
//! messages in progress when it filled up. Answers above 64 KiB also hold their share of the budget for all answers
//! until they are written. They are sent as several frames. Each frame is copied into a buffer that stays with the
//! socket and is as long as the socket's longest frame so far.

use std::collections::VecDeque;

use axum::body::Bytes;
use futures::{Sink, SinkExt};
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};
use tokio_tungstenite::tungstenite::{
    Message,
    protocol::frame::{
        Frame,
        coding::{Data, OpCode},
    },
};

use crate::listener::{ANSWER_GRACE, at_answer_rate};

/// Maximum bytes of news that wait for a reader: some batches of ordinary news, and little enough that other sockets
/// soon get their turn.
pub(super) const NEWS_BYTES_MAX: usize = 64 << 10;
/// Queued bytes above which no further request is read: a client that sends requests must read.
const ANSWERS_BYTES_MAX: usize = 256 << 10;
/// Bytes of messages that are written together.
pub(super) const WRITE_BYTES: usize = 16 << 10;
/// Maximum bytes of a frame.
const FRAME_BYTES_MAX: usize = 64 << 10;
/// The memory of a message besides its text.
const MESSAGE_BYTES: usize = 64;

/// The queue of a socket's messages, as the module describes.
#[derive(Default)]
pub(super) struct Outbox {
    state: Mutex<State>,
    /// Notified when there is something to write.
    filled: Notify,
    /// Notified when something was written.
    drained: Notify,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Bytes>,
    is_pinging: bool,
    /// The bytes of messages that wait or are being written.
    bytes: usize,
    /// The deadline for writing all of them, if there are any.
    due: Option<Instant>,
}

impl Outbox {
    /// Adds a text to the end of the queue.
    pub(super) fn push(&self, text: Bytes) {
        let mut state = self.state.lock();
        let bytes = MESSAGE_BYTES + text.len();
        state.bytes += bytes;
        // The same time as over HTTP: waiting messages take memory that others need.
        let before = state.due.unwrap_or_else(|| Instant::now() + ANSWER_GRACE);
        state.due = Some(before + at_answer_rate(bytes));
        state.waiting.push_back(text);
        drop(state);
        self.filled.notify_one();
    }

    /// Pings the other side.
    pub(super) fn ping(&self) {
        self.state.lock().is_pinging = true;
        self.filled.notify_one();
    }

    /// The number of bytes of news that fit in the queue.
    pub(super) fn room(&self) -> usize {
        NEWS_BYTES_MAX.saturating_sub(self.state.lock().bytes)
    }

    /// Whether the queue has room for further answers.
    pub(super) fn takes_answers(&self) -> bool {
        self.state.lock().bytes < ANSWERS_BYTES_MAX
    }

    /// Returns when the client should have read the queued messages; waits for ever while the queue is empty.
    pub(super) async fn overdue(&self) {
        let due = self.state.lock().due;
        match due {
            Some(due) => sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    /// Returns when something was written since the last call.
    pub(super) async fn drained(&self) {
        self.drained.notified().await;
    }

    /// Writes queued and future messages until writing fails.
    pub(super) async fn write<S: Sink<Message> + Unpin>(&self, sink: &mut S) -> S::Error {
        loop {
            match self.write_all(sink).await {
                Ok(0) => self.filled.notified().await,
                Ok(bytes) => {
                    let mut state = self.state.lock();
                    state.bytes -= bytes;
                    if state.bytes == 0 {
                        state.due = None;
                    }
                    drop(state);
                    self.drained.notify_one();
                }
                Err(error) => return error,
            }
        }
    }

    /// Writes one group of messages, and returns the number of queued bytes that it had.
    async fn write_all<S: Sink<Message> + Unpin>(&self, sink: &mut S) -> Result<usize, S::Error> {
        let (mut bytes, mut held) = (0, Vec::new());
        let is_pinging = std::mem::take(&mut self.state.lock().is_pinging);
        if is_pinging {
            sink.send(Message::Ping(Bytes::new())).await?;
        }
        while bytes < WRITE_BYTES {
            let Some(text) = self.state.lock().waiting.pop_front() else { break };
            bytes += MESSAGE_BYTES + text.len();
            for frame in frames(&text) {
                sink.feed(Message::Frame(frame)).await?;
            }
            // The message's share is released only once the message is written.
            held.push(text);
        }
        if bytes > 0 {
            sink.flush().await?;
        }
        Ok(bytes)
    }
}

/// The frames of a message, which is JSON of this node.
fn frames(text: &Bytes) -> impl Iterator<Item = Frame> {
    let count = text.len().div_ceil(FRAME_BYTES_MAX).max(1);
    (0..count).map(move |index| {
        let (from, to) = (index * FRAME_BYTES_MAX, (index + 1) * FRAME_BYTES_MAX);
        let kind = if index == 0 { Data::Text } else { Data::Continue };
        Frame::message(text.slice(from..to.min(text.len())), OpCode::Data(kind), index + 1 == count)
    })
}

#[cfg(test)]
mod tests {
    use std::{
        pin::{Pin, pin},
        sync::Arc,
        task::{Context, Poll, Waker},
        time::Duration,
    };

    use super::*;

    /// A reader that takes a given number of frames and assembles them.
    struct Reader {
        takes: Arc<Mutex<usize>>,
        taken: Arc<Mutex<Vec<String>>>,
    }

    impl Sink<Message> for Reader {
        type Error = ();

        fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
            if *self.takes.lock() > 0 { Poll::Ready(Ok(())) } else { Poll::Pending }
        }

        fn start_send(self: Pin<&mut Self>, message: Message) -> Result<(), ()> {
            *self.takes.lock() -= 1;
            let (part, is_first) = match &message {
                Message::Frame(frame) => {
                    assert!(frame.payload().len() <= FRAME_BYTES_MAX);
                    let text = String::from_utf8(frame.payload().to_vec()).unwrap();
                    (text, frame.header().opcode == OpCode::Data(Data::Text))
                }
                Message::Ping(_) => ("ping".into(), true),
                other => panic!("{other:?}"),
            };
            let mut taken = self.taken.lock();
            match taken.last_mut().filter(|_| !is_first) {
                Some(last) => last.push_str(&part),
                None => taken.push(part),
            }
            Ok(())
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// Goal: a client that reads at the least rate is in time, a slower one is late, and an empty queue has no
    /// deadline.
    #[tokio::test(start_paused = true)]
    async fn what_waits_is_due() {
        let (outbox, takes) = (Outbox::default(), Arc::new(Mutex::new(0)));
        let mut reader = Reader { takes: takes.clone(), taken: Arc::default() };
        let late = async || tokio::time::timeout(ANSWER_GRACE, outbox.overdue()).await.is_ok();
        assert!(!late().await);
        let second = vec![b'x'; (128 << 10) - MESSAGE_BYTES];
        (0..3).for_each(|_| outbox.push(second.clone().into()));
        assert!(!late().await, "three seconds are left");
        *takes.lock() = 6;
        let written = tokio::time::timeout(Duration::from_secs(1), outbox.write(&mut reader)).await;
        assert!(written.is_err());
        assert!(!late().await && !late().await, "nothing waits");
        outbox.push(second.into());
        tokio::time::advance(ANSWER_GRACE).await;
        assert!(late().await);
    }

    /// Goal: messages are written in order, waiting and written bytes count, and a client that stops reading fills the
    /// queue.
    #[test]
    fn bytes_count_until_they_are_written() {
        let (outbox, takes, taken) = (Outbox::default(), Arc::new(Mutex::new(0)), Arc::default());
        let mut reader = Reader { takes: takes.clone(), taken: Arc::clone(&taken) };
        let mut writing = pin!(outbox.write(&mut reader));
        let mut write = || {
            assert!(writing.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        };
        write();
        outbox.push(Bytes::from_static(b"first"));
        outbox.push(Bytes::from(vec![b'x'; NEWS_BYTES_MAX]));
        outbox.push(Bytes::from(vec![b'y'; ANSWERS_BYTES_MAX]));
        assert_eq!(outbox.room(), 0);
        assert!(!outbox.takes_answers());
        write();
        assert_eq!(outbox.room(), 0, "nothing is read");
        *takes.lock() = 1;
        write();
        assert_eq!(outbox.room(), 0, "it is being written");
        *takes.lock() = 6;
        outbox.ping();
        write();
        write();
        assert_eq!(outbox.room(), NEWS_BYTES_MAX);
        assert!(outbox.takes_answers());
        let taken = taken.lock();
        assert_eq!(taken.len(), 4);
        assert_eq!(taken[0], "first");
        assert!(taken.contains(&"ping".to_owned()) && taken[1] == "x".repeat(NEWS_BYTES_MAX));
        assert!(taken.contains(&"y".repeat(ANSWERS_BYTES_MAX)), "its frames are not torn apart");
    }
}
