//! The log's way to standard error: a bounded queue, and a thread of its own that writes. So no task ever waits for a pipe that
//! nobody reads or for a slow disk, and a line that cannot be written (a full disk, a closed pipe) is counted and lost instead
//! of ending the node.

use std::{
    io::{self, Write},
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex, MutexGuard};
use tracing_subscriber::fmt::MakeWriter;

/// Lines that wait to be written, in bytes: some thousand of them. Keeps a reader that stands still from taking memory.
const QUEUE_BYTES_MAX: usize = 1 << 20;
/// How long the end of the program waits for its last lines.
const FLUSH_PATIENCE: Duration = Duration::from_secs(1);

/// A handle to the log; all clones write into one queue.
#[derive(Clone)]
pub struct Log(Arc<Shared>);

struct Shared {
    queue: Mutex<Queue>,
    /// There is something to write, or nothing any more, or the log is closed.
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    bytes: Vec<u8>,
    lines: u64,
    /// Whether the thread has lines that are in neither the queue nor the sink.
    writing: bool,
    closed: bool,
    lost: u64,
}

impl Log {
    /// A log that goes to standard error.
    ///
    /// # Errors
    /// If the system gives no thread or file descriptor.
    pub fn to_stderr() -> io::Result<Log> {
        // Not through the standard library's handle: whoever writes there holds a lock that others would wait for.
        Self::to(std::fs::File::from(rustix::io::dup(io::stderr())?))
    }

    fn to(mut sink: impl Write + Send + 'static) -> io::Result<Log> {
        let log = Log(Arc::new(Shared { queue: Mutex::default(), changed: Condvar::new() }));
        let written = log.clone();
        std::thread::Builder::new().name("log".into()).spawn(move || written.write_on(&mut sink))?;
        Ok(log)
    }

    /// Lines that were dropped because the queue was full, and at most those that were in a write that failed.
    pub fn lines_lost(&self) -> u64 {
        self.0.queue.lock().lost
    }

    /// Waits for a moment until the last lines are written; later ones are dropped.
    pub fn close(&self) {
        let deadline = Instant::now() + FLUSH_PATIENCE;
        let mut queue = self.0.queue.lock();
        queue.closed = true;
        self.0.changed.notify_all();
        while !queue.bytes.is_empty() || queue.writing {
            if self.0.changed.wait_until(&mut queue, deadline).timed_out() {
                return;
            }
        }
    }

    fn push(&self, line: &[u8]) {
        let mut queue = self.0.queue.lock();
        if queue.closed || queue.bytes.len() + line.len() > QUEUE_BYTES_MAX {
            queue.lost += 1;
            return;
        }
        queue.bytes.extend_from_slice(line);
        queue.lines += 1;
        self.0.changed.notify_all();
    }

    /// Writes what comes until the log is closed.
    fn write_on(&self, sink: &mut impl Write) {
        let mut queue = self.0.queue.lock();
        loop {
            while queue.bytes.is_empty() {
                if queue.closed {
                    return;
                }
                self.0.changed.wait(&mut queue);
            }
            let (bytes, lines) = (mem::take(&mut queue.bytes), mem::take(&mut queue.lines));
            queue.writing = true;
            let written = MutexGuard::unlocked(&mut queue, || sink.write_all(&bytes));
            queue.writing = false;
            if written.is_err() {
                queue.lost += lines;
            }
            self.0.changed.notify_all();
        }
    }
}

/// The subscriber hands over one whole line at a time.
impl Write for &Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = &'a Log;

    fn make_writer(&'a self) -> &'a Log {
        self
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Hands over what is written, once somebody takes it.
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

    /// Goal: a reader that stands still costs lines, not time, and what was queued comes in order once it reads.
    #[test]
    fn a_reader_that_stands_still_costs_lines_only() {
        let (sender, written) = mpsc::sync_channel(0);
        let log = Log::to(Slow(sender)).unwrap();
        let line = [b'x'; 1 << 10];
        for _ in 0..4 * QUEUE_BYTES_MAX / line.len() {
            (&log).write_all(&line).unwrap();
        }
        let lost = log.lines_lost();
        assert!(lost > 0 && log.0.queue.lock().bytes.len() <= QUEUE_BYTES_MAX);
        let reader = std::thread::spawn(move || written.iter().map(|bytes| bytes.len()).sum::<usize>());
        log.close();
        (&log).write_all(b"too late").unwrap();
        assert_eq!(log.lines_lost(), lost + 1);
        let read = reader.join().unwrap() as u64;
        assert_eq!(read / line.len() as u64 + lost, 4 * QUEUE_BYTES_MAX as u64 / line.len() as u64);
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted() {
        let log = Log::to(std::fs::File::options().write(true).open("/dev/full").unwrap()).unwrap();
        (&log).write_all(b"one\n").unwrap();
        (&log).write_all(b"two\n").unwrap();
        log.close();
        assert_eq!(log.lines_lost(), 2);
    }
}
