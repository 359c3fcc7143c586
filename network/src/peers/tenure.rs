//! Chooses the strangers whose places do not rotate. Keeping only the earliest strangers would be wrong: an attacker
//! that comes before everybody else would keep all places for ever.
//!
//! ```text
//!   a quarter of all  peers that recently served this node most; a newcomer can earn a place
//!   the rest of half  peers that have been here longest, one of each block (IPv4 /16, IPv6 /32)
//! ```

use std::{cmp::Reverse, collections::BTreeSet, net::IpAddr};

use crate::PeerId;

/// 1/`TURNS_PART` of the strangers' places rotates when all are wanted.
const TURNS_PART: usize = 2;
/// 1/`SERVICE_PART` of the other places is kept for service.
const SERVICE_PART: usize = 2;
/// Least bytes of answers that earn a place; a few headers are no service.
const SERVED_MIN: f64 = (64 << 10) as f64;

/// A stranger, with the fields that this choice needs.
pub(super) struct Stranger {
    pub(super) id: PeerId,
    /// Number of the connection; numbers ascend.
    pub(super) number: u64,
    /// `None` for a connection from this machine, where blocks mean nothing.
    pub(super) block: Option<IpAddr>,
    /// Bytes of recent answers to this node.
    pub(super) served: f64,
}

/// Chooses the strangers that keep their places, when strangers use all places.
pub(super) fn kept(mut strangers: Vec<Stranger>) -> BTreeSet<PeerId> {
    let most = strangers.len() - strangers.len().div_ceil(TURNS_PART);
    strangers.sort_unstable_by(|one, other| other.served.total_cmp(&one.served));
    let serving = strangers.iter().take_while(|stranger| stranger.served >= SERVED_MIN);
    let mut kept: BTreeSet<PeerId> = serving.take(most / SERVICE_PART).map(|stranger| stranger.id).collect();
    strangers.sort_unstable_by_key(|stranger| Reverse(stranger.number));
    let mut blocks = BTreeSet::new();
    while kept.len() < most {
        let Some(oldest) = strangers.pop() else { break };
        if !kept.contains(&oldest.id) && oldest.block.is_none_or(|block| blocks.insert(block)) {
            kept.insert(oldest.id);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use slipstream_types::PublicKey;

    use super::*;

    fn stranger(n: u8, block: u8, served: f64) -> Stranger {
        Stranger { id: PublicKey([n; 32]), number: n.into(), block: Some([10, block, 0, 0].into()), served }
    }

    fn numbers(strangers: Vec<Stranger>) -> Vec<u8> {
        kept(strangers).into_iter().map(|id| id.0[0]).collect()
    }

    #[test]
    fn a_fourth_is_earned_and_the_rest_is_age_by_block() {
        let none = |n| stranger(n, n, 0.0);
        assert_eq!(numbers((0..8).map(none).collect()), [0, 1, 2, 3], "nobody has served");
        let served = |n| stranger(n, n, if n > 4 { 1e6 + f64::from(n) } else { 10.0 });
        assert_eq!(numbers((0..8).map(served).collect()), [0, 1, 6, 7]);
        let one_block = |n| stranger(n, n / 6, 0.0);
        assert_eq!(numbers((0..8).map(one_block).collect()), [0, 6], "first of their blocks");
        assert_eq!(numbers(vec![none(1)]), Vec::<u8>::new());
    }
}
