//! The documented command lines that are not run, and why.

/// A command line that is not run here.
pub(crate) struct Listed {
    /// The command line, as in [`super::commands::Documented::line`]. With a trailing blank it is a prefix of several.
    pub(crate) line: &'static str,
    /// The reason why it is not run.
    pub(crate) why: &'static str,
    /// The file and function of the test that does the same on a smaller scale.
    pub(crate) test: Option<(&'static str, &'static str)>,
}

impl Listed {
    /// Whether it covers this command line.
    pub(crate) fn fits(&self, line: &str) -> bool {
        self.line == line || (self.line.ends_with(' ') && line.starts_with(self.line))
    }
}

/// Returns an entry that another test covers.
const fn tested(line: &'static str, why: &'static str, file: &'static str, function: &'static str) -> Listed {
    Listed { line, why, test: Some((file, function)) }
}

/// Returns an entry that no test covers.
const fn untested(line: &'static str, why: &'static str) -> Listed {
    Listed { line, why, test: None }
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
    untested(r#"export PATH="$PWD/target/release:$PATH""#, "changes the shell that reads it"),
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
        "testsuite/simulation/tests/it/persistence.rs",
        "a_death_at_any_moment_leaves_a_committed_prefix",
    ),
    tested(
        "slipnet campaign storage --runs 200 --only bit-flips --dir /dev/shm",
        "takes hours",
        "testsuite/simulation/tests/it/persistence.rs",
        "flipped_bits_are_never_served",
    ),
    tested(
        "slipnet campaign gas",
        "takes some ten minutes",
        "testsuite/simulation/src/campaign/gas/mod.rs",
        "the_table_has_the_slowest_first",
    ),
    tested(
        "slipnet campaign gas --quick --json gas.json",
        "takes more than a minute",
        "testsuite/simulation/src/campaign/gas/mod.rs",
        "the_table_has_the_slowest_first",
    ),
    tested(
        "slipnet campaign siege",
        "takes some twenty minutes",
        "testsuite/simulation/tests/it/siege.rs",
        "a_node_survives_and_the_figures_say_so",
    ),
    tested(
        "slipnet campaign siege --quick",
        "takes more than a minute",
        "testsuite/simulation/tests/it/siege.rs",
        "a_node_survives_and_the_figures_say_so",
    ),
    tested(
        "slipnet campaign siege --only unread-answers,log-bomb --keep",
        "takes a minute, and leaves its files",
        "testsuite/simulation/tests/it/siege.rs",
        "a_node_survives_and_the_figures_say_so",
    ),
    tested(
        "SLIPSTREAM_GROWTH=full cargo test --release -p slipstream-node --test growth",
        "is a test itself, of a larger chain than usual",
        "node/tests/growth.rs",
        "a_batch_costs_what_it_costs_on_a_small_chain",
    ),
    tested(
        "EVE_SEEDS=0..1000 cargo test --release -p slipstream-eve worlds_hold",
        "is a test itself, of more seeds than usual",
        "consensus/eve/src/tests/campaign.rs",
        "worlds_hold",
    ),
    tested(
        "PROPTEST_CASES=10000 cargo test --release -p slipstream-executor every_way_has_one_outcome",
        "is a test itself, of more cases than usual",
        "executor/tests/executor/unpaid.rs",
        "every_way_has_one_outcome",
    ),
    tested(
        "PROPTEST_CASES=10000 cargo test --release -p slipstream-storage hidden_parts_change",
        "is a test itself, of more cases than usual",
        "storage/src/state/tests/hollow.rs",
        "hidden_parts_change_as_shown_ones",
    ),
    tested(
        "slipnet model consensus",
        "takes a quarter of an hour",
        "consensus/model/src/tests.rs",
        "small_worlds_are_safe_and_live",
    ),
    tested(
        "slipnet sim validators --seeds 0..10000",
        "takes most of an hour",
        "testsuite/simulation/tests/it/sim_validators.rs",
        "two_hundred_worlds_hold",
    ),
    tested(
        "slipnet sim broadcast",
        "takes minutes",
        "testsuite/simulation/src/sim/broadcast/mod.rs",
        "a_batch_reaches_all",
    ),
    tested(
        "slipnet sim --seeds 0..10000",
        "takes many minutes",
        "testsuite/simulation/tests/it/sim.rs",
        "two_hundred_worlds_hold",
    ),
    // The arguments of all of them are tested.
    tested(
        "slipnet bench ",
        "measures for minutes or hours",
        "testsuite/bench/src/cli.rs",
        "documented_benchmarks_are_known",
    ),
    tested(
        "./x fuzz",
        "compiles our crates once more, and goes on for minutes",
        "testsuite/fuzz/tests/kept.rs",
        "every_target_has_its_test",
    ),
    tested(
        "./x fuzz ",
        "compiles our crates once more, and goes on for minutes",
        "testsuite/fuzz/tests/kept.rs",
        "every_target_has_its_test",
    ),
    tested(
        "promtool check rules packaging/prometheus/rules.yml",
        "takes Prometheus' package",
        "node/cli/tests/cli/metrics.rs",
        "promtool_takes_the_rules_and_they_pass_their_test",
    ),
    tested(
        "promtool test rules packaging/prometheus/rules.test.yml",
        "takes Prometheus' package",
        "node/cli/tests/cli/metrics.rs",
        "promtool_takes_the_rules_and_they_pass_their_test",
    ),
    untested("ssh -L 8545:127.0.0.1:8545 HOST", "takes another machine"),
    tested(
        "slipnet run steady-state primary-killed",
        "takes minutes",
        "testsuite/tests/it/engine/mod.rs",
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
    untested("cargo test --workspace", "is what `./x test` runs"),
    untested("cargo test -p slipstream-eve", "is part of `./x test`"),
    untested("cargo test -p slipstream-model", "is part of `./x test`"),
    untested("./x lint", "compiles the workspace once more"),
    untested("./x bless light", "writes files of the tree; tests compare them"),
    untested("./x tools", "installs programs"),
    untested("./x mutants -F 'in check_length'", "compiles a crate for each mutant"),
    untested("./x mutants --sample", "compiles a crate for each mutant; CI runs it"),
    untested("./x deb", "makes a release build, and a package of it"),
    untested("cargo deb", "is what `./x deb` runs"),
    untested("docker build -f packaging/container/Containerfile -t slipstream .", "takes Docker"),
    tested(
        "helm install chain packaging/helm/slipstream -f packaging/helm/values/validators.yaml --set-file genesis=genesis.json",
        "takes a cluster",
        "testsuite/tests/it/packaging/mod.rs",
        "the_chart_makes_what_kubernetes_and_the_node_take",
    ),
    tested(
        "slipstream completions bash > /usr/share/bash-completion/completions/slipstream",
        "changes the machine",
        "node/cli/tests/cli/shell.rs",
        "the_command_line_describes_itself",
    ),
    tested(
        "slipstream health --live",
        "asks the default port, at which no node of this test listens",
        "node/cli/tests/cli/shell.rs",
        "health_is_an_exit_code",
    ),
    untested("slipstream storage format 1", "is a line of a file, and no command"),
    tested(
        "slipnet load --manifest DIR/manifest.json",
        "takes half a minute, at a rate for release builds",
        "testsuite/tests/it/load.rs",
        "every_kind_of_transaction_is_followed_and_audited",
    ),
    tested(
        "slipnet up --no-unprotected-transactions",
        "is a devnet more",
        "testsuite/tests/it/unprotected.rs",
        "a_strict_devnet_refuses_it",
    ),
    tested(
        "slipnet keep NAME",
        "is started by `slipnet up -d`",
        "testsuite/tests/it/lab.rs",
        "a_keeper_that_dies_leaves_no_node",
    ),
    tested(
        "slipnet relay",
        "takes links, and nodes behind them",
        "testsuite/src/relay/sidecar.rs",
        "a_sidecar_relays_to_a_name",
    ),
    tested(
        "slipnet campaign storage --dir D",
        "takes half an hour",
        "testsuite/simulation/tests/it/persistence.rs",
        "a_death_at_any_moment_leaves_a_committed_prefix",
    ),
    tested(
        "slipnet campaign siege --json docs/runs/2026-11-27-siege.json",
        "takes some twenty minutes",
        "testsuite/simulation/tests/it/siege.rs",
        "a_node_survives_and_the_figures_say_so",
    ),
    tested(
        "slipnet campaign siege --only waiting-calls,busy-servers,padded-range-deltas,late-answers,false-validators,missing-parts,corrupt-range-deltas,log-bomb,gone-callers,call-burner,ws-many-subscriptions --json docs/runs/2026-11-27-siege-again.json",
        "takes some minutes",
        "testsuite/simulation/tests/it/siege.rs",
        "a_node_survives_and_the_figures_say_so",
    ),
    tested(
        "slipnet sim broadcast --json docs/runs/2026-11-27-sim-broadcast.json",
        "takes minutes",
        "testsuite/simulation/src/sim/broadcast/mod.rs",
        "a_batch_reaches_all",
    ),
    tested(
        "slipnet sim --planted NAME",
        "takes a program that is built with planted faults",
        "testsuite/simulation/tests/it/sim.rs",
        "a_missing_defence_is_noticed",
    ),
    untested("cargo build -p slipstream-simulation --features planted", "compiles the simulations once more"),
    tested(
        "cargo test -p slipstream-simulation --test it -- --ignored unseen_worlds_hold",
        "is a test itself, of other seeds",
        "testsuite/simulation/tests/it/sim.rs",
        "unseen_worlds_hold",
    ),
];
