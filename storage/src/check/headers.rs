//! Checks headers: each is under its number, in the accumulator and in the index, and none is missing.

use std::ops::ControlFlow;

use slipstream_types::{BatchHeader, BatchNumber, Digest, accumulator::NodePosition};

use super::{Check, DAMAGE_MAX, Part, reason};
use crate::{
    backend::{Backend, Column, Direction},
    error::StorageError,
    nodes::read_node,
    schema::{self, HeadRecord},
};

/// Leaves that are read at once; bounds the memory.
const LEAVES: usize = 4_096;

/// The header before the current one; without a digest if it is damaged.
type Previous = Option<(BatchNumber, Option<Digest>)>;

impl Check<'_> {
    /// Checks that every header is under its number, in the accumulator and in the index, and follows the one before
    /// it.
    pub(super) fn headers(&mut self, head: &HeadRecord) {
        let (backend, floor) = (self.backend, self.headers_floor);
        let mut previous: Previous = None;
        let is_whole = self.column(Column::Headers, |part| {
            let page = match part {
                Part::Rows(page) => page,
                Part::Unreadable(_, last) => {
                    previous = Some((last, None));
                    return Ok(Vec::new());
                }
            };
            let mut found = Vec::new();
            for (key, value) in page {
                let number = schema::decode_number(key)?;
                if schema::is_header_pruned(number, floor.get()) {
                    continue;
                }
                let digest = match schema::decode::<BatchHeader>("header", value) {
                    Ok(header) => {
                        let digest = header.digest();
                        found.extend(check_header(backend, floor, number, &header, digest, previous)?);
                        Some(digest)
                    }
                    Err(error) => {
                        found.push(format!("header {number}: {}", reason(&error)));
                        None
                    }
                };
                previous = Some((number, digest));
            }
            Ok(found)
        });
        match previous {
            Some((last, _)) if last == head.number || !is_whole => {}
            last => self.damaged(format!(
                "headers end at {}, but the head is batch {}",
                last.map_or("none".into(), |(number, _)| number.to_string()),
                head.number
            )),
        }
    }
}

fn check_header(
    backend: &dyn Backend,
    floor: BatchNumber,
    number: BatchNumber,
    header: &BatchHeader,
    digest: Digest,
    previous: Previous,
) -> Result<Vec<String>, StorageError> {
    let mut found = Vec::new();
    if header.number != number {
        found.push(format!("header {number}: it belongs to batch {}", header.number));
    }
    match previous {
        Some((before, Some(parent))) if before.next() == number && header.parent != parent => {
            found.push(format!(
                "header {number}: it names the parent {}, but the digest of batch {before} is {parent}",
                header.parent
            ));
        }
        None if number != BatchNumber::GENESIS => {
            found.push(format!("headers before {number}: missing, including the genesis"))
        }
        Some((before, _)) if before.next() != number => {
            found.extend(lost_headers(backend, before.next().max(floor).get(), number.get() - 1)?);
        }
        _ => {}
    }
    if read_node(backend, NodePosition { level: 0, index: number.get() })? != Some(digest) {
        found.push(format!("header {number}: its digest {digest} differs from the one in the accumulator"));
    }
    match indexed(backend, &digest)? {
        Some(indexed) if indexed == number => {}
        _ => found.push(format!("header {number}: the index does not find it by its digest {digest}")),
    }
    Ok(found)
}

/// Finds the headers that were once stored where a gap is now, by their digests in the accumulator.
///
/// A restore leaves a gap too, with at most two leaves in it. One is that of batch 1, the sibling of the genesis; the
/// other is the left sibling of the first restored header. The index has neither, because it knows headers only.
fn lost_headers(backend: &dyn Backend, first: u64, last: u64) -> Result<Vec<String>, StorageError> {
    let leaf = |number| read_node(backend, NodePosition { level: 0, index: number });
    let mut lost: Vec<(u64, u64)> = Vec::new();
    let mut from = Some(first);
    while let Some(first) = from.take().filter(|_| lost.len() < DAMAGE_MAX) {
        let leaves = leaves(backend, first, last)?;
        for (number, digest) in &leaves {
            let is_sibling =
                *number == 1 || number.is_multiple_of(2) && (*number == last || leaf(number + 1)?.is_some());
            if is_sibling && indexed(backend, digest)?.is_none() {
                continue;
            }
            match lost.last_mut() {
                Some((_, last)) if *last + 1 == *number => *last = *number,
                _ => lost.push((*number, *number)),
            }
        }
        from = leaves.last().filter(|_| leaves.len() == LEAVES).map(|(number, _)| number + 1);
    }
    let describe = |(first, last): (u64, u64)| match first == last {
        true => format!("header {first}: missing, but its digest is in the accumulator"),
        false => format!("headers {first} to {last}: missing, but their digests are in the accumulator"),
    };
    Ok(lost.into_iter().map(describe).collect())
}

/// Returns the first stored leaves of a range.
fn leaves(backend: &dyn Backend, first: u64, last: u64) -> Result<Vec<(u64, Digest)>, StorageError> {
    let key = |number| schema::node_key(NodePosition { level: 0, index: number });
    let (end, mut leaves) = (key(last), Vec::new());
    backend.scan(Column::Nodes, &key(first), Direction::Up, &mut |key, value| {
        if key > &end[..] || leaves.len() == LEAVES {
            return Ok(ControlFlow::Break(()));
        }
        leaves.push((schema::decode_number(&key[1..])?.get(), schema::decode_digest(value)?));
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(leaves)
}

fn indexed(backend: &dyn Backend, digest: &Digest) -> Result<Option<BatchNumber>, StorageError> {
    backend.get(Column::HeaderIndex, &digest.0)?.map(|bytes| schema::decode_number(&bytes)).transpose()
}
