//! Asking peers: summaries, and ranges one after another while the one before is applied.

use std::{collections::BTreeSet, time::Duration};

use futures::stream::{FuturesUnordered, StreamExt};
use serde::de::DeserializeOwned;
use slipstream_network::{PeerId, Protocol, RequestLimits};
use slipstream_types::{BatchNumber, Digest, codec};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{Follower, RANGES_AHEAD};
use crate::{
    SyncError,
    error::Fault,
    plan::RangeMode,
    protocol::{
        ANSWER_BYTES_MAX, Parts, RANGE_BATCHES_MAX, RANGE_BYTES_MAX, Range, RangeRequest, Request, Summary,
    },
    verify::{self, VerifiedRange, Violation},
};

impl Follower {
    /// Asks one peer and decodes its answer.
    pub(super) async fn ask<T: DeserializeOwned>(&self, peer: PeerId, request: &Request) -> Result<T, Fault> {
        let bytes = self.ask_bytes(peer, request).await?;
        Ok(codec::decode("sync answer", &bytes, ANSWER_BYTES_MAX)?)
    }

    /// Asks one peer.
    pub(super) async fn ask_bytes(&self, peer: PeerId, request: &Request) -> Result<Vec<u8>, Fault> {
        let payload = codec::encode("sync request", request)?;
        let deadline = Duration::from_millis(self.config.request_deadline_ms.get());
        let limits = RequestLimits { deadline, response_bytes_max: ANSWER_BYTES_MAX };
        Ok(self.transport.request(peer, Protocol::SYNC, payload, limits).await?)
    }

    /// Renews the summaries of all peers, each at its own pace, and wakes the loop with every new one.
    pub(super) async fn keep_summaries(&self) -> std::convert::Infallible {
        let mut asked = BTreeSet::new();
        let mut answers = FuturesUnordered::new();
        loop {
            let stale = {
                let mut state = self.state.lock();
                let now = Instant::now();
                state.book.retain(now, &self.transport.peers());
                state.book.stale(now, super::SUMMARY_AGE)
            };
            answers.extend(
                stale.into_iter().filter(|peer| asked.insert(*peer)).map(|peer| self.refresh_summary(peer)),
            );
            tokio::select! {
                Some(peer) = answers.next() => {
                    asked.remove(&peer);
                    self.wake.notify_one();
                }
                () = self.heard.notified() => {}
                () = tokio::time::sleep(super::SUMMARY_AGE / 2) => {}
            }
        }
    }

    async fn refresh_summary(&self, peer: PeerId) -> PeerId {
        let checked = match self.ask::<Summary>(peer, &Request::Summary).await {
            Ok(summary) => self.check_summary(summary),
            Err(fault) => Err(fault),
        };
        match checked {
            Ok(summary) => self.state.lock().book.summarize(peer, Instant::now(), summary),
            Err(fault) => self.punish(peer, "summary", &fault),
        }
        peer
    }

    fn check_summary(&self, summary: Summary) -> Result<Summary, Fault> {
        if summary.genesis != self.genesis {
            return Err(Violation::WrongChain { found: summary.genesis, expected: self.genesis }.into());
        }
        if let Some(certificate) = &summary.head {
            certificate.verify(&self.set).map_err(Violation::from)?;
        }
        Ok(summary)
    }

    /// Fetches and applies ranges up to `target`. Ends early when nobody can be asked; the next turn plans anew.
    pub(super) async fn catch_up(
        &self,
        mode: RangeMode,
        target: BatchNumber,
        shutdown: &CancellationToken,
    ) -> Result<(), SyncError> {
        let (sender, mut ranges) = mpsc::channel::<(PeerId, VerifiedRange)>(RANGES_AHEAD);
        let head = self.store.head()?;
        let fetch = async {
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = self.fetch_ranges(mode, head.header.number.next(), head.digest, target, sender) => {}
            }
            Ok(())
        };
        let apply = async {
            while let Some((peer, range)) = ranges.recv().await {
                self.apply(peer, range, mode, shutdown).await?;
            }
            Ok(())
        };
        tokio::try_join!(fetch, apply).map(|_| ())
    }

    async fn fetch_ranges(
        &self,
        mode: RangeMode,
        mut first: BatchNumber,
        mut parent: Digest,
        target: BatchNumber,
        sender: mpsc::Sender<(PeerId, VerifiedRange)>,
    ) {
        while first <= target {
            let Some((peer, head)) = self.choose(mode, first) else { return };
            let request = RangeRequest {
                first,
                batches_max: to_boundary(first, self.config.range_batches_max.get().min(RANGE_BATCHES_MAX)),
                bytes_max: self.config.range_bytes_max.get().min(RANGE_BYTES_MAX),
                parts: self.parts(mode),
            };
            match self.fetch_range(peer, head, request, parent).await {
                Ok(range) => {
                    let Some(last) = range.batches().last() else { return };
                    (first, parent) = (last.header.number.next(), last.header.digest());
                    if sender.send((peer, range)).await.is_err() {
                        return;
                    }
                }
                Err(fault) => self.punish(peer, &format!("batches from {first} on"), &fault),
            }
        }
    }

    /// The peer to ask for a batch in a mode, and its certified head: the best one that serves it, or one to explore.
    fn choose(&self, mode: RangeMode, first: BatchNumber) -> Option<(PeerId, BatchNumber)> {
        let now = Instant::now();
        let mut state = self.state.lock();
        let mut serving = state.book.candidates(now, self.config.history);
        serving.retain(|peer| {
            let from = match mode {
                RangeMode::Replay => peer.replay_from,
                RangeMode::Delta => peer.delta_from,
            };
            peer.head >= first && from.is_some_and(|from| from <= first)
        });
        state.book.choose(now, &serving).map(|peer| (peer.peer, peer.head))
    }

    fn parts(&self, mode: RangeMode) -> Parts {
        match mode {
            RangeMode::Replay if self.hints => Parts::BODY.with(Parts::HINTS),
            RangeMode::Replay => Parts::BODY,
            RangeMode::Delta if self.config.history => Parts::DELTA.with(Parts::BODY).with(Parts::RECEIPTS),
            RangeMode::Delta => Parts::DELTA,
        }
    }

    async fn fetch_range(
        &self,
        peer: PeerId,
        head: BatchNumber,
        request: RangeRequest,
        parent: Digest,
    ) -> Result<VerifiedRange, Fault> {
        let asked = Instant::now();
        let answer: Range = self.ask(peer, &Request::Range(request)).await?;
        let took = asked.elapsed();
        let set = self.set.clone();
        let due = head.0 - request.first.0 + 1;
        let checked =
            tokio::task::spawn_blocking(move || verify::range(answer, &request, parent, due, &set)).await;
        let range = checked.map_err(|_| Violation::Unrelated("checking it failed"))??;
        let bytes = range.certified_bytes();
        let mut state = self.state.lock();
        let now = Instant::now();
        state.book.credit(&peer, now, bytes, took);
        state.book.advance(&peer, now, range.certificate());
        state.counters.bytes_received += bytes as u64;
        Ok(range)
    }
}

/// Batches from `first` to the next multiple of `batches_max`. All followers ask for ranges with the same ends, wherever they
/// began and however many bytes the batches have, so that a peer makes each answer once for all of them.
fn to_boundary(first: BatchNumber, batches_max: u32) -> u32 {
    batches_max - (first.0 % u64::from(batches_max)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_end_at_the_same_batches_wherever_they_begin() {
        for (first, count) in [(0, 256), (1, 255), (255, 1), (256, 256), (u64::MAX, 1)] {
            assert_eq!(to_boundary(BatchNumber(first), 256), count, "from {first}");
        }
        assert_eq!(to_boundary(BatchNumber(7), 1), 1);
    }
}
