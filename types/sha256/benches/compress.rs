//! Measures a compression alone, as one of a pair, and as one of many: `cargo bench -p slipstream-sha256`.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use slipstream_sha256::{Block, INITIAL, State, compress, compress_many, compress_pair};

/// Number of independent messages that each benchmark compresses. It reports the time of all, with blocks per second.
const MESSAGES: usize = 16;

fn compressions(criterion: &mut Criterion) {
    for len in [1, 2] {
        let blocks: Vec<Block> = (0..MESSAGES * len).map(|i| [i as u8; 64]).collect();
        let mut group = criterion.benchmark_group(format!("16 messages, blocks in each: {len}"));
        group.throughput(Throughput::Elements((MESSAGES * len) as u64));
        group.bench_function("one by one", |bencher| {
            bencher.iter(|| {
                let mut states = [INITIAL; MESSAGES];
                for (state, blocks) in states.iter_mut().zip(black_box(&blocks).chunks_exact(len)) {
                    compress(state, blocks);
                }
                states
            })
        });
        group.bench_function("many", |bencher| {
            bencher.iter(|| {
                let mut states = [INITIAL; MESSAGES];
                compress_many(&mut states, black_box(&blocks));
                states
            })
        });
    }
    let mut group = criterion.benchmark_group("one after the other");
    let block: Block = [7; 64];
    group.throughput(Throughput::Elements(1));
    group.bench_function("alone", |bencher| {
        let mut state: State = INITIAL;
        bencher.iter(|| {
            compress(&mut state, black_box(&[block]));
            state
        })
    });
    group.throughput(Throughput::Elements(2));
    group.bench_function("pair", |bencher| {
        let mut states: [State; 2] = [INITIAL; 2];
        bencher.iter(|| {
            compress_pair(&mut states, black_box([&block; 2]));
            states
        })
    });
}

criterion_group!(benches, compressions);
criterion_main!(benches);
