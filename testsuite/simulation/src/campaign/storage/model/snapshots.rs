//! The earlier states that a store keeps: snapshots that it makes, and views and snapshots that are held while the head
//! moves on.

use anyhow::{Context, Result, ensure};
use rand::Rng;
use slipstream_storage::Store;

use super::{Model, config, naive};
use crate::campaign::storage::life::{SNAPSHOT_INTERVAL, add_chunks, finish, snapshot_rows, target};

/// The most views, and snapshots, that are held while the head moves on.
const HELD_MAX: usize = 3;

impl Model {
    /// Checks that snapshots appear on time, and that the old ones are pruned.
    pub(super) fn check_snapshots(&mut self) -> Result<()> {
        let number = self.head.number;
        if number.get().is_multiple_of(SNAPSHOT_INTERVAL) {
            self.frozen.insert(number, self.state.clone());
            if self.frozen.len() > config().snapshots_kept {
                self.frozen.pop_first();
            }
        }
        let listed: Vec<_> = self.store.snapshots().iter().map(|info| info.number).collect();
        let expected: Vec<_> = self.frozen.keys().rev().copied().collect();
        ensure!(listed == expected, "the snapshots are {listed:?}, not {expected:?}");
        Ok(())
    }

    pub(super) fn hold(&mut self) -> Result<()> {
        self.views.push((self.store.view()?, self.state.clone()));
        if let Some((number, state)) = self.frozen.last_key_value() {
            let snapshot = self.store.snapshot(*number)?.context("a listed snapshot is missing")?;
            self.snapshots.push((snapshot, state.clone()));
        }
        let (views, snapshots) = (self.views.len(), self.snapshots.len());
        self.views.drain(..views.saturating_sub(HELD_MAX));
        self.snapshots.drain(..snapshots.saturating_sub(HELD_MAX));
        Ok(())
    }

    /// Checks that a held state still shows its own moment, even if it was pruned since.
    pub(super) fn check_held(&mut self) -> Result<()> {
        let keys = self.keys();
        for (view, state) in &self.views {
            let expected: Vec<_> = keys.iter().map(|key| state.get(key).copied()).collect();
            ensure!(view.rows(&keys)? == expected, "a view of batch {} has changed", view.head().number);
        }
        for (snapshot, state) in &self.snapshots {
            ensure!(snapshot_rows(snapshot)? == *state, "a snapshot that is held has changed");
            self.done.operations += state.len() as u64;
        }
        Ok(())
    }

    pub(super) fn read_snapshots(&mut self) -> Result<()> {
        for (number, state) in &self.frozen {
            let snapshot = self.store.snapshot(*number)?.context("a listed snapshot is missing")?;
            ensure!(snapshot.info().state_root == naive::root(state), "a snapshot has another root");
            ensure!(snapshot_rows(&snapshot)? == *state, "the snapshot of batch {number} serves other rows");
            self.done.operations += state.len() as u64;
        }
        Ok(())
    }

    /// Restores the newest snapshot into a fresh store of either kind, in two steps.
    pub(super) fn restore(&mut self) -> Result<()> {
        let Some((number, state)) = self.frozen.last_key_value() else { return Ok(()) };
        let snapshot = self.store.snapshot(*number)?.context("a listed snapshot is missing")?;
        let dir = self.dir.with_file_name("restored");
        let second = match self.rng.random::<bool>() {
            true => Store::memory(&config()),
            false => Store::open(&config(), &dir)?,
        };
        second.initialize(&self.chain.genesis())?;
        let target = target(&self.store, *number)?;
        add_chunks(&second.restore(&target)?, &snapshot, self.rng.random_range(0..20))?;
        let restore = second.restore(&target)?;
        add_chunks(&restore, &snapshot, usize::MAX)?;
        finish(restore, &self.store, *number)?;
        let keys: Vec<_> = state.keys().copied().collect();
        let expected: Vec<_> = state.values().copied().map(Some).collect();
        ensure!(second.view()?.rows(&keys)? == expected, "a restored state differs from its snapshot");
        ensure!(second.head()?.header.state_root == naive::root(state), "a restored state has another root");
        self.done.operations += keys.len() as u64;
        self.done.restores += 1;
        drop(second);
        if dir.exists() {
            std::fs::remove_dir_all(&dir)?;
        }
        Ok(())
    }
}
