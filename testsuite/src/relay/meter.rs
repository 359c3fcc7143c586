//! [`RelayStats`]: statistics of relays, with their overhead.

use std::{collections::HashSet, time::Duration};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::{Relay, kernel, lane::Verdict};

/// The longest overhead that is distinguished, in microseconds: a relay that is a minute late is useless.
const OVERHEAD_US_MAX: u64 = 60_000_000;

/// Statistics of relays since their start. The overhead is a datagram's delay beyond the requested one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RelayStats {
    /// Datagrams forwarded, in both directions.
    pub datagrams: u64,
    /// Bytes in received datagrams.
    pub bytes: u64,
    /// Datagrams dropped by the requested loss.
    pub lost: u64,
    /// Datagrams dropped by a cut.
    pub cut: u64,
    /// Datagrams dropped because a buffer was full: the link's, or the kernel's.
    pub full: u64,
    /// Datagrams that the kernel dropped because a relay read them too late: unrequested loss. Datagrams of replaced
    /// links are not included.
    pub overrun: u64,
    /// The median overhead, in microseconds.
    pub overhead_us_p50: u64,
    /// The 99th percentile of the overhead, in microseconds.
    pub overhead_us_p99: u64,
    /// The largest overhead, in microseconds.
    pub overhead_us_max: u64,
}

impl RelayStats {
    /// Adds up several relays.
    pub(super) fn of<'a>(relays: impl IntoIterator<Item = &'a Relay>) -> RelayStats {
        let (mut sum, mut ports) = (Meter::default(), HashSet::new());
        for relay in relays {
            relay.add_to(&mut sum);
            relay.add_ports(&mut ports);
        }
        RelayStats { overrun: kernel::drops(&ports), ..sum.stats() }
    }
}

/// The counters behind [`RelayStats`].
pub(super) struct Meter {
    counts: RelayStats,
    overhead_us: Histogram<u64>,
}

impl Default for Meter {
    fn default() -> Meter {
        let overhead_us = Histogram::new_with_bounds(1, OVERHEAD_US_MAX, 2).expect("constant bounds");
        Meter { counts: RelayStats::default(), overhead_us }
    }
}

impl Meter {
    pub(super) fn offered(&mut self, verdict: Verdict, bytes: usize) {
        self.counts.bytes += bytes as u64;
        match verdict {
            Verdict::Waits => {}
            Verdict::Lost => self.counts.lost += 1,
            Verdict::Full => self.counts.full += 1,
            Verdict::Cut => self.counts.cut += 1,
        }
    }

    pub(super) fn sent(&mut self, has_left: bool, overhead: Duration) {
        if !has_left {
            self.counts.full += 1;
            return;
        }
        self.counts.datagrams += 1;
        self.overhead_us.saturating_record(overhead.as_micros().try_into().unwrap_or(OVERHEAD_US_MAX));
    }

    /// Counts datagrams in flight that a cut dropped.
    pub(super) fn dropped(&mut self, count: usize) {
        self.counts.cut += count as u64;
    }

    pub(super) fn add(&mut self, other: &Meter) {
        let (sum, more) = (&mut self.counts, &other.counts);
        sum.datagrams += more.datagrams;
        sum.bytes += more.bytes;
        sum.lost += more.lost;
        sum.cut += more.cut;
        sum.full += more.full;
        self.overhead_us.add(&other.overhead_us).expect("all meters have the same bounds");
    }

    fn stats(&self) -> RelayStats {
        RelayStats {
            overhead_us_p50: self.overhead_us.value_at_quantile(0.5),
            overhead_us_p99: self.overhead_us.value_at_quantile(0.99),
            overhead_us_max: self.overhead_us.max(),
            ..self.counts
        }
    }
}
