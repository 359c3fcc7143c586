//! Compares the parts of RLNC with slow and plain counterparts.

use std::sync::Arc;

use curve25519_dalek::{RistrettoPoint, Scalar, traits::Identity};
use proptest::{array::uniform32, collection::vec, prelude::*};
use rand::{RngCore, SeedableRng, rngs::StdRng};

use super::{
    chunk::{self, Chunk},
    decode::decode,
    generators,
    matrix::{self, Echelon, Rank},
    pieces::{Assembly, Shape, scalar_at},
    scalar::{self, Factor, Matrix, Plain, SHORT_BITS, SUM_TERMS_MAX, ShortSum, Sum},
    verify,
};

/// Zero, one, the order less one, and values around the ends of limbs.
fn extremes() -> Vec<Plain> {
    let all = |limb| [limb, limb, limb, limb >> 4];
    let order_less_one = -Scalar::ONE;
    vec![
        [0; 4],
        [1, 0, 0, 0],
        plain(&order_less_one),
        all(u64::MAX),
        [0, 0, 0, 1 << 60],
        [0, u64::MAX, 0, 1 << 59],
    ]
}

fn plain(scalar: &Scalar) -> Plain {
    scalar::from_bytes(scalar.as_bytes()).unwrap()
}

fn residue() -> impl Strategy<Value = Plain> {
    let any = uniform32(any::<u8>()).prop_map(|bytes| plain(&Scalar::from_bytes_mod_order(bytes)));
    prop_oneof![any, prop::sample::select(extremes())]
}

fn random_factor(rng: &mut StdRng) -> Factor {
    let mut bytes = [0; 32];
    rng.fill_bytes(&mut bytes);
    Factor::of(&plain(&Scalar::from_bytes_mod_order(bytes)))
}

fn payload(bytes: usize, rng: &mut StdRng) -> Arc<[u8]> {
    let mut payload = vec![0; bytes];
    rng.fill_bytes(&mut payload);
    payload.into()
}

fn parse(shape: &Shape, bytes: &[u8]) -> Arc<Chunk> {
    let coefficients = Chunk::coefficients(shape, bytes).unwrap();
    Arc::new(Chunk { coefficients, scalars: Chunk::scalars(shape, bytes).unwrap() })
}

fn commitments(payload: &[u8], shape: &Shape) -> Vec<RistrettoPoint> {
    (0..shape.pieces).map(|piece| verify::commit(payload, shape, piece)).collect()
}

proptest! {
    #[test]
    fn sums_of_products_are_the_librarys(terms in vec((residue(), residue()), 1..=SUM_TERMS_MAX)) {
        let mut sum = Sum::ZERO;
        for (a, b) in &terms {
            sum.add(&Factor::of(a), b);
        }
        let expected: Scalar = terms.iter().map(|(a, b)| scalar::to_scalar(a) * scalar::to_scalar(b)).sum();
        prop_assert_eq!(sum.reduce(), plain(&expected));
    }

    #[test]
    fn short_sums_are_the_librarys(terms in vec((any::<u64>(), residue()), 1..=SUM_TERMS_MAX)) {
        let mut sum = ShortSum::ZERO;
        let short = |factor: &u64| factor >> (64 - SHORT_BITS);
        terms.iter().for_each(|(factor, b)| sum.add(short(factor), b));
        let expected: Scalar = terms.iter().map(|(a, b)| Scalar::from(short(a)) * scalar::to_scalar(b)).sum();
        prop_assert_eq!(sum.reduce(), plain(&expected));
    }

    #[test]
    fn factors_are_a_field(a in residue(), b in residue()) {
        let (x, y) = (scalar::to_scalar(&a), scalar::to_scalar(&b));
        let (a, b) = (Factor::of(&a), Factor::of(&b));
        prop_assert_eq!(a.times(&b).plain(), plain(&(x * y)));
        prop_assert_eq!(a.minus(&b).plain(), plain(&(x - y)));
        if !a.is_zero() {
            prop_assert_eq!(a.inverse().times(&a), Factor::ONE);
        }
    }

    #[test]
    fn only_canonical_encodings_are_residues(bytes in uniform32(any::<u8>()), top in 0..=0x20_u8) {
        let mut bytes = bytes;
        bytes[31] = top;
        let canonical = Option::<Scalar>::from(Scalar::from_canonical_bytes(bytes));
        prop_assert_eq!(scalar::from_bytes(&bytes).map(|plain| scalar::to_bytes(&plain)), canonical.map(|scalar| scalar.to_bytes()));
    }

    #[test]
    fn scalars_give_the_payload_back(bytes in 0..700_usize, pieces in 1..9_usize, seed in any::<u64>()) {
        let payload = payload(bytes, &mut StdRng::seed_from_u64(seed));
        let shape = Shape::new(bytes, pieces);
        let mut assembly = Assembly::new(shape);
        for index in 0..shape.pieces * shape.scalars {
            assembly.place(index, &scalar_at(&payload, index));
        }
        prop_assert_eq!(assembly.finish().unwrap(), &*payload);
    }

    /// Other scalars than a payload's must not be taken for that payload: each scalar counts.
    #[test]
    fn no_other_scalars_give_the_payload(bytes in 0..300_usize, pieces in 1..5_usize, at in any::<prop::sample::Index>(), bit in 0..252_usize) {
        let payload = payload(bytes, &mut StdRng::seed_from_u64(1));
        let shape = Shape::new(bytes, pieces);
        let (count, mut assembly) = (shape.pieces * shape.scalars, Assembly::new(shape));
        for index in 0..count {
            let mut scalar = scalar_at(&payload, index);
            if index == at.index(count) {
                scalar[bit / 64] ^= 1 << (bit % 64);
            }
            assembly.place(index, &scalar);
        }
        prop_assert!(assembly.finish().is_none_or(|other| other != *payload));
    }

    #[test]
    fn an_inverse_is_one(size in 1..12_usize, seed in any::<u64>(), zeros in 0..3_u32) {
        let mut rng = StdRng::seed_from_u64(seed);
        let entry = |rng: &mut StdRng| if rng.next_u32() % 4 < zeros { Factor::ZERO } else { random_factor(rng) };
        let matrix: Vec<Vec<_>> = (0..size).map(|_| (0..size).map(|_| entry(&mut rng)).collect()).collect();
        let mut echelon = Echelon::default();
        let is_regular = matrix.iter().all(|row| echelon.add(row));
        let inverse = matrix::inverse(matrix.clone());
        prop_assert_eq!(inverse.is_some(), is_regular);
        for (row, entries) in inverse.iter().flatten().enumerate() {
            for column in 0..size {
                let mut sum = Sum::ZERO;
                entries.iter().zip(&matrix).for_each(|(a, b)| sum.add(a, &b[column].plain()));
                prop_assert_eq!(sum.reduce()[0], u64::from(row == column));
            }
        }
    }

    #[test]
    fn a_matrix_multiplies(size in 1..=SUM_TERMS_MAX, seed in any::<u64>(), extreme in any::<bool>()) {
        let mut rng = StdRng::seed_from_u64(seed);
        let largest = Factor::from_limbs(plain(&-Scalar::ONE));
        let entry = |rng: &mut StdRng| if extreme { largest } else { random_factor(rng) };
        let rows: Vec<Vec<_>> = (0..3).map(|_| (0..size).map(|_| entry(&mut rng)).collect()).collect();
        let vector: Vec<Plain> = (0..size).map(|_| *entry(&mut rng).limbs()).collect();
        let mut products = Vec::new();
        Matrix::new(&rows).multiply(vector.iter().copied(), |row, product| products.push((row, product)));
        let expected = rows.iter().enumerate().map(|(index, row)| {
            let mut sum = Sum::ZERO;
            row.iter().zip(&vector).for_each(|(factor, plain)| sum.add(factor, plain));
            (index, sum.reduce())
        });
        prop_assert_eq!(products, expected.collect::<Vec<_>>());
    }

    /// Any set of forged chunks is found among any number of chunks, wherever the forgery is.
    #[test]
    fn exactly_the_forged_are_found(count in 1..14_usize, mask in any::<u16>(), at in any::<prop::sample::Index>()) {
        let mut rng = StdRng::seed_from_u64(u64::from(mask));
        let (payload, shape) = (payload(600, &mut rng), Shape::new(600, 4));
        let commitments = commitments(&payload, &shape);
        let chunks: Vec<_> = (0..count).map(|index| {
            let mut bytes = chunk::code(&payload, &shape, &mut rng);
            if mask >> index & 1 == 1 {
                bytes[32 * at.index(shape.pieces + shape.scalars)] ^= 1;
            }
            parse(&shape, &bytes)
        }).collect();
        let expected: Vec<_> = (0..count).map(|index| mask >> index & 1 == 1).collect();
        prop_assert_eq!(verify::forged(shape, &commitments, &chunks, [7; 32]), expected);
    }
}

/// Forgeries that cancel each other out in a plain sum do not under weights.
#[test]
fn forgeries_that_cancel_out_are_found() {
    let mut rng = StdRng::seed_from_u64(3);
    let (payload, shape) = (payload(600, &mut rng), Shape::new(600, 4));
    let honest = || chunk::code(&payload, &shape, &mut StdRng::seed_from_u64(9));
    let (mut more, mut less) = (honest(), honest());
    more[32 * 5] += 1;
    less[32 * 5] -= 1;
    let chunks = [more, honest(), less].map(|bytes| parse(&shape, &bytes));
    let forged = verify::forged(shape, &commitments(&payload, &shape), &chunks, [7; 32]);
    assert_eq!(forged, [true, false, true]);
}

#[test]
fn generators_differ_and_do_not_depend_on_how_many_are_asked_for() {
    let few = generators::first(3)[..3].to_vec();
    let many = generators::first(1_000);
    assert_eq!(few, many[..3]);
    for (index, generator) in many.iter().enumerate().take(100) {
        assert!(*generator != RistrettoPoint::identity() && !many[..index].contains(generator));
    }
}

#[test]
fn a_row_is_told_from_those_before_it() {
    let mut rng = StdRng::seed_from_u64(5);
    let rows: Vec<Vec<_>> = (0..3).map(|_| (0..4).map(|_| random_factor(&mut rng)).collect()).collect();
    let mut echelon = Echelon::default();
    assert!(rows.iter().all(|row| echelon.add(row)));
    let double = |row: &[Factor]| row.iter().map(|entry| entry.times(&Factor::of(&[2, 0, 0, 0]))).collect();
    assert_eq!(echelon.reduce(double(&rows[0]), 1), Rank::Dependent);
    assert_eq!(echelon.reduce(double(&rows[1]), 1), Rank::DependentOnAll);
    assert_eq!(echelon.reduce(double(&rows[2]), 3), Rank::Dependent);
    assert!(matches!(
        echelon.reduce((0..4).map(|_| random_factor(&mut rng)).collect(), 1),
        Rank::Independent(_)
    ));
}

#[test]
fn dependent_chunks_decode_to_nothing() {
    let mut rng = StdRng::seed_from_u64(3);
    let (payload, shape) = (payload(600, &mut rng), Shape::new(600, 4));
    let mut chunks: Vec<_> =
        (0..4).map(|_| parse(&shape, &chunk::code(&payload, &shape, &mut rng))).collect();
    assert_eq!(decode(&shape, &chunks).unwrap(), &*payload);
    chunks[3] = parse(&shape, &chunk::recode(&chunks[..3], &shape, &mut rng));
    assert_eq!(decode(&shape, &chunks), None);
}
