//! [`Queue`]: the log's path to one destination, standard error or a file. It is bounded, and its own thread writes. So
//! tasks never wait for an unread pipe or a slow disk. A line that cannot be written (a full disk, a closed pipe) is
//! counted and lost; the node continues.

use std::{
    io::{self, Write},
    mem,
    sync::Arc,
    time::Instant,
};

use parking_lot::{Condvar, Mutex, MutexGuard};

/// Maximum bytes of lines that wait to be written: some thousand lines. A stalled reader cannot use more memory.
const QUEUE_BYTES_MAX: usize = 1 << 20;

/// A handle to the queue; all clones write to the same one.
#[derive(Clone)]
pub(super) struct Queue(Arc<Shared>);

struct Shared {
    waiting: Mutex<Waiting>,
    /// Signalled when there is something to write, when all is written, or when the log is closed.
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    bytes: Vec<u8>,
    lines: u64,
    /// Whether the thread holds lines between the queue and the sink.
    writing: bool,
    closed: bool,
    lost: u64,
}

impl Queue {
    /// Starts the writing thread.
    pub(super) fn to(name: &str, mut sink: impl Write + Send + 'static) -> io::Result<Queue> {
        let queue = Queue(Arc::new(Shared { waiting: Mutex::default(), changed: Condvar::new() }));
        let written = queue.clone();
        std::thread::Builder::new().name(name.into()).spawn(move || written.write_on(&mut sink))?;
        Ok(queue)
    }

    /// The number of lines that were dropped because the queue was full, plus all lines of failed writes, some of which
    /// may have been written.
    pub(super) fn lines_lost(&self) -> u64 {
        self.0.waiting.lock().lost
    }

    /// Stops accepting lines.
    pub(super) fn close(&self) {
        self.0.waiting.lock().closed = true;
        self.0.changed.notify_all();
    }

    /// Waits until the last lines are written, or until `deadline`.
    pub(super) fn flush(&self, deadline: Instant) {
        let mut waiting = self.0.waiting.lock();
        while !waiting.bytes.is_empty() || waiting.writing {
            if self.0.changed.wait_until(&mut waiting, deadline).timed_out() {
                return;
            }
        }
    }

    /// Queues a line, or counts it as lost.
    pub(super) fn push(&self, line: &[u8]) {
        let mut waiting = self.0.waiting.lock();
        if waiting.closed || waiting.bytes.len() + line.len() > QUEUE_BYTES_MAX {
            waiting.lost += 1;
            return;
        }
        waiting.bytes.extend_from_slice(line);
        waiting.lines += 1;
        self.0.changed.notify_all();
    }

    /// Writes queued lines until the log is closed.
    fn write_on(&self, sink: &mut impl Write) {
        let mut waiting = self.0.waiting.lock();
        loop {
            while waiting.bytes.is_empty() {
                if waiting.closed {
                    return;
                }
                self.0.changed.wait(&mut waiting);
            }
            let (bytes, lines) = (mem::take(&mut waiting.bytes), mem::take(&mut waiting.lines));
            waiting.writing = true;
            let written = MutexGuard::unlocked(&mut waiting, || sink.write_all(&bytes));
            waiting.writing = false;
            if written.is_err() {
                waiting.lost += lines;
            }
            self.0.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use super::*;

    /// A sink that blocks each write until the test receives it.
    struct Slow(mpsc::SyncSender<Vec<u8>>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.send(bytes.to_vec()).map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Goal: a stalled reader costs lines, not time, and queued lines arrive in order once it reads.
    #[test]
    fn a_reader_that_stands_still_costs_lines_only() {
        let (sender, written) = mpsc::sync_channel(0);
        let queue = Queue::to("slow", Slow(sender)).unwrap();
        let line = [b'x'; 1 << 10];
        for _ in 0..4 * QUEUE_BYTES_MAX / line.len() {
            queue.push(&line);
        }
        let lost = queue.lines_lost();
        assert!(lost > 0 && queue.0.waiting.lock().bytes.len() <= QUEUE_BYTES_MAX);
        let reader = std::thread::spawn(move || written.iter().map(|bytes| bytes.len()).sum::<usize>());
        queue.close();
        queue.flush(Instant::now() + Duration::from_secs(60));
        queue.push(b"too late");
        assert_eq!(queue.lines_lost(), lost + 1);
        let read = reader.join().unwrap() as u64;
        assert_eq!(read / line.len() as u64 + lost, 4 * QUEUE_BYTES_MAX as u64 / line.len() as u64);
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted() {
        let queue =
            Queue::to("full", std::fs::File::options().write(true).open("/dev/full").unwrap()).unwrap();
        queue.push(b"one\n");
        queue.push(b"two\n");
        queue.close();
        queue.flush(Instant::now() + Duration::from_secs(60));
        assert_eq!(queue.lines_lost(), 2);
    }
}
