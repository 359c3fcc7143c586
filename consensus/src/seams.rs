//! [`Seams`]: a simulator's hooks into a validator: the behaviour of the validator's machine, and the defence that it
//! lacks.
//!
//! A node uses none of it: [`Seams::default`] means threads of the runtime, correct execution and every defence.

use std::{sync::Arc, time::Duration};

use slipstream_executor::Transaction;
use slipstream_types::BatchNumber;

use crate::planted::Defences;

/// A machine in virtual time: the simulation's own thread does the heavy work, so that one seed gives one run.
pub trait Machine: Send + Sync + 'static {
    /// How long work of that name is delayed before it takes effect, and from then on until its end is reported.
    fn pace(&self, work: &'static str) -> [Duration; 2];

    /// How long `work` takes for these transactions. A build asks for each transaction that it begins, an execution for
    /// those of its batch.
    fn takes(&self, work: Work, transactions: &[Transaction]) -> Duration;

    /// Whether the machine executes this batch wrongly this time.
    fn errs(&self, number: BatchNumber, sequential: bool) -> bool;
}

/// Work whose time depends on its transactions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// A primary builds a batch.
    Build,
    /// A validator executes an ordered batch.
    Execute,
}

/// See the module.
#[derive(Clone, Default)]
pub struct Seams {
    pub(crate) machine: Option<Arc<dyn Machine>>,
    pub(crate) defences: Defences,
}

impl Seams {
    /// The seams of a validator on that machine, with these defences.
    pub fn new(machine: Arc<dyn Machine>, defences: Defences) -> Seams {
        Seams { machine: Some(machine), defences }
    }

    /// How long this machine takes for the transactions, beyond what its thread takes.
    pub(crate) fn takes(&self, work: Work, transactions: &[Transaction]) -> Duration {
        self.machine.as_ref().map_or(Duration::ZERO, |machine| machine.takes(work, transactions))
    }

    /// Whether this machine executes the batch wrongly.
    pub(crate) fn errs(&self, number: BatchNumber, sequential: bool) -> bool {
        self.machine.as_ref().is_some_and(|machine| machine.errs(number, sequential))
    }
}
