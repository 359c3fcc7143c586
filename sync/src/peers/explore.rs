//! [`Explorer`]: which requests go to a peer that is not known well.

/// One request of so many explores.
pub(super) const ONE_IN: u64 = 16;

/// Draws, from its seed, one place in every [`ONE_IN`] requests, so that peers cannot know which requests test them.
#[derive(Debug)]
pub(super) struct Explorer {
    seed: u64,
    requests: u64,
}

impl Explorer {
    pub(super) fn new(seed: u64) -> Explorer {
        Explorer { seed, requests: 0 }
    }

    /// Counts a request. If it is to explore: the draw that picks the peer.
    pub(super) fn turn(&mut self) -> Option<usize> {
        let (window, place) = (self.requests / ONE_IN, self.requests % ONE_IN);
        self.requests += 1;
        let draw = self.mix(window);
        (draw % ONE_IN == place).then_some((draw / ONE_IN) as usize)
    }

    /// A fixed random number for a value; SplitMix64.
    pub(super) fn mix(&self, value: u64) -> u64 {
        let mut mixed = self.seed.wrapping_add(value.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
