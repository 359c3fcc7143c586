//! Coefficients of chunks: which chunk adds information, and how pieces follow from chunks.

use super::scalar::Factor;

/// How a row relates to those of an echelon form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Rank {
    /// The row is a combination of the first rows, as many as the caller named.
    Dependent,
    /// The row is a combination of all rows, but not of the first rows alone.
    DependentOnAll,
    /// The row is independent. This is its rest after the rows are subtracted.
    Independent(Vec<Factor>),
}

/// Independent rows: each has a 1 at its own pivot, and a 0 at the pivot of each earlier row.
#[derive(Debug, Default)]
pub(super) struct Echelon {
    rows: Vec<(usize, Vec<Factor>)>,
}

impl Echelon {
    /// Number of rows.
    pub(super) fn rank(&self) -> usize {
        self.rows.len()
    }

    /// Relates a row to the first `first` rows, and to all. Each row of the form costs as many multiplications as `row`
    /// has coefficients.
    pub(super) fn reduce(&self, mut row: Vec<Factor>, first: usize) -> Rank {
        for (index, (pivot, earlier)) in self.rows.iter().enumerate() {
            if index == first && row.iter().all(Factor::is_zero) {
                return Rank::Dependent;
            }
            let times = row[*pivot];
            if !times.is_zero() {
                subtract(&mut row, earlier, &times);
            }
        }
        if row.iter().any(|coefficient| !coefficient.is_zero()) {
            return Rank::Independent(row);
        }
        if first >= self.rows.len() { Rank::Dependent } else { Rank::DependentOnAll }
    }

    /// Adds what [`Echelon::reduce`] left of a row.
    pub(super) fn push(&mut self, mut row: Vec<Factor>) {
        let Some(pivot) = row.iter().position(|coefficient| !coefficient.is_zero()) else { return };
        let inverse = row[pivot].inverse();
        row.iter_mut().for_each(|coefficient| *coefficient = coefficient.times(&inverse));
        self.rows.push((pivot, row));
    }

    /// Adds a row, if it is independent. Returns whether it is.
    pub(super) fn add(&mut self, row: &[Factor]) -> bool {
        match self.reduce(row.to_vec(), self.rows.len()) {
            Rank::Independent(row) => {
                self.push(row);
                true
            }
            Rank::Dependent | Rank::DependentOnAll => false,
        }
    }
}

/// Subtracts a multiple: `row -= times * other`.
fn subtract(row: &mut [Factor], other: &[Factor], times: &Factor) {
    for (coefficient, other) in row.iter_mut().zip(other) {
        *coefficient = coefficient.minus(&times.times(other));
    }
}

/// The inverse of a square matrix, by Gauss and Jordan in place; `None` if it has none.
pub(super) fn inverse(mut matrix: Vec<Vec<Factor>>) -> Option<Vec<Vec<Factor>>> {
    let size = matrix.len();
    // Rows that were swapped while eliminating are columns to swap in the inverse.
    let mut swapped = Vec::with_capacity(size);
    for column in 0..size {
        let pivot = (column..size).find(|row| !matrix[*row][column].is_zero())?;
        matrix.swap(column, pivot);
        swapped.push(pivot);
        let inverse = matrix[column][column].inverse();
        matrix[column][column] = Factor::ONE;
        matrix[column].iter_mut().for_each(|entry| *entry = entry.times(&inverse));
        let (above, rest) = matrix.split_at_mut(column);
        let (row, below) = rest.split_first_mut()?;
        for other in above.iter_mut().chain(below) {
            let times = std::mem::replace(&mut other[column], Factor::ZERO);
            if !times.is_zero() {
                subtract(other, row, &times);
            }
        }
    }
    for (column, pivot) in swapped.into_iter().enumerate().rev() {
        matrix.iter_mut().for_each(|row| row.swap(column, pivot));
    }
    Some(matrix)
}
