//! [`Lane`]: one direction of a link. It decides when each datagram leaves, and has neither a socket nor a clock.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use rand::{Rng, SeedableRng, rngs::StdRng};

use super::Shape;

/// The most bytes that wait in one direction: 60 ms at 4 Gbit/s. Without a limit, a flood would fill the harness's
/// memory.
pub(super) const WAITING_BYTES_MAX: usize = 32 << 20;
/// The longest wait of a datagram for a link of limited bandwidth, similar to a router's buffer. Without a limit, a
/// full link's delay would only grow.
pub(super) const BACKLOG_MAX: Duration = Duration::from_millis(200);

/// The fate of an offered datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// It leaves later.
    Waits,
    /// The link's loss took it.
    Lost,
    /// The buffer is full.
    Full,
    /// The link is cut.
    Cut,
}

/// A datagram in flight.
#[derive(Debug)]
pub(super) struct Waiting {
    /// When it leaves.
    pub(super) due: Instant,
    pub(super) bytes: Vec<u8>,
}

/// One direction of a link. Calls come with a time that never decreases. `offer` accepts a datagram, and `next_due`
/// says when `take_due` returns one.
pub(super) struct Lane {
    shape: Shape,
    is_cut: bool,
    random: StdRng,
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    /// When the last datagram has left the sender, if the bandwidth is limited.
    free_at: Option<Instant>,
    /// When the last accepted datagram leaves: none overtakes it.
    last_due: Option<Instant>,
}

impl Lane {
    /// Makes a lane. The seed determines which datagrams are lost, and the jitter of each.
    pub(super) fn new(shape: Shape, seed: u64) -> Lane {
        Lane {
            shape,
            is_cut: false,
            random: StdRng::seed_from_u64(seed),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            free_at: None,
            last_due: None,
        }
    }

    /// Changes the shape for future datagrams; those in flight keep their times.
    pub(super) fn reshape(&mut self, shape: Shape) {
        self.shape = shape;
        self.free_at = None;
    }

    /// Cuts the lane, which drops datagrams in flight and future ones, or heals it. Returns the number dropped in
    /// flight.
    pub(super) fn cut(&mut self, is_cut: bool) -> usize {
        self.is_cut = is_cut;
        if !is_cut {
            return 0;
        }
        self.waiting_bytes = 0;
        // The dropped datagrams do not delay those after the cut.
        (self.free_at, self.last_due) = (None, None);
        self.waiting.drain(..).count()
    }

    pub(super) fn offer(&mut self, now: Instant, bytes: &[u8]) -> Verdict {
        // Both are drawn for every datagram, so that the n-th has the same draw whatever the shape was before.
        let (luck, swing): (f64, f64) = (self.random.random(), self.random.random());
        if self.is_cut {
            return Verdict::Cut;
        }
        if luck < self.shape.loss {
            return Verdict::Lost;
        }
        if self.waiting_bytes + bytes.len() > WAITING_BYTES_MAX {
            return Verdict::Full;
        }
        let mut sent = now;
        if let Some(rate) = self.shape.bandwidth_bytes_per_second {
            let begin = self.free_at.map_or(now, |free| free.max(now));
            if begin - now > BACKLOG_MAX {
                return Verdict::Full;
            }
            sent = begin + Duration::from_secs_f64(bytes.len() as f64 / rate.get() as f64);
            self.free_at = Some(sent);
        }
        let due = sent + self.shape.delay + self.shape.jitter.mul_f64(swing);
        let due = self.last_due.map_or(due, |last| last.max(due));
        self.last_due = Some(due);
        self.waiting_bytes += bytes.len();
        self.waiting.push_back(Waiting { due, bytes: bytes.to_vec() });
        Verdict::Waits
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.waiting.front().map(|first| first.due)
    }

    pub(super) fn take_due(&mut self, now: Instant) -> Option<Waiting> {
        let first = self.waiting.pop_front_if(|first| first.due <= now)?;
        self.waiting_bytes -= first.bytes.len();
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    /// Returns when each of the datagrams, offered a millisecond apart, leaves; `None` if it does not.
    fn times(lane: &mut Lane, begin: Instant, count: u64) -> Vec<Option<Duration>> {
        let verdicts: Vec<_> = (0..count).map(|at| lane.offer(begin + ms(at), &at.to_le_bytes())).collect();
        let mut left = Vec::new();
        while let Some(due) = lane.next_due() {
            assert!(lane.take_due(due - Duration::from_nanos(1)).is_none(), "nothing leaves early");
            left.push(lane.take_due(due).unwrap());
        }
        let mut left = left.into_iter();
        let of = |(at, verdict): (u64, &Verdict)| {
            let waiting = (*verdict == Verdict::Waits).then(|| left.next().unwrap())?;
            assert_eq!(waiting.bytes, at.to_le_bytes(), "the order is kept");
            Some(waiting.due - begin)
        };
        (0..count).zip(&verdicts).map(of).collect()
    }

    /// Goal: a plain link delays each datagram equally, and a default shape delays nothing.
    #[test]
    fn delay_is_exact() {
        let begin = Instant::now();
        let mut lane = Lane::new(Shape { delay: ms(40), ..Shape::default() }, 1);
        assert_eq!(times(&mut lane, begin, 3), [40, 41, 42].map(|at| Some(ms(at))));
        let mut lane = Lane::new(Shape::default(), 1);
        assert_eq!(times(&mut lane, begin, 3), [0, 1, 2].map(|at| Some(ms(at))));
    }

    /// Goal: jitter delays datagrams but never lets one overtake another, and a seed repeats it exactly.
    #[test]
    fn jitter_keeps_the_order_and_the_seed_repeats_it() {
        let begin = Instant::now();
        let shape = Shape { delay: ms(10), jitter: ms(30), loss: 0.2, ..Shape::default() };
        let first = times(&mut Lane::new(shape, 7), begin, 200);
        assert_eq!(first, times(&mut Lane::new(shape, 7), begin, 200));
        assert_ne!(first, times(&mut Lane::new(shape, 8), begin, 200));
        let came: Vec<_> = first.iter().flatten().collect();
        assert!(came.is_sorted());
        let lost = first.len() - came.len();
        assert!((20..=60).contains(&lost), "{lost} of 200 are lost at a loss of 0.2");
        let delays = first.iter().enumerate().filter_map(|(at, time)| Some((*time)? - ms(at as u64)));
        assert!(delays.into_iter().all(|delay| delay >= ms(10)));
    }

    /// Goal: a narrow link sends one datagram after the other, and refuses those that would exceed its buffer.
    #[test]
    fn bandwidth_spaces_datagrams_and_its_buffer_ends() {
        let begin = Instant::now();
        let rate = NonZeroU64::new(100_000);
        let mut lane = Lane::new(Shape { bandwidth_bytes_per_second: rate, ..Shape::default() }, 1);
        // 1,000 bytes take 10 ms.
        let verdicts: Vec<_> = (0..30).map(|_| lane.offer(begin, &[0; 1_000])).collect();
        assert_eq!(verdicts.iter().filter(|verdict| **verdict == Verdict::Waits).count(), 21);
        assert_eq!(verdicts.last(), Some(&Verdict::Full));
        for at in 1..=21 {
            assert_eq!(lane.take_due(begin + ms(at * 10)).unwrap().due, begin + ms(at * 10));
        }
        assert_eq!(lane.offer(begin + ms(300), &[0; 1_000]), Verdict::Waits);
        assert_eq!(lane.next_due(), Some(begin + ms(310)));
    }

    /// Goal: a cut link drops datagrams in flight and new ones, and works again afterwards.
    #[test]
    fn a_cut_drops_everything_until_it_heals() {
        let begin = Instant::now();
        let mut lane = Lane::new(Shape { delay: ms(50), ..Shape::default() }, 1);
        assert_eq!(lane.offer(begin, b"a"), Verdict::Waits);
        assert_eq!(lane.cut(true), 1);
        assert_eq!((lane.next_due(), lane.offer(begin, b"b")), (None, Verdict::Cut));
        assert_eq!(lane.cut(false), 0);
        assert_eq!(lane.offer(begin + ms(1), b"c"), Verdict::Waits);
        assert_eq!(lane.take_due(begin + ms(51)).unwrap().bytes, b"c");
        // A slow link that is cut, and fast when it is healed.
        assert_eq!(lane.offer(begin + ms(60), b"d"), Verdict::Waits);
        lane.reshape(Shape::default());
        assert_eq!(lane.cut(true), 1);
        lane.cut(false);
        assert_eq!(lane.offer(begin + ms(61), b"e"), Verdict::Waits);
        assert_eq!(lane.next_due(), Some(begin + ms(61)));
    }

    /// Goal: the bytes that wait are bounded.
    #[test]
    fn memory_is_bounded() {
        let begin = Instant::now();
        let mut lane = Lane::new(Shape { delay: ms(1_000), ..Shape::default() }, 1);
        let datagram = vec![0; 1 << 16];
        let taken = (0..WAITING_BYTES_MAX).take_while(|_| lane.offer(begin, &datagram) == Verdict::Waits);
        assert_eq!(taken.count(), WAITING_BYTES_MAX >> 16);
    }
}
