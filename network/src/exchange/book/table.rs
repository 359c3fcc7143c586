//! [`Table`]: places for entries, of which nobody but this node can say who gets which.

use std::net::IpAddr;

use crate::{
    PeerId,
    exchange::draws::{Draws, keyed},
};

/// Entries of one bucket.
const SLOTS: usize = 16;
/// Buckets for what was heard, and how many of them one block can fill by what it tells, whatever it tells of: an eighth.
pub(super) const HEARD_BUCKETS: usize = 128;
pub(super) const HEARD_BUCKETS_PER_TELLER: usize = 16;
/// Buckets for what was reached, and how many of them the addresses of one block can fill: a thirty-second.
pub(super) const REACHED_BUCKETS: usize = 64;
pub(super) const REACHED_BUCKETS_PER_BLOCK: usize = 2;
/// Entries of both tables.
pub(super) const ENTRIES_MAX: usize = (HEARD_BUCKETS + REACHED_BUCKETS) * SLOTS;

/// A place in a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Cell(usize);

/// Buckets of slots, each slot with one peer or none.
pub(super) struct Table {
    cells: Vec<Option<PeerId>>,
}

impl Table {
    pub(super) fn new(buckets: usize) -> Table {
        Table { cells: vec![None; buckets * SLOTS] }
    }

    pub(super) fn at(&self, cell: Cell) -> Option<PeerId> {
        self.cells[cell.0]
    }

    pub(super) fn put(&mut self, cell: Cell, peer: PeerId) {
        self.cells[cell.0] = Some(peer);
    }

    /// Takes a peer out of its cell, if it is there.
    pub(super) fn take(&mut self, cell: Cell, peer: PeerId) {
        if self.cells[cell.0] == Some(peer) {
            self.cells[cell.0] = None;
        }
    }

    /// Draws a bucket among those that have an entry which is wanted, then one of these: who fills a few buckets to the brim is drawn
    /// no more often than others that have as many buckets with one entry each.
    pub(super) fn draw(&self, draws: &mut Draws, is_wanted: impl Fn(&PeerId) -> bool) -> Option<PeerId> {
        let wanted = |bucket: &[Option<PeerId>]| -> Vec<PeerId> {
            bucket.iter().flatten().filter(|peer| is_wanted(peer)).copied().collect()
        };
        let mut buckets: Vec<_> =
            self.cells.chunks(SLOTS).map(wanted).filter(|bucket| !bucket.is_empty()).collect();
        if buckets.is_empty() {
            return None;
        }
        let bucket = buckets.swap_remove(draws.below(buckets.len()));
        Some(bucket[draws.below(bucket.len())])
    }

    pub(super) fn len(&self) -> usize {
        self.cells.iter().flatten().count()
    }

    /// Who is in it.
    #[cfg(test)]
    pub(super) fn cells(&self) -> impl Iterator<Item = PeerId> {
        self.cells.iter().flatten().copied()
    }
}

/// What an address and its teller are to the tables.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    pub(super) secret: &'a [u8; 32],
    /// The block of the address.
    pub(super) block: IpAddr,
    /// The host of the address. It has one slot in a bucket, however many keys.
    pub(super) host: &'a [u8],
}

impl Place<'_> {
    /// The cell of an address that somebody of a block told of. A pair of blocks has one bucket.
    pub(super) fn heard_from(&self, teller: IpAddr) -> Cell {
        let (block, teller) = (bytes_of(self.block), bytes_of(teller));
        let turn =
            self.keyed("slipstream/heard-turn/1", &[&block, &teller]) % HEARD_BUCKETS_PER_TELLER as u64;
        let bucket = self.keyed("slipstream/heard-bucket/1", &[&teller, &turn.to_le_bytes()]);
        self.cell(b'h', bucket % HEARD_BUCKETS as u64)
    }

    /// The cell of an address that was reached.
    pub(super) fn reached(&self) -> Cell {
        let turn = self.keyed("slipstream/reached-turn/1", &[self.host]) % REACHED_BUCKETS_PER_BLOCK as u64;
        let bucket = self.keyed("slipstream/reached-bucket/1", &[&bytes_of(self.block), &turn.to_le_bytes()]);
        self.cell(b'r', bucket % REACHED_BUCKETS as u64)
    }

    fn cell(&self, table: u8, bucket: u64) -> Cell {
        let slot = self.keyed("slipstream/slot/1", &[&[table], &bucket.to_le_bytes(), self.host]);
        Cell(bucket as usize * SLOTS + (slot % SLOTS as u64) as usize)
    }

    fn keyed(&self, tag: &str, parts: &[&[u8]]) -> u64 {
        keyed(self.secret, tag, parts)
    }
}

fn bytes_of(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}
