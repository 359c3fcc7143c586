//! [`RelayStats`]: what relays did, and what they cost.

use std::{collections::HashSet, time::Duration};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::{Relay, kernel, lane::Verdict};

/// The longest overhead that is told apart, in microseconds: a relay that is a minute late is no relay.
const OVERHEAD_US_MAX: u64 = 60_000_000;

/// What relays did since they were started. The overhead is the time that a datagram took beyond the one that was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RelayStats {
    /// Datagrams that left, in both directions.
    pub datagrams: u64,
    /// Bytes in datagrams that came.
    pub bytes: u64,
    /// Datagrams that the chosen loss took.
    pub lost: u64,
    /// Datagrams that a cut took.
    pub cut: u64,
    /// Datagrams for which there was no room: in the link's buffer, or in the kernel's.
    pub full: u64,
    /// Datagrams that the kernel dropped before a relay read them, because it came to read too late: loss that nobody asked for.
    /// Those of links that were laid anew are not among them.
    pub overrun: u64,
    /// Half of the datagrams left at most this much later than asked, in microseconds.
    pub overhead_us_p50: u64,
    /// 99 % of them, in microseconds.
    pub overhead_us_p99: u64,
    /// The latest, in microseconds.
    pub overhead_us_max: u64,
}

impl RelayStats {
    /// Of several relays together.
    pub(super) fn of<'a>(relays: impl IntoIterator<Item = &'a Relay>) -> RelayStats {
        let (mut sum, mut ports) = (Meter::default(), HashSet::new());
        for relay in relays {
            relay.add_to(&mut sum);
            relay.add_ports(&mut ports);
        }
        RelayStats { overrun: kernel::drops(&ports), ..sum.stats() }
    }
}

/// Counts for [`RelayStats`].
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

    /// So many were on their way when the link was cut.
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
