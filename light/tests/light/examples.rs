//! The crate's example, as a stranger runs it.

use slipstream_testkit::run_example;

/// Goal: the example of a light client succeeds, and prints what it proved.
#[test]
fn the_light_client_believes_signatures_alone() {
    assert_eq!(
        run_example("light_client"),
        "proved: the balance that the validators signed is believed, and a forged one is refused"
    );
}
