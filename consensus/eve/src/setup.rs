//! [`Setup`]: the state and the settings that a validator starts with.

use slipstream_types::{Certificate, Digest, LedgerInfo, SecretKey, ValidatorSet};

use crate::{
    message::{Seat, SignedOrder},
    record::Record,
};

/// How a validator runs the protocol. Validators may have different settings.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Settings {
    /// How long a primary may take for one batch before this validator complains, in milliseconds. Doubles with every
    /// view without a decision.
    pub view_timeout_ms: u64,
    /// Decisions of one view after which this validator asks for the next primary; 0 for no rotation.
    pub rotate_after: u64,
    /// After this many decisions without a divergence, a validator awaits the tokens of all executors; 0 disables that. Set
    /// by configuration.
    pub protect_after: u64,
    /// How long to wait for all executors' tokens, in milliseconds; set by configuration.
    pub protect_wait_ms: u64,
    /// Whether a signature of this validator that its record lacks means that it has lost votes. Off only in the model,
    /// whose paths share the signatures of a quorum.
    pub recalls_votes: bool,
}

/// The result of one order at this validator. Its driver keeps it durably until its number is committed.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Outcome {
    /// The order that was executed.
    pub order: SignedOrder,
    /// The ledger info after its execution.
    pub info: LedgerInfo,
}

/// The state that a validator starts from.
#[derive(Debug)]
pub struct Setup {
    /// The validators of the epoch.
    pub set: ValidatorSet,
    /// The key that this validator signs with.
    pub key: SecretKey,
    /// This validator's index in the set.
    pub seat: Seat,
    /// Names the chain, so that no signature for another chain counts.
    pub domain: Digest,
    /// How this validator runs the protocol; set by its configuration.
    pub settings: Settings,
    /// The last committed batch.
    pub head: LedgerInfo,
    /// The certificate of `head`, if this validator has it. View changes show it.
    pub certificate: Option<Certificate>,
    /// The last durable record, or `None` for a validator that never took part or lost its data.
    pub record: Option<Record>,
    /// The kept outcomes above the head, in order. Each builds on the one before, the first on the head.
    pub outcomes: Vec<Outcome>,
    /// All kept outcomes above the head, including those outside the chain of `outcomes`. As a primary, this validator
    /// announced their orders and may announce no others instead. As an executor, it may have prepared these outcomes
    /// and may prepare no others.
    pub kept: Vec<KeptOutcome>,
}

/// The part of a kept outcome that binds a validator.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct KeptOutcome {
    /// The order that was executed.
    pub order: SignedOrder,
    /// Digest of the ledger info after its execution.
    pub token: Digest,
}

impl From<&Outcome> for KeptOutcome {
    fn from(outcome: &Outcome) -> KeptOutcome {
        KeptOutcome { order: outcome.order.clone(), token: outcome.info.digest() }
    }
}
