//! [`Table`]: slots for entries; only this node can predict which entry gets which slot.

use std::net::{IpAddr, SocketAddr};

use crate::{
    PeerId,
    exchange::draws::{Draws, keyed},
    origin::{Origin, block_of},
};

/// Slots of one bucket.
const SLOTS: usize = 16;
/// Buckets of the heard table, and the number of them that one teller's block can fill, whatever it reports: an eighth.
pub(super) const HEARD_BUCKETS: usize = 128;
pub(super) const HEARD_BUCKETS_PER_TELLER: usize = 16;
/// Buckets of the reached table, and the number of them that the addresses of one block can fill: a thirty-second.
pub(super) const REACHED_BUCKETS: usize = 64;
pub(super) const REACHED_BUCKETS_PER_BLOCK: usize = 2;
/// Maximum number of entries of both tables.
pub(super) const ENTRIES_MAX: usize = (HEARD_BUCKETS + REACHED_BUCKETS) * SLOTS;

/// A slot's position in a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Cell(usize);

/// The bucket of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Bucket {
    index: usize,
    /// The slot that the address contests if all slots of the bucket are taken.
    slot: usize,
}

impl Bucket {
    /// The slot that the address contests if all slots of the bucket are taken.
    pub(super) fn wanted(self) -> Cell {
        Cell(self.index * SLOTS + self.slot)
    }

    #[cfg(test)]
    pub(super) fn is_of(self, other: Bucket) -> bool {
        self.index == other.index
    }
}

/// The host of an address, for counting slots: an IPv4 address or an IPv6 network of 64 bits. On loopback, where a
/// whole devnet has one address, the port counts too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Host(IpAddr, u16);

impl Host {
    pub(super) fn of(address: SocketAddr) -> Host {
        match Origin::of_remote(address.ip()) {
            Some(origin) => Host(origin.host, 0),
            None => Host(address.ip(), address.port()),
        }
    }

    fn bytes(self) -> Vec<u8> {
        [bytes_of(self.0).as_slice(), &self.1.to_le_bytes()].concat()
    }
}

/// Buckets of slots, each slot with at most one peer.
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

    /// The cells of a bucket, each with the peer in it.
    pub(super) fn bucket(&self, bucket: Bucket) -> impl Iterator<Item = (Cell, Option<PeerId>)> {
        let first = bucket.index * SLOTS;
        (first..first + SLOTS).map(|cell| (Cell(cell), self.cells[cell]))
    }

    pub(super) fn put(&mut self, cell: Cell, peer: PeerId) {
        self.cells[cell.0] = Some(peer);
    }

    /// Removes a peer from its cell, if it is there.
    pub(super) fn take(&mut self, cell: Cell, peer: PeerId) {
        if self.cells[cell.0] == Some(peer) {
            self.cells[cell.0] = None;
        }
    }

    /// Draws a bucket among those with a wanted entry, then one of its wanted entries. So an attacker that fills a few
    /// buckets is drawn no more often than one with a single entry in each of them.
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

    /// The peers in the table.
    #[cfg(test)]
    pub(super) fn cells(&self) -> impl Iterator<Item = PeerId> {
        self.cells.iter().flatten().copied()
    }
}

/// The bucket of an address that a peer of the block `teller` reported. Each pair of blocks has one bucket.
pub(super) fn heard_bucket(secret: &[u8; 32], address: SocketAddr, teller: IpAddr) -> Bucket {
    let (block, teller) = (bytes_of(block_of(address.ip())), bytes_of(teller));
    let turn = keyed(secret, "slipstream/heard-turn/1", &[&block, &teller]) % HEARD_BUCKETS_PER_TELLER as u64;
    let bucket = keyed(secret, "slipstream/heard-bucket/1", &[&teller, &turn.to_le_bytes()]);
    bucket_of(secret, bucket % HEARD_BUCKETS as u64, address)
}

/// The bucket of an address that was reached.
pub(super) fn reached_bucket(secret: &[u8; 32], address: SocketAddr) -> Bucket {
    let (block, host) = (bytes_of(block_of(address.ip())), Host::of(address).bytes());
    let turn = keyed(secret, "slipstream/reached-turn/1", &[&host]) % REACHED_BUCKETS_PER_BLOCK as u64;
    let bucket = keyed(secret, "slipstream/reached-bucket/1", &[&block, &turn.to_le_bytes()]);
    bucket_of(secret, bucket % REACHED_BUCKETS as u64, address)
}

fn bucket_of(secret: &[u8; 32], index: u64, address: SocketAddr) -> Bucket {
    let slot = keyed(secret, "slipstream/slot/1", &[&index.to_le_bytes(), &Host::of(address).bytes()]);
    Bucket { index: index as usize, slot: (slot % SLOTS as u64) as usize }
}

fn bytes_of(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}
