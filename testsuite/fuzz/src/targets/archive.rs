//! Manifests and indexes of archives. A manifest that is accepted for the chain has the state that its validators
//! signed.

use slipstream_archive::fuzzed::{index_of, manifest_of, read_index, read_manifest};
use slipstream_types::Waypoint;

use super::world::CHAIN;

pub(super) fn run(bytes: &[u8]) {
    _ = read_index(bytes);
    if let Ok(summary) = read_manifest(bytes, &CHAIN.genesis) {
        let info = CHAIN.snapshot.info().certificate.info.clone();
        assert_eq!(summary.waypoint, Waypoint::of(&info), "nobody signed it");
        assert_eq!(summary.state_root, info.state_root, "its pieces are of another state");
    }
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let manifest = manifest_of(&CHAIN.snapshot).expect("memory is readable");
    assert!(read_manifest(&manifest, &CHAIN.genesis).is_ok(), "the truth is refused");
    vec![manifest, index_of(&CHAIN.snapshot).expect("one entry")]
}
