//! Manifests and indexes of archives. A manifest that is accepted for the chain has the state that its validators
//! signed.

use slipstream_archive::fuzzed::{index_of, manifest_of, read_index, read_manifest};
use slipstream_types::Waypoint;

use super::world::CHAIN;

pub(super) fn run(bytes: &[u8]) {
    _ = read_index(bytes);
    if let Ok(summary) = read_manifest(bytes, &CHAIN.genesis) {
        let info = CHAIN.snapshot.info().certificate.info.clone();
        assert_eq!(summary.waypoint, Waypoint::of(&info), "a manifest with an unsigned waypoint is accepted");
        assert_eq!(summary.state_root, info.state_root, "a manifest with pieces of another state is accepted");
    }
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let manifest = manifest_of(&CHAIN.snapshot).expect("memory is readable");
    assert!(read_manifest(&manifest, &CHAIN.genesis).is_ok(), "an honest manifest is refused");
    vec![manifest, index_of(&CHAIN.snapshot).expect("one entry")]
}
