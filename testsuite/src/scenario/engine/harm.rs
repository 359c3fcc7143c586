//! What faults do to single nodes, and how it ends.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use super::{LOOK, Stage, act::is_moment, flip, preload::Knobs, setup};
use crate::{
    devnet::binary,
    scenario::{names::Place, plan::Harm},
};

/// What a node whose disk was full takes to end: answers that are under way, and its store.
const SETTLE: Duration = Duration::from_secs(20);
/// A node that was started opens its store before it answers, and before it has what a fault needs.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);

impl Stage<'_> {
    /// Does something to a node.
    ///
    /// # Errors
    /// If it cannot be done. Then nothing of it is left, and the node goes on.
    pub(super) async fn harm(&mut self, harm: &Harm, place: Place, event: usize, ends: bool) -> Result<()> {
        self.prepare(harm, place).await?;
        if holds(harm) {
            self.hold(place, event);
        } else if ends {
            self.interrupt(place);
        }
        self.lasting.begin(event, place, harm, ends);
        match self.inflict(harm, place, event).await {
            Ok(()) if is_moment(harm, ends) => {
                self.lasting.end(event);
                self.release(place, event)
            }
            Ok(()) => Ok(()),
            Err(error) => {
                // Knobs that could not be turned stay as they are.
                let undone = match holds(harm) {
                    true => self.heal(harm, place, event).await,
                    false => Ok(()),
                };
                self.lasting.end(event);
                self.note_failure(undone);
                Err(error)
            }
        }
    }

    /// Ends what was done to a node. Nothing of this event holds it afterwards, whatever fails.
    pub(super) async fn heal(&mut self, harm: &Harm, place: Place, event: usize) -> Result<()> {
        self.lasting.end(event);
        let remedied = self.remedy(harm, place, event).await;
        let released = self.release(place, event);
        remedied.and(released)
    }

    /// A node may have been started at this very moment: it is waited for where a fault needs what it has only then.
    async fn prepare(&mut self, harm: &Harm, place: Place) -> Result<()> {
        if self.held.contains(place) {
            return Ok(());
        }
        match harm {
            Harm::SlowDisk(_) | Harm::ClockJump(_) => {
                let is_loaded = self.knobs(place)?.is_loaded()?;
                if is_loaded { Ok(()) } else { self.wait_answer(place).await }
            }
            Harm::BitFlip(_) => {
                // One that is too busy to tell may have rows nevertheless: then it is up to the flip.
                let (node, deadline) = (self.node_mut(place)?, Instant::now() + ANSWERS_WITHIN);
                if node.pid().is_some() {
                    let _ = node.wait_head(1, deadline).await;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Waits for the answer of a node that no fault holds.
    ///
    /// # Errors
    /// If it has ended, or does not answer in time.
    pub(super) async fn wait_answer(&mut self, place: Place) -> Result<()> {
        let node = self.node_mut(place)?;
        ensure!(node.pid().is_some(), "{} has ended", node.name());
        node.wait_ready(Instant::now() + ANSWERS_WITHIN).await
    }

    async fn inflict(&mut self, harm: &Harm, place: Place, event: usize) -> Result<()> {
        match harm {
            Harm::SlowDisk(_) | Harm::ClockJump(_) => self.turn(place),
            Harm::Twin(heard_by) => self.begin_twin(event, place, heard_by).await,
            Harm::OldState => self.keep_copy(event, place).await,
            Harm::Liar(lie) => self.begin_liar(event, place, lie).await,
            Harm::Kill => {
                self.node_mut(place)?.kill();
                self.kill_lies(place);
                Ok(())
            }
            Harm::Pause => {
                self.node(place)?.signal(Signal::STOP);
                Ok(())
            }
            Harm::Restart => self.stop_node(place).await,
            Harm::Wipe => self.node_mut(place)?.wipe(),
            Harm::BitFlip(draw) => {
                let (directory, draw) = (self.node(place)?.data(), *draw);
                self.stop_node(place).await?;
                tokio::task::block_in_place(|| flip::row(&directory, draw))
            }
            Harm::Upgrade(name) => {
                let program = match setup::program(name, &self.options.programs)? {
                    Some(program) => program,
                    None => binary()?,
                };
                self.stop_node(place).await?;
                self.node_mut(place)?.set_program(program);
                Ok(())
            }
            Harm::FullDisk => {
                let data = self.node(place)?.data();
                let disk = self.disks.iter().find(|disk| disk.is_at(&data));
                disk.context("the node has no disk of its own")?.fill()
            }
        }
    }

    async fn remedy(&mut self, harm: &Harm, place: Place, event: usize) -> Result<()> {
        match harm {
            Harm::SlowDisk(_) | Harm::ClockJump(_) => {
                self.turn(place)?;
                self.was_behind(place);
                Ok(())
            }
            Harm::Twin(_) => self.end_twin(event),
            Harm::OldState => self.put_back(event, place).await,
            Harm::Liar(_) => self.end_liar(event, place).await,
            Harm::Kill => self.wake_lies(place).await,
            Harm::Pause => {
                if !self.lasting.has(place, harm) {
                    self.node(place)?.signal(Signal::CONT);
                }
                Ok(())
            }
            Harm::FullDisk => {
                if self.lasting.has(place, harm) {
                    return Ok(());
                }
                let data = self.node(place)?.data();
                self.disks.iter().find(|disk| disk.is_at(&data)).map_or(Ok(()), |disk| disk.free())?;
                // One that neither ends nor commits in this time is let go as it is.
                tokio::time::timeout(SETTLE, self.settled(place)).await.unwrap_or(Ok(()))?;
                self.note_ended()
            }
            // All that is left of them is their hold.
            Harm::Restart | Harm::Wipe | Harm::BitFlip(_) | Harm::Upgrade(_) => Ok(()),
        }
    }

    /// Sets a node's clock and its disk to what the faults together say that go on.
    fn turn(&self, place: Place) -> Result<()> {
        let knobs = self.knobs(place)?;
        knobs.slow_down(self.lasting.delay_ms(place))?;
        knobs.jump(self.lasting.jump_ms(place))
    }

    /// Waits until a node whose disk was full has ended for want of room, or goes on: while it is ending it still runs.
    async fn settled(&mut self, place: Place) -> Result<()> {
        let mut before = None;
        loop {
            self.note_ended()?;
            let node = self.node(place)?;
            if node.pid().is_none() {
                return Ok(());
            }
            let rpc = node.rpc().clone();
            let head = rpc.head().await.ok();
            if before.is_some_and(|before| head > Some(before)) {
                return Ok(());
            }
            before = before.or(head);
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Asks a node to stop, and waits for it. One that does not stop well is a finding, and is gone.
    pub(super) async fn stop_node(&mut self, place: Place) -> Result<()> {
        // Its last flushes would take longer than it has to stop.
        let knobs = self.knobs.get(&place).filter(|_| self.lasting.delay_ms(place) > 0);
        knobs.map_or(Ok(()), |knobs| knobs.slow_down(0))?;
        let stopped = self.node_mut(place)?.stop().await;
        self.note_failure(stopped);
        let knobs = self.knobs.get(&place).filter(|_| self.lasting.delay_ms(place) > 0);
        knobs.map_or(Ok(()), |knobs| knobs.slow_down(self.lasting.delay_ms(place)))
    }

    fn knobs(&self, place: Place) -> Result<&Knobs> {
        self.knobs.get(&place).context("the node was started without the library of faults")
    }
}

/// Whether a node does not run, or not as it should, while this lasts. With a slow disk and a wrong clock it runs on.
fn holds(harm: &Harm) -> bool {
    !matches!(harm, Harm::SlowDisk(_) | Harm::ClockJump(_))
}
