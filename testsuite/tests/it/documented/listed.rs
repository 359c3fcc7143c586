//! The documented command lines that are not run, and why.

/// A command line that is not run here.
pub(crate) struct Listed {
    /// The command line, as [`super::commands::Documented::line`].
    pub(crate) line: &'static str,
    /// The reason why it is not run.
    pub(crate) why: &'static str,
    /// The test that does the same in less: its file and function.
    pub(crate) test: Option<(&'static str, &'static str)>,
}

/// Covered by a test of its own.
const fn tested(line: &'static str, why: &'static str, file: &'static str, function: &'static str) -> Listed {
    Listed { line, why, test: Some((file, function)) }
}

/// A command line that tests do not cover.
const fn untested(line: &'static str, why: &'static str) -> Listed {
    Listed { line, why, test: None }
}

/// A measurement of minutes or hours: only its arguments are tested.
const fn bench(line: &'static str) -> Listed {
    tested(line, "measures for minutes or hours", "bench/src/main.rs", "documented_benchmarks_are_known")
}

/// All command lines that are not run.
pub(crate) const LISTED: &[Listed] = &[
    tested(
        "./x demo",
        "builds the workspace first",
        "testsuite/tests/it/modes.rs",
        "every_mode_ends_in_the_same_state",
    ),
    untested("./x test", "runs this test"),
    untested("./x build", "makes a release build"),
    tested(
        "slipnet load --workload erc20 --tps 500 --duration 30s --manifest DIR/manifest.json",
        "takes half a minute, at a rate for release builds",
        "testsuite/tests/it/load.rs",
        "every_kind_of_transaction_is_followed_and_audited",
    ),
    tested(
        "slipnet up -v 4 -f 2",
        "is a devnet more; `slipnet up -d far` has as many nodes",
        "testsuite/tests/it/devnet.rs",
        "up_serves_load_and_ctrl_c_leaves_nothing",
    ),
    tested(
        "slipnet up -d",
        "is a devnet more; `slipnet up -d far` is run",
        "testsuite/tests/it/lab.rs",
        "devnets_outlive_the_command_side_by_side",
    ),
    tested(
        "slipnet campaign storage",
        "takes half an hour",
        "simulation/tests/it/storage.rs",
        "a_death_at_any_moment_leaves_a_committed_prefix",
    ),
    tested(
        "slipnet campaign storage --runs 200 --only bit-flips --dir /dev/shm",
        "takes hours",
        "simulation/tests/it/storage.rs",
        "flipped_bits_are_never_served",
    ),
    tested(
        "slipnet campaign siege",
        "takes twelve minutes",
        "simulation/tests/it/siege.rs",
        "a_node_survives_and_the_figures_say_so",
    ),
    tested(
        "slipnet campaign siege --quick",
        "takes more than a minute",
        "simulation/tests/it/siege.rs",
        "a_node_survives_and_the_figures_say_so",
    ),
    tested(
        "slipnet campaign siege --only unread-answers,log-bomb --keep",
        "takes a minute, and leaves its files",
        "simulation/tests/it/siege.rs",
        "a_node_survives_and_the_figures_say_so",
    ),
    tested(
        "EVE_SEEDS=0..1000 cargo test --release -p slipstream-eve worlds_hold",
        "is a test itself, of more seeds than usual",
        "eve/src/tests/campaign.rs",
        "worlds_hold",
    ),
    tested(
        "slipnet model consensus",
        "takes a quarter of an hour",
        "model/src/tests.rs",
        "small_worlds_are_safe_and_live",
    ),
    tested(
        "slipnet sim validators --seeds 0..10000",
        "takes most of an hour",
        "simulation/tests/it/sim_validators.rs",
        "two_hundred_worlds_hold",
    ),
    tested(
        "slipnet sim broadcast",
        "takes minutes",
        "simulation/src/sim/broadcast/mod.rs",
        "a_batch_reaches_all",
    ),
    tested(
        "slipnet sim --seeds 0..10000",
        "takes many minutes",
        "simulation/tests/it/sim.rs",
        "two_hundred_worlds_hold",
    ),
    bench("slipnet bench all --json runs/1.json"),
    bench("slipnet bench state --keys 100m --dir DIR"),
    bench("slipnet bench snapshot --keys 50m --dir DIR"),
    bench("slipnet bench growth --dir DIR"),
    bench("slipnet bench sweep --dir DIR --json FILE"),
    bench("slipnet bench replay --dir DIR"),
    untested(
        "cargo install cargo-fuzz && cargo +nightly fuzz run state_range_proof",
        "installs a tool, and goes on for ever",
    ),
    tested(
        "promtool check rules packaging/prometheus/rules.yml",
        "takes Prometheus' package",
        "node/tests/cli/metrics.rs",
        "promtool_takes_the_rules_and_they_pass_their_test",
    ),
    tested(
        "promtool test rules packaging/prometheus/rules.test.yml",
        "takes Prometheus' package",
        "node/tests/cli/metrics.rs",
        "promtool_takes_the_rules_and_they_pass_their_test",
    ),
    untested("ssh -L 8545:127.0.0.1:8545 HOST", "takes another machine"),
    tested(
        "slipnet run steady-state primary-killed",
        "takes minutes",
        "testsuite/tests/it/scenarios.rs",
        "a_scenario_passes_and_its_twin_fails_by_name",
    ),
    tested(
        "slipnet run primary-killed --twin",
        "takes minutes",
        "testsuite/tests/it/exits.rs",
        "runs_and_comparisons_end_with_1_and_the_name_of_what_failed",
    ),
    untested(
        "slipnet run rolling-upgrade --program before=/opt/slipstream-0.1/slipstream",
        "takes minutes, and the program of another release",
    ),
];
