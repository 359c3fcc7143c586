//! A payload among 10,000 nodes, round by round, as the paper on network coding counts it: hops until 99 % have it, and
//! the waste.
//!
//! The model comes from ethresear.ch, "Faster block/blob propagation in Ethereum", section on simulations. Every node
//! may send to `degree` others, drawn at random. A message arrives at the end of the round in which it was sent. Whole
//! payloads go to all of them. A coded payload goes as one chunk to each, once, in the round after a node gets its
//! first chunk. A message that its receiver cannot use is waste.

use rand::{Rng, SeedableRng, rngs::StdRng};

/// Pieces of a coded payload.
const PIECES: usize = 10;
/// The modulus of the coefficients: a Mersenne prime, large enough that combinations are never dependent by chance.
const PRIME: u64 = (1 << 61) - 1;
/// The number of rounds after which a run ends.
const ROUNDS_MAX: usize = 64;

/// The result of a run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Spread {
    /// Rounds until 99 % of the nodes have the payload.
    pub(super) hops: usize,
    /// The payloads wasted until then.
    pub(super) wasted: f64,
    /// The share of the nodes that have it at the end.
    pub(super) reached: f64,
}

/// How often a node sends its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sends {
    /// In the round after it got the payload.
    Once,
    /// In every round after it got the payload, as in the paper's baseline.
    EveryRound,
}

/// Draws the nodes to which each node may send.
fn links(nodes: usize, degree: usize, rng: &mut StdRng) -> Vec<Vec<u32>> {
    let of = |node: usize, rng: &mut StdRng| {
        // Drawn from one fewer, with a shift by one from the node itself on.
        let others = rand::seq::index::sample(rng, nodes - 1, degree);
        others.into_iter().map(|other| (other + usize::from(other >= node)) as u32).collect()
    };
    (0..nodes).map(|node| of(node, rng)).collect()
}

fn is_enough(have: usize, nodes: usize) -> bool {
    have * 100 >= nodes * 99
}

/// Spreads the payload as a whole.
pub(super) fn gossip(nodes: usize, degree: usize, sends: Sends, seed: u64) -> Spread {
    let links = links(nodes, degree, &mut StdRng::seed_from_u64(seed));
    let mut has = vec![false; nodes];
    has[0] = true;
    let (mut count, mut wasted, mut hops) = (1, 0_u64, 0);
    let mut senders = vec![0];
    while !is_enough(count, nodes) && !senders.is_empty() && hops < ROUNDS_MAX {
        hops += 1;
        let mut fresh = Vec::new();
        for to in senders.iter().flat_map(|node: &u32| &links[*node as usize]) {
            match std::mem::replace(&mut has[*to as usize], true) {
                true => wasted += 1,
                false => fresh.push(*to),
            }
        }
        count += fresh.len();
        match sends {
            Sends::Once => senders = fresh,
            Sends::EveryRound => senders.extend(fresh),
        }
    }
    Spread { hops, wasted: wasted as f64, reached: count as f64 / nodes as f64 }
}

/// The coefficients of a combination.
type Vector = [u64; PIECES];

/// A node's combinations, each with a pivot at which the later ones are zero.
#[derive(Clone, Default)]
struct Space(Vec<(usize, Vector)>);

fn times(a: u64, b: u64) -> u64 {
    (u128::from(a) * u128::from(b) % u128::from(PRIME)) as u64
}

/// Returns the inverse, by Fermat's little theorem.
fn inverse(a: u64) -> u64 {
    let (mut power, mut square, mut exponent) = (1, a, PRIME - 2);
    while exponent > 0 {
        if exponent & 1 == 1 {
            power = times(power, square);
        }
        square = times(square, square);
        exponent >>= 1;
    }
    power
}

/// Adds `factor` times `vector`.
fn add(to: &mut Vector, vector: &Vector, factor: u64) {
    for (to, value) in to.iter_mut().zip(vector) {
        *to = (*to + times(factor, *value)) % PRIME;
    }
}

impl Space {
    /// Returns the space of the whole payload.
    fn whole() -> Space {
        let unit = |at| (at, std::array::from_fn(|other| u64::from(other == at)));
        Space((0..PIECES).map(unit).collect())
    }

    fn is_whole(&self) -> bool {
        self.0.len() == PIECES
    }

    /// Inserts a combination. Returns false if it adds nothing.
    fn insert(&mut self, mut vector: Vector) -> bool {
        for (pivot, row) in &self.0 {
            let factor = (PRIME - vector[*pivot]) % PRIME;
            add(&mut vector, row, factor);
        }
        let Some(pivot) = vector.iter().position(|value| *value != 0) else { return false };
        let scale = inverse(vector[pivot]);
        vector.iter_mut().for_each(|value| *value = times(*value, scale));
        self.0.push((pivot, vector));
        true
    }

    /// Returns a random combination of the node's own ones.
    fn combine(&self, rng: &mut StdRng) -> Vector {
        let mut vector = [0; PIECES];
        for (_, row) in &self.0 {
            add(&mut vector, row, rng.random_range(1..PRIME));
        }
        vector
    }
}

/// Spreads the payload as combinations of its pieces.
pub(super) fn coded(nodes: usize, degree: usize, seed: u64) -> Spread {
    let mut rng = StdRng::seed_from_u64(seed);
    let links = links(nodes, degree, &mut rng);
    let mut spaces = vec![Space::default(); nodes];
    spaces[0] = Space::whole();
    let (mut count, mut wasted, mut hops) = (1, 0_u64, 0);
    let mut senders = vec![0_u32];
    while !is_enough(count, nodes) && !senders.is_empty() && hops < ROUNDS_MAX {
        hops += 1;
        let mut chunks = Vec::new();
        for node in &senders {
            let space = &spaces[*node as usize];
            chunks.extend(links[*node as usize].iter().map(|to| (*to, space.combine(&mut rng))));
        }
        senders.clear();
        for (to, chunk) in chunks {
            let space = &mut spaces[to as usize];
            if space.is_whole() || !space.insert(chunk) {
                wasted += 1;
                continue;
            }
            if space.0.len() == 1 {
                senders.push(to);
            }
            count += usize::from(space.is_whole());
        }
    }
    Spread { hops, wasted: wasted as f64 / PIECES as f64, reached: count as f64 / nodes as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every node gets the payload, in fewer hops if each sends to more. If each node sends once, all but one of
    /// the payloads that a node receives are wasted.
    #[test]
    fn whole_payloads_reach_everybody() {
        let narrow = gossip(1_000, 6, Sends::Once, 1);
        let wide = gossip(1_000, 20, Sends::Once, 1);
        assert!(narrow.reached >= 0.99 && wide.reached >= 0.99, "{narrow:?}, {wide:?}");
        assert!(wide.hops < narrow.hops, "{narrow:?}, {wide:?}");
        assert!(narrow.wasted <= 5_000.0 && narrow.wasted >= 3_000.0, "{narrow:?}");
        let again = gossip(1_000, 6, Sends::EveryRound, 1);
        assert!(again.wasted > narrow.wasted && again.hops <= narrow.hops, "{narrow:?}, {again:?}");
    }

    /// Goal: chunks that every node recodes are useful until the receiver has enough. A mesh with four times as many
    /// links as pieces suffices.
    #[test]
    fn coded_payloads_reach_everybody_sooner() {
        let (whole, coded) = (gossip(1_000, 8, Sends::Once, 2), coded(1_000, 40, 2));
        assert!(coded.reached >= 0.99 && coded.hops < whole.hops, "{coded:?}, {whole:?}");
        assert!(coded.wasted < whole.wasted, "{coded:?}, {whole:?}");
    }

    /// Goal: a combination of the present ones adds nothing, and an independent one does.
    #[test]
    fn dependent_combinations_add_nothing() {
        let mut rng = StdRng::seed_from_u64(3);
        let (source, mut space) = (Space::whole(), Space::default());
        while !space.is_whole() {
            assert!(space.insert(source.combine(&mut rng)));
            let dependent = space.combine(&mut rng);
            assert!(!space.insert(dependent));
        }
    }

    /// Goal: the same seed gives the same run.
    #[test]
    fn a_seed_is_one_run() {
        assert_eq!(coded(500, 40, 7), coded(500, 40, 7));
    }
}
