//! Measures hashing the rows of a chunk, their paths and their subtree, one hash and two hashes at a time: `cargo bench
//! -p slipstream-types`.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use slipstream_types::{
    Address, B256, Digest, Path, StateKey, StateValue, U256,
    state::Paths,
    tree::{self, Leaf, Subtree},
};

/// Approximate number of rows in a chunk.
const ROWS: usize = 8192;
/// Leaves of the largest part of a tree that is kept only as its hash.
const STUB_LEAVES: usize = 256;

/// One account with many slots, like a token.
fn keys() -> Vec<StateKey> {
    let slot = |i: usize| StateKey::Slot(Address::repeat_byte(7), B256::from(U256::from(i)));
    (0..ROWS).map(slot).collect()
}

fn rows(keys: &[StateKey]) -> Vec<Vec<u8>> {
    let row = |key: &StateKey| {
        let mut row = Vec::new();
        StateValue::Slot(U256::from(1_000_000)).append_row(key, &mut row);
        row
    };
    keys.iter().map(row).collect()
}

/// Makes leaves with random paths, like those of many accounts.
fn leaves(count: usize) -> Vec<Leaf> {
    let leaf = |i: usize| {
        let hash = Digest::tagged("bench", &i.to_le_bytes());
        Leaf { path: Path(hash.0), value_hash: hash }
    };
    let mut leaves: Vec<Leaf> = (0..count).map(leaf).collect();
    leaves.sort_unstable_by_key(|leaf| leaf.path);
    leaves
}

/// The definition of [`tree::subtree`], hash by hash.
fn subtree_alone(leaves: &[Leaf], depth: usize) -> Subtree {
    match leaves {
        [] => Subtree::Empty,
        [leaf] => Subtree::Leaf(leaf.hash()),
        _ => {
            let half = leaves.partition_point(|leaf| !leaf.path.bit(depth));
            let (left, right) = leaves.split_at(half);
            Subtree::parent(subtree_alone(left, depth + 1), subtree_alone(right, depth + 1))
        }
    }
}

fn hashing(criterion: &mut Criterion) {
    let keys = keys();
    let rows = rows(&keys);
    let mut group = criterion.benchmark_group("rows");
    group.throughput(Throughput::Elements(ROWS as u64));
    group.bench_function("alone", |bencher| {
        bencher.iter(|| black_box(&rows).iter().map(|row| StateValue::row_hash(row)).collect::<Vec<_>>())
    });
    group.bench_function("by twos", |bencher| {
        bencher.iter(|| StateValue::row_hashes(black_box(&rows).iter().map(|row| &row[..])))
    });
    group.finish();

    let mut group = criterion.benchmark_group("paths");
    group.throughput(Throughput::Elements(ROWS as u64));
    group.bench_function("alone", |bencher| {
        bencher.iter(|| {
            let mut paths = Paths::default();
            black_box(&keys).iter().map(|key| paths.path(key)).collect::<Vec<_>>()
        })
    });
    group.bench_function("by twos", |bencher| bencher.iter(|| StateKey::paths(black_box(&keys))));
    group.finish();

    for count in [4, 16, STUB_LEAVES, ROWS] {
        let leaves = leaves(count);
        let mut group = criterion.benchmark_group(format!("subtree of {count} leaves"));
        group.throughput(Throughput::Elements(count as u64));
        group.bench_function("alone", |bencher| bencher.iter(|| subtree_alone(black_box(&leaves), 0).hash()));
        group.bench_function("by twos", |bencher| {
            bencher.iter(|| tree::subtree(black_box(&leaves), 0).hash())
        });
    }

    let subtree = |leaf: Leaf| Subtree::Inner(leaf.hash());
    let slots: Vec<Subtree> = leaves(16).into_iter().map(subtree).collect();
    let slots: [Subtree; 16] = slots.try_into().expect("there are 16");
    for count in [4, 16] {
        let mut group = criterion.benchmark_group(format!("{count} neighbours"));
        group.bench_function("alone", |bencher| {
            bencher.iter(|| {
                let mut slots = black_box(slots);
                let mut len = count;
                while len > 1 {
                    len /= 2;
                    (0..len).for_each(|i| slots[i] = Subtree::parent(slots[2 * i], slots[2 * i + 1]));
                }
                slots[0]
            })
        });
        group.bench_function("by twos", |bencher| {
            bencher.iter(|| Subtree::fold(&mut black_box(slots)[..count]))
        });
    }
}

criterion_group!(benches, hashing);
criterion_main!(benches);
