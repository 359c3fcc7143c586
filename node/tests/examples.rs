//! The crate's examples, as strangers run them.

use slipstream_testkit::run_example;

/// Goal: a program that embeds a node gets its batches, and ends when it stops the node.
#[test]
fn a_program_embeds_a_fullnode() {
    assert_eq!(
        run_example("embedded_fullnode"),
        "proved: an embedded fullnode followed the chain to batch 5, with the hash that the validator gives"
    );
}

/// Goal: a program follows the heads of a node, as of any Ethereum node.
#[test]
fn a_program_follows_the_heads() {
    assert_eq!(
        run_example("follow_heads"),
        "proved: 5 heads were announced, each the child of the one before"
    );
}
