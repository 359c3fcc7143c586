//! [`Explorer`]: which requests go to a little-known peer, and which of equal peers comes first.

use slipstream_network::PeerId;
use slipstream_types::Digest;

/// One in this many requests explores.
pub(super) const ONE_IN: u64 = 16;

/// Draws, from its seed, which one of every [`ONE_IN`] requests explores, so that peers cannot know which requests test
/// them. The seed is the node's secret, and no draw reveals another.
#[derive(Debug)]
pub(super) struct Explorer {
    seed: u64,
    requests: u64,
}

impl Explorer {
    pub(super) fn new(seed: u64) -> Explorer {
        Explorer { seed, requests: 0 }
    }

    /// Counts a request. Returns the draw that picks the peer, if the request explores.
    pub(super) fn turn(&mut self) -> Option<usize> {
        let (window, place) = (self.requests / ONE_IN, self.requests % ONE_IN);
        self.requests += 1;
        let draw = self.draw("slipstream/explore/1", &window.to_le_bytes());
        (draw % ONE_IN == place).then_some((draw / ONE_IN) as usize)
    }

    /// The rank of a peer among its equals.
    pub(super) fn rank(&self, peer: &PeerId) -> u64 {
        self.draw("slipstream/place/1", &peer.0)
    }

    fn draw(&self, tag: &str, of: &[u8]) -> u64 {
        let digest = Digest::tagged(tag, &[&self.seed.to_le_bytes(), of].concat()).0;
        u64::from_le_bytes(*digest.first_chunk().expect("a digest is longer"))
    }
}

#[cfg(test)]
mod tests {
    use slipstream_types::PublicKey;

    use super::*;

    /// Goal: a key that ranks first under one secret is one of many under the next, so grinding for such a key gains
    /// nothing.
    #[test]
    fn a_place_is_worth_nothing_under_another_secret() {
        let keys: Vec<_> = (0..=255).map(|id| PublicKey([id; 32])).collect();
        let first = |seed: u64| {
            let explorer = Explorer::new(seed);
            keys.iter().min_by_key(|key| explorer.rank(key)).map(|key| key.0[0])
        };
        let firsts: std::collections::BTreeSet<_> = (0..100).map(first).collect();
        assert!(firsts.len() > 50, "{firsts:?}");
        assert_eq!(first(1), first(1));
    }
}
