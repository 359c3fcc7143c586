//! [`AddressBook`]: the peers that this node may dial beside the configured ones.
//!
//! ```text
//!   heard    128 buckets of 16   bucket by secret, block of the address, block of the teller     hearsay, and peers that connected
//!   reached   64 buckets of 16   bucket by secret, block of the address, host                    dialled by this node
//! ```
//!
//! Buckets work as in Bitcoin's address manager (`addrman`). A record's **teller** is the peer that reported it. An
//! entry is **spent** when it is too old, or after too many failed attempts to dial its peer. Each pair of blocks (the
//! address's and the teller's) maps to one bucket of hearsay, and one teller's block to an eighth of them. One block's
//! addresses map to a thirty-second of the reached buckets; a host has one slot in a bucket. An entry keeps its slot
//! until it is spent. A reached entry also loses it if dialling fails while another entry wants the slot.

mod entry;
mod saved;
mod table;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, VecDeque},
    net::{IpAddr, SocketAddr},
};

use entry::{AHEAD_MS, Entry, FRESH_MS, KEPT_MS, Standing, TableCell};
use table::{Bucket, Cell, HEARD_BUCKETS, Host, REACHED_BUCKETS, Table, heard_bucket, reached_bucket};

use super::{Draws, PeerRecord, Reach};
use crate::{PeerAddress, PeerId, origin::block_of};

/// Maximum number of contested slots in the reached table. Each waits until its holder has been dialled again.
const CONTESTS_MAX: usize = 16;

/// The result of [`AddressBook::hear`] for a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HearOutcome {
    /// The record is in the book now.
    New,
    /// The record replaces an older one of its peer.
    Renewed,
    /// The book has this record already, or a newer one.
    Known,
    /// The record is outdated, from the future, about this node itself, or has no address within reach.
    Useless,
    /// The record's slot is taken.
    NoRoom,
}

/// A part of the book.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BookPart {
    Heard,
    Reached,
}

/// The address book.
pub(crate) struct AddressBook {
    secret: [u8; 32],
    local: PeerId,
    reach: Reach,
    entries: BTreeMap<PeerId, Entry>,
    heard: Table,
    reached: Table,
    /// Pairs of peers: one that holds a slot, and one that wants this slot.
    contests: VecDeque<(PeerId, PeerId)>,
    /// Whether the book has unsaved changes.
    is_changed: bool,
}

impl AddressBook {
    pub(crate) fn new(secret: [u8; 32], local: PeerId, reach: Reach) -> AddressBook {
        AddressBook {
            secret,
            local,
            reach,
            entries: BTreeMap::new(),
            heard: Table::new(HEARD_BUCKETS),
            reached: Table::new(REACHED_BUCKETS),
            contests: VecDeque::new(),
            is_changed: false,
        }
    }

    /// Takes in a record that a peer at `teller` reported: its own or another's.
    pub(crate) fn hear(&mut self, record: PeerRecord, teller: IpAddr, now_ms: u64) -> HearOutcome {
        let is_dated =
            record.issued_ms() <= now_ms + AHEAD_MS && now_ms.saturating_sub(record.issued_ms()) <= KEPT_MS;
        if record.id() == self.local || !is_dated {
            return HearOutcome::Useless;
        }
        if let Some(known) = self.entries.get_mut(&record.id()) {
            if record.issued_ms() <= known.record.issued_ms() {
                return HearOutcome::Known;
            }
            if record.addresses() == known.record.addresses() {
                known.record = record;
                self.is_changed = true;
                return HearOutcome::Renewed;
            }
            // A peer at a new address must prove itself again. If the new record finds no slot, the old one stays.
            return match self.enter(record, block_of(teller), now_ms) {
                HearOutcome::New => HearOutcome::Renewed,
                other => other,
            };
        }
        self.enter(record, block_of(teller), now_ms)
    }

    fn enter(&mut self, record: PeerRecord, teller: IpAddr, now_ms: u64) -> HearOutcome {
        let Some(address) = record.addresses().iter().find(|address| self.reach.allows(**address)) else {
            return HearOutcome::Useless;
        };
        let (address, bucket) = (*address, heard_bucket(&self.secret, *address, teller));
        let entry = Entry {
            record,
            teller,
            host: Host::of(address),
            standing: Standing::Heard,
            failures: 0,
            not_before_ms: 0,
            is_anchor: false,
            at: TableCell::Heard(bucket.wanted()),
        };
        if self.place_heard(entry, bucket, now_ms) { HearOutcome::New } else { HearOutcome::NoRoom }
    }

    /// Puts an entry into its bucket of the heard table, if it finds a slot, and drops the peer's former entry. The
    /// slot must be free, or its holder worth less. A holder is worth less if it is spent, or was never met while the
    /// newcomer was.
    fn place_heard(&mut self, entry: Entry, bucket: Bucket, now_ms: u64) -> bool {
        let id = entry.record.id();
        let cell = self.slot(&self.heard, bucket, &id, entry.host, now_ms);
        let incumbent = self.heard.at(cell).filter(|incumbent| *incumbent != id);
        let is_kept = incumbent.and_then(|incumbent| self.entries.get(&incumbent)).is_some_and(|incumbent| {
            let is_better = entry.standing != Standing::Heard && incumbent.standing == Standing::Heard;
            !is_better && !incumbent.is_spent(now_ms)
        });
        if is_kept {
            return false;
        }
        for replaced in incumbent.into_iter().chain([id]) {
            self.forget(&replaced);
        }
        self.heard.put(cell, id);
        self.entries.insert(id, Entry { at: TableCell::Heard(cell), ..entry });
        self.is_changed = true;
        true
    }

    /// Records that a peer connected from an address. This has an effect only if the peer's record has the address.
    pub(crate) fn met(&mut self, id: &PeerId, from: SocketAddr) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        if entry.standing == Standing::Heard && entry.record.addresses().contains(&from) {
            entry.standing = Standing::Met;
            self.is_changed = true;
        }
    }

    /// Records that a peer was dialled at an address, and answered with its key.
    pub(crate) fn reached(&mut self, id: &PeerId, address: SocketAddr, now_ms: u64) {
        self.contests.retain(|(incumbent, _)| incumbent != id);
        let Some(entry) = self.entries.get_mut(id) else { return };
        entry.reached(now_ms);
        self.is_changed = true;
        if matches!(entry.at, TableCell::Heard(_)) {
            let bucket = reached_bucket(&self.secret, address);
            let cell = self.slot(&self.reached, bucket, id, Host::of(address), now_ms);
            self.promote(*id, cell, Host::of(address), now_ms);
        }
    }

    /// The slot for a peer in a bucket. In order of preference: the slot of the peer's host; the peer's own slot, or
    /// one that is free or spent; a slot that the peer must contest.
    fn slot(&self, table: &Table, bucket: Bucket, peer: &PeerId, host: Host, now_ms: u64) -> Cell {
        let holders =
            || table.bucket(bucket).map(|(cell, id)| (cell, id.and_then(|id| self.entries.get(&id))));
        let own = holders().find(|(_, entry)| entry.is_some_and(|entry| entry.host == host));
        let is_free = |entry: &Entry| entry.record.id() == *peer || entry.is_spent(now_ms);
        let free = || holders().find(|(_, entry)| entry.is_none_or(is_free));
        own.or_else(free).map_or(bucket.wanted(), |(cell, _)| cell)
    }

    /// Moves an entry to the reached table if its slot is free. Otherwise the holder keeps the slot: it was reached
    /// recently, or must be dialled before the slot can change hands.
    fn promote(&mut self, id: PeerId, cell: Cell, host: Host, now_ms: u64) {
        if let Some(incumbent) = self.reached.at(cell) {
            let is_fresh = self
                .entries
                .get(&incumbent)
                .is_some_and(|entry| now_ms.saturating_sub(entry.reached_ms()) <= FRESH_MS);
            let is_contested = self.contests.iter().any(|(one, _)| *one == incumbent);
            if !is_fresh && !is_contested && self.contests.len() < CONTESTS_MAX {
                self.contests.push_back((incumbent, id));
            }
            return;
        }
        let Some(entry) = self.entries.get_mut(&id) else { return };
        if let TableCell::Heard(old) = entry.at {
            self.heard.take(old, id);
        }
        (entry.at, entry.host) = (TableCell::Reached(cell), host);
        self.reached.put(cell, id);
    }

    /// Records that dialling a peer failed. `counts` says whether the failure counts against the peer.
    pub(crate) fn failed(&mut self, id: &PeerId, counts: bool, now_ms: u64) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        entry.failed(counts, now_ms);
        entry.is_anchor = false;
        self.is_changed = true;
        if !counts {
            return;
        }
        let lost = self.contests.iter().position(|(incumbent, _)| incumbent == id);
        if let Some((_, winner)) = lost.and_then(|at| self.contests.remove(at)) {
            self.yield_slot(*id, winner, now_ms);
        }
        if self.entries.get(id).is_some_and(|entry| entry.is_spent(now_ms)) {
            self.forget(id);
        }
    }

    /// Gives the slot of an unreachable peer to a reachable one.
    fn yield_slot(&mut self, loser: PeerId, winner: PeerId, now_ms: u64) {
        let Some(mut entry) = self.entries.get(&loser).cloned() else { return };
        let TableCell::Reached(cell) = entry.at else { return };
        self.forget(&loser);
        let address = self.entries.get(&winner).and_then(|winner| winner.address(self.reach));
        if let Some(address) = address {
            self.promote(winner, cell, Host::of(address), now_ms);
        }
        // The loser may return, as hearsay.
        entry.standing = Standing::Heard;
        let first = entry.record.addresses().iter().find(|address| self.reach.allows(**address));
        if let Some(address) = first.copied() {
            entry.host = Host::of(address);
            let bucket = heard_bucket(&self.secret, address, entry.teller);
            self.place_heard(entry, bucket, now_ms);
        }
    }

    /// Delays the next dialling of a peer until `until_ms` at the earliest.
    pub(crate) fn rest(&mut self, id: &PeerId, until_ms: u64) {
        if let Some(entry) = self.entries.get_mut(id) {
            entry.not_before_ms = entry.not_before_ms.max(until_ms);
        }
    }

    /// Removes a peer, for example because another key answers at its address.
    pub(crate) fn forget(&mut self, id: &PeerId) {
        let Some(entry) = self.entries.remove(id) else { return };
        match entry.at {
            TableCell::Heard(cell) => self.heard.take(cell, *id),
            TableCell::Reached(cell) => self.reached.take(cell, *id),
        }
        self.contests.retain(|(incumbent, challenger)| incumbent != id && challenger != id);
        self.is_changed = true;
    }

    /// Draws one of the peers in a part of the book that are wanted and may be dialled now.
    pub(crate) fn draw(
        &self,
        part: BookPart,
        draws: &mut Draws,
        now_ms: u64,
        is_wanted: impl Fn(&PeerAddress) -> bool,
    ) -> Option<PeerAddress> {
        let table = match part {
            BookPart::Heard => &self.heard,
            BookPart::Reached => &self.reached,
        };
        let id = table.draw(draws, |id| self.candidate(id, now_ms).is_some_and(|it| is_wanted(&it)))?;
        self.candidate(&id, now_ms)
    }

    /// The address at which a peer may be dialled now, or `None`.
    pub(crate) fn candidate(&self, id: &PeerId, now_ms: u64) -> Option<PeerAddress> {
        let entry = self.entries.get(id)?;
        if entry.rests(now_ms) || entry.is_spent(now_ms) {
            return None;
        }
        Some(PeerAddress { id: *id, address: entry.address(self.reach)? })
    }

    /// The peers that were long-standing neighbours before the restart.
    pub(crate) fn anchors(&self) -> Vec<PeerId> {
        self.entries.iter().filter(|(_, entry)| entry.is_anchor).map(|(id, _)| *id).collect()
    }

    /// The peers that must be dialled because others want their slots, the longest waiting first.
    pub(crate) fn contested(&self) -> impl Iterator<Item = PeerId> {
        self.contests.iter().map(|(incumbent, _)| *incumbent)
    }

    /// The records that this node passes on. It has met their peers itself, so invented records do not spread.
    pub(crate) fn passed_on(&self, now_ms: u64) -> impl Iterator<Item = &PeerRecord> {
        self.entries.values().filter(move |entry| entry.is_passed_on(now_ms)).map(|entry| &entry.record)
    }

    /// Whether the book has this record or a newer one, so that its signature need not be checked.
    pub(crate) fn has(&self, id: &PeerId, issued_ms: u64) -> bool {
        self.entries.get(id).is_some_and(|entry| entry.record.issued_ms() >= issued_ms)
    }

    /// Drops spent entries.
    pub(crate) fn expire(&mut self, now_ms: u64) {
        let spent: Vec<_> =
            self.entries.iter().filter(|(_, entry)| entry.is_spent(now_ms)).map(|(id, _)| *id).collect();
        spent.iter().for_each(|id| self.forget(id));
    }

    /// Number of entries in each part: heard, reached.
    pub(crate) fn len(&self) -> (usize, usize) {
        (self.heard.len(), self.reached.len())
    }

    pub(crate) fn secret(&self) -> &[u8; 32] {
        &self.secret
    }
}
