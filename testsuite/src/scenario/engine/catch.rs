//! How nodes that joined or came back caught up.

use crate::report::{CatchUp, NodeSeries, Series};

/// A node that is behind from a moment on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Behind {
    pub(super) name: String,
    /// As node.yaml writes it.
    pub(super) mode: &'static str,
    /// Milliseconds after the clock started.
    pub(super) from_ms: u64,
    /// What it showed before this moment says nothing: its process was not the one that is behind.
    pub(super) seen_ms: u64,
}

/// The curve of each node beside the highest head that any node showed by then, in the order in which they were behind.
pub(super) fn curves(behind: &[Behind], nodes: &[NodeSeries]) -> Vec<CatchUp> {
    let Some(leader) = leader(nodes) else { return Vec::new() };
    let curve =
        |Behind { name, mode, from_ms, seen_ms }: &Behind| match nodes.iter().find(|node| node.name == *name)
        {
            Some(node) => {
                let mut node = node.clone();
                node.head.points.retain(|(at_ms, _)| at_ms >= seen_ms);
                CatchUp::of(&node, mode, &leader, *from_ms)
            }
            // It could not even be started.
            None => {
                let behind = Series::new("batches");
                CatchUp { node: name.clone(), mode: (*mode).to_owned(), seconds: None, behind }
            }
        };
    behind.iter().map(curve).collect()
}

/// A node that always has the highest head of all: each single one may be down.
fn leader(nodes: &[NodeSeries]) -> Option<NodeSeries> {
    let mut leader = nodes.first()?.clone();
    let mut heads: Vec<(u64, f64)> = nodes.iter().flat_map(|node| node.head.points.iter().copied()).collect();
    heads.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let mut highest = 0.0_f64;
    for (_, head) in &mut heads {
        highest = highest.max(*head);
        *head = highest;
    }
    leader.head.points = heads;
    Some(leader)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, points: &[(u64, f64)]) -> NodeSeries {
        NodeSeries {
            name: name.to_owned(),
            role: String::new(),
            head: Series { unit: String::new(), points: points.to_vec() },
            head_age: Series::default(),
            cpu: Series::default(),
            memory: Series::default(),
            memory_peak_mib: None,
            disk: Series::default(),
            stages: Vec::new(),
            peers: Vec::new(),
            unanswered: 0,
        }
    }

    /// Goal: a node is measured against whoever is ahead, also while the first one is down, and each time that it is behind.
    #[test]
    fn the_highest_head_of_all_is_the_measure() {
        let nodes = [
            node("killed", &[(0, 10.0), (9_000, 20.0)]),
            node("ahead", &[(1_000, 50.0), (5_000, 90.0)]),
            node("late", &[(2_000, 0.0), (4_000, 50.0), (6_000, 80.0), (7_000, 90.0)]),
        ];
        let late = |from_ms| Behind { name: "late".to_owned(), mode: "auto", from_ms, seen_ms: from_ms };
        let seconds = |behind: &[Behind]| {
            curves(behind, &nodes).into_iter().map(|curve| curve.seconds).collect::<Vec<_>>()
        };
        assert_eq!(seconds(&[late(1_500), late(5_500)]), [Some(2.5), Some(1.5)]);
        // What it showed before it was started again is no catching up.
        assert_eq!(seconds(&[Behind { seen_ms: 6_500, ..late(1_500) }]), [Some(5.5)]);
        let stuck = Behind { name: "killed".to_owned(), mode: "auto", from_ms: 8_000, seen_ms: 8_000 };
        assert_eq!(seconds(&[stuck]), [None]);
        let never_started = Behind { name: "never-started".to_owned(), mode: "auto", from_ms: 0, seen_ms: 0 };
        assert_eq!(seconds(&[never_started]), [None], "it did not catch up, and must not be left out");
        assert!(curves(&[late(0)], &[]).is_empty());
    }
}
