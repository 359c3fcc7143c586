//! [`Region`]: the assumed place of a node, with the round trips between places.

use std::{fmt::Write as _, time::Duration};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::Shape;

/// The source of the round trips.
pub const SOURCE: &str = "medians between AWS regions by cloudping.co, as commonware's examples/estimator/src/p50.json \
                          has them (commit 4622dfb1), rounded to milliseconds";

/// The round trip within a region. Assumed: the source has 3 to 6 ms, which include its measuring overhead.
const WITHIN_MS: u64 = 2;
/// The delay divided by the jitter. Assumed: the source has only medians.
const JITTER_DIVISOR: u32 = 50;

/// A region of the world. Its latencies are those of one data centre in it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Region {
    /// Frankfurt (eu-central-1).
    Eu,
    /// Virginia (us-east-1).
    Us,
    /// Oregon (us-west-2).
    Usw,
    /// Singapore (ap-southeast-1).
    Ap,
    /// Tokyo (ap-northeast-1).
    Jp,
    /// Sydney (ap-southeast-2).
    Au,
    /// São Paulo (sa-east-1).
    Sa,
}

/// Round trips in milliseconds: a row for each region, up to the region before it.
const ROUND_TRIPS_MS: [&[u64]; 7] = [
    &[],
    &[93],
    &[142, 64],
    &[160, 220, 160],
    &[227, 150, 98, 71],
    &[251, 200, 141, 95, 106],
    &[204, 115, 175, 328, 258, 312],
];

impl Region {
    /// The region's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Region::Eu => "eu",
            Region::Us => "us",
            Region::Usw => "usw",
            Region::Ap => "ap",
            Region::Jp => "jp",
            Region::Au => "au",
            Region::Sa => "sa",
        }
    }

    /// Returns the round trip between two regions.
    pub fn round_trip(self, other: Region) -> Duration {
        let (low, high) = (self.min(other) as usize, self.max(other) as usize);
        Duration::from_millis(if low == high { WITHIN_MS } else { ROUND_TRIPS_MS[high][low] })
    }

    /// Returns the link between two regions: half of the round trip each way, with a fiftieth of that half as jitter.
    pub fn link(self, other: Region) -> Shape {
        let plain = Shape::round_trip(self.round_trip(other));
        Shape { jitter: plain.delay / JITTER_DIVISOR, ..plain }
    }

    /// Returns the region of the node with this index, if a devnet's nodes are assigned to these regions in turn.
    pub fn of_node(regions: &[Region], index: usize) -> Option<Region> {
        (!regions.is_empty()).then(|| regions[index % regions.len()])
    }
}

/// Formats the round trips between these regions as a table.
pub fn table(regions: &[Region]) -> String {
    let mut names = regions.to_vec();
    names.sort_unstable();
    names.dedup();
    let mut text = String::from("round trips, ms");
    for to in &names {
        write!(text, "{:>6}", to.name()).expect("a String takes everything");
    }
    for from in &names {
        write!(text, "\n  {:<13}", from.name()).expect("a String takes everything");
        for to in &names {
            let ms = from.round_trip(*to).as_millis();
            write!(text, "{ms:>6}").expect("a String takes everything");
        }
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns latitude and longitude in degrees.
    fn place(region: Region) -> (f64, f64) {
        match region {
            Region::Eu => (50.1, 8.7),
            Region::Us => (39.0, -77.5),
            Region::Usw => (45.8, -119.7),
            Region::Ap => (1.3, 103.8),
            Region::Jp => (35.7, 139.7),
            Region::Au => (-33.9, 151.2),
            Region::Sa => (-23.5, -46.6),
        }
    }

    /// Returns the distance on the ground in kilometres.
    fn distance(a: Region, b: Region) -> f64 {
        let [(la, na), (lb, nb)] =
            [place(a), place(b)].map(|(lat, lon)| (lat.to_radians(), lon.to_radians()));
        let half = ((lb - la) / 2.0).sin().powi(2) + la.cos() * lb.cos() * ((nb - na) / 2.0).sin().powi(2);
        2.0 * 6_371.0 * half.sqrt().asin()
    }

    /// Goal: the figures have no typos. Light in fibre takes 1 ms for a round trip of 100 km, and cables are at most
    /// three times as long.
    #[test]
    fn round_trips_are_those_of_the_globe() {
        for from in Region::value_variants() {
            for to in Region::value_variants() {
                assert_eq!(from.round_trip(*to), to.round_trip(*from));
                if from == to {
                    continue;
                }
                let floor = distance(*from, *to) / 100.0;
                let ms = from.round_trip(*to).as_secs_f64() * 1_000.0;
                assert!((floor..floor * 3.0).contains(&ms), "{from:?} to {to:?}: {ms} ms, light {floor} ms");
            }
        }
    }

    /// Goal: the documented table is the one that relays use.
    #[test]
    fn the_documentation_has_these_round_trips() {
        let text = include_str!("../../../docs/devnets.md");
        for from in Region::value_variants() {
            let cells: Vec<_> = Region::value_variants()
                .iter()
                .map(|to| from.round_trip(*to).as_millis().to_string())
                .collect();
            let row = format!(" | {} |", cells.join(" | "));
            let is_there =
                |line: &str| line.starts_with(&format!("| **{}** ", from.name())) && line.ends_with(&row);
            assert!(
                text.lines().any(is_there),
                "docs/devnets.md lacks the row of {} that ends with{row}",
                from.name()
            );
        }
    }

    #[test]
    fn nodes_are_spread_in_turn_and_the_table_says_how_far() {
        let regions = [Region::Eu, Region::Us, Region::Ap];
        assert_eq!(Region::of_node(&regions, 4), Some(Region::Us));
        assert_eq!(Region::of_node(&[], 4), None);
        let text = table(&[Region::Us, Region::Eu, Region::Us]);
        assert_eq!(
            text,
            "round trips, ms    eu    us\n  eu                2    93\n  us               93     2\n"
        );
        assert_eq!(Region::Eu.link(Region::Us).delay, Duration::from_micros(46_500));
    }
}
