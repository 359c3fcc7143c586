//! The catch-up of a node that was behind, computed from the heads of two nodes.

use super::{CatchUp, NodeSeries, Series};

/// A node counts as at the head if it is at most this far behind: the two heads are not read at the same moment.
const AT_HEAD_BATCHES: f64 = 2.0;

impl CatchUp {
    /// Makes the curve of a node that was behind from `from_ms` on, relative to a node at the head. It ends where the
    /// heads first meet.
    pub fn of(node: &NodeSeries, mode: &str, leader: &NodeSeries, from_ms: u64) -> CatchUp {
        let mut behind = Series::new("batches");
        let mut seconds = None;
        for &(at_ms, head) in node.head.points.iter().filter(|(at_ms, _)| *at_ms >= from_ms) {
            let later = leader.head.points.partition_point(|(at, _)| *at <= at_ms);
            let Some((_, target)) = later.checked_sub(1).map(|last| leader.head.points[last]) else {
                continue;
            };
            let left = (target - head).max(0.0);
            behind.push(at_ms, left);
            if left <= AT_HEAD_BATCHES {
                seconds = Some((at_ms - from_ms) as f64 / 1_000.0);
                break;
            }
        }
        CatchUp { node: node.name.clone(), mode: mode.to_owned(), seconds, behind }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::run::tests::report;

    fn node(name: &str, points: &[(u64, f64)]) -> NodeSeries {
        let mut node = report().nodes.remove(0);
        node.name = name.into();
        node.head.points = points.to_vec();
        node
    }

    /// Goal: the time counts from when the node began to be behind, and the curve ends at the head.
    #[test]
    fn a_curve_ends_at_the_head() {
        let leader = node("leader", &[(0, 100.0), (1_000, 110.0), (2_000, 120.0), (3_000, 130.0)]);
        let late = node("late", &[(500, 0.0), (1_500, 0.0), (2_500, 119.0), (3_500, 130.0)]);
        let curve = CatchUp::of(&late, "delta", &leader, 1_000);
        assert_eq!(curve.behind.points, [(1_500, 110.0), (2_500, 1.0)]);
        assert_eq!(curve.seconds, Some(1.5));
        let stuck = node("stuck", &[(1_500, 5.0), (3_500, 6.0)]);
        assert_eq!(CatchUp::of(&stuck, "replay", &leader, 0).seconds, None);
        assert!(CatchUp::of(&stuck, "replay", &node("none", &[]), 0).behind.points.is_empty());
    }
}
