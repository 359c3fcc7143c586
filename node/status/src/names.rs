//! [`Names`]: the operator's names for keys.

use std::{collections::BTreeMap, fmt::Display};

use slipstream_archive::Location;
use slipstream_network::{PeerId, PeerName};
use slipstream_types::{Digest, PublicKey};

/// The names from `network.names`, and the URLs of archives.
#[derive(Debug, Default)]
pub struct Names(BTreeMap<PeerId, String>);

impl Names {
    /// The names from `network.names`.
    pub fn new(names: &[PeerName]) -> Names {
        Names(names.iter().map(|named| (named.id, named.name.clone())).collect())
    }

    /// Adds archives, which have no key, under their URLs unless they have another name.
    pub fn with_archives(mut self, archives: &[Location]) -> Names {
        for location in archives {
            self.0.entry(archive_id(location)).or_insert_with(|| location.to_string());
        }
        self
    }

    /// Whether no key has a name.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The name of a key, if it has one.
    pub fn of(&self, id: &PeerId) -> Option<String> {
        self.0.get(id).cloned()
    }

    /// A text about a peer, prefixed with the peer's name if it has one.
    pub fn call(&self, id: &PeerId, text: impl Display) -> String {
        self.0.get(id).map_or_else(|| text.to_string(), |name| format!("{name} {text}"))
    }
}

/// The id of an archive: the same for the same URL, at every start and on every node.
pub fn archive_id(location: &Location) -> PeerId {
    let url = location.to_string();
    let draw = |count: u64| {
        let bytes = [url.as_bytes(), &count.to_le_bytes()].concat();
        PublicKey(Digest::tagged("slipstream/archive-peer/1", &bytes).0)
    };
    // About half of all candidates are not points.
    (0..).map(draw).find(|id| !id.is_usable()).expect("half of all encodings are of no point")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: an archive's id is stable, and is nobody's key.
    #[test]
    fn the_archive_id_an_archive_is_no_key() {
        let mut ids = Vec::new();
        for i in 0..64 {
            let location: Location = format!("s3://bucket/{i}").parse().unwrap();
            let id = archive_id(&location);
            assert_eq!(id, archive_id(&location));
            assert!(!id.is_usable());
            ids.push(id);
        }
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 64);
    }

    /// Goal: the operator sees an archive's URL, or the configured name for it.
    #[test]
    fn archives_are_called_by_their_urls() {
        let archives: [Location; 2] = ["s3://bucket/a", "s3://bucket/b"].map(|url| url.parse().unwrap());
        let [first, second] = archives.each_ref().map(archive_id);
        let names = Names::new(&[format!("{first}=ours").parse().unwrap()]).with_archives(&archives);
        assert_eq!([first, second].map(|id| names.of(&id).unwrap()), ["ours", "s3://bucket/b"]);
    }
}
