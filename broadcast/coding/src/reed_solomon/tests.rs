//! Paths and shards.

use proptest::prelude::*;

use super::{
    merkle::{self, Tree},
    shards::{Shape, cut, index, join, leads_to},
};

proptest! {
    #[test]
    fn every_path_leads_to_the_root_from_its_own_place_only(count in 1..40_usize, at in any::<prop::sample::Index>(), other in any::<prop::sample::Index>()) {
        let leaves: Vec<_> = (0..count).map(|index| merkle::leaf(index, b"shard")).collect();
        let tree = Tree::over(leaves.clone());
        let (at, other) = (at.index(count), other.index(count));
        let path: Vec<u8> = tree.path(at).flat_map(|sibling| sibling.0).collect();
        prop_assert_eq!(path.len(), 32 * merkle::depth(count));
        prop_assert_eq!(merkle::root_of(at, leaves[at], &path), tree.root());
        prop_assert_eq!(merkle::root_of(other, leaves[at], &path) == tree.root(), other == at);
    }

    #[test]
    fn any_data_shards_join(bytes in 0..5_000_usize, data in 1..20_usize, parity in 1..20_usize, seed in any::<u64>()) {
        use rand::{RngCore, SeedableRng, rngs::StdRng, seq::SliceRandom};
        let mut rng = StdRng::seed_from_u64(seed);
        let mut payload = vec![0; bytes];
        rng.fill_bytes(&mut payload);
        let shape = Shape { bytes, data, parity };
        let (root, chunks) = cut(&shape, &payload).unwrap();
        let mut placed: Vec<_> = chunks.into_iter().enumerate().collect();
        for (place, chunk) in &placed {
            prop_assert_eq!(index(&shape, chunk), Ok(*place));
            prop_assert!(leads_to(&root, &shape, *place, chunk));
        }
        placed.shuffle(&mut rng);
        prop_assert_eq!(join(&shape, &placed[..data]).unwrap(), payload);
        if data > 1 {
            prop_assert!(join(&shape, &placed[..data - 1]).is_none());
        }
    }
}
