//! `slipstream status --watch`: the status, repeatedly. On a terminal it is redrawn in place; elsewhere each reading
//! adds a line or a JSON document, so that it can be piped. The command waits for a silent node, because users watch
//! restarts.

use std::{
    fmt::Write as _,
    io::{self, IsTerminal, Write as _},
    time::Duration,
};

use miette::Result;
use rustix::termios::tcgetwinsize;
use slipstream_status::NodeStatus;

use super::{read_within, table::table, units::progress};
use crate::{
    ask::{NodeUrl, ask},
    exit::OrFail as _,
    output::{note, pause, print},
    text::{OutputError, plain},
};

/// Time limit for one reading.
const PATIENCE: Duration = Duration::from_secs(5);
/// The number of lines of a terminal that reports no size.
const ROWS_UNKNOWN: usize = 24;

/// Reads the status every `seconds` seconds until nobody reads the output, or a signal ends the program.
pub(super) fn watch(node: &NodeUrl, seconds: u32, json: bool) -> Result<()> {
    let is_terminal = io::stdout().is_terminal();
    loop {
        match json {
            true => match ask(node, "/v1/status") {
                Ok(body) => print(body.trim_end())?,
                // Standard output gets only documents.
                Err(error) => note(&error.to_string()),
            },
            false => {
                let (text, line) = match read_within(node, PATIENCE) {
                    Ok(status) => (table(&status), line(&status)),
                    Err(error) => (format!("{error}\n"), error.to_string()),
                };
                match is_terminal {
                    true => draw(&text)?,
                    false => print(&line)?,
                }
            }
        }
        pause(Duration::from_secs(seconds.into()));
    }
}

/// One reading as a line.
pub(crate) fn line(status: &NodeStatus) -> String {
    let NodeStatus { health, progress: way, sync, process, .. } = status;
    let mut line = format!("{} head={}", health.state, health.head);
    if let Some(age) = health.head_age_seconds {
        let _ = write!(line, " age={age:.1}s");
    }
    let _ = write!(
        line,
        " behind={} peers={} memory={}MiB progress=\"{}\"",
        health.behind_batches,
        health.peers_connected,
        process.memory_bytes >> 20,
        progress(way, sync.transactions_per_second)
    );
    if let Some(silence) = &health.silence {
        let _ = write!(line, " silence={}", silence.silence.name());
    }
    if let Some(blocker) = &health.blocker {
        let _ = write!(line, " blocker=\"{}\"", blocker.text);
    }
    line
}

/// Draws a text over the previous one. Lines below the screen's end are cut, because a scrolling screen is unreadable.
fn draw(text: &str) -> Result<()> {
    let size = tcgetwinsize(io::stdout()).ok();
    let rows = size.map(|size| usize::from(size.ws_row)).filter(|rows| *rows > 1).unwrap_or(ROWS_UNKNOWN);
    let frame = frame(text, rows - 1);
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(frame.as_bytes()).and_then(|()| stdout.flush());
    written.map_err(OutputError::from).or_fail()
}

/// The escape sequences that draw at most `rows_max` lines, from the upper left corner and without line wrapping. They
/// also wipe the remains of the previous text.
fn frame(text: &str, rows_max: usize) -> String {
    let mut frame = String::from("\x1b[?7l\x1b[H");
    for line in plain(text).lines().take(rows_max) {
        let _ = write!(frame, "{line}\x1b[K\r\n");
    }
    frame + "\x1b[J\x1b[?7h"
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use slipstream_status::fixture;

    use super::*;

    /// Goal: a pipe gets one line per reading, like the log's line.
    #[test]
    fn a_look_is_a_line() {
        let status = fixture::status(json!({}));
        let expected = "at the head head=300 age=0.4s behind=0 peers=1 memory=61MiB \
                        progress=\"100.0 %, 300 of 300 batches, 10 batches/s, 20 transactions/s\"";
        assert_eq!(line(&status), expected);
        let blocker = json!({ "reason": "halted", "text": "no batch", "alert": true, "retry_ms": null });
        let status = fixture::status(json!({ "health": { "blocker": blocker, "eta_seconds": null } }));
        assert!(line(&status).ends_with(", blocked\" blocker=\"no batch\""), "{}", line(&status));
    }

    /// Goal: a smaller drawing covers all of a larger one, and every line fits the screen.
    #[test]
    fn a_drawing_covers_the_one_before() {
        assert_eq!(frame("a\nb\nc\n", 2), "\x1b[?7l\x1b[Ha\x1b[K\r\nb\x1b[K\r\n\x1b[J\x1b[?7h");
        assert_eq!(frame("a\x1b[2J\r", 2), "\x1b[?7l\x1b[Ha [2J \x1b[K\r\n\x1b[J\x1b[?7h");
    }
}
