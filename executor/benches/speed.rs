//! Measures gas per second of each kind of work; `Melem/s` stands for Mgas/s: `cargo bench -p slipstream-executor`.
//! With `--no-default-features` it measures only the precompiles in Rust. Add `--features revm/NAME` to measure the
//! gain of one implementation.

use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use slipstream_executor::speed::{Runner, Work, programs};
use slipstream_types::chain::Fork;

/// Gas of one run: twenty of the costliest calls.
const GAS: u64 = 1_000_000;

fn gas(criterion: &mut Criterion) {
    for fork in [Fork::Osaka, Fork::Prague] {
        let mut group = criterion.benchmark_group(fork.name());
        group.throughput(Throughput::Elements(GAS));
        group
            .sample_size(10)
            .warm_up_time(Duration::from_millis(200))
            .measurement_time(Duration::from_secs(1));
        // Among the programs of both forks, only MODEXP has another price.
        for program in programs(fork).iter().filter(|it| fork == Fork::Osaka || it.work == Work::Modexp) {
            let runner = Runner::new(program, fork);
            group.bench_function(program.name, |bencher| bencher.iter(|| runner.run(GAS)));
        }
    }
}

criterion_group!(benches, gas);
criterion_main!(benches);
