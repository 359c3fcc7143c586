//! [`Column`]: the columns of a store, and their names on disk.

/// A column family. Keys and values are described in [`crate::schema`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, strum::VariantArray, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum Column {
    /// Head, restore and pruning records, and the genesis.
    #[strum(serialize = "default")]
    Meta,
    /// Batch number to header.
    Headers,
    /// Header digest to batch number.
    HeaderIndex,
    /// The accumulator's nodes by position.
    Nodes,
    /// Batch number to certificate.
    Certificates,
    /// Epoch to the certificate that ends it.
    EpochEnds,
    /// Batch number to body blob.
    Bodies,
    /// Batch number to receipts blob.
    Receipts,
    /// Batch number to delta blob.
    Deltas,
    /// Batch number to hints blob.
    Hints,
    /// The start of a transaction's hash, batch number and index.
    Transactions,
    /// Keccak-256 to contract code.
    Codes,
    /// Hashes of the code that a restore still needs.
    MissingCodes,
    /// Named records of other crates.
    Records,
    /// State rows by path; the head record says whether this column or the other one is in use.
    StateA,
    /// The state's rows, alternating with [`Column::StateA`].
    StateB,
    /// Path and batch number to the row before that batch, for sealed batches.
    History,
    /// Batch number to the rows before it and before the batches that were written with it: see
    /// [`crate::history_log`].
    HistoryLog,
}

impl Column {
    /// Every column, at its index in the in-memory twin.
    pub(crate) const ALL: &'static [Column] = <Column as strum::VariantArray>::VARIANTS;

    /// The column family's name on disk.
    pub(crate) fn name(self) -> &'static str {
        self.into()
    }
}
