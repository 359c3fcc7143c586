//! [`Change`]: a temporary change of a link.

use std::{fmt, net::SocketAddr, str::FromStr, time::Duration};

use anyhow::{Context, Result, anyhow, ensure};

use super::{
    Shape,
    sidecar::{read_shape, write_shape},
};
use crate::time;

/// A change: `LISTEN@FROM..UNTIL,cut`, or with a shape as for a link. UNTIL may be omitted.
#[derive(Clone, PartialEq, Debug)]
pub struct Change {
    /// The address at which the node dials the link.
    pub listen: SocketAddr,
    /// When it begins, after the common start.
    pub from: Duration,
    /// When it ends; never if `None`.
    pub until: Option<Duration>,
    /// The shape of the link during the change; `None` cuts it.
    pub shape: Option<Shape>,
}

impl Change {
    fn holds_at(&self, moment: Duration) -> bool {
        self.from <= moment && self.until.is_none_or(|until| moment < until)
    }
}

impl FromStr for Change {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Change> {
        let form =
            || format!("{text}: expected LISTEN@FROM..UNTIL,cut, or in place of cut such as delay=150ms");
        let (listen, rest) = text.split_once('@').with_context(form)?;
        let (times, what) = rest.split_once(',').with_context(form)?;
        let (from, until) = times.split_once("..").with_context(form)?;
        let moment = |part: &str| time::duration(part).map_err(|error| anyhow!("{text}: {error}"));
        let change = Change {
            listen: listen.parse().with_context(|| format!("{listen} is not IP:PORT"))?,
            from: moment(from)?,
            until: if until.is_empty() { None } else { Some(moment(until)?) },
            shape: if what == "cut" { None } else { Some(read_shape(what.split(','))?) },
        };
        ensure!(
            change.until.is_none_or(|until| change.from < until),
            "{text}: ends before it begins: swap the two times"
        );
        Ok(change)
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}ms..", self.listen, self.from.as_millis())?;
        if let Some(until) = self.until {
            write!(f, "{}ms", until.as_millis())?;
        }
        match &self.shape {
            None => f.write_str(",cut"),
            // An empty shape could not be parsed.
            Some(shape) if *shape == Shape::default() => f.write_str(",delay=0ms"),
            Some(shape) => write_shape(f, shape),
        }
    }
}

/// Returns a link's state at a moment: cut while any change cuts it, otherwise with the shape of the latest change.
pub(super) fn state(changes: &[Change], listen: SocketAddr, usual: Shape, moment: Duration) -> (Shape, bool) {
    let mine = || changes.iter().filter(|change| change.listen == listen && change.holds_at(moment));
    // If several begin at the same moment, the last one counts.
    let shaped = mine().filter_map(|change| Some((change.from, change.shape?))).max_by_key(|(from, _)| *from);
    (shaped.map_or(usual, |(_, shape)| shape), mine().any(|change| change.shape.is_none()))
}

/// Returns the next moment after this one at which a change begins or ends.
pub(super) fn next(changes: &[Change], moment: Option<Duration>) -> Option<Duration> {
    let moments = changes.iter().flat_map(|change| [Some(change.from), change.until]).flatten();
    moments.filter(|other| moment.is_none_or(|moment| moment < *other)).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: &str = "127.0.0.1:1";

    fn changes(texts: &[&str]) -> Vec<Change> {
        texts.iter().map(|text| format!("{LINK}@{text}").parse().unwrap()).collect()
    }

    fn seconds(number: u64) -> Duration {
        Duration::from_secs(number)
    }

    #[test]
    fn a_change_survives_its_text_and_a_wrong_one_says_what_is_wrong() {
        for text in [
            "127.0.0.1:7401@125000ms..133000ms,cut",
            "127.0.0.1:7401@0ms..,delay=150ms,jitter=20ms,bandwidth=4096,loss=0.02",
            "127.0.0.1:7401@1ms..2ms,delay=0ms",
        ] {
            assert_eq!(text.parse::<Change>().unwrap().to_string(), text);
        }
        for (text, part) in [
            ("127.0.0.1:1,cut", "expected LISTEN@FROM..UNTIL"),
            ("here@1s..2s,cut", "here is not IP:PORT"),
            ("127.0.0.1:1@1s..2d,cut", "the units are"),
            ("127.0.0.1:1@2s..1s,cut", "swap the two times"),
            ("127.0.0.1:1@1s..2s,loss=2", "from 0 to 1"),
            ("127.0.0.1:1@1s..2s,slow", "slow: expected KEY=VALUE"),
        ] {
            let error = text.parse::<Change>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    /// Goal: a link is normal before and after its changes, cut while one cuts it, and has the latest shape otherwise.
    #[test]
    fn changes_that_overlap_end_each_for_itself() {
        let all =
            changes(&["10s..20s,delay=100ms", "12s..30s,delay=200ms", "15s..18s,cut", "40s..,loss=0.5"]);
        let usual = Shape::round_trip(seconds(1));
        let at = |moment| state(&all, LINK.parse().unwrap(), usual, seconds(moment));
        let delayed = |ms| Shape { delay: Duration::from_millis(ms), ..Shape::default() };
        assert_eq!(at(9), (usual, false));
        assert_eq!(at(10), (delayed(100), false));
        assert_eq!(at(12), (delayed(200), false));
        assert_eq!(at(15), (delayed(200), true));
        assert_eq!(at(25), (delayed(200), false));
        assert_eq!(at(30), (usual, false));
        assert_eq!(at(1_000).0.loss, 0.5);
        let other = "127.0.0.1:2".parse().unwrap();
        assert_eq!(state(&all, other, usual, seconds(15)), (usual, false));
    }

    #[test]
    fn moments_come_in_their_order_and_end() {
        let all = changes(&["10s..20s,cut", "15s..,cut"]);
        let mut moments = vec![next(&all, None).unwrap()];
        while let Some(moment) = next(&all, moments.last().copied()) {
            moments.push(moment);
        }
        assert_eq!(moments, [10, 15, 20].map(seconds));
        assert_eq!(next(&changes(&["0s..1s,cut"]), None), Some(seconds(0)), "the start itself is one");
        assert_eq!(next(&[], None), None);
    }
}
