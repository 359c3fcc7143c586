//! The test that distinguishes a regression from noise.
//!
//! Mann and Whitney's U in its exact form. The ranks of all samples are assigned to the two sides in every possible
//! way. p is the share of ways in which the second side is larger by at least as much as observed. Nothing is assumed
//! about the shape of the noise, which has long tails here. Equal values share their mean rank, and the ways are
//! counted over these ranks (Lehmann's conditional form). With several measures in one comparison, Holm's step-down
//! procedure is used, so that more measures do not find more by chance.
//!
//! Sources:
//! * H. B. Mann, D. R. Whitney: On a Test of Whether one of Two Random Variables is Stochastically Larger than the Other. Annals of
//!   Mathematical Statistics 18 (1947), 50-60.
//! * E. L. Lehmann: Nonparametrics: Statistical Methods Based on Ranks. Holden-Day 1975, chapter 1, section 4 (ties).
//! * S. Holm: A Simple Sequentially Rejective Multiple Test Procedure. Scandinavian Journal of Statistics 6 (1979), 65-70.

/// The most samples of one side. No benchmark of this project has more, and the exact count would take seconds.
pub const SAMPLES_MAX: usize = 32;

/// Returns the probability, if both sides are the same, that the ranks of `large` are at least as high as observed.
///
/// Each side has 1 to [`SAMPLES_MAX`] samples.
pub(super) fn p_larger(large: &[f64], small: &[f64]) -> f64 {
    assert!((1..=SAMPLES_MAX).contains(&large.len()) && (1..=SAMPLES_MAX).contains(&small.len()));
    let ranks = doubled_ranks(large, small);
    let found: usize = ranks[..large.len()].iter().sum();
    let ways = ways(&ranks, large.len());
    let all: f64 = ways.iter().sum();
    ways[found..].iter().sum::<f64>() / all
}

/// Returns the smallest p that sides of these sizes can show: one over the number of ways to choose the first side.
pub(super) fn p_min(large: usize, small: usize) -> f64 {
    // Each intermediate product is a whole number, so that 3 and 3 samples give exactly 0.05.
    1.0 / (1..=large).fold(1.0, |ways, step| ways * (small + step) as f64 / step as f64)
}

/// Returns twice the rank of each sample among all, the first side's first. Equal samples share the mean of their
/// ranks, twice which is a whole number.
fn doubled_ranks(first: &[f64], second: &[f64]) -> Vec<usize> {
    let all: Vec<f64> = first.iter().chain(second).copied().collect();
    let rank = |value: f64| {
        let below = all.iter().filter(|other| **other < value).count();
        let equal = all.iter().filter(|other| **other == value).count();
        2 * below + equal + 1
    };
    all.iter().map(|value| rank(*value)).collect()
}

/// Returns the number of ways to choose `chosen` ranks, by their sum. Counts of 64 over 32 fit a float with an error of
/// 1e-16.
fn ways(ranks: &[usize], chosen: usize) -> Vec<f64> {
    let sum_max: usize = ranks.iter().sum();
    let mut ways = vec![vec![0.0; sum_max + 1]; chosen + 1];
    ways[0][0] = 1.0;
    for &rank in ranks {
        for count in (0..chosen).rev() {
            let (lower, upper) = ways.split_at_mut(count + 1);
            for (sum, ways) in lower[count][..=sum_max - rank].iter().enumerate() {
                upper[0][sum + rank] += ways;
            }
        }
    }
    ways.swap_remove(chosen)
}

/// Returns which of these are jointly below alpha, by Holm's procedure.
pub(super) fn below(alpha: f64, ps: &[f64]) -> Vec<bool> {
    let mut order: Vec<usize> = (0..ps.len()).collect();
    order.sort_by(|one, other| ps[*one].total_cmp(&ps[*other]));
    let mut found = vec![false; ps.len()];
    for (step, index) in order.into_iter().enumerate() {
        if ps[index] > alpha / (ps.len() - step) as f64 {
            break;
        }
        found[index] = true;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: f64, wanted: f64) {
        assert!((found - wanted).abs() < 1e-12, "{found} is not {wanted}");
    }

    /// Goal: the values are those of Mann and Whitney's table I for n = 3, m = 3: U = 0 is 0.05, U = 1 is 0.1, U = 2 is
    /// 0.2.
    #[test]
    fn p_is_that_of_the_published_table() {
        close(p_larger(&[4.0, 5.0, 6.0], &[1.0, 2.0, 3.0]), 0.05);
        close(p_larger(&[3.0, 5.0, 6.0], &[1.0, 2.0, 4.0]), 0.1);
        close(p_larger(&[2.0, 5.0, 6.0], &[1.0, 3.0, 4.0]), 0.2);
        close(p_larger(&[1.0, 2.0, 3.0], &[4.0, 5.0, 6.0]), 1.0);
        close(p_min(3, 3), 0.05);
        close(p_min(5, 5), 1.0 / 252.0);
    }

    /// Goal: p is the share of all ways, counted here one by one, with ties and sides of different sizes.
    #[test]
    fn p_is_the_share_of_all_ways() {
        let large = [2.0, 5.0, 5.0, 1.0];
        let small = [2.0, 1.0, 5.0, 0.5, 2.0];
        let ranks = doubled_ranks(&large, &small);
        let found: usize = ranks[..4].iter().sum();
        let sums = (0_u32..1 << 9).filter(|ways| ways.count_ones() == 4).map(|ways| {
            (0..9).filter(|index| (ways >> index) & 1 == 1).map(|index| ranks[index]).sum::<usize>()
        });
        let sums: Vec<usize> = sums.collect();
        assert_eq!(sums.len(), 126);
        let share = sums.iter().filter(|sum| **sum >= found).count() as f64 / 126.0;
        close(p_larger(&large, &small), share);
        close(p_larger(&[1.0; 4], &[1.0; 4]), 1.0);
    }

    /// Goal: the largest case is exact and fast.
    #[test]
    fn the_largest_case_is_counted() {
        let large: Vec<f64> = (0..32).map(|value| f64::from(value) + 100.0).collect();
        let small: Vec<f64> = (0..32).map(f64::from).collect();
        let (found, wanted) = (p_larger(&large, &small), p_min(32, 32));
        assert!((found / wanted - 1.0).abs() < 1e-9, "{found} is not {wanted}");
    }

    #[test]
    fn holm_stops_at_the_first_that_is_not_below() {
        assert_eq!(below(0.05, &[0.04, 0.01, 0.03]), [false, true, false]);
        assert_eq!(below(0.05, &[0.02, 0.01, 0.04]), [true, true, true]);
        assert!(below(0.05, &[]).is_empty());
    }
}
