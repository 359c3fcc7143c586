//! The crate's example, as a stranger runs it.

use slipstream_testkit::run_example;

/// Goal: the example of a reader ends well, and says what it proved.
#[test]
fn the_snapshot_is_verified() {
    assert_eq!(
        run_example("verify_snapshot"),
        "proved: the snapshot is that of the genesis' validators, and one flipped bit is refused"
    );
}
