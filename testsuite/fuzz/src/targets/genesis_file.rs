//! Genesis files. An accepted file has one canonical form, which gives the same genesis and batch 0.

use std::path::Path;

use slipstream_base::genesis_file::parse;
use slipstream_types::Genesis;

use super::world::CHAIN;

pub(super) fn run(bytes: &[u8]) {
    let Ok(genesis) = parse(bytes, Path::new("genesis.json")) else { return };
    let content = genesis.content().expect("it was checked");
    assert_eq!(Genesis::decode(&content).as_ref(), Ok(&genesis), "its canonical form differs");
    genesis.header().expect("it was checked");
    let text = serde_json::to_vec(&genesis).expect("it encodes");
    let again = parse(&text, Path::new("again.json")).expect("its own text");
    assert_eq!(again, genesis, "its text differs");
}

/// Returns the chain's own file, in indented JSON.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    vec![serde_json::to_vec_pretty(&CHAIN.genesis).expect("it encodes")]
}
