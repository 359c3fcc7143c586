//! The curves of a phase over the scenario's time: its commits, its followers, its reads, and the heads that
//! subscriptions announce.

use crate::{
    load::{LoadSummary, Percentiles, Point, ReadPoint, ReadWay},
    report::{LoadSeries, Total},
};

/// Series by name, in the order of their creation.
struct Curves(Vec<LoadSeries>);

impl Curves {
    fn of(&mut self, name: &str) -> &mut LoadSeries {
        let place = self.0.iter().position(|series| series.name == name).unwrap_or_else(|| {
            self.0.push(LoadSeries::new(name));
            self.0.len() - 1
        });
        &mut self.0[place]
    }

    fn push(&mut self, name: &str, begin_ms: u64, points: &[Point]) {
        let series = self.of(name);
        for point in points {
            series.push(begin_ms.saturating_add(point.at_ms), point.committed_per_second, point.commit_ms);
        }
    }

    fn push_answers(&mut self, name: &str, begin_ms: u64, points: &[ReadPoint]) {
        let series = self.of(name);
        for point in points {
            series.push(begin_ms.saturating_add(point.at_ms), point.answered_per_second, point.read_ms);
        }
    }
}

/// Returns the curves of a phase's loads, each with the due time of its first transaction, in ms since the clock
/// started. `total` is that of the commits. Totals of followers and reads come from `whole`: the load, or a search's
/// step at the found rate.
pub(super) fn curves(
    phase: &str,
    runs: &[(u64, &LoadSummary)],
    (total, whole): (Total, Option<&LoadSummary>),
) -> Vec<LoadSeries> {
    let mut curves = Curves(Vec::new());
    let (commit, follow) = (format!("commit {phase}"), |node: &str| format!("follow {phase} at {node}"));
    curves.of(&commit).total = Some(total);
    for (begin_ms, run) in runs {
        curves.push(&commit, *begin_ms, &run.points);
        for (node, points) in &run.follow_points {
            curves.push(&follow(node), *begin_ms, points);
        }
        for reads in &run.reads {
            curves.push_answers(&read(phase, &reads.node, reads.way), *begin_ms, &reads.points);
        }
        for news in &run.news {
            curves.push_answers(&told(phase, &news.node), *begin_ms, &news.points);
        }
    }
    let Some(whole) = whole else { return curves.0 };
    for (node, per_second) in &whole.follow_per_second {
        let per_second = *per_second;
        let latency_ms = whole.follow_ms.get(node).copied().flatten();
        curves.of(&follow(node)).total = Some(Total { per_second, latency_ms });
    }
    let answers = |latency_ms: Option<Percentiles>, failed: u64| {
        let due = latency_ms.map_or(0, |all| all.count);
        Some(Total { per_second: due.saturating_sub(failed) as f64 / whole.duration_seconds, latency_ms })
    };
    for reads in &whole.reads {
        let name = read(phase, &reads.node, reads.way);
        curves.of(&name).total = answers(reads.read_ms, reads.failed);
    }
    for news in &whole.news {
        curves.of(&told(phase, &news.node)).total = answers(news.news_ms, news.missed);
    }
    curves.0
}

fn told(phase: &str, node: &str) -> String {
    format!("newHeads {phase} at {node} by WebSocket")
}

fn read(phase: &str, node: &str, way: ReadWay) -> String {
    let way = match way {
        ReadWay::Http => "HTTP",
        ReadWay::WebSocket => "WebSocket",
    };
    format!("read {phase} at {node} by {way}")
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::load::{Audit, HeadNews, Reads};

    pub(in crate::scenario::engine) fn latency(p50: f64) -> Percentiles {
        Percentiles { count: 1, p50, p90: p50 + 1.0, p95: p50 + 2.0, p99: p50 + 3.0, max: p50 + 4.0 }
    }

    fn point(at_ms: u64, per_second: f64, p50: Option<f64>) -> Point {
        Point { at_ms, due_per_second: 1.0, committed_per_second: per_second, commit_ms: p50.map(latency) }
    }

    /// Returns a load of two seconds at one node, with one follower.
    pub(in crate::scenario::engine) fn summary(follower: &str) -> LoadSummary {
        let reads = Reads {
            node: "near".to_owned(),
            way: ReadWay::WebSocket,
            read_ms: Some(Percentiles { count: 8, ..latency(3.0) }),
            failed: 1,
            points: vec![
                ReadPoint {
                    at_ms: 1_000,
                    due_per_second: 8.0,
                    answered_per_second: 7.0,
                    read_ms: Some(latency(4.0)),
                },
                ReadPoint { at_ms: 2_000, due_per_second: 0.0, answered_per_second: 0.0, read_ms: None },
            ],
        };
        let news = HeadNews {
            node: "near".to_owned(),
            news_ms: Some(Percentiles { count: 10, ..latency(2.0) }),
            missed: 2,
            points: vec![ReadPoint {
                at_ms: 1_000,
                due_per_second: 10.0,
                answered_per_second: 8.0,
                read_ms: Some(latency(3.0)),
            }],
        };
        let follow = vec![point(1_000, 0.0, Some(60.0)), point(2_000, 5.0, None)];
        LoadSummary {
            workload: "transfers".to_owned(),
            rate: "2 tx/s".to_owned(),
            commits_from: "near".to_owned(),
            prepared_ms: 0,
            duration_seconds: 2.0,
            offered: 4,
            offered_per_second: 2.0,
            achieved_per_second: 2.0,
            capacity_per_second: 100.0,
            generators: 1,
            limited_by: None,
            sent: 4,
            sent_per_second: 2.0,
            accepted: 4,
            given_up: 0,
            refused: BTreeMap::new(),
            plugged: 0,
            resent: 0,
            displaced: 0,
            committed: 4,
            committed_in_time: 4,
            followed: Some(4),
            backlog: 0,
            batches: 2,
            head: 9,
            commit_ms: Some(latency(30.0)),
            follow_ms: BTreeMap::from([(follower.to_owned(), Some(latency(50.0)))]),
            follow_per_second: BTreeMap::from([(follower.to_owned(), 1.9)]),
            resolution_ms: 5.0,
            reads: vec![reads],
            news: vec![news],
            generator_late_ms: None,
            generator_blocked_ms: None,
            points: vec![point(1_000, 2.0, Some(20.0)), point(2_000, 3.0, None)],
            follow_points: BTreeMap::from([(follower.to_owned(), follow)]),
            audit: Audit::default(),
            begin: None,
        }
    }

    /// Goal: commits, followers and reads are curves over the scenario's time, with gaps in the latency where nothing
    /// was due.
    #[test]
    fn a_phase_has_curves_of_all_that_it_measures() {
        let run = summary("near");
        let total = Total { per_second: 2.0, latency_ms: run.commit_ms };
        let found = curves("main", &[(10_000, &run)], (total, Some(&run)));
        let [commit, follow, read, told] = &found[..] else { panic!("{found:?}") };
        let names = [commit, follow, read, told].map(|series| series.name.as_str());
        let reads = ["read main at near by WebSocket", "newHeads main at near by WebSocket"];
        assert_eq!(names, ["commit main", "follow main at near", reads[0], reads[1]]);
        assert_eq!(commit.per_second.points, [(11_000, 2.0), (12_000, 3.0)]);
        assert_eq!(
            (&commit.p50.points[..], &commit.p99.points[..]),
            (&[(11_000, 20.0)][..], &[(11_000, 23.0)][..])
        );
        assert_eq!(follow.per_second.points, [(11_000, 0.0), (12_000, 5.0)]);
        assert_eq!(follow.p90.points, [(11_000, 61.0)]);
        assert_eq!(
            (&read.per_second.points[..], &read.p50.points[..]),
            (&[(11_000, 7.0), (12_000, 0.0)][..], &[(11_000, 4.0)][..])
        );
        assert_eq!(commit.total, Some(total));
        assert_eq!(follow.total, Some(Total { per_second: 1.9, latency_ms: Some(latency(50.0)) }));
        // Seven of eight were answered in two seconds; the other one is among the latencies.
        let latency_ms = run.reads[0].read_ms;
        assert_eq!(read.total, Some(Total { per_second: 3.5, latency_ms }));
        // Eight of ten heads were announced.
        assert_eq!(
            (&told.per_second.points[..], &told.p50.points[..]),
            (&[(11_000, 8.0)][..], &[(11_000, 3.0)][..])
        );
        assert_eq!(told.total, Some(Total { per_second: 4.0, latency_ms: run.news[0].news_ms }));
    }

    /// Goal: the steps of a search follow each other in one curve, whose total is that of the step at the found rate.
    #[test]
    fn a_search_has_one_curve_of_all_steps() {
        let (first, second) = (summary("near"), summary("near"));
        let total = Total { per_second: 0.0, latency_ms: None };
        let runs = [(0, &first), (5_000, &second)];
        let found = curves("search", &runs, (total, None));
        assert_eq!(found.len(), 4);
        let times =
            |series: &LoadSeries| series.per_second.points.iter().map(|(at, _)| *at).collect::<Vec<_>>();
        let (told, others) = found.split_last().unwrap();
        assert!(others.iter().all(|series| times(series) == [1_000, 2_000, 6_000, 7_000]));
        assert_eq!(times(told), [1_000, 6_000]);
        assert_eq!(
            found.iter().map(|series| series.total).collect::<Vec<_>>(),
            [Some(total), None, None, None]
        );
    }

    /// Goal: each follower has its own curve and total.
    #[test]
    fn each_follower_has_a_curve() {
        let mut run = summary("near");
        run.follow_points.insert("far".to_owned(), vec![point(1_000, 4.0, Some(80.0))]);
        run.follow_per_second.insert("far".to_owned(), 1.5);
        run.follow_ms.insert("far".to_owned(), Some(latency(70.0)));
        let total = Total { per_second: 2.0, latency_ms: run.commit_ms };
        let found = curves("main", &[(0, &run)], (total, Some(&run)));
        let far = found.iter().find(|series| series.name == "follow main at far").unwrap();
        assert_eq!(far.total, Some(Total { per_second: 1.5, latency_ms: Some(latency(70.0)) }));
        assert_eq!((&far.per_second.points[..], found.len()), (&[(1_000, 4.0)][..], 5));
    }
}
