//! Every limit on data from outside, in one place. Each names the failure that it prevents.

/// Bytes of one EIP-2718 transaction envelope; keeps one sender from filling a batch's memory. Same as other clients' pools.
pub const TRANSACTION_BYTES_MAX: usize = 128 * 1024;
/// Transactions in one batch; bounds the vectors allocated per transaction.
pub const BATCH_TRANSACTIONS_MAX: usize = 65_536;
/// Uncompressed bytes of a body; bounds the memory that a peer's body can make a node allocate.
pub const BODY_BYTES_MAX: usize = 16 << 20;
/// Uncompressed bytes of a batch's receipts.
pub const RECEIPTS_BYTES_MAX: usize = 32 << 20;
/// Uncompressed bytes of a batch's delta.
pub const DELTA_BYTES_MAX: usize = 32 << 20;
/// Uncompressed bytes of a batch's hints; hints are advice, and their maker drops them if they do not fit.
pub const HINTS_BYTES_MAX: usize = 8 << 20;
/// Uncompressed bytes of a body and its hints together: an order, the longest honest message, carries both.
pub const ORDER_PARTS_BYTES_MAX: usize = BODY_BYTES_MAX + HINTS_BYTES_MAX;
/// Bytes of one message between nodes, twice those parts; keeps one message from filling a node's memory.
pub const MESSAGE_BYTES_MAX: usize = 2 * ORDER_PARTS_BYTES_MAX;
/// Bytes of one payload that the mesh spreads: a body, or hints, as a blob; bounds what one plan can make a node hold.
pub const PAYLOAD_BYTES_MAX: usize = ORDER_PARTS_BYTES_MAX;
/// Bytes by which a blob may be longer than its content: LZ4 adds a 255th part to what it cannot compress.
pub const BLOB_EXCESS_BYTES_MAX: usize = 1 << 20;
/// Uncompressed bytes of a genesis file's canonical form.
pub const GENESIS_BYTES_MAX: usize = 32 << 20;
/// Keys in one delta; implied by [`DELTA_BYTES_MAX`] and checked before the vector grows.
pub const DELTA_ENTRIES_MAX: usize = 1 << 20;
/// Contracts created in one batch.
pub const DELTA_CODES_MAX: usize = 65_536;
/// Bytes of one contract's code. EIP-170 allows 24,576; mainnet has none above that, and EIP-7907 proposes 64 KiB.
pub const CODE_BYTES_MAX: usize = 64 * 1024;
/// Logs of one transaction.
pub const LOGS_MAX: usize = 65_536;
/// Maximum number of topics of one log: the EVM has `LOG0` to `LOG4`.
pub const TOPICS_MAX: usize = 4;
/// Maximum gas that a chain may let one transaction use: 2^24, as in EIP-7825. A log costs at least 375 gas, plus 8 per
/// byte of its data, so no transaction reaches [`LOGS_MAX`] or a tenth of [`RECEIPTS_BYTES_MAX`]. Every executed
/// transaction therefore fits a batch and can pay for its gas.
pub const TRANSACTION_GAS_MAX: u64 = 1 << 24;
/// Least gas that a transaction uses; a chain that allows less could have no transactions.
pub const TRANSACTION_GAS_MIN: u64 = 21_000;
/// Validators in one set; bounds signatures of a certificate.
pub const VALIDATORS_MAX: usize = 128;
/// Forks in a schedule; bounds the list that a peer sends.
pub const FORKS_MAX: usize = 32;
/// Bytes of a fork's name, which is shown in logs.
pub const FORK_NAME_BYTES_MAX: usize = 32;
/// Siblings on one side of a proof: one for each bit of a path.
pub const PROOF_SIDE_MAX: usize = 256;
/// Headers in one range proof.
pub const HEADERS_MAX: usize = 16_384;
/// Uncompressed bytes of a piece of a state, or of a pack of codes: the count, and 1 MiB. Bounds what an archive's
/// reader allocates at once.
pub const PIECE_BYTES_MAX: usize = (1 << 20) + 5;
/// Rows of one state chunk.
pub const STATE_CHUNK_ROWS_MAX: usize = 65_536;
/// Accounts in a genesis file.
pub const GENESIS_ACCOUNTS_MAX: usize = 1 << 20;

/// Gas of the cheapest log, LOG0 without data.
const LOG_GAS_MIN: u64 = 375;
const _: () = assert!(TRANSACTION_GAS_MAX / LOG_GAS_MIN <= LOGS_MAX as u64);

// The limits of blobs and messages admit the longest contents, even if LZ4 cannot compress them.
const _: () = {
    let longest = [BODY_BYTES_MAX, RECEIPTS_BYTES_MAX, DELTA_BYTES_MAX, HINTS_BYTES_MAX, GENESIS_BYTES_MAX];
    let mut at = 0;
    while at < longest.len() {
        assert!(longest[at] <= DELTA_BYTES_MAX && longest[at] / 255 < BLOB_EXCESS_BYTES_MAX);
        at += 1;
    }
    assert!(BODY_BYTES_MAX + BLOB_EXCESS_BYTES_MAX <= PAYLOAD_BYTES_MAX);
    assert!(HINTS_BYTES_MAX + BLOB_EXCESS_BYTES_MAX <= PAYLOAD_BYTES_MAX);
    assert!(ORDER_PARTS_BYTES_MAX + 2 * BLOB_EXCESS_BYTES_MAX <= MESSAGE_BYTES_MAX);
    assert!(DELTA_BYTES_MAX + BLOB_EXCESS_BYTES_MAX <= MESSAGE_BYTES_MAX);
};
