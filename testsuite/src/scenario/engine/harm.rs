//! What faults do to single nodes, and how they end.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use super::{LOOK, Stage, act::is_moment, flip, preload::Knobs, setup};
use crate::{
    devnet::binary,
    scenario::{names::NodeIndex, plan::Harm},
};

/// The time limit for a node whose disk was full to end: it ends answers in progress, and closes its store.
const SETTLE: Duration = Duration::from_secs(20);
/// The time limit for a node that was started to answer: it opens its store first.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);

impl Stage<'_> {
    /// Harms a node.
    ///
    /// # Errors
    /// If the harm cannot be done. Then what was done of it is undone, and the node continues.
    pub(super) async fn harm(
        &mut self,
        harm: &Harm,
        place: NodeIndex,
        event: usize,
        ends: bool,
    ) -> Result<()> {
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
                // Knobs that could not be set stay as they are.
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

    /// Ends the harm to a node. Afterwards this event no longer holds the node, even if a step fails.
    pub(super) async fn heal(&mut self, harm: &Harm, place: NodeIndex, event: usize) -> Result<()> {
        self.lasting.end(event);
        let remedied = self.remedy(harm, place, event).await;
        let released = self.release(place, event);
        remedied.and(released)
    }

    /// Prepares a harm. If it needs something that a node has only after its start, waits for a node that has just been
    /// started.
    async fn prepare(&mut self, harm: &Harm, place: NodeIndex) -> Result<()> {
        if self.held.contains(place) {
            return Ok(());
        }
        match harm {
            Harm::SlowDisk(_) | Harm::ClockJump(_) => {
                let is_loaded = self.knobs(place)?.is_loaded()?;
                if is_loaded { Ok(()) } else { self.wait_answer(place).await }
            }
            Harm::BitFlip(_) => {
                // A node that is too busy to answer may still have rows, so the flip itself decides.
                let (node, deadline) = (self.node_mut(place)?, Instant::now() + ANSWERS_WITHIN);
                if node.pid().is_some() {
                    let _ = node.wait_head(1, deadline).await;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Waits for the answer of a node. Call it only for a node that no fault holds.
    ///
    /// # Errors
    /// If the node has ended, or does not answer in time.
    pub(super) async fn wait_answer(&mut self, place: NodeIndex) -> Result<()> {
        let node = self.node_mut(place)?;
        ensure!(node.pid().is_some(), "{} has ended", node.name());
        node.wait_ready(Instant::now() + ANSWERS_WITHIN).await
    }

    async fn inflict(&mut self, harm: &Harm, place: NodeIndex, event: usize) -> Result<()> {
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
                disk.context("the node has no separate disk")?.fill()
            }
        }
    }

    async fn remedy(&mut self, harm: &Harm, place: NodeIndex, event: usize) -> Result<()> {
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
                // A node that neither ends nor commits in this time is left as it is.
                tokio::time::timeout(SETTLE, self.settled(place)).await.unwrap_or(Ok(()))?;
                self.note_ended()
            }
            // Of these harms, only the hold is left to release.
            Harm::Restart | Harm::Wipe | Harm::BitFlip(_) | Harm::Upgrade(_) => Ok(()),
        }
    }

    /// Sets a node's clock and disk to the combination of all current faults.
    fn turn(&self, place: NodeIndex) -> Result<()> {
        let knobs = self.knobs(place)?;
        knobs.slow_down(self.lasting.delay_ms(place))?;
        knobs.jump(self.lasting.jump_ms(place))
    }

    /// Waits until a node whose disk was full has ended for lack of space, or commits again: a node that is about to
    /// end still runs.
    async fn settled(&mut self, place: NodeIndex) -> Result<()> {
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

    /// Stops a node gracefully, and waits for it. A bad stop is a finding; the node has ended anyway.
    pub(super) async fn stop_node(&mut self, place: NodeIndex) -> Result<()> {
        // With the delay, the node's last flushes would take longer than the time limit for a stop.
        let knobs = self.knobs.get(&place).filter(|_| self.lasting.delay_ms(place) > 0);
        knobs.map_or(Ok(()), |knobs| knobs.slow_down(0))?;
        let stopped = self.node_mut(place)?.stop().await;
        self.note_failure(stopped);
        let knobs = self.knobs.get(&place).filter(|_| self.lasting.delay_ms(place) > 0);
        knobs.map_or(Ok(()), |knobs| knobs.slow_down(self.lasting.delay_ms(place)))
    }

    fn knobs(&self, place: NodeIndex) -> Result<&Knobs> {
        self.knobs.get(&place).context("the node was started without the library of faults")
    }
}

/// Whether the harm takes the node down or impairs it while it lasts. With a slow disk or a wrong clock the node keeps
/// running.
fn holds(harm: &Harm) -> bool {
    !matches!(harm, Harm::SlowDisk(_) | Harm::ClockJump(_))
}
