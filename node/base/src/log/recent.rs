//! [`Recent`]: the last lines of the log, in memory, to investigate what preceded a failure.

use std::collections::VecDeque;

use parking_lot::Mutex;

/// Maximum bytes of kept lines, some thousand: a few minutes of a node at debug level, a day of a healthy one.
const BYTES_MAX: usize = 1 << 20;
/// Maximum bytes of one line; the rest is cut.
const LINE_BYTES_MAX: usize = 8 << 10;

/// The lines, oldest first.
#[derive(Default)]
pub(super) struct Recent(Mutex<Lines>);

#[derive(Default)]
struct Lines {
    lines: VecDeque<Box<[u8]>>,
    bytes: usize,
}

impl Recent {
    pub(super) fn push(&self, line: &[u8]) {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = shortened(line);
        let mut kept = self.0.lock();
        while kept.bytes + line.len() > BYTES_MAX {
            let Some(oldest) = kept.lines.pop_front() else { break };
            kept.bytes -= oldest.len();
        }
        kept.bytes += line.len();
        kept.lines.push_back(line.into());
    }

    /// All lines as they were written, except bytes that are not UTF-8.
    pub(super) fn text(&self) -> String {
        let kept = self.0.lock();
        let mut text = String::with_capacity(kept.bytes + kept.lines.len());
        for line in &kept.lines {
            text.push_str(&String::from_utf8_lossy(line));
            text.push('\n');
        }
        text
    }
}

/// Shortens a line to its limit. The cut is between two words, so that masking never sees half of a secret.
fn shortened(line: &[u8]) -> &[u8] {
    if line.len() <= LINE_BYTES_MAX {
        return line;
    }
    let cut = &line[..LINE_BYTES_MAX];
    cut.iter().rposition(u8::is_ascii_whitespace).map_or(cut, |blank| &cut[..blank])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept_within_bounds() {
        let recent = Recent::default();
        for n in 0..50_000 {
            recent.push(format!("line {n} {}\n", "x".repeat(n % 97)).as_bytes());
        }
        recent.push(&vec![b'y'; 1 << 20]);
        recent.push(b"last \xff\n");
        let text = recent.text();
        let lines: Vec<_> = text.lines().collect();
        let (bytes, count) = (recent.0.lock().bytes, lines.len());
        assert!((BYTES_MAX - 2 * LINE_BYTES_MAX..=BYTES_MAX).contains(&bytes), "{bytes}");
        assert_eq!(lines[count - 1], "last \u{fffd}");
        assert_eq!(lines[count - 2].len(), LINE_BYTES_MAX);
        assert!(lines[count - 3].starts_with("line 49999 ") && !text.contains("line 0 "));
    }
}
