//! The rows: every key with its versions.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::{Bound, ControlFlow},
    sync::Arc,
};

use super::durable::DurableWrites;
use crate::{
    backend::{Column, Direction, Visit, Write},
    error::StorageError,
};

/// Versions of one key by ascending sequence number; `None` is a deletion.
pub(super) type Versions = Vec<(u64, Option<Arc<[u8]>>)>;

#[derive(Default)]
pub(super) struct Tables {
    pub(super) sequence: u64,
    pub(super) columns: [BTreeMap<Vec<u8>, Versions>; Column::ALL.len()],
    /// Keys with more than one version (or a deletion), by the sequence number that made the older ones stale.
    pub(super) stale: VecDeque<(u64, Column, Vec<u8>)>,
    /// `None` unless crashes are simulated.
    pub(super) durable: Option<DurableWrites>,
}

fn visible(versions: &Versions, sequence: u64) -> Option<&[u8]> {
    versions.iter().rev().find(|(at, _)| *at <= sequence).and_then(|(_, value)| value.as_deref())
}

impl Tables {
    pub(super) fn get(&self, column: Column, key: &[u8], sequence: u64) -> Option<Vec<u8>> {
        self.columns[column as usize]
            .get(key)
            .and_then(|versions| visible(versions, sequence))
            .map(<[u8]>::to_vec)
    }

    fn set(&mut self, column: Column, key: Vec<u8>, value: Option<Arc<[u8]>>) {
        let versions = self.columns[column as usize].entry(key.clone()).or_default();
        if !versions.is_empty() || value.is_none() {
            self.stale.push_back((self.sequence, column, key));
        }
        versions.push((self.sequence, value));
    }

    pub(super) fn apply(&mut self, write: Write) {
        match write {
            Write::Put(column, key, value) => self.set(column, key, Some(value.into())),
            Write::Delete(column, key) => self.set(column, key, None),
            Write::Rows(column, rows) => {
                for (path, row) in rows.iter() {
                    self.set(column, path.0.to_vec(), row.map(Arc::from));
                }
            }
            Write::Clear(column) => {
                let keys: Vec<_> = self.columns[column as usize].keys().cloned().collect();
                for key in keys {
                    self.set(column, key, None);
                }
            }
            Write::ClearRange(column, first, last) => {
                let bounds = (Bound::Included(first), Bound::Included(last));
                let keys: Vec<_> =
                    self.columns[column as usize].range(bounds).map(|(key, _)| key.clone()).collect();
                for key in keys {
                    self.set(column, key, None);
                }
            }
        }
    }

    /// Drops versions that no snapshot can see any more.
    pub(super) fn collect(&mut self, oldest_live: u64) {
        while self.stale.front().is_some_and(|(at, ..)| *at <= oldest_live) {
            let Some((_, column, key)) = self.stale.pop_front() else { return };
            let table = &mut self.columns[column as usize];
            let Some(versions) = table.get_mut(&key) else { continue };
            let seen = versions.iter().rposition(|(at, _)| *at <= oldest_live).unwrap_or(0);
            versions.drain(..seen);
            if matches!(versions[..], [(at, None)] if at <= oldest_live) {
                table.remove(&key);
            }
        }
    }

    pub(super) fn scan(
        &self,
        column: Column,
        from: &[u8],
        direction: Direction,
        sequence: u64,
        visit: &mut Visit<'_>,
    ) -> Result<(), StorageError> {
        let table = &self.columns[column as usize];
        let rows: Box<dyn Iterator<Item = (&Vec<u8>, &Versions)>> = match direction {
            Direction::Up => Box::new(table.range::<[u8], _>((Bound::Included(from), Bound::Unbounded))),
            Direction::Down => {
                Box::new(table.range::<[u8], _>((Bound::Unbounded, Bound::Included(from))).rev())
            }
        };
        for (key, versions) in rows {
            let Some(value) = visible(versions, sequence) else { continue };
            if visit(key, value)? == ControlFlow::Break(()) {
                break;
            }
        }
        Ok(())
    }
}
