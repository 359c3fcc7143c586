//! [`Driver`]: the actor. `inputs` turns events into the core's inputs; `effects` and `working` carry out what the core
//! wants.

use std::{collections::BTreeMap, sync::Arc};

use slipstream_eve::{self as eve, Core, Evidence, Output, Settings};
use slipstream_network::Transport;
use slipstream_types::{BatchNumber, Clock, Digest};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    DecidedBatch, Mail,
    bodies::Bodies,
    fetching::Fetches,
    inputs::{Input, Tag, Timer, WorkResult},
    kept::KeptOutcomes,
    lanes::Lanes,
    ledger::Ledger,
    logged_refusals::LoggedRefusals,
    message::OutcomeParts,
    neglect::Neglect,
    opening::StartState,
    records::{Convictions, EVIDENCE},
    status::{LastHeard, PublishedStatus},
    timers::Timers,
    tip::Tip,
    uncommitted_chain::UncommittedChain,
    work_queue::WorkQueue,
    working::Working,
};
use crate::{config::ConsensusConfig, error::ConsensusError, pool::Pool};

/// The parts of a driver.
pub(super) struct DriverParts {
    pub(super) config: ConsensusConfig,
    pub(super) ledger: Arc<Ledger>,
    pub(super) pool: Pool,
    pub(super) seat: u16,
    pub(super) transport: Arc<dyn Transport>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) decided: mpsc::Sender<DecidedBatch>,
    pub(super) mail: mpsc::Receiver<Mail>,
    pub(super) shown: Arc<watch::Sender<PublishedStatus>>,
    pub(super) view: watch::Sender<u64>,
    pub(super) evidence: watch::Sender<Arc<Vec<Evidence>>>,
}

/// A validator's only task. See the module above.
pub struct Driver {
    pub(super) seat: u16,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) ledger: Arc<Ledger>,
    pub(super) pool: Pool,
    pub(super) core: Core,
    pub(super) held: UncommittedChain,
    pub(super) kept: KeptOutcomes,
    pub(super) bodies: Bodies,
    pub(super) working: Working,
    pub(super) fetches: Fetches,
    pub(super) neglect: Neglect,
    /// Executes one batch after the other.
    pub(super) executions: WorkQueue<WorkResult>,
    /// Commits batches, while the next one is executed.
    pub(super) commits: WorkQueue<WorkResult>,
    /// Makes durable what is about to be sent, in parallel with executions and commits.
    pub(super) records: WorkQueue<WorkResult>,
    /// Reads committed batches that others request.
    pub(super) lookups: WorkQueue<WorkResult>,
    pub(super) lanes: Lanes<Tag>,
    pub(super) timers: Timers<Timer>,
    /// Outputs that wait for a record.
    pub(super) flushing: Option<Vec<Output>>,
    /// The last batch whose commit the core knows.
    pub(super) committed: BatchNumber,
    pub(super) decided: mpsc::Sender<DecidedBatch>,
    pub(super) convictions: Convictions,
    pub(super) mail: mpsc::Receiver<Mail>,
    pub(super) head: watch::Receiver<BatchNumber>,
    /// When each other validator was last heard.
    pub(super) heard: BTreeMap<u16, LastHeard>,
    /// The refusals that were logged for the current batch.
    pub(super) said: LoggedRefusals,
    pub(super) shown: Arc<watch::Sender<PublishedStatus>>,
    pub(super) view: watch::Sender<u64>,
    pub(super) evidence: watch::Sender<Arc<Vec<Evidence>>>,
}

/// The present, as the core takes it.
pub(super) fn core_now() -> std::time::Instant {
    Instant::now().into_std()
}

impl Driver {
    /// # Errors
    /// If the records, the outcomes or the head cannot be read.
    pub(super) fn new(parts: DriverParts) -> Result<Driver, ConsensusError> {
        let DriverParts { config, ledger, pool, seat, transport, clock, decided, mail, .. } = parts;
        let DriverParts { shown, view, evidence, .. } = parts;
        let head = ledger.store.watch_head();
        let StartState { tip, certificate, record, outcomes, ordered, bound, held, kept } =
            StartState::open(&ledger)?;
        let mut bodies = Bodies::default();
        for ordered in ordered.into_iter().filter(|ordered| kept.of_order(&ordered.order).is_none()) {
            bodies.insert(ordered.order.order.digest(&ledger.domain), ordered);
        }
        // Evidence of an earlier epoch names seats that other validators hold now.
        let convictions = EVIDENCE.load(&ledger.store)?.unwrap_or_default().into_inner();
        let is_of_now = |evidence: &Evidence| evidence.is_valid(&ledger.set, &ledger.domain);
        let convictions = convictions.into_iter().filter(is_of_now).collect();
        let convictions = Convictions::new(convictions).expect("no more than were stored");
        let settings = Settings {
            view_timeout_ms: config.view_timeout_ms.get(),
            rotate_after: config.rotate_after,
            protect_after: config.protect_after,
            protect_wait_ms: config.protect_wait_ms,
            recalls_votes: true,
        };
        let core = Core::new(
            eve::Setup {
                set: ledger.set.clone(),
                key: ledger.key.clone(),
                seat,
                domain: ledger.domain,
                settings,
                head: tip.info(),
                certificate,
                record,
                outcomes,
                kept: bound,
            },
            core_now(),
        );
        let others =
            ledger.set.validators.iter().enumerate().filter(|(index, _)| *index != usize::from(seat));
        let others = others.map(|(index, other)| (index as u16, other.public_key));
        let lanes = Lanes::new(transport, others);
        let queue = || WorkQueue::new(ledger.seams.machine.clone());
        let driver = Driver {
            seat,
            clock,
            committed: tip.number(),
            core,
            held,
            kept,
            bodies,
            working: Working::new(&config, &ledger.set),
            fetches: Fetches::new(seat, lanes.seats()),
            neglect: Neglect::new(&ledger.set),
            executions: queue(),
            commits: queue(),
            records: queue(),
            lookups: queue(),
            lanes,
            timers: Timers::new(),
            flushing: None,
            decided,
            convictions,
            mail,
            head,
            heard: BTreeMap::new(),
            said: LoggedRefusals::default(),
            shown,
            view,
            evidence,
            ledger,
            pool,
        };
        driver.report();
        driver.show_evidence();
        Ok(driver)
    }

    /// Takes part until shutdown, then finishes the work in progress.
    ///
    /// # Errors
    /// If continuing would be useless or unsafe, above all when the store fails or work panics. The node should then
    /// stop.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), ConsensusError> {
        let ended = self.work(&shutdown).await;
        self.working.clear();
        // The next owner of the store must find this validator's writes.
        self.executions.finish().await;
        self.commits.finish().await;
        self.records.finish().await;
        self.lookups.finish().await;
        ended
    }

    async fn work(&mut self, shutdown: &CancellationToken) -> Result<(), ConsensusError> {
        // The chain may have begun hours after the core was made.
        self.core.handle_start(core_now());
        loop {
            self.turn()?;
            match self.next_input(shutdown).await {
                Input::Shutdown => return Ok(()),
                input => self.take(input)?,
            }
        }
    }

    /// Does everything that can be done now.
    fn turn(&mut self) -> Result<(), ConsensusError> {
        loop {
            self.follow_head()?;
            self.settle();
            self.flush()?;
            if !self.pursue() {
                break;
            }
        }
        self.watch_view();
        self.report();
        Ok(())
    }

    /// Passes a new head to the core.
    pub(super) fn follow_head(&mut self) -> Result<(), ConsensusError> {
        let number = *self.head.borrow_and_update();
        if number <= self.committed {
            return Ok(());
        }
        let tip = self.ledger.tip()?;
        if tip.number() > self.core.decided()
            && let Some(certificate) = self.ledger.store.certificate(tip.number())?
        {
            self.core.handle_certificate(&certificate);
        }
        let header = tip.header.clone();
        self.follow(tip);
        self.watch_primary(&header)
    }

    /// Settles everything up to a newly committed batch.
    pub(super) fn follow(&mut self, tip: Tip) {
        self.committed = tip.number();
        self.held.settle(&tip);
        self.fetches.settle(tip.number());
        self.bodies.settle(tip.number(), self.core.decided(), self.core.view());
        self.working.committed(tip.number(), Instant::now());
        // A commit in progress forgets its own outcomes.
        if let Some(first) = self.kept.settle(tip.number())
            && (first < tip.number() || self.commits.is_idle())
        {
            self.forget_outcomes(first);
        }
        self.core.handle_committed(tip.info(), core_now());
    }

    /// This validator's outcome of a batch above the head, by its token.
    pub(super) fn outcome(&self, number: BatchNumber, token: &Digest) -> Option<OutcomeParts> {
        let kept = self.kept.get(number, token).map(|parts| parts.outcome());
        kept.or_else(|| self.held.get(number, token).map(|held| held.parts.outcome()))
    }
}
