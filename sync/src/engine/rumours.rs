//! [`Rumours`]: batches that peers say they have, before their summaries show it. Peers announce a batch once they have
//! checked it, which is before they commit it.

use std::{collections::BTreeMap, time::Duration};

use slipstream_network::PeerId;
use slipstream_types::BatchNumber;
use tokio::time::Instant;

/// First pause before a peer is asked again about a batch that it announced and may not have committed yet. The pause
/// doubles each time.
const PAUSE: Duration = Duration::from_millis(20);
/// How often a peer is asked about one batch, because an announcement costs the peer nothing.
const ASKS_MAX: u32 = 5;

#[derive(Debug)]
struct Rumour {
    number: BatchNumber,
    ask_at: Instant,
    asks: u32,
}

/// See the module. At most one rumour for each peer.
#[derive(Debug, Default)]
pub(super) struct Rumours(BTreeMap<PeerId, Rumour>);

impl Rumours {
    /// Records that a peer has a batch, or soon will.
    pub(super) fn add(&mut self, peer: PeerId, number: BatchNumber, now: Instant) {
        let rumour = self.0.entry(peer).or_insert(Rumour { number, ask_at: now, asks: 0 });
        if number > rumour.number {
            *rumour = Rumour { number, ask_at: now, asks: 0 };
        }
    }

    /// Forgets rumours that came true, or that were asked about often enough.
    pub(super) fn retain(&mut self, is_open: impl Fn(&PeerId, BatchNumber) -> bool) {
        self.0.retain(|peer, rumour| rumour.asks < ASKS_MAX && is_open(peer, rumour.number));
    }

    /// The peers to ask now.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<PeerId> {
        let due = self.0.iter_mut().filter(|(_, rumour)| rumour.ask_at <= now);
        due.map(|(peer, rumour)| {
            rumour.ask_at = now + PAUSE * (1 << rumour.asks);
            rumour.asks += 1;
            *peer
        })
        .collect()
    }

    /// When to ask the next peer.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.values().map(|rumour| rumour.ask_at).min()
    }
}

#[cfg(test)]
mod tests {
    use slipstream_types::PublicKey;

    use super::*;

    /// Goal: a peer is asked at once and a few more times, until its summary has the batch.
    #[test]
    fn asked_a_few_times() {
        let (mut rumours, start, peer) = (Rumours::default(), Instant::now(), PublicKey([1; 32]));
        rumours.add(peer, BatchNumber::new(7), start);
        let mut asked = Vec::new();
        while let Some(at) = rumours.next() {
            assert_eq!(rumours.take_due(at), [peer]);
            asked.push((at - start).as_millis());
            rumours.retain(|_, _| true);
        }
        assert_eq!(asked, [0, 20, 60, 140, 300]);
        rumours.add(peer, BatchNumber::new(7), start);
        rumours.add(peer, BatchNumber::new(6), start);
        rumours.retain(|_, number| number != BatchNumber::new(7));
        assert_eq!(rumours.next(), None);
    }
}
