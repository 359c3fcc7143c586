//! The driver's reports to people: status, log, evidence.

use std::{sync::Arc, time::Duration};

use slipstream_types::BatchNumber;
use tokio::time::Instant;

use super::{
    driver::Driver,
    inputs::Timer,
    silence::Silence,
    status::{Conviction, LastHeard},
};
use crate::error::ProposalError;

/// How often a validator logs that it has no quorum.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(10);

impl Driver {
    /// Notes that a validator was heard, and whether by a status.
    pub(super) fn hear(&mut self, seat: u16, is_status: bool) {
        let at = Instant::now();
        let heard = self.heard.entry(seat).or_insert(LastHeard { at, said_at: None });
        heard.at = at;
        if is_status {
            heard.said_at = Some(at);
        }
    }

    /// Counts and logs a refused order or outcome. Primaries order ten times a second, so the log must not repeat
    /// itself.
    pub(super) fn refuse(&mut self, number: BatchNumber, error: &ProposalError) {
        self.shown.send_modify(|shown| shown.status.refused += 1);
        match self.said.is_new(Some(number), &error.to_string()) {
            true => tracing::warn!(%number, %error, "refused"),
            false => tracing::debug!(%number, %error, "refused"),
        }
    }

    /// Logs why no batch is decided.
    pub(super) fn complain(&self) {
        let now = Instant::now();
        let lately = |heard: &LastHeard| now.duration_since(heard.at) < COMPLAINT_INTERVAL;
        let heard: Vec<u16> =
            self.heard.iter().filter(|(_, heard)| lately(heard)).map(|(seat, _)| *seat).collect();
        let silent: Vec<_> =
            self.core.heard().iter().filter_map(|(seat, it)| Some((*seat, it.silence?))).collect();
        tracing::warn!(
            silence = self.core.silence().map(|it| Silence::from(it).name()), ?silent,
            view = self.core.view(), changing = self.core.is_changing(), decided = %self.core.decided(),
            ?heard, quorum = self.ledger.set.quorum(),
            "no quorum yet: the chain stands until more validators vote; `heard` has the positions of the validators \
            that were heard, `silent` those that report why they do not vote"
        );
    }

    /// Sets the complaint timer while the view is unsettled, and cancels it otherwise.
    pub(super) fn watch_view(&mut self) {
        let is_settled = !self.core.is_changing() && !self.core.complains() && self.core.silence().is_none();
        match (is_settled, self.timers.is_set(Timer::Complaint)) {
            (true, true) => self.timers.cancel(Timer::Complaint),
            (false, false) => self.timers.set(Timer::Complaint, COMPLAINT_INTERVAL),
            _ => {}
        }
    }

    pub(super) fn report(&self) {
        self.shown.send_modify(|shown| shown.update(&self.core, self.committed, &self.heard));
        let view = self.core.view();
        self.view.send_if_modified(|shown| std::mem::replace(shown, view) != view);
    }

    pub(super) fn show_evidence(&self) {
        let set = &self.ledger.set;
        let convictions = self.convictions.iter().map(|evidence| Conviction::of(evidence, set)).collect();
        self.shown.send_modify(|shown| shown.status.evidence = convictions);
        self.evidence.send_replace(Arc::new(self.convictions.to_vec()));
    }
}
