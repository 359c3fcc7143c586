//! Every limit on an answer, in one place.

/// Maximum number of slots of one proof, the same as geth's limit for `eth_getProof`.
pub const SLOTS_MAX: usize = 1_024;
/// Maximum number of certificates of one answer of `slipstream_getEpochChanges`.
pub const EPOCH_CHANGES_MAX: usize = 64;
/// Maximum bytes of an answer. A proof with [`SLOTS_MAX`] slots of a state with a billion rows has about 5 MiB.
pub const ANSWER_BYTES_MAX: usize = 16 << 20;
