//! The clock of a stage: begins and ends events, and reports nodes that end by themselves.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Result, anyhow};

use super::{LOOK, Stage, act::described};
use crate::scenario::plan::Event;

impl Stage<'_> {
    /// Begins and ends events until the scenario's time is over.
    pub(super) async fn pass(&mut self, events: &[Event]) -> Result<()> {
        let end_ms = self.scenario.duration.ms();
        // If one event ends and another begins at the same moment, the end comes first.
        let mut agenda: BTreeSet<(u64, bool, usize)> =
            events.iter().enumerate().map(|(index, event)| (event.at_ms, true, index)).collect();
        let mut hits = vec![None; events.len()];
        while let Some((at_ms, begins, index)) = agenda.pop_first() {
            self.wait_until(at_ms).await?;
            let event = &events[index];
            if begins {
                hits[index] = Some(self.begin_event(event, index).await);
                let begun_ms = self.elapsed_ms();
                if is_too_late(event, begun_ms, end_ms) {
                    let what = described(&event.action);
                    let late = anyhow!(
                        "{what} began after the clock's end, too late to have an effect: schedule it earlier, or use a longer `duration`"
                    );
                    self.note_failure(Err(late));
                }
                let ends_ms = ends_ms(event, begun_ms);
                agenda.extend(ends_ms.map(|ends_ms| (ends_ms.min(end_ms), false, index)));
            } else if let Some(hit) = hits[index] {
                self.end_event(event, index, hit).await;
            }
        }
        self.wait_until(end_ms).await?;
        self.wait_joins().await?;
        self.wait_changes().await
    }

    /// Records nodes that ended by themselves since the last look as findings, unless a fault has taken them down.
    pub(super) fn note_ended(&mut self) -> Result<()> {
        for end in self.devnet.take_ended()? {
            let text = end.to_string();
            self.progress.step(&text);
            if self.is_excused(&end) {
                self.devnet.forgive(&end);
            } else {
                self.ended.push(text);
            }
        }
        Ok(())
    }

    async fn wait_until(&mut self, at_ms: u64) -> Result<()> {
        loop {
            let left = Duration::from_millis(at_ms).saturating_sub(self.begin.elapsed());
            self.note_ended()?;
            self.note_joins()?;
            self.note_changes();
            if left.is_zero() {
                return Ok(());
            }
            tokio::time::sleep(left.min(LOOK)).await;
        }
    }
}

/// Returns when an event that began at `begun_ms` ends. Earlier events and its own beginning (a stop or a copy) may
/// have delayed it; it still lasts its full time.
fn ends_ms(event: &Event, begun_ms: u64) -> Option<u64> {
    event.until_ms.map(|until_ms| until_ms + begun_ms.saturating_sub(event.at_ms))
}

/// Whether earlier events delayed an event with a duration until after the clock's end. Such an event ends at once.
fn is_too_late(event: &Event, begun_ms: u64, end_ms: u64) -> bool {
    event.until_ms.is_some() && begun_ms >= end_ms
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{names::NodeIndex, plan::Action};

    fn event(until_ms: Option<u64>) -> Event {
        Event { at_ms: 10_000, until_ms, action: Action::ExportSnapshot(NodeIndex(0)) }
    }

    /// Goal: an event whose beginning took longer than its duration still lasts its full duration from then on.
    #[test]
    fn a_slow_beginning_does_not_eat_what_follows() {
        assert_eq!(ends_ms(&event(Some(13_000)), 15_000), Some(18_000));
        assert_eq!(ends_ms(&event(Some(13_000)), 10_000), Some(13_000));
        assert_eq!(ends_ms(&event(None), 15_000), None);
    }

    /// Goal: an event that has no duration left because the clock is over is reported. One that takes effect at once is
    /// still done.
    #[test]
    fn an_event_after_the_end_is_told() {
        assert!(is_too_late(&event(Some(13_000)), 20_000, 20_000));
        assert!(!is_too_late(&event(Some(13_000)), 19_999, 20_000));
        assert!(!is_too_late(&event(None), 21_000, 20_000));
    }
}
