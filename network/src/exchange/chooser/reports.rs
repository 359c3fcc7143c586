//! The reports that the [`Chooser`] receives, and the answers that it gives.

use super::*;

impl Chooser {
    /// Records the result of an attempt to connect.
    pub(crate) fn dialled(&mut self, peer: &PeerAddress, came: DialOutcome, now: Moment) {
        let is_feeler = matches!(self.feeler, Some(Feeler::Dialling(it)) if it.id == peer.id);
        if is_feeler {
            self.feeler = None;
        } else if !self.seats.is_dialling(&peer.id) {
            // The connection was made and observed: its end will be observed too.
            return;
        } else {
            self.seats.release(&peer.id);
        }
        match came {
            DialOutcome::Unreachable => {
                self.counts.add(ExchangeEvent::Unreachable);
                self.book.failed(&peer.id, !self.known.is_empty(), now.ms);
            }
            DialOutcome::WrongKey => {
                self.counts.add(ExchangeEvent::WrongKey);
                self.book.forget(&peer.id);
            }
            DialOutcome::Ended => {
                self.counts.add(ExchangeEvent::Reached);
                self.book.reached(&peer.id, peer.address, now.ms);
                self.book.rest(&peer.id, now.ms + REFUSED_REST_MS);
            }
        }
    }

    /// Takes in records that a peer at an address reported.
    pub(crate) fn hear(
        &mut self,
        records: impl IntoIterator<Item = PeerRecord>,
        teller: IpAddr,
        now: Moment,
    ) {
        for record in records {
            match self.book.hear(record, teller, now.ms) {
                HearOutcome::New | HearOutcome::Renewed => {
                    self.counts.add(ExchangeEvent::Heard);
                    self.next_dial = self.next_dial.min(now.instant + DIAL_EVERY);
                }
                HearOutcome::Useless | HearOutcome::NoRoom => self.counts.add(ExchangeEvent::NotKept),
                HearOutcome::Known => {}
            }
        }
    }

    /// Records the address of a peer that sent its own record.
    pub(crate) fn met(&mut self, id: &PeerId, from: SocketAddr) {
        self.book.met(id, from);
    }

    /// Records the result of a question.
    pub(crate) fn asked(&mut self, id: &PeerId, came: AskOutcome, now: Moment) {
        let (heard, reached) = self.book.len();
        let is_rich = heard + reached >= KNOWN_PER_PLACE * self.rules.outbound;
        let pause = match came {
            AskOutcome::Answered if is_rich => ASK_EVERY,
            AskOutcome::Answered | AskOutcome::Later => ASK_SOON,
            AskOutcome::Unwilling => ASK_UNWILLING,
        };
        let spread = self.draws.below(pause.as_millis() as usize / 4) as u64;
        self.asks.insert(*id, Some(now.instant + pause + Duration::from_millis(spread)));
        if let Some(Feeler::Asking { id: felt, until }) = &mut self.feeler
            && felt == id
        {
            *until = now.instant;
        }
    }

    /// Counts an event outside the chooser's decisions.
    pub(crate) fn count(&mut self, event: ExchangeEvent) {
        self.counts.add(event);
    }

    /// Whether the book has this record of a peer, or a newer one.
    pub(crate) fn has(&self, id: &PeerId, issued_ms: u64) -> bool {
        self.book.has(id, issued_ms)
    }

    /// The records that a peer at an address sees.
    pub(crate) fn shown_to(&mut self, asker: &PeerId, from: IpAddr, now: Moment) -> Vec<PeerRecord> {
        self.shown.to(&self.book, asker, from, now)
    }

    /// The book as a record, if it has changed since the last call.
    pub(crate) fn save(&mut self, chain: &Digest, now: Instant) -> Option<Result<Vec<u8>, CodecError>> {
        let anchors = self.seats.anchors(now, IDLE_MAX);
        self.book.save(chain, |id| anchors.contains(id))
    }

    pub(crate) fn status(&self) -> ExchangeStatus {
        let (heard, reached) = self.book.len();
        ExchangeStatus {
            advertised: self.rules.advertised.clone(),
            outbound_max: self.rules.outbound,
            chosen: self.seats.connected(),
            heard,
            reached,
            events: self.counts.list(),
        }
    }
}
