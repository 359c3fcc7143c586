//! The kinds of liars: names, what each does, and how many there are.

use slipnet::devnet::SyncMode;

use super::super::attack::Attack;

pub(in super::super) const ALL: &[&dyn Attack] = &[
    &LURE,
    &GROUND_KEY,
    &DRIP,
    &STALLERS,
    &HINTS,
    &OVERSIZED,
    &LITERAL,
    &CORRUPT,
    &FORGED,
    &GARBAGE,
    &FOREIGN_GENESIS,
    &STRANGE_SIGNATURES,
    &GRAFTED_BATCHES,
    &CHANGED_MONEY,
    &HIDDEN_ROWS,
    &CHANGED_ROWS,
    &FALSE_HINTS,
];

/// A liar's way with requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lie {
    /// Offers a snapshot that is free and endless, holds every request, and is busy then.
    Lure,
    /// Serves the snapshot in pieces of a kibibyte, one every few seconds.
    Drip,
    /// Tells the truth about what it has, and answers nothing else.
    Stall,
    /// Adds hints that nobody asked for.
    Hints,
    /// Answers 40 MiB of zeros to every request.
    Oversized,
    /// Sends true parts with their compression undone.
    Literal,
    /// Changes a byte of every chunk and part.
    Corrupt,
    /// Tells of a head far ahead, under the signatures of the true one.
    Forged,
    /// Answers random bytes to every request.
    Garbage,
    /// Tells of another chain's genesis, and the truth otherwise.
    ForeignGenesis,
    /// Puts a stranger's signatures under ranges.
    StrangeSignatures,
    /// Sends other headers, each on the one before, under the true certificate.
    GraftedBatches,
    /// Sends deltas that give every account one wei more.
    ChangedMoney,
    /// Leaves one row out of each chunk.
    HiddenRows,
    /// Changes one row of each chunk.
    ChangedRows,
    /// Adds a false value of each key to hints.
    FalseHints,
}

impl Lie {
    /// How a node joins that it shows best in: lies about ranges where ranges are the only way, and so on.
    pub(super) fn shows_in(self) -> SyncMode {
        match self {
            Lie::Hints
            | Lie::Literal
            | Lie::Corrupt
            | Lie::StrangeSignatures
            | Lie::GraftedBatches
            | Lie::FalseHints => SyncMode::Replay,
            Lie::ChangedMoney => SyncMode::Delta,
            Lie::HiddenRows | Lie::ChangedRows => SyncMode::Snapshot,
            Lie::Lure
            | Lie::Drip
            | Lie::Stall
            | Lie::Oversized
            | Lie::Forged
            | Lie::Garbage
            | Lie::ForeignGenesis => SyncMode::Auto,
        }
    }

    /// Whether it changes the batches of a range, or what signs them.
    pub(super) fn is_about_ranges(self) -> bool {
        matches!(
            self,
            Lie::Hints
                | Lie::Literal
                | Lie::Corrupt
                | Lie::StrangeSignatures
                | Lie::GraftedBatches
                | Lie::ChangedMoney
                | Lie::FalseHints
        )
    }
}

/// So many peers that lie alike.
pub(super) struct Liars {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) lie: Lie,
    pub(super) count: usize,
    pub(super) is_ground: bool,
}

static LURE: Liars = Liars {
    name: "snapshot-lure",
    about: "a server that offers a snapshot of 0 bytes and 2^64-1 rows, holds every request for 9.5 s and is busy then",
    lie: Lie::Lure,
    count: 1,
    is_ground: false,
};

static GROUND_KEY: Liars = Liars {
    name: "snapshot-lure-ground",
    about: "three of them under keys that are ground to be asked first by nodes whose draws come from their public key",
    lie: Lie::Lure,
    count: 3,
    is_ground: true,
};

static DRIP: Liars = Liars {
    name: "snapshot-drip",
    about: "a server of a cheap snapshot that sends a kibibyte of it every 4 s",
    lie: Lie::Drip,
    count: 1,
    is_ground: false,
};

static STALLERS: Liars = Liars {
    name: "stalling-servers",
    about: "six fresh servers that promise everything and answer nothing",
    lie: Lie::Stall,
    count: 6,
    is_ground: false,
};

static HINTS: Liars = Liars {
    name: "unasked-hints",
    about: "two servers that add 4 MiB of hints that nobody asked for to each of eight batches",
    lie: Lie::Hints,
    count: 2,
    is_ground: false,
};

static OVERSIZED: Liars = Liars {
    name: "oversized-answers",
    about: "four servers that answer 40 MiB, whatever was asked",
    lie: Lie::Oversized,
    count: 4,
    is_ground: false,
};

static LITERAL: Liars = Liars {
    name: "literal-blobs",
    about: "a server of true batches whose compression it has undone",
    lie: Lie::Literal,
    count: 1,
    is_ground: false,
};

static CORRUPT: Liars = Liars {
    name: "corrupt-answers",
    about: "three servers that change a byte of everything",
    lie: Lie::Corrupt,
    count: 3,
    is_ground: false,
};

static FORGED: Liars = Liars {
    name: "forged-heads",
    about: "three servers that tell of a head 1,000 batches ahead, under the signatures of the true one",
    lie: Lie::Forged,
    count: 3,
    is_ground: false,
};

static GARBAGE: Liars = Liars {
    name: "garbage-answers",
    about: "three servers that answer random bytes, whatever was asked",
    lie: Lie::Garbage,
    count: 3,
    is_ground: false,
};

static FOREIGN_GENESIS: Liars = Liars {
    name: "foreign-genesis",
    about: "three servers that tell of another chain's genesis",
    lie: Lie::ForeignGenesis,
    count: 3,
    is_ground: false,
};

static STRANGE_SIGNATURES: Liars = Liars {
    name: "strange-signatures",
    about: "three servers that put a stranger's signatures under all ranges",
    lie: Lie::StrangeSignatures,
    count: 3,
    is_ground: false,
};

static GRAFTED_BATCHES: Liars = Liars {
    name: "grafted-batches",
    about: "three servers of other headers under true certificates",
    lie: Lie::GraftedBatches,
    count: 3,
    is_ground: false,
};

static CHANGED_MONEY: Liars = Liars {
    name: "changed-money",
    about: "three servers whose deltas give every account one wei more",
    lie: Lie::ChangedMoney,
    count: 3,
    is_ground: false,
};

static HIDDEN_ROWS: Liars = Liars {
    name: "hidden-rows",
    about: "three servers that leave a row out of each chunk of a snapshot",
    lie: Lie::HiddenRows,
    count: 3,
    is_ground: false,
};

static CHANGED_ROWS: Liars = Liars {
    name: "changed-rows",
    about: "three servers that change a row of each chunk of a snapshot",
    lie: Lie::ChangedRows,
    count: 3,
    is_ground: false,
};

static FALSE_HINTS: Liars = Liars {
    name: "false-hints",
    about: "two servers whose hints tell a false value of each key",
    lie: Lie::FalseHints,
    count: 2,
    is_ground: false,
};
