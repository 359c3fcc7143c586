//! Every limit on what a plan or a chunk may demand; each names the failure that it prevents.

use slipstream_types::limits;

/// Maximum bytes of a payload that goes whole or as shards; bounds what one plan can make a node hold. A body has at most
/// 16 MiB, hints 8 MiB, and LZ4 adds a 255th part to what it cannot compress.
pub const PAYLOAD_BYTES_MAX: usize = limits::PAYLOAD_BYTES_MAX;
/// Maximum bytes of a payload under [`CodecKind::Rlnc`](crate::CodecKind::Rlnc). Bounds processor time: a source commits
/// to 2 MiB in about a third of a second, and a receiver takes a seventh of that.
pub const RLNC_BYTES_MAX: usize = 2 << 20;
/// Maximum number of pieces of a payload under RLNC: bounds the commitments in a plan, the coefficients in a chunk, and
/// the cubic time of elimination.
pub const PIECES_MAX: usize = 64;
/// Maximum number of scalars of one piece under RLNC: bounds the number of generators. Each of them costs some 15
/// microseconds once in a process, and 160 bytes.
pub const PIECE_SCALARS_MAX: usize = 8_192;
/// Maximum number of shards of a payload, data and parity together: bounds a path to the root, and the map of a peer's shards.
pub const SHARDS_MAX: usize = 256;
/// Maximum bytes of the map of a peer's shards.
pub const SHARD_MAP_BYTES_MAX: usize = SHARDS_MAX / 8;
/// Maximum number of chunks beyond those needed that wait unchecked under RLNC: room for honest chunks even if a
/// polluter sends many.
pub const SPARES_MAX: usize = 16;
/// Maximum number of different whole payloads that are held until one of them is found to be right.
pub const CANDIDATES_MAX: usize = 3;
/// Maximum number of peers whose holdings a codec remembers; bounds that memory if peers come and go.
pub const PEERS_MAX: usize = 1_024;
