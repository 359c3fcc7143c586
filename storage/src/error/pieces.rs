//! [`PieceError`].

use slipstream_types::{CodecError, Digest, Path};

use super::ChunkError;
use crate::place::PathPrefix;

/// Why a piece of a state, a pack of codes, or a list of pieces was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PieceError {
    /// A piece whose rows do not match its name.
    #[error("the rows at place {place:?} do not have the subtree hash {expected}")]
    OtherRows {
        /// The place of the piece's subtree.
        place: PathPrefix,
        /// The subtree hash that its place must have.
        expected: Digest,
    },
    /// A pack whose codes do not match its name.
    #[error("the codes at place {place:?} do not have the digest {expected}")]
    OtherCodes {
        /// The place of the codes' subtree.
        place: PathPrefix,
        /// The digest that the pack must have.
        expected: Digest,
    },
    /// The rows of the piece are refused.
    #[error(transparent)]
    Rows(#[from] ChunkError),
    /// The encoding is malformed.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// A list without pieces.
    #[error("the list of pieces is empty: every state has rows")]
    NoPieces,
    /// A list whose pieces cannot be those of one state.
    #[error("the list of pieces is wrong at place {place:?}: {reason}")]
    BadList {
        /// The place of the first wrong piece.
        place: PathPrefix,
        /// The rule that it breaks.
        reason: &'static str,
    },
    /// A list of another state's pieces.
    #[error("the pieces give the state root {found}, but the certified root is {expected}")]
    OtherState {
        /// The root that the pieces give.
        found: Digest,
        /// The certified root.
        expected: Digest,
    },
    /// A proof that ends inside a piece, and so needs that piece's rows.
    #[error("path {path:?} is inside a piece: a proof needs the piece's rows")]
    Within {
        /// The path at which the proof should end.
        path: Path,
    },
}
