//! [`State`]: the condition of a node at a moment, from all its orders together. Pure.

use std::time::Duration;

use super::{Order, What};

/// The condition of a node at a moment, from all orders together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct State {
    pub(super) is_down: bool,
    pub(super) is_paused: bool,
    pub(super) is_full: bool,
    /// Whether its data will be restored later.
    pub(super) keeps_data: bool,
    /// The lie of the program that replaces it, if any.
    pub(super) lie: Option<&'static str>,
    pub(super) flush_ms: u64,
    pub(super) clock_ms: i64,
}

impl State {
    /// Whether the node is down or impaired.
    pub(super) fn is_held(&self) -> bool {
        self.is_down || self.is_paused || self.is_full || self.lie.is_some()
    }
}

/// Returns a node's condition from its orders; before the start, `moment` is `None`. With several slow disks the
/// slowest counts; jumps of the clock add up.
pub(super) fn state<'a>(orders: impl Iterator<Item = &'a Order>, moment: Option<Duration>) -> State {
    let mut orders: Vec<&Order> = orders.collect();
    orders.sort_by_key(|order| order.from);
    let (mut state, mut is_killed) = (State::default(), false);
    for order in orders {
        let holds = order.holds_at(moment);
        match order.what {
            What::Join => state.is_down |= !order.has_begun(moment),
            What::Kill => is_killed |= holds,
            // Without an end, they take effect at once.
            What::Restart | What::Wipe => state.is_down |= holds && order.until.is_some(),
            What::Pause => state.is_paused |= holds,
            What::FullDisk => state.is_full |= holds,
            What::OldData => state.keeps_data |= holds,
            What::Lie(lie) if holds => state.lie = Some(lie),
            What::SlowDisk(ms) if holds => state.flush_ms = state.flush_ms.max(ms),
            What::ClockJump(ms) if holds => state.clock_ms = state.clock_ms.saturating_add(ms),
            What::SlowDisk(_) | What::ClockJump(_) | What::Lie(_) => {}
            What::BitFlip(_) | What::ExportSnapshot | What::AddValidator(..) | What::RemoveValidator(_) => {}
            What::LyingPeers(..) | What::Attack(_) | What::Upgrade(_) => {}
        }
    }
    if is_killed {
        // Otherwise the program in its place would keep voting with its key.
        state = State { is_down: true, lie: None, ..state };
    }
    state
}

/// Returns when the next order begins or ends.
pub(super) fn next<'a>(
    orders: impl Iterator<Item = &'a Order>,
    passed: Option<Duration>,
) -> Option<Duration> {
    let moments = orders.flat_map(|order| [Some(order.from), order.until]).flatten();
    moments.filter(|moment| passed < Some(*moment)).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn orders(texts: &[&str]) -> Vec<Order> {
        texts.iter().map(|text| text.parse().unwrap_or_else(|error| panic!("{error:#}"))).collect()
    }

    /// Goal: a node killed while a program lies with its key is silent, and the program returns once no kill lasts. A
    /// restarted node leaves its place to the program.
    #[test]
    fn who_is_killed_does_not_lie() {
        let orders = orders(&[
            "10s..60s,lie=garbage",
            "20s..40s,kill",
            "30s..50s,kill",
            "52s..55s,restart",
            "70s..80s,lie=garbage",
            "65s..75s,kill",
        ]);
        let lie = |seconds: u64| {
            let state = state(orders.iter(), Some(Duration::from_secs(seconds)));
            (state.lie, state.is_down)
        };
        assert_eq!(
            [10, 20, 30, 40].map(lie),
            [(Some("garbage"), false), (None, true), (None, true), (None, true)]
        );
        assert_eq!([50, 52].map(lie), [(Some("garbage"), false), (Some("garbage"), true)]);
        assert_eq!([70, 75].map(lie), [(None, true), (Some("garbage"), false)]);
    }

    /// Goal: overlapping orders hold a node until the last of them ends, and orders that take effect at once hold
    /// nothing.
    #[test]
    fn a_state_is_that_of_all_orders() {
        let orders = orders(&[
            "5s..,join",
            "10s..20s,kill",
            "15s..30s,wipe",
            "40s..,restart",
            "41s..,bit-flip=1",
            "41s..,export-snapshot",
            "50s..60s,pause",
            "50s..70s,slow-disk-ms=9",
            "55s..60s,slow-disk-ms=5",
            "55s..,clock-jump-ms=-3",
            "57s..60s,clock-jump-ms=-4",
            "65s..75s,full-disk",
            "80s..90s,lie=garbage",
            "80s..90s,attack=junk-transactions",
            "85s..95s,old-data",
        ]);
        let at = |seconds: u64| state(orders.iter(), Some(Duration::from_secs(seconds)));
        let down = State { is_down: true, ..State::default() };
        assert_eq!([state(orders.iter(), None), at(4), at(10), at(29)], [down; 4]);
        assert_eq!([at(5), at(30), at(40), at(41)], [State::default(); 4]);
        assert_eq!(at(50), State { is_paused: true, flush_ms: 9, ..State::default() });
        assert_eq!(at(55), State { is_paused: true, flush_ms: 9, clock_ms: -3, ..State::default() });
        assert_eq!(at(57), State { is_paused: true, flush_ms: 9, clock_ms: -7, ..State::default() });
        assert_eq!(at(60), State { flush_ms: 9, clock_ms: -3, ..State::default() });
        assert_eq!(at(74), State { is_full: true, clock_ms: -3, ..State::default() });
        assert_eq!(at(75), State { clock_ms: -3, ..State::default() });
        assert_eq!(at(94), State { keeps_data: true, clock_ms: -3, ..State::default() });
        assert_eq!(at(80), State { lie: Some("garbage"), clock_ms: -3, ..State::default() });
        let mut moments = Vec::new();
        while let Some(moment) = next(orders.iter(), moments.last().copied()) {
            moments.push(moment);
        }
        assert_eq!(
            moments.iter().map(Duration::as_secs).collect::<Vec<_>>(),
            [5, 10, 15, 20, 30, 40, 41, 50, 55, 57, 60, 65, 70, 75, 80, 85, 90, 95]
        );
        assert!(orders[0].begins_within(None, Some(Duration::from_secs(5))));
        assert!(!orders[0].begins_within(Some(Duration::from_secs(5)), Some(Duration::from_secs(9))));
    }
}
