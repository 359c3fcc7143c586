//! Arithmetic modulo the order of Ristretto's group, for sums of many products.
//!
//! All data here is public, so variable time is safe. A sum of products is reduced once, at its end. Data stays in
//! plain form ([`Plain`]); its multipliers are in Montgomery form ([`Factor`]). So one Montgomery reduction of a sum of
//! `factor * plain` gives plain form again.

use curve25519_dalek::scalar::Scalar;

/// A residue below the order, least significant limb first.
pub(super) type Plain = [u64; 4];

/// The order: 2^252 + 27742317777372353535851937790883648493 (RFC 9496, section 4).
const ORDER: Plain = [0x5812_631a_5cf5_d3ed, 0x14de_f9de_a2f7_9cd6, 0, 0x1000_0000_0000_0000];
/// `-1 / ORDER` modulo 2^64.
const ORDER_INVERSE_NEGATED: u64 = {
    // Newton's method: each step doubles the number of correct bits. The start value 1 has one correct bit for any odd
    // number.
    let (mut inverse, mut step) = (1_u64, 0);
    while step < 6 {
        inverse = inverse.wrapping_mul(2_u64.wrapping_sub(ORDER[0].wrapping_mul(inverse)));
        step += 1;
    }
    inverse.wrapping_neg()
};
/// 2^512 modulo the order: Montgomery multiplication by it takes a scalar from plain to Montgomery form.
const MONTGOMERY_SQUARED: Plain = {
    let (mut power, mut bit) = ([1, 0, 0, 0], 0);
    while bit < 512 {
        // A residue doubled has 254 bits.
        let mut double = [0; 4];
        let (mut limb, mut carry) = (0, 0);
        while limb < 4 {
            double[limb] = power[limb] << 1 | carry;
            carry = power[limb] >> 63;
            limb += 1;
        }
        power = below_order(double);
        bit += 1;
    }
    power
};
/// Maximum number of products of residues that a sum holds: twice as many would still fit, which [`Matrix`] needs.
pub(super) const SUM_TERMS_MAX: usize = 100;

/// `a + b + carry` and the carry.
#[inline(always)]
const fn add(a: u64, b: u64, carry: u64) -> (u64, u64) {
    let sum = (a as u128).wrapping_add(b as u128).wrapping_add(carry as u128);
    (sum as u64, (sum >> 64) as u64)
}

/// `a - b - borrow` and the borrow, 0 or 1.
#[inline(always)]
const fn sub(a: u64, b: u64, borrow: u64) -> (u64, u64) {
    let difference = (a as u128).wrapping_sub(b as u128).wrapping_sub(borrow as u128);
    (difference as u64, (difference >> 64) as u64 & 1)
}

/// `sum + a * b + carry` and the carry: never more than 128 bits.
#[inline(always)]
const fn mul_add(sum: u64, a: u64, b: u64, carry: u64) -> (u64, u64) {
    let wide = (a as u128).wrapping_mul(b as u128).wrapping_add(sum as u128).wrapping_add(carry as u128);
    (wide as u64, (wide >> 64) as u64)
}

/// The residue of a number of at most 256 bits.
#[inline(always)]
const fn below_order(number: Plain) -> Plain {
    // 2^252 is a little less than the order. Subtracting the order as often as 2^252 goes into the number leaves a
    // residue, or falls below zero by less than one order.
    let times = number[3] >> 60;
    let (mut residue, mut borrow, mut carry, mut limb) = ([0; 4], 0, 0, 0);
    while limb < 4 {
        let (product, high) = mul_add(0, ORDER[limb], times, carry);
        carry = high;
        let (difference, below) = sub(number[limb], product, borrow);
        residue[limb] = difference;
        borrow = below;
        limb += 1;
    }
    let back = 0_u64.wrapping_sub(borrow);
    (carry, limb) = (0, 0);
    while limb < 4 {
        let (sum, high) = add(residue[limb], ORDER[limb] & back, carry);
        residue[limb] = sum;
        carry = high;
        limb += 1;
    }
    residue
}

/// The residue that 32 bytes encode, or `None` if they are not its canonical encoding.
pub(super) fn from_bytes(bytes: &[u8; 32]) -> Option<Plain> {
    let mut limbs = [0; 4];
    for (limb, bytes) in limbs.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *limb = u64::from_le_bytes(*bytes);
    }
    let below = limbs.iter().rev().lt(ORDER.iter().rev());
    below.then_some(limbs)
}

/// Encodes the scalar canonically.
pub(super) fn to_bytes(plain: &Plain) -> [u8; 32] {
    let mut bytes = [0; 32];
    for (bytes, limb) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(plain) {
        *bytes = limb.to_le_bytes();
    }
    bytes
}

/// Converts the scalar to the type of the curve's library.
pub(super) fn to_scalar(plain: &Plain) -> Scalar {
    Scalar::from_bytes_mod_order(to_bytes(plain))
}

/// A residue for multiplication, in Montgomery form: 2^256 times itself, modulo the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Factor(Plain);

impl Factor {
    pub(super) const ZERO: Factor = Factor([0; 4]);
    pub(super) const ONE: Factor = Factor::of(&[1, 0, 0, 0]);

    pub(super) const fn of(plain: &Plain) -> Factor {
        Factor(montgomery(multiply(plain, &MONTGOMERY_SQUARED)))
    }

    pub(super) fn is_zero(&self) -> bool {
        *self == Factor::ZERO
    }

    pub(super) fn plain(&self) -> Plain {
        let Factor([a, b, c, d]) = *self;
        montgomery([a, b, c, d, 0, 0, 0, 0])
    }

    #[inline]
    pub(super) fn times(&self, other: &Factor) -> Factor {
        Factor(montgomery(multiply(&self.0, &other.0)))
    }

    #[inline]
    pub(super) fn minus(&self, other: &Factor) -> Factor {
        let (mut difference, mut borrow) = (self.0, 0);
        for (limb, other) in difference.iter_mut().zip(&other.0) {
            (*limb, borrow) = sub(*limb, *other, borrow);
        }
        let (back, mut carry) = (0_u64.wrapping_sub(borrow), 0);
        for (limb, order) in difference.iter_mut().zip(ORDER) {
            (*limb, carry) = add(*limb, order & back, carry);
        }
        Factor(difference)
    }

    /// `1 / self`; zero for zero.
    pub(super) fn inverse(&self) -> Factor {
        let inverse = to_scalar(&self.plain()).invert().to_bytes();
        Factor::of(&from_bytes(&inverse).unwrap_or_default())
    }

    /// Its limbs, for sums that do not leave Montgomery form.
    pub(super) fn limbs(&self) -> &Plain {
        &self.0
    }

    pub(super) fn from_limbs(limbs: Plain) -> Factor {
        Factor(limbs)
    }
}

/// Multiplies to the full product.
#[inline(always)]
const fn multiply(a: &Plain, b: &Plain) -> [u64; 8] {
    let (mut wide, mut row) = ([0; 8], 0);
    while row < 4 {
        let (mut carry, mut column) = (0, 0);
        while column < 4 {
            (wide[row + column], carry) = mul_add(wide[row + column], a[row], b[column], carry);
            column += 1;
        }
        wide[row + 4] = carry;
        row += 1;
    }
    wide
}

/// `wide / 2^256` modulo the order, for a sum of products of residues.
///
/// With `wide` below 200 orders squared the result, before its own reduction, is below 200 / 16 + 1 orders: 256 bits.
#[inline(always)]
const fn montgomery(mut wide: [u64; 8]) -> Plain {
    let (mut row, mut over) = (0, 0);
    while row < 4 {
        let factor = wide[row].wrapping_mul(ORDER_INVERSE_NEGATED);
        // The third limb of the order is zero, and the fourth a power of two.
        let (_, carry) = mul_add(wide[row], factor, ORDER[0], 0);
        let (limb, carry) = mul_add(wide[row + 1], factor, ORDER[1], carry);
        wide[row + 1] = limb;
        let (limb, carry) = add(wide[row + 2], carry, 0);
        wide[row + 2] = limb;
        let (limb, carry) = add(wide[row + 3], factor << 60, carry);
        wide[row + 3] = limb;
        let (limb, carry) = add(wide[row + 4], factor >> 4, carry.wrapping_add(over));
        wide[row + 4] = limb;
        over = carry;
        row += 1;
    }
    below_order([wide[4], wide[5], wide[6], wide[7]])
}

/// A sum of products that is not yet reduced.
#[derive(Clone, Copy)]
pub(super) struct Sum([u64; 8]);

impl Sum {
    pub(super) const ZERO: Sum = Sum([0; 8]);

    /// Adds a product. Must be called at most [`SUM_TERMS_MAX`] times.
    #[inline(always)]
    pub(super) fn add(&mut self, factor: &Factor, plain: &Plain) {
        let product = multiply(&factor.0, plain);
        let mut carry = 0;
        for (sum, limb) in self.0.iter_mut().zip(product) {
            (*sum, carry) = add(*sum, limb, carry);
        }
    }

    #[inline(always)]
    pub(super) fn reduce(self) -> Plain {
        montgomery(self.0)
    }
}

/// The sum of products, column by column of their limbs, so that carries wait for the end of each column. The sum must
/// fit 512 bits.
#[inline]
fn dot(a: &[Plain], b: &[Plain]) -> [u64; 8] {
    /// The products of limbs whose indices add up to `K`, and the carry.
    #[inline(always)]
    fn column<const K: usize>(a: &[Plain], b: &[Plain], carry: u128) -> (u64, u128) {
        let (mut sum, mut over) = (carry, 0_u64);
        for (a, b) in a.iter().zip(b) {
            for limb in K.saturating_sub(3)..=(if K < 3 { K } else { 3 }) {
                let product = (a[limb] as u128).wrapping_mul(b[K - limb] as u128);
                let is_over;
                (sum, is_over) = sum.overflowing_add(product);
                over = over.wrapping_add(u64::from(is_over));
            }
        }
        (sum as u64, sum >> 64 | (over as u128) << 64)
    }
    let (w0, carry) = column::<0>(a, b, 0);
    let (w1, carry) = column::<1>(a, b, carry);
    let (w2, carry) = column::<2>(a, b, carry);
    let (w3, carry) = column::<3>(a, b, carry);
    let (w4, carry) = column::<4>(a, b, carry);
    let (w5, carry) = column::<5>(a, b, carry);
    let (w6, carry) = column::<6>(a, b, carry);
    [w0, w1, w2, w3, w4, w5, w6, carry as u64]
}

/// A matrix of factors that multiplies vectors with half of the multiplications: S. Winograd, "A New Algorithm for
/// Inner Product" (1968).
///
/// Uses `x1 y1 + x2 y2 = (x1 + y2) (x2 + y1) - x1 x2 - y1 y2`. The last two terms are constant for a row of the matrix and for
/// a vector.
pub(super) struct Matrix {
    /// Each row's first factors of its pairs, and the second ones.
    rows: Vec<[Vec<Plain>; 2]>,
    /// The correction to subtract for each row.
    corrections: Vec<Factor>,
    /// Room for the sums of one row and a vector.
    sums: [Vec<Plain>; 2],
}

impl Matrix {
    /// Makes a matrix of rows of equal length, at most [`SUM_TERMS_MAX`]. [`Matrix::multiply`] multiplies sums of two
    /// residues: its products are up to four times as large, but half as many.
    pub(super) fn new(rows: &[Vec<Factor>]) -> Self {
        let rows: Vec<_> = rows.iter().map(|row| halves(row.iter().map(|factor| factor.0))).collect();
        let corrections = rows.iter().map(|[first, second]| Factor(montgomery(dot(first, second)))).collect();
        let pairs = rows.first().map_or(0, |[first, _]| first.len());
        Self { rows, corrections, sums: [vec![[0; 4]; pairs], vec![[0; 4]; pairs]] }
    }

    /// Passes to `product` the product of each row with a vector of the same length.
    pub(super) fn multiply(
        &mut self,
        vector: impl Iterator<Item = Plain>,
        mut product: impl FnMut(usize, Plain),
    ) {
        let vector = halves(vector);
        let correction = Factor(montgomery(dot(&vector[0], &vector[1])));
        for (index, (row, of_row)) in self.rows.iter().zip(&self.corrections).enumerate() {
            for (sums, (row, vector)) in self.sums.iter_mut().zip(row.iter().zip(vector.iter().rev())) {
                for (sum, (a, b)) in sums.iter_mut().zip(row.iter().zip(vector)) {
                    *sum = plus(a, b);
                }
            }
            let sum = Factor(montgomery(dot(&self.sums[0], &self.sums[1])));
            product(index, sum.minus(of_row).minus(&correction).0);
        }
    }
}

/// Splits entries into the even and the odd ones; a last one without a neighbour gets a zero.
fn halves(entries: impl Iterator<Item = Plain>) -> [Vec<Plain>; 2] {
    let mut halves = [Vec::new(), Vec::new()];
    for (index, entry) in entries.enumerate() {
        halves[index % 2].push(entry);
    }
    let [first, second] = &mut halves;
    second.resize(first.len(), [0; 4]);
    halves
}

/// The sum of two residues, unreduced.
#[inline(always)]
fn plus(a: &Plain, b: &Plain) -> Plain {
    let (mut sum, mut carry) = (*a, 0);
    for (sum, limb) in sum.iter_mut().zip(b) {
        (*sum, carry) = add(*sum, *limb, carry);
    }
    sum
}

/// A sum of products with factors below 2^[`SHORT_BITS`] that is not yet reduced.
#[derive(Clone, Copy)]
pub(super) struct ShortSum([u64; 5]);

/// Bits of a short factor: [`SUM_TERMS_MAX`] products of a short factor and a residue have at most 316 bits.
pub(super) const SHORT_BITS: u32 = 56;

impl ShortSum {
    pub(super) const ZERO: ShortSum = ShortSum([0; 5]);

    /// Adds a product. Must be called at most [`SUM_TERMS_MAX`] times.
    #[inline(always)]
    pub(super) fn add(&mut self, factor: u64, plain: &Plain) {
        let mut carry = 0;
        for (sum, limb) in self.0.iter_mut().zip(plain) {
            (*sum, carry) = mul_add(*sum, factor, *limb, carry);
        }
        self.0[4] = self.0[4].wrapping_add(carry);
    }

    #[inline(always)]
    pub(super) fn reduce(self) -> Plain {
        let [a, b, c, d, e] = self.0;
        // 2^252 is the order less its low half. So the order's low half is subtracted as often as the upper 64 bits
        // say. The rest is at most 2^189 below zero, and one order brings it back.
        let high = e << 4 | d >> 60;
        let (first, carry) = mul_add(0, high, ORDER[0], 0);
        let (second, third) = mul_add(0, high, ORDER[1], carry);
        let (a, borrow) = sub(a, first, 0);
        let (b, borrow) = sub(b, second, borrow);
        let (c, borrow) = sub(c, third, borrow);
        let (d, borrow) = sub(d & (u64::MAX >> 4), 0, borrow);
        let back = 0_u64.wrapping_sub(borrow);
        let (a, carry) = add(a, ORDER[0] & back, 0);
        let (b, carry) = add(b, ORDER[1] & back, carry);
        let (c, carry) = add(c, 0, carry);
        let (d, _) = add(d, ORDER[3] & back, carry);
        [a, b, c, d]
    }
}
