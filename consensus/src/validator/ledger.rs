//! Executing the next batch, one's own or a proposed one, and committing it. Everything here blocks.

use std::sync::Arc;

use slipstream_executor::{
    self as executor, Ahead, Basis, BuildLimits, Difference, Layer, OrderedBatch, Outcome, Overlay, Sealed,
    Session, State, Transaction, Trust, Way,
};
use slipstream_storage::{CommitBatch, Head, Speculation, StorageError, Store, View};
use slipstream_types::{
    Address, B256, BatchHeader, BatchNumber, Blob, BlobKind, Body, Certificate, ChainConfig, CodecError,
    Delta, LedgerInfo, ValidatorSet, batch::content_digest, codec, limits,
};

use crate::{
    error::{ConsensusError, ProposalError},
    pool::Pool,
    protocol::tip::Tip,
};

/// Bytes of a body that are left free for the length prefixes.
const BODY_BYTES_SLACK: usize = 1 << 20;

/// How far a batch's time may be after its parent's. A wrong time that `inquiry` lets through, because a quorum's clocks are wrong,
/// would be in a batch that is signed and that nobody votes for until that time has come; so it costs ten minutes at most. After
/// a longer halt the chain's time catches up over several batches.
const STEP_MS_MAX: u64 = 600_000;

/// What executing and committing needs.
pub(super) struct Ledger {
    pub(super) chain: ChainConfig,
    pub(super) store: Store,
    pub(super) set: ValidatorSet,
    /// Shared with sync.
    pub(super) session: Arc<Session>,
    /// The contract that says who validates the next epoch, if the genesis names one.
    pub(super) contract: Option<Address>,
}

/// A batch with everything that committing it needs.
pub(super) struct Executed {
    pub(super) sealed: Sealed,
    pub(super) info: LedgerInfo,
    pub(super) delta: Delta,
    /// What it read and wrote.
    layer: Arc<Layer>,
    hashes: Vec<B256>,
    speculation: Option<Speculation>,
}

/// The proposer's next batch, and what it found not to be executable.
pub(super) struct Built {
    pub(super) executed: Option<Executed>,
    pub(super) rejected: Vec<B256>,
}

/// Why an outcome has no header. It means another thing for one's own batch than for a proposed one.
#[derive(Debug, thiserror::Error)]
enum SealError {
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// Sync has committed on the head meanwhile, so that there is no root to be had of the batch's own state.
    #[error("the head moved while the batch was executed")]
    Overtaken,
}

impl SealError {
    fn of_proposal(self, number: BatchNumber) -> ProposalError {
        match self {
            SealError::Storage(source) => ProposalError::Storage(source),
            SealError::Codec(source) => ProposalError::Body { number, source },
            SealError::Overtaken => ProposalError::Overtaken { number },
        }
    }
}

impl Ledger {
    /// Makes the next batch out of the pool. Without a transaction it makes one only if it may be empty.
    pub(super) fn build(
        &self,
        pool: &Pool,
        transactions_max: usize,
        now_ms: u64,
        may_be_empty: bool,
    ) -> Result<Option<Built>, ConsensusError> {
        pool.catch_up()?;
        let Some((head, view)) = self.head()?.filter(|_| !self.is_over()) else { return Ok(None) };
        let timestamp_ms = next_timestamp(&head.header, now_ms);
        let (basis, overlay) = (self.basis(&head, timestamp_ms), Overlay::default());
        let Some(state) = State::on(&view, &overlay) else { return Ok(None) };
        let limits = BuildLimits {
            gas: self.chain.rules_at(head.header.number.next(), timestamp_ms).gas_limit,
            body_bytes: limits::BODY_BYTES_MAX - BODY_BYTES_SLACK,
            transactions: transactions_max.min(limits::BATCH_TRANSACTIONS_MAX),
        };
        let number = head.header.number.next();
        let built = self
            .session
            .build(&Ahead::default(), &basis, &mut pool.candidates(), &limits, &state)
            .map_err(|source| ConsensusError::Execute { number, source })?;
        for (hash, reason) in &built.rejected {
            tracing::debug!(%number, %hash, %reason, "transaction left out");
        }
        let rejected = built.rejected.into_iter().map(|(hash, _)| hash).collect();
        if built.included.is_empty() && !may_be_empty {
            return Ok(Some(Built { executed: None, rejected }));
        }
        match self.seal(&head, &view, timestamp_ms, &built.included, built.outcome) {
            Ok(executed) => Ok(Some(Built { executed: Some(executed), rejected })),
            // The next one is made on the new head.
            Err(SealError::Overtaken) => Ok(None),
            Err(SealError::Storage(source)) => Err(source.into()),
            Err(SealError::Codec(source)) => Err(source.into()),
        }
    }

    /// Whether the epoch of this validator's set has its last batch. Nothing more of it may be proposed or signed, however far this node
    /// has followed.
    pub(super) fn is_over(&self) -> bool {
        self.store.epoch() > self.set.epoch
    }

    /// Checks and executes a proposed batch that continues the head.
    pub(super) fn execute(
        &self,
        header: &BatchHeader,
        blob: &Blob,
        hints: Option<&Blob>,
    ) -> Result<Executed, ProposalError> {
        let number = header.number;
        let (head, view) = self.parent_of(header)?;
        if self.is_over() {
            return Err(ProposalError::EpochOver { number, epoch: self.set.epoch });
        }
        Tip::from(head.clone()).check(header, &self.set)?;
        let body = open_body(header, blob)?;
        let transactions = executor::decode_body(&body, self.chain.chain_id)
            .map_err(|source| ProposalError::Transactions { number, source })?;
        let basis = self.basis(&head, header.timestamp_ms);
        let outcome = self.run(&view, &basis, header, &transactions, hints)?;
        let executed = self
            .seal(&head, &view, header.timestamp_ms, &transactions, outcome)
            .map_err(|error| error.of_proposal(number))?;
        match executor::difference(&executed.sealed.header, header) {
            None => Ok(executed),
            Some(Difference { field, expected, found }) => {
                Err(ProposalError::Differs { number, field, expected, found })
            }
        }
    }

    /// Executes a proposed batch on the state behind its parent. Nobody vouches for the hints, so that values in them are not used.
    fn run(
        &self,
        view: &View,
        basis: &Basis<'_>,
        header: &BatchHeader,
        transactions: &[Transaction],
        hints: Option<&Blob>,
    ) -> Result<Outcome, ProposalError> {
        let (number, overlay) = (header.number, Overlay::default());
        let state = State::on(view, &overlay).ok_or(ProposalError::Overtaken { number })?;
        let batch = OrderedBatch::of(header, transactions, hints);
        let ahead = self.session.prepare(&batch, view, &overlay, Trust::Keys)?;
        let executed = self.session.execute(&ahead, basis, transactions, &state, Way::Fitting);
        executed.map(|executed| executed.outcome).map_err(|source| ProposalError::Execute { number, source })
    }

    /// What is settled about the batch behind the head. A proposed one says the same, or is refused.
    fn basis<'a>(&self, head: &'a Head, timestamp_ms: u64) -> Basis<'a> {
        let proposer = self.set.validators[0].fee_recipient;
        Basis { parent: &head.header, epoch: self.set.epoch, timestamp_ms, proposer }
    }

    /// The head with a view of its state; none if a batch was committed between the two.
    fn head(&self) -> Result<Option<(Head, View)>, StorageError> {
        let head = self.store.head()?;
        let view = self.store.view()?;
        Ok((*view.head() == head.header).then_some((head, view)))
    }

    /// The head that the batch continues.
    fn parent_of(&self, header: &BatchHeader) -> Result<(Head, View), ProposalError> {
        let number = header.number;
        let parent = self.head()?.filter(|(head, _)| head.header.number.next() == number);
        parent.ok_or(ProposalError::Overtaken { number })
    }

    fn seal(
        &self,
        head: &Head,
        view: &View,
        timestamp_ms: u64,
        transactions: &[Transaction],
        outcome: Outcome,
    ) -> Result<Executed, SealError> {
        let speculation = self.store.speculate(&outcome.delta)?;
        // The head only goes forward: as it still is the view's, the speculation was made on it.
        if self.store.head()?.header != *view.head() {
            return Err(SealError::Overtaken);
        }
        let (mode, basis) = (self.session.hints(), self.basis(head, timestamp_ms));
        let sealed = executor::seal(mode, &basis, transactions, &outcome, speculation.root())?;
        let next = executor::next_validators(self.contract, &sealed.header, view, &outcome.delta)?;
        Ok(Executed {
            info: LedgerInfo { next_validators: next, ..Tip::from(head.clone()).info_after(&sealed.header) },
            layer: Arc::new(Layer::of(&sealed.header, Some(&outcome.touched), &outcome.delta)),
            sealed,
            delta: outcome.delta,
            hashes: transactions.iter().map(|transaction| transaction.hash).collect(),
            speculation: Some(speculation),
        })
    }

    /// The head, with the validators that follow it if it ended its epoch.
    pub(super) fn tip(&self) -> Result<Tip, StorageError> {
        let head = self.store.head()?;
        let info = self.store.ledger_info(head.header.number)?;
        Ok(Tip { next: info.and_then(|info| info.next_validators), ..Tip::from(head) })
    }

    /// Commits a certified batch. That somebody else, sync, has committed it meanwhile is fine.
    pub(super) fn commit(
        &self,
        executed: &mut Executed,
        certificate: &Certificate,
    ) -> Result<(), StorageError> {
        let sealed = &executed.sealed;
        let batch = CommitBatch {
            certificate: Some(certificate),
            ..sealed.commit_batch(&executed.delta, &executed.hashes)
        };
        match self.store.commit(batch, executed.speculation.take()) {
            Err(StorageError::NotNext { head, number }) if head >= number => {}
            result => result?,
        }
        self.session.committed(&executed.layer);
        Ok(())
    }
}

/// The time of the batch after `parent`, which for batch 1 may be long after the genesis was written.
fn next_timestamp(parent: &BatchHeader, now_ms: u64) -> u64 {
    let parent_ms = parent.timestamp_ms;
    let most_ms = if parent.number.0 == 0 { u64::MAX } else { parent_ms.saturating_add(STEP_MS_MAX) };
    now_ms.clamp(parent_ms, most_ms)
}

impl From<Head> for Tip {
    fn from(Head { header, digest, accumulator }: Head) -> Tip {
        Tip { header, digest, accumulator, next: None }
    }
}

/// The body, if it is the one that the header commits to. Checked before anything of it is decoded.
fn open_body(header: &BatchHeader, blob: &Blob) -> Result<Body, ProposalError> {
    let number = header.number;
    let refuse = |source| ProposalError::Body { number, source };
    let content = blob.content(BlobKind::Body).map_err(refuse)?;
    let found = content_digest(BlobKind::Body, &content);
    if found != header.transactions_root {
        return Err(ProposalError::Differs {
            number,
            field: "transactions_root",
            expected: found.to_string(),
            found: header.transactions_root.to_string(),
        });
    }
    codec::decode("body", &content, limits::BODY_BYTES_MAX).map_err(refuse)
}
