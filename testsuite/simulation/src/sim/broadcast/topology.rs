//! [`Topology`]: the positions of nodes, and their connections.

use std::{collections::BTreeSet, time::Duration};

use rand::{Rng, SeedableRng, rngs::StdRng};

use super::scenario::Scenario;

/// The one-way latencies between neighbours and between antipodes.
const LATENCY_MS: (f64, f64) = (10.0, 150.0);

/// The nodes and their links.
pub(super) struct Topology {
    /// Coordinates in the unit square.
    places: Vec<(f64, f64)>,
    /// The links by node, validators first.
    pub(super) links: Vec<BTreeSet<usize>>,
}

impl Topology {
    /// Connects each node to some others drawn at random, and all validators to each other.
    pub(super) fn draw(scenario: &Scenario) -> Topology {
        let mut rng = StdRng::seed_from_u64(scenario.seed);
        let count = scenario.nodes;
        let places = (0..count).map(|_| (rng.random(), rng.random())).collect();
        let mut links = vec![BTreeSet::new(); count];
        for node in 0..count {
            let others = rand::seq::index::sample(&mut rng, count, scenario.outbound.min(count));
            let validators = 0..if node < scenario.validators { scenario.validators } else { 0 };
            for other in others.into_iter().chain(validators).filter(|other| *other != node) {
                links[node].insert(other);
                links[other].insert(node);
            }
        }
        Topology { places, links }
    }

    /// Returns the one-way latency between two nodes.
    pub(super) fn latency(&self, a: usize, b: usize) -> Duration {
        let ((ax, ay), (bx, by)) = (self.places[a], self.places[b]);
        let distance = (ax - bx).hypot(ay - by) / std::f64::consts::SQRT_2;
        Duration::from_secs_f64((LATENCY_MS.0 + (LATENCY_MS.1 - LATENCY_MS.0) * distance) / 1e3)
    }
}
