//! Pieces and code packs in archives. One that is accepted under an honest name has exactly the rows or codes of that
//! name.

use std::{collections::BTreeSet, ops::ControlFlow, sync::LazyLock};

use slipstream_storage::{CodePack, CodePackInfo, Piece, PieceInfo, Snapshot};
use slipstream_types::{Blob, BlobKind, Digest, delta::Code};

use super::world::CHAIN;
use crate::claim::edit;

struct Objects {
    pieces: Vec<(PieceInfo, Blob)>,
    pack: (CodePackInfo, Blob),
    codes: Vec<(Digest, Code)>,
}

static OBJECTS: LazyLock<Objects> = LazyLock::new(|| {
    let (mut pieces, mut hashes, mut packs) = (Vec::new(), BTreeSet::new(), Vec::new());
    for range in Snapshot::piece_ranges() {
        let mut keep = |piece: Piece| {
            hashes.extend(piece.code_hashes());
            pieces.push((piece.info().clone(), piece.blob()?));
            Ok(ControlFlow::Continue(()))
        };
        CHAIN.snapshot.pieces(range, &mut keep).expect("memory is readable");
    }
    let mut keep = |pack: CodePack| {
        packs.push((*pack.info(), pack.blob()?));
        Ok(ControlFlow::Continue(()))
    };
    CHAIN.snapshot.code_packs(&hashes, &mut keep).expect("memory is readable");
    let pack = packs.pop().expect("an account has code");
    let codes = CodePack::open(&pack.0, &pack.1).expect("the truth");
    Objects { pieces, pack, codes }
});

/// Runs one input. The first byte selects the object. If the second byte is odd, the rest alters the honest blob;
/// otherwise the rest is the content of another blob, or that blob itself.
pub(super) fn run(bytes: &[u8]) {
    let [which, mode, rest @ ..] = bytes else { return };
    let which = usize::from(*which) % (OBJECTS.pieces.len() + 1);
    match OBJECTS.pieces.get(which) {
        Some((info, honest)) => {
            let Some(blob) = blob(BlobKind::Piece, honest, *mode, rest) else { return };
            if let Ok(piece) = Piece::open(info, &blob) {
                let content = |blob: &Blob| blob.content(BlobKind::Piece).expect("it was opened");
                assert_eq!(content(&blob), content(honest), "a piece with other rows was accepted");
                assert_eq!(piece.info(), info);
            }
        }
        None => {
            let (info, honest) = &OBJECTS.pack;
            let Some(blob) = blob(BlobKind::CodePack, honest, *mode, rest) else { return };
            if let Ok(codes) = CodePack::open(info, &blob) {
                assert_eq!(codes, OBJECTS.codes, "a pack with other code was accepted");
            }
        }
    }
}

fn blob(kind: BlobKind, honest: &Blob, mode: u8, rest: &[u8]) -> Option<Blob> {
    match mode % 4 {
        0 => Blob::compress(kind, rest).ok(),
        2 => Blob::from_bytes(rest.to_vec()).ok(),
        _ => {
            let mut bytes = honest.as_bytes().to_vec();
            edit(&mut bytes, rest);
            Blob::from_bytes(bytes).ok()
        }
    }
}

/// Returns each object unchanged, with a byte altered, as its content, and as its blob.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let kinds = OBJECTS.pieces.iter().map(|(_, blob)| (BlobKind::Piece, blob));
    let kinds = kinds.chain([(BlobKind::CodePack, &OBJECTS.pack.1)]);
    let of = |(which, (kind, blob)): (usize, (BlobKind, &Blob))| {
        let content = blob.content(kind).expect("the truth");
        let with = |mode: u8, rest: &[u8]| [&[which as u8, mode][..], rest].concat();
        [with(1, &[]), with(1, &[9, 0, 1]), with(0, &content), with(2, blob.as_bytes())]
    };
    kinds.enumerate().flat_map(of).collect()
}
