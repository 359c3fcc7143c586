//! Takes one request through the server, from one place to the next. Between two steps a request gives its place
//! back, so a wait for another's work or for a merge blocks nobody.

use std::{sync::Arc, time::Duration};

use slipstream_network::Payload;
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

use super::{
    Asker, Shared, SyncServer,
    answer::{PreparedAnswer, SharedRequest, prepare, proved_by},
    cache::{Outcome, Part, PartLookup},
    check,
    cost::{Kind, MERGE},
    error::ServeError,
    heavy::{LOAD_RETRY, LOAD_WAIT},
    in_debt,
    lane::{LaneFull, Permit},
    merges::{self, MergeKey, MergeLookup, MergeOutput, merge},
};
use crate::protocol::Request;

/// Longest wait for a part that another asker makes. Like the wait for a merge, it ends well before the asker's
/// deadline.
const PART_WAIT: Duration = Duration::from_secs(5);

/// The result of a step.
enum ServeStep {
    Answer(Payload),
    /// The tree of a snapshot is being loaded. A merge that is needed too does not wait for that.
    Load(Request, Option<MergeKey>, watch::Receiver<()>),
    /// Another asker makes the part.
    Wait(Arc<SharedRequest>, watch::Receiver<Option<Outcome>>),
    /// The deltas of a range must be merged first.
    Merge(Arc<SharedRequest>, MergeKey),
}

impl SyncServer {
    /// Takes a request that is paid for from step to step.
    pub(super) async fn answer(&self, asker: &Asker, request: Request) -> Result<Payload, ServeError> {
        let mut step = self.work(asker, move |shared| begin(shared, request)).await?;
        loop {
            step = match step {
                ServeStep::Answer(answer) => return Ok(answer),
                ServeStep::Load(request, merging, ended) => {
                    let loaded = load_ended(ended, asker.until(LOAD_WAIT));
                    match merging {
                        // The result of the merge is looked up when the request begins again.
                        Some(range) => _ = tokio::try_join!(loaded, self.merged(asker, range))?,
                        None => loaded.await?,
                    }
                    self.work(asker, move |shared| begin(shared, request)).await?
                }
                ServeStep::Wait(common, waiting) => match outcome(waiting, asker.until(PART_WAIT)).await? {
                    Some(part) => {
                        let part = part.map_err(ServeError::Refused)?;
                        self.work(asker, move |shared| finish(shared, &common, &part)).await?
                    }
                    // The leader failed: another asker makes it, perhaps this one.
                    None => self.work(asker, move |shared| make(shared, common, None)).await?,
                },
                ServeStep::Merge(common, range) => {
                    let merged = self.merged(asker, range).await?;
                    self.work(asker, move |shared| make(shared, common, Some(merged))).await?
                }
            };
        }
    }

    /// Returns a merge, which one of all askers makes. If the place or the merge takes too long, all askers must
    /// retry, even the one that makes it. The work goes on.
    pub(super) async fn merged(&self, asker: &Asker, range: MergeKey) -> Result<MergeOutput, ServeError> {
        let late = ServeError::Busy { retry_after: merges::RETRY, why: "the deltas are being merged" };
        let until = asker.until(merges::LIMITS.wait);
        timeout_at(until, self.merged_at_last(asker, range)).await.unwrap_or(Err(late))
    }

    async fn merged_at_last(&self, asker: &Asker, range: MergeKey) -> Result<MergeOutput, ServeError> {
        let merges = &self.shared.merges;
        let mut changes = merges.changes();
        loop {
            match merges.look(range) {
                MergeLookup::Cached(merge) => return merge.map_err(ServeError::Refused),
                MergeLookup::InProgress => _ = changes.changed().await,
                MergeLookup::Absent => {
                    let Some(place) = self.merge_place(asker, range).await? else { continue };
                    self.merge(place, asker, range).await?;
                }
            }
        }
    }

    /// Waits for a place to make a merge; returns `None` if it was made meanwhile.
    async fn merge_place(&self, asker: &Asker, range: MergeKey) -> Result<Option<Permit>, ServeError> {
        let merges = &self.shared.merges;
        let mut changes = merges.changes();
        let entering = merges.lane(range).enter(asker.peer, asker.class);
        tokio::pin!(entering);
        loop {
            if matches!(merges.look(range), MergeLookup::Cached(_)) {
                return Ok(None);
            }
            tokio::select! {
                place = &mut entering => return Ok(Some(place?)),
                _ = changes.changed() => {}
            }
        }
    }

    /// Makes a merge. Only the asker that makes it pays for it: the chunks of one range are requested side by side. A
    /// debtor does not wait here, where its wait would hold the place.
    async fn merge(&self, place: Permit, asker: &Asker, range: MergeKey) -> Result<(), ServeError> {
        let (peer, now) = (asker.peer, Instant::now());
        let admitted = self.shared.meter.admit(peer, Kind::Disk, MERGE, Duration::ZERO, now);
        let (debit, _) = admitted.map_err(in_debt)?;
        let payer = Asker { debit: Arc::new(debit), ..asker.clone() };
        let threads = self.shared.heavy.merge_threads() as u32;
        let work = move |shared: &Shared| {
            // Another asker may have begun it while this one waited for its place.
            let Some(making) = shared.merges.begin(range) else { return Ok(()) };
            let merged = shared.heavy.merge(|| merge(&shared.store, range))??;
            making.land(peer, merged);
            Ok(())
        };
        self.work_in(place, &payer, threads, work).await
    }
}

/// Waits until any load ends. If the wait is too long, the asker must retry.
async fn load_ended(mut ended: watch::Receiver<()>, until: Instant) -> Result<(), ServeError> {
    let late = ServeError::Busy { retry_after: LOAD_RETRY, why: "the snapshot is being loaded" };
    timeout_at(until, ended.changed()).await.map_or(Err(late), |_| Ok(()))
}

/// Waits for the part that another asker makes; `None` if that failed. If the wait is too long, the asker must
/// retry: a stalled disk must not gather askers of one answer.
async fn outcome(
    mut waiting: watch::Receiver<Option<Outcome>>,
    until: Instant,
) -> Result<Option<Outcome>, ServeError> {
    let late = ServeError::Busy { retry_after: merges::RETRY, why: "the answer is being made" };
    match timeout_at(until, waiting.wait_for(Option::is_some)).await {
        Ok(made) => Ok(made.ok().and_then(|made| made.clone())),
        Err(_) => Err(late),
    }
}

fn begin(shared: &Shared, request: Request) -> Result<ServeStep, ServeError> {
    check::kept(&shared.store, &request)?;
    if let Some(number) = proved_by(&shared.store, &request)
        && let Some(ended) = shared.heavy.ready(&shared.store, number)?
    {
        let merging = match &request {
            // The merge does not need the tree; only its chunks do.
            Request::RangeDelta(delta) => Some(MergeKey::Range(delta.from, delta.to)),
            _ => None,
        };
        return Ok(ServeStep::Load(request, merging, ended));
    }
    match prepare(&shared.store, request)? {
        PreparedAnswer::Done(answer) => Ok(ServeStep::Answer(answer)),
        PreparedAnswer::Shared(common) => make(shared, Arc::new(common), None),
    }
}

/// Gets the part of a request from the cache, or makes it here and now. The leading asker already has a place, so no
/// asker of the part waits for another's turn.
fn make(
    shared: &Shared,
    common: Arc<SharedRequest>,
    merged: Option<MergeOutput>,
) -> Result<ServeStep, ServeError> {
    let key = common.key()?;
    let unmerged = common.merge().filter(|_| merged.is_none());
    if let Some(range) = unmerged.filter(|_| !shared.cache.has(&key)) {
        return Ok(ServeStep::Merge(common, range));
    }
    let lead = match shared.cache.turn(&key) {
        PartLookup::Hit(part) => return finish(shared, &common, &part),
        PartLookup::Wait(waiting) => return Ok(ServeStep::Wait(common, waiting)),
        PartLookup::Lead(lead) => lead,
    };
    if let Some(range) = unmerged {
        // The cache evicted it just now.
        return Ok(ServeStep::Merge(common, range));
    }
    let part = match common.make(&shared.store, merged.as_ref()) {
        Ok(part) => Arc::new(part),
        Err(unserved) => {
            let refusal = unserved.into_refusal();
            lead.land(Err(refusal.clone()));
            return Err(ServeError::Refused(refusal));
        }
    };
    lead.land(Ok(Arc::clone(&part)));
    finish(shared, &common, &part)
}

fn finish(shared: &Shared, common: &SharedRequest, part: &Part) -> Result<ServeStep, ServeError> {
    Ok(ServeStep::Answer(common.answer(&shared.store, part)?))
}

impl From<LaneFull> for ServeError {
    fn from(full: LaneFull) -> Self {
        ServeError::Busy { retry_after: full.retry_after, why: "other peers are served first" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a request for a snapshot that is being loaded waits for the load, up to a limit.
    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_a_load_without_end() {
        let (ended, waiting) = watch::channel(());
        let began = Instant::now();
        let refused = load_ended(waiting, Instant::now() + LOAD_WAIT).await;
        let is_late =
            matches!(&refused, Err(ServeError::Busy { retry_after, .. }) if *retry_after == LOAD_RETRY);
        assert!(is_late, "{refused:?}");
        assert_eq!(began.elapsed(), LOAD_WAIT);
        let waiting = ended.subscribe();
        ended.send_replace(());
        assert!(load_ended(waiting, Instant::now() + LOAD_WAIT).await.is_ok());
        assert_eq!(began.elapsed(), LOAD_WAIT, "it ended in between, and that is known at once");
    }

    /// Goal: an asker that waits for another's answer gets it, or makes it if the other fails. Neither wait is endless.
    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_a_part_without_end() {
        let (stuck, waiting) = watch::channel(None);
        let began = Instant::now();
        let refused = outcome(waiting, Instant::now() + PART_WAIT).await;
        assert!(matches!(refused, Err(ServeError::Busy { .. })) && began.elapsed() == PART_WAIT);
        drop(stuck);

        let (failed, waiting) = watch::channel::<Option<Outcome>>(None);
        drop(failed);
        assert!(matches!(outcome(waiting, Instant::now() + PART_WAIT).await, Ok(None)));

        let (made, waiting) = watch::channel(None);
        let landing = async {
            tokio::time::sleep(PART_WAIT / 2).await;
            made.send_replace(Some(Err(slipstream_network::Refusal::failed("as it came"))));
        };
        let (part, ()) = tokio::join!(outcome(waiting, Instant::now() + PART_WAIT), landing);
        assert!(matches!(part, Ok(Some(Err(_)))));
    }
}
