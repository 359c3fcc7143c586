//! [`Seat`]: the node's place among the validators, from epoch to epoch.
//!
//! ```text
//!  store's head ─▶ Seat ── the set of the next batch names the node's key ─▶ a Validator for that epoch
//!                   ├────▶ forwarder: the primary           └─ it does not, or the node is behind ─▶ none: it follows
//!                   └────▶ follower: whether to leave new batches to the validator
//! ```

use std::{sync::Arc, time::Duration};

use parking_lot::{Mutex, RwLock};
use slipstream_base::{about, tasks::TaskError};
use slipstream_broadcast::{Broadcaster, Wants};
use slipstream_config::{NodeConfig, Role};
use slipstream_consensus::{
    ConsensusError, ConsensusStatus, DecidedBatch, Driver, Forwarder, Pool, Silence, Validator,
};
use slipstream_executor::{HintsMode, Session};
use slipstream_network::Transport;
use slipstream_storage::{StorageError, Store};
use slipstream_sync::Follower;
use slipstream_types::{BatchNumber, ChainConfig, Clock, Epoch, PublicKey, SecretKey, ValidatorSet};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

/// How long a validator's follower leaves a new batch to consensus; a later decision counts as lost.
const DECISION_PATIENCE: Duration = Duration::from_secs(1);

/// How often the seat checks whether the epoch is over while the head does not move.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How often a node logs that its chain has yet to begin.
const WAITING_TOLD_EVERY: Duration = Duration::from_secs(60);

/// The parts of a validator that stay the same in every epoch.
pub struct SeatParts {
    /// The node's configuration.
    pub config: NodeConfig,
    /// Executes batches.
    pub session: Arc<Session>,
    /// The configuration of the chain.
    pub chain: ChainConfig,
    /// The node's store.
    pub store: Store,
    /// The waiting transactions.
    pub pool: Pool,
    /// The node's secret key.
    pub key: SecretKey,
    /// The network.
    pub transport: Arc<dyn Transport>,
    /// The node's clock.
    pub clock: Arc<dyn Clock>,
    /// Brings transactions to the validators.
    pub forwarder: Arc<Forwarder>,
    /// Sync.
    pub follower: Arc<Follower>,
    /// The mesh.
    pub broadcaster: Arc<Broadcaster>,
    /// The queue of decided batches to announce.
    pub decided: mpsc::Sender<DecidedBatch>,
}

/// The node's role in one epoch.
#[derive(Clone)]
struct Term {
    /// The validators of the batch after the head.
    set: Arc<ValidatorSet>,
    /// `None` if the set lacks this node, or the node is behind.
    validator: Option<Validator>,
}

/// The node's seat among the validators.
pub struct Seat {
    parts: SeatParts,
    id: PublicKey,
    term: RwLock<Term>,
    /// The driver of the term's validator, until it runs.
    driver: Mutex<Option<Driver>>,
    /// The epoch and view that the forwarder got last.
    led: Mutex<Option<(Epoch, u64)>>,
}

impl Seat {
    /// Creates the seat for the store's current epoch.
    ///
    /// # Errors
    /// If the store cannot be read, or the validator cannot be created.
    pub fn new(parts: SeatParts) -> Result<Arc<Seat>, ConsensusError> {
        let id = parts.key.public();
        let (term, driver) = parts.term(&id)?;
        let (term, driver) = (RwLock::new(term), Mutex::new(driver));
        let seat = Seat { parts, id, term, driver, led: Mutex::default() };
        seat.tell()?;
        Ok(Arc::new(seat))
    }

    /// The validator that this node currently is.
    pub fn validator(&self) -> Option<Validator> {
        self.term.read().validator.clone()
    }

    /// The validators of the batch after the head, as of the last change.
    pub fn set(&self) -> Arc<ValidatorSet> {
        self.term.read().set.clone()
    }

    /// Whether the node depends on others. Only the validator of a chain with one validator can work alone.
    pub(crate) fn needs_peers(&self) -> bool {
        let set = self.set();
        set.validators.len() > 1
            || self.parts.config.role == Role::Fullnode
            || set.index_of(&self.id).is_none()
    }

    /// Why the node signs nothing although its operator runs it as a validator.
    pub fn silence(&self, consensus: Option<&ConsensusStatus>) -> Option<Silence> {
        if self.parts.config.role == Role::Fullnode {
            return None;
        }
        let set = self.set();
        match (consensus, set.index_of(&self.id)) {
            (Some(consensus), _) => consensus.silence,
            (None, Some(_)) => Some(Silence::CatchingUp),
            (None, None) => Some(Silence::NotInSet { epoch: set.epoch }),
        }
    }

    /// Runs the validator of each epoch in turn until `shutdown`.
    ///
    /// # Errors
    /// The validator's error, if it must stop, or the store's, if it cannot be read.
    pub async fn run(self: Arc<Self>, shutdown: CancellationToken) -> Result<(), TaskError> {
        let mut head = self.parts.store.watch_head();
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            begun = self.wait_for_genesis() => begun?,
        }
        while !shutdown.is_cancelled() {
            let (epoch, driver) = (self.set().epoch, self.driver.lock().take());
            let epoch_token = shutdown.child_token();
            let over = self.until_over(epoch, driver.is_some(), &mut head);
            match driver {
                None => tokio::select! {
                    () = shutdown.cancelled() => return Ok(()),
                    over = over => over?,
                },
                Some(driver) => {
                    let running = driver.run(epoch_token.clone());
                    tokio::pin!(running);
                    tokio::select! {
                        // At shutdown the validator ends by itself.
                        ended = &mut running => {
                            ended?;
                            return if shutdown.is_cancelled() { Ok(()) } else { Err("it ended by itself".into()) };
                        }
                        over = over => over?,
                    }
                    // The next term must see everything that this term was still writing.
                    epoch_token.cancel();
                    running.await?;
                }
            }
            let seat = self.clone();
            tokio::task::spawn_blocking(move || seat.enter()).await??;
        }
        Ok(())
    }

    /// Waits for the genesis's time, or for a batch of validators whose clocks have passed that time. The chain's time
    /// is that of its batches, so nothing is produced before it begins.
    async fn wait_for_genesis(&self) -> Result<(), TaskError> {
        let mut told: Option<Instant> = None;
        loop {
            let head = self.parts.store.head()?;
            let left_ms = head.header.timestamp_ms.saturating_sub(self.parts.clock.now_ms());
            if head.header.number > BatchNumber::GENESIS || left_ms == 0 {
                return Ok(());
            }
            if told.is_none_or(|told| told.elapsed() >= WAITING_TOLD_EVERY) {
                told = Some(Instant::now());
                let left = about(Duration::from_millis(left_ms));
                tracing::info!(
                    "the chain begins in {left}, according to its genesis time and this machine's clock"
                );
            }
            tokio::time::sleep(LOOK_INTERVAL.min(Duration::from_millis(left_ms))).await;
        }
    }

    /// Waits until the node's role may change: its epoch is over, or it has caught up.
    async fn until_over(
        &self,
        epoch: Epoch,
        validates: bool,
        head: &mut watch::Receiver<BatchNumber>,
    ) -> Result<(), TaskError> {
        let store = &self.parts.store;
        let mut view = self.validator().map(|validator| validator.watch_view());
        loop {
            self.lead()?;
            let number = *head.borrow_and_update();
            if store.epoch() > epoch {
                let last = store.epoch_ends(epoch, 1)?.pop().map(|end| end.info.number);
                if validates || last.is_some_and(|last| last <= number) {
                    return Ok(());
                }
            }
            let another_view = async {
                let changed = match &mut view {
                    Some(view) => view.changed().await.is_ok(),
                    None => false,
                };
                // A validator that has ended has no views any more.
                if !changed {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                _ = head.changed() => {}
                () = another_view => {}
                // The end of an epoch may become known without a new head.
                () = tokio::time::sleep(LOOK_INTERVAL) => {}
            }
        }
    }

    /// Takes the role that the store's head implies.
    fn enter(&self) -> Result<(), ConsensusError> {
        // The previous validator has ended.
        self.term.write().validator = None;
        let (term, driver) = self.parts.term(&self.id)?;
        let (epoch, validators) = (term.set.epoch, term.set.validators.len());
        match term.validator.is_some() {
            true => tracing::info!(%epoch, validators, "an epoch has begun, and this node validates in it"),
            false => tracing::info!(%epoch, validators, "an epoch has begun, and this node follows in it"),
        }
        (*self.term.write(), *self.driver.lock()) = (term, driver);
        Ok(self.tell()?)
    }

    /// Informs the follower, the mesh and the forwarder of the node's role.
    fn tell(&self) -> Result<(), StorageError> {
        let validates = self.term.read().validator.is_some();
        let patience = if validates { DECISION_PATIENCE } else { Duration::ZERO };
        self.parts.follower.set_patience(patience);
        self.parts.broadcaster.set_wants(wants(&self.parts.config, validates));
        self.lead()
    }

    /// Informs the forwarder of a new primary. A node without a vote takes the view from the newest certificate. If
    /// that primary is gone, transactions go to other validators until the next certificate: they know better who the
    /// primary is.
    fn lead(&self) -> Result<(), StorageError> {
        let Term { set, validator } = self.term.read().clone();
        let view = match validator {
            Some(validator) => *validator.watch_view().borrow(),
            None => {
                let newest = self.parts.store.latest_certificate()?;
                newest.filter(|it| it.info.epoch == set.epoch).map_or(0, |it| it.view)
            }
        };
        if self.led.lock().replace((set.epoch, view)) != Some((set.epoch, view)) {
            self.parts.forwarder.lead(&set, view);
        }
        Ok(())
    }
}

impl SeatParts {
    fn term(&self, id: &PublicKey) -> Result<(Term, Option<Driver>), ConsensusError> {
        let set = self.store.next_set()?;
        let validates = self.may_validate(&set, id)?;
        let (validator, driver) = validates.then(|| self.validator(&set)).transpose()?.unzip();
        Ok((Term { set, validator }, driver))
    }

    fn may_validate(&self, set: &ValidatorSet, id: &PublicKey) -> Result<bool, StorageError> {
        let named = set.index_of(id).is_some();
        if named && self.config.role == Role::Fullnode {
            tracing::warn!(epoch = %set.epoch, "this node's key is a validator's, but `role` is fullnode: it only follows");
            return Ok(false);
        }
        // A validator of a past epoch is behind, and has nothing to say.
        Ok(named && set.epoch >= self.store.epoch())
    }

    fn validator(&self, set: &ValidatorSet) -> Result<(Validator, Driver), ConsensusError> {
        Validator::new(
            self.config.consensus.clone(),
            self.session.clone(),
            self.chain.clone(),
            self.store.clone(),
            self.pool.clone(),
            self.key.clone(),
            set.clone(),
            self.transport.clone(),
            self.clock.clone(),
            self.decided.clone(),
        )
    }
}

/// The parts of new batches that a node wants to receive. A node that applies deltas executes no batches. A validator
/// gets batches from consensus. It wants only their hints, to pass them on to the fullnodes behind it.
pub fn wants(config: &NodeConfig, validates: bool) -> Wants {
    let executes = validates || config.sync.executes_head();
    Wants { body: executes && !validates, hints: executes && config.executor.hints != HintsMode::Off }
}
