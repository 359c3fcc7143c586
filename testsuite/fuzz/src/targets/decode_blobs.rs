//! Blobs of peers. Decoding never panics and stays below its limit. A blob that decodes is the only encoding of its
//! value.

use slipstream_types::{Blob, BlobKind, Body, Delta, Genesis, Receipts};

const KINDS: [BlobKind; 9] = [
    BlobKind::Body,
    BlobKind::Receipts,
    BlobKind::Delta,
    BlobKind::Hints,
    BlobKind::Genesis,
    BlobKind::StateChunk,
    BlobKind::RangeDelta,
    BlobKind::Piece,
    BlobKind::CodePack,
];

/// Re-encodes the decoded content; `None` if it does not decode.
fn again(kind: BlobKind, content: &[u8]) -> Option<Vec<u8>> {
    match kind {
        BlobKind::Body => bcs::to_bytes(&bcs::from_bytes::<Body>(content).ok()?).ok(),
        BlobKind::Receipts => bcs::to_bytes(&bcs::from_bytes::<Receipts>(content).ok()?).ok(),
        BlobKind::Delta => Delta::decode(content).ok()?.content().ok(),
        BlobKind::Genesis => Genesis::decode(content).ok()?.content().ok(),
        // Hints have several encodings, and their own target.
        BlobKind::Hints
        | BlobKind::StateChunk
        | BlobKind::RangeDelta
        | BlobKind::Piece
        | BlobKind::CodePack => None,
    }
}

pub(crate) fn run(bytes: &[u8]) {
    let Some((first, rest)) = bytes.split_first() else { return };
    let kind = KINDS[usize::from(*first) % KINDS.len()];
    // The input is tried as a blob, and as the content of a blob, which reaches the decoders far more often.
    if let Ok(blob) = Blob::from_bytes(rest.to_vec())
        && let Ok(content) = blob.content(kind)
    {
        assert!(content.len() <= kind.content_bytes_max());
        let _ = again(kind, &content);
    }
    if let Some(encoded) = again(kind, rest) {
        assert_eq!(encoded, rest, "two encodings of one value");
    }
    if let Ok(blob) = Blob::compress(kind, rest) {
        assert_eq!(blob.content(kind).ok().as_deref(), Some(rest), "a blob changes its content");
    }
}

/// Returns an empty content of each kind, a genesis, and a body.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let genesis = crate::targets::world::genesis().content().expect("a genesis encodes");
    let body = Body::new(vec![vec![2; 40], vec![1; 3]]).expect("a short body");
    let body = bcs::to_bytes(&body).expect("it encodes");
    let at = |kind| KINDS.iter().position(|it| *it == kind).expect("it is one of them") as u8;
    let blob = Blob::compress(BlobKind::Body, &body).expect("a short body");
    let contents = [(BlobKind::Genesis, genesis.as_slice()), (BlobKind::Body, &body), (BlobKind::Body, blob.as_bytes())];
    let filled = contents.map(|(kind, content)| [&[at(kind)][..], content].concat());
    (0..KINDS.len() as u8).map(|kind| vec![kind, 0]).chain(filled).collect()
}
