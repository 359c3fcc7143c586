//! The crate's example, as a stranger runs it.

use slipstream_testkit::run_example;

/// Goal: a scenario that a program runs passes, and the program says what it proved.
#[test]
fn a_custom_scenario_passes() {
    assert_eq!(
        run_example("custom_scenario"),
        "proved: the killed fullnode caught up, and all nodes have one state"
    );
}
