//! The book across restarts: one bounded record, which the node keeps in its store.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use slipstream_types::{CodecError, Digest, bounded::BoundedVec, codec};

use super::{
    AddressBook, Entry, Standing, TableCell,
    table::{ENTRIES_MAX, Host, heard_bucket, reached_bucket},
};
use crate::{
    PeerId,
    exchange::{Reach, record::UncheckedRecord},
};

/// Version of the record.
const VERSION: u8 = 1;
/// Maximum bytes of the record. An entry takes some 130 bytes, at most 220.
const BYTES_MAX: usize = 64 + ENTRIES_MAX * 256;

#[derive(Serialize, Deserialize)]
struct Saved {
    version: u8,
    /// A record of another chain is refused.
    chain: Digest,
    secret: [u8; 32],
    entries: BoundedVec<SavedEntry, ENTRIES_MAX>,
}

#[derive(Serialize, Deserialize)]
struct SavedEntry {
    record: UncheckedRecord,
    teller: IpAddr,
    standing: SavedStanding,
    failures: u32,
    not_before_ms: u64,
    is_anchor: bool,
}

#[derive(Serialize, Deserialize)]
enum SavedStanding {
    Heard,
    Met,
    /// `has_slot` is false for an entry without a slot in the reached table, which stays in the heard table.
    Reached {
        at_ms: u64,
        has_slot: bool,
    },
}

impl AddressBook {
    /// Returns the book as a record, if it has changed since the last call. Peers for which `is_anchor` holds are
    /// dialled first after a restart.
    pub(crate) fn save(
        &mut self,
        chain: &Digest,
        is_anchor: impl Fn(&PeerId) -> bool,
    ) -> Option<Result<Vec<u8>, CodecError>> {
        if !std::mem::take(&mut self.is_changed) {
            return None;
        }
        let saved = self.entries.iter().map(|(id, entry)| SavedEntry {
            record: entry.record.unchecked(),
            teller: entry.teller,
            standing: match entry.standing {
                Standing::Heard => SavedStanding::Heard,
                Standing::Met => SavedStanding::Met,
                Standing::Reached { at_ms } => {
                    SavedStanding::Reached { at_ms, has_slot: matches!(entry.at, TableCell::Reached(_)) }
                }
            },
            failures: entry.failures,
            not_before_ms: entry.not_before_ms,
            is_anchor: is_anchor(id),
        });
        let entries = BoundedVec::new(saved.collect());
        let secret = self.secret;
        Some(entries.and_then(|entries| {
            codec::encode("address book", &Saved { version: VERSION, chain: *chain, secret, entries })
        }))
    }

    /// Restores the book from a record. Entries that are outdated, out of reach or without a slot are left out.
    ///
    /// # Errors
    /// If the bytes are not a record of this version and chain.
    pub(crate) fn restore(
        bytes: &[u8],
        chain: &Digest,
        local: PeerId,
        reach: Reach,
        now_ms: u64,
    ) -> Result<AddressBook, CodecError> {
        let invalid = |rule| CodecError::Invalid { what: "address book", rule };
        let saved: Saved = codec::decode("address book", bytes, BYTES_MAX)?;
        if saved.version != VERSION {
            return Err(invalid("it has another version"));
        }
        if saved.chain != *chain {
            return Err(invalid("it belongs to another chain"));
        }
        let mut book = AddressBook::new(saved.secret, local, reach);
        for saved in saved.entries {
            let record = saved.record.check_kept().map_err(|_| invalid("a record is malformed"))?;
            let has_slot = matches!(saved.standing, SavedStanding::Reached { has_slot: true, .. });
            let standing = match saved.standing {
                SavedStanding::Heard => Standing::Heard,
                SavedStanding::Met => Standing::Met,
                SavedStanding::Reached { at_ms, .. } => Standing::Reached { at_ms },
            };
            let first = record.addresses().iter().find(|address| reach.allows(**address)).copied();
            let Some(address) = first.filter(|_| record.id() != local) else { continue };
            let at = TableCell::Heard(heard_bucket(&book.secret, address, saved.teller).wanted());
            let (failures, not_before_ms) = (saved.failures, saved.not_before_ms);
            let (teller, is_anchor, host) = (saved.teller, saved.is_anchor, Host::of(address));
            let entry = Entry { record, teller, host, standing, failures, not_before_ms, is_anchor, at };
            book.put_back(entry, address, has_slot, now_ms);
        }
        book.is_changed = false;
        Ok(book)
    }

    fn put_back(&mut self, entry: Entry, first: SocketAddr, has_slot: bool, now_ms: u64) {
        let id = entry.record.id();
        if entry.is_spent(now_ms) || self.entries.contains_key(&id) {
            return;
        }
        let within =
            entry.record.addresses().iter().filter(|address| has_slot && self.reach.allows(**address));
        let slot = |address: &SocketAddr| {
            let (bucket, host) = (reached_bucket(&self.secret, *address), Host::of(*address));
            (self.slot(&self.reached, bucket, &id, host, now_ms), host)
        };
        let free = within.map(slot).find(|(cell, _)| self.reached.at(*cell).is_none());
        match free {
            Some((cell, host)) => {
                self.reached.put(cell, id);
                self.entries.insert(id, Entry { at: TableCell::Reached(cell), host, ..entry });
            }
            None => {
                let bucket = heard_bucket(&self.secret, first, entry.teller);
                self.place_heard(entry, bucket, now_ms);
            }
        }
    }
}
