//! [`Bounds`]: the events that one search allows.

use std::{fmt, time::Duration};

/// The events that a search may choose from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// The lying seat, if one lies. Seat `v` is the primary of view `v`.
    pub liar: Option<u16>,
    /// The silent seat, or `None` if all seats speak.
    pub silent: Option<u16>,
    /// Number of the last batch, from 1.
    pub batches: u64,
    /// Number of the last view, from 0.
    pub last_view: u64,
    /// Maximum number of crashes of honest validators.
    pub crashes: u8,
    /// Whether orders of honest primaries, and decided outcomes, arrive at once.
    pub is_prompt: bool,
    /// Liveness is checked from one in `live_every` states; 0 for none.
    pub live_every: u64,
    /// Whether cores take every message by itself, for comparison. That takes many more states.
    pub takes_singly: bool,
}

impl Bounds {
    /// One batch in views 0 and 1.
    pub(crate) const SMALL: Bounds = Bounds {
        liar: None,
        silent: None,
        batches: 1,
        last_view: 1,
        crashes: 0,
        is_prompt: false,
        live_every: 0,
        takes_singly: false,
    };
}

impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.liar, self.silent) {
            (Some(seat), _) if u64::from(seat) <= self.last_view => {
                write!(f, "liar is primary of view {seat}")?
            }
            (Some(_), _) => write!(f, "liar is not a primary")?,
            (None, Some(_)) => write!(f, "one is silent")?,
            (None, None) => write!(f, "nobody fails")?,
        }
        let plural = |count: u64| if count == 1 { "" } else { "s" };
        write!(f, ", {} batch{}", self.batches, if self.batches == 1 { "" } else { "es" })?;
        write!(f, ", {} view{}", self.last_view + 1, plural(self.last_view + 1))?;
        if self.crashes > 0 {
            write!(f, ", {} crash{}", self.crashes, if self.crashes == 1 { "" } else { "es" })?;
        }
        f.write_str(if self.is_prompt { ", prompt" } else { "" })
    }
}

/// The searches to run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Batches in each search; `None` for as many as each can bear.
    pub batches: Option<u64>,
    /// Views in each search; `None` for as many as each can bear.
    pub views: Option<u64>,
    /// Time limit for all searches together. A search that exceeds its share reports that it is not exhaustive.
    pub limit: Duration,
    /// Threads of each search.
    pub threads: usize,
}

impl Options {
    /// The searches, each with its share of the time in percent.
    pub(crate) fn searches(&self) -> Vec<(Bounds, u32)> {
        let liar = |seat| Bounds { liar: Some(seat), ..Bounds::SMALL };
        let silent = Bounds { silent: Some(3), ..Bounds::SMALL };
        let searches = [
            (Bounds { live_every: 1_000, ..liar(0) }, 25),
            (Bounds { live_every: 500, ..liar(1) }, 20),
            (Bounds { live_every: 200, ..liar(3) }, 5),
            (Bounds { batches: 2, is_prompt: true, live_every: 500, ..liar(3) }, 35),
            (Bounds { crashes: 1, is_prompt: true, live_every: 500, ..liar(3) }, 8),
            (Bounds { batches: 2, last_view: 2, live_every: 100, ..silent }, 5),
            (Bounds { crashes: 1, live_every: 50, ..silent }, 2),
        ];
        let asked = |(bounds, share): (Bounds, u32)| {
            let batches = self.batches.unwrap_or(bounds.batches).max(1);
            let last_view = self.views.map_or(bounds.last_view, |views| views.max(1) - 1);
            (Bounds { batches, last_view, ..bounds }, share)
        };
        searches.map(asked).to_vec()
    }
}
