//! A run as text, for a terminal.

use std::fmt;

use super::{Event, Explained};

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.title, self.verdict())?;
        section(f, "Participants", &self.cast)?;
        writeln!(f, "\nTimeline")?;
        for event in &self.recording.events {
            if event.folded > 0 {
                writeln!(f, "{:>12}  … {} requests, answers and jobs", "", event.folded)?;
            }
            write_event(f, event)?;
        }
        if self.recording.left_out > 0 {
            writeln!(f, "  {} later events are not shown", self.recording.left_out)?;
        }
        writeln!(f, "\nThe last {} requests, answers and jobs", self.recording.routine.len())?;
        self.recording.routine.iter().try_for_each(|event| write_event(f, event))?;
        for stand in &self.stands {
            section(f, &stand.what, &stand.facts)?;
            stand.peers.iter().try_for_each(|peer| writeln!(f, "    {peer}"))?;
        }
        writeln!(f, "\n{}", self.verdict())
    }
}

fn section(f: &mut fmt::Formatter<'_>, title: &str, lines: &[String]) -> fmt::Result {
    writeln!(f, "\n{title}")?;
    lines.iter().try_for_each(|line| writeln!(f, "  {line}"))
}

fn write_event(f: &mut fmt::Formatter<'_>, event: &Event) -> fmt::Result {
    writeln!(f, "{:>10.3} s  {:<8} {}", event.at as f64 / 1e6, event.kind.name(), event.text)
}
