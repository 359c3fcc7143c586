//! [`Ring`]: the latest events, stored once for all listeners.

use std::{collections::VecDeque, fmt, str::FromStr, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::watch;

use super::Event;

/// Maximum bytes of kept events: some minutes of ten batches a second, longer than a reconnecting listener is away.
const RING_BYTES_MAX: usize = 1 << 20;
/// The memory of an event besides its text.
const ENTRY_BYTES: usize = 64;

/// An event in the stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamedEvent {
    /// The event's position.
    pub id: Id,
    /// The event's name.
    pub name: &'static str,
    /// The event as one line of JSON.
    pub json: Arc<str>,
}

/// The position of an event: the run of the node, and the number in that run, from 1 on. As text: `RUN-NUMBER`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Id {
    run: u64,
    number: u64,
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.run, self.number)
    }
}

impl FromStr for Id {
    type Err = ();

    fn from_str(text: &str) -> Result<Id, ()> {
        let (run, number) = text.split_once('-').ok_or(())?;
        Ok(Id { run: run.parse().map_err(|_| ())?, number: number.parse().map_err(|_| ())? })
    }
}

/// The ring of the latest events.
pub struct Ring {
    run: u64,
    kept: Mutex<StoredEvent>,
    /// The number of the newest event; `None` once the ring is closed.
    newest: watch::Sender<Option<u64>>,
}

#[derive(Default)]
struct StoredEvent {
    /// Consecutive numbers, oldest first.
    events: VecDeque<StreamedEvent>,
    bytes: usize,
    newest: u64,
}

impl Ring {
    /// An empty ring for one run of the node, identified by its start in milliseconds.
    pub fn new(run: u64) -> Arc<Ring> {
        Arc::new(Ring { run, kept: Mutex::default(), newest: watch::Sender::new(Some(0)) })
    }

    /// Adds an event, and wakes the waiting listeners.
    pub(crate) fn tell(&self, event: &Event) {
        let json = match serde_json::to_string(event) {
            Ok(json) => Arc::from(json),
            Err(error) => return tracing::error!(%error, "an event cannot be written as JSON"),
        };
        let mut kept = self.kept.lock();
        kept.newest += 1;
        let told = StreamedEvent { id: Id { run: self.run, number: kept.newest }, name: event.name(), json };
        kept.bytes += size(&told);
        kept.events.push_back(told);
        while kept.bytes > RING_BYTES_MAX {
            let Some(first) = kept.events.pop_front() else { break };
            kept.bytes -= size(&first);
        }
        let newest = kept.newest;
        self.newest.send_if_modified(|sent| {
            sent.as_mut().is_some_and(|sent| std::mem::replace(sent, newest) != newest)
        });
    }

    /// Ends every listener: no more events follow.
    pub fn close(&self) {
        self.newest.send_replace(None);
    }

    /// A listener to the events from now on, or to those after the last event that it received.
    pub fn listen(self: &Arc<Self>, last: Option<Id>) -> Listener {
        let newest = self.kept.lock().newest;
        let (next, is_lost) = match last {
            None => (newest + 1, false),
            Some(last) if last.run == self.run && last.number <= newest => (last.number + 1, false),
            // The number of missed events of an earlier run is unknown.
            Some(_) => (1, true),
        };
        Listener { ring: self.clone(), newest: self.newest.subscribe(), next, is_lost }
    }
}

fn size(told: &StreamedEvent) -> usize {
    told.json.len() + ENTRY_BYTES
}

/// The next item for a listener.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NextEvent {
    /// The next event of the ring.
    Event(StreamedEvent),
    /// This many events were missed; `None` if the number is unknown, because the node was restarted.
    Lost(Option<u64>),
}

/// A listener and its position.
pub struct Listener {
    ring: Arc<Ring>,
    newest: watch::Receiver<Option<u64>>,
    next: u64,
    /// Whether the last event it received belongs to an earlier run.
    is_lost: bool,
}

impl Listener {
    /// Waits for the next event; `None` once the ring is closed.
    pub async fn next(&mut self) -> Option<NextEvent> {
        if std::mem::take(&mut self.is_lost) {
            return Some(NextEvent::Lost(None));
        }
        loop {
            (*self.newest.borrow_and_update())?;
            if let Some(heard) = self.poll() {
                return Some(heard);
            }
            self.newest.changed().await.ok()?;
        }
    }

    /// The next event, if it is available.
    fn poll(&mut self) -> Option<NextEvent> {
        let kept = self.ring.kept.lock();
        let oldest = kept.events.front()?.id.number;
        if self.next < oldest {
            let lost = oldest - self.next;
            self.next = oldest;
            return Some(NextEvent::Lost(Some(lost)));
        }
        let told = kept.events.get((self.next - oldest) as usize)?.clone();
        self.next += 1;
        Some(NextEvent::Event(told))
    }
}

#[cfg(test)]
mod tests {
    use slipstream_types::BatchNumber;

    use super::*;

    fn snapshot(number: u64) -> Event {
        Event::Snapshot { number: BatchNumber::new(number) }
    }

    /// Everything available without waiting.
    fn all(listener: &mut Listener) -> Vec<NextEvent> {
        std::iter::from_fn(|| listener.poll()).collect()
    }

    fn numbers(heard: &[NextEvent]) -> Vec<u64> {
        let number = |heard: &NextEvent| match heard {
            NextEvent::Event(told) => told.id.number,
            NextEvent::Lost(lost) => panic!("lost {lost:?}"),
        };
        heard.iter().map(number).collect()
    }

    /// Goal: a listener receives events from its start on. A listener that was away resumes after its last event, and
    /// both receive the same bytes.
    #[test]
    fn who_comes_back_goes_on() {
        let ring = Ring::new(7);
        ring.tell(&snapshot(100));
        let mut first = ring.listen(None);
        (200..203).for_each(|number| ring.tell(&snapshot(number)));
        let heard = all(&mut first);
        assert_eq!(numbers(&heard), [2, 3, 4]);
        let NextEvent::Event(told) = &heard[0] else { panic!("{heard:?}") };
        assert_eq!(
            (&*told.json, told.id.to_string()),
            (r#"{"event":"snapshot","number":200}"#, "7-2".into())
        );
        assert_eq!(all(&mut ring.listen("7-2".parse().ok())), heard[1..]);
        assert_eq!(all(&mut ring.listen("7-4".parse().ok())), []);
        assert_eq!(numbers(&all(&mut ring.listen("7-0".parse().ok()))), [1, 2, 3, 4]);
        for text in ["", "7", "7-", "-1", "x-1", "7-99999999999999999999"] {
            assert!(text.parse::<Id>().is_err(), "{text}");
        }
    }

    /// Goal: a slow listener learns how many events it missed, and the ring's memory is bounded however many listen.
    #[test]
    fn who_is_too_slow_hears_how_many_it_missed() {
        let ring = Ring::new(7);
        let mut slow = ring.listen(None);
        (1..=50_000).for_each(|number| ring.tell(&snapshot(number)));
        let kept = ring.kept.lock();
        assert!(kept.bytes <= RING_BYTES_MAX && kept.bytes == kept.events.iter().map(size).sum::<usize>());
        let len = kept.events.len() as u64;
        drop(kept);
        let heard = all(&mut slow);
        assert_eq!(heard[0], NextEvent::Lost(Some(50_000 - len)));
        assert_eq!(numbers(&heard[1..]).len() as u64, len);
    }

    #[tokio::test]
    async fn another_run_is_told_and_an_end_ends() {
        let ring = Ring::new(7);
        ring.tell(&snapshot(1));
        for last in ["6-5", "7-9"] {
            let mut listener = ring.listen(last.parse().ok());
            assert_eq!(listener.next().await, Some(NextEvent::Lost(None)), "{last}");
            assert!(matches!(listener.next().await, Some(NextEvent::Event(told)) if told.id.number == 1));
        }
        let mut waiting = ring.listen(None);
        let waits = tokio::spawn(async move { waiting.next().await });
        tokio::task::yield_now().await;
        ring.close();
        assert_eq!(waits.await.unwrap(), None);
        assert_eq!(ring.listen("7-0".parse().ok()).next().await, None, "also with something to tell");
    }
}
