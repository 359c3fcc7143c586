//! [`Table`]: the methods by name, and the way of a call to a thread of its lane.

use std::{collections::BTreeMap, sync::Arc};

use jsonrpsee::types::{ErrorObjectOwned, Params};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use slipstream_consensus::JournalError;

use super::{
    RpcContext,
    errors::{RpcError, RpcResult},
    lanes::{Lane, Lanes},
    logs::filters::Poll,
};
use crate::{leash::Leash, origin::Origin};

/// Who waits for the answer of a call.
pub(super) struct Asker<'a> {
    pub(super) origin: Origin,
    /// Cut when nobody waits any more.
    pub(super) leash: &'a Leash,
}

impl Asker<'_> {
    /// # Errors
    /// If nobody waits for the answer any more.
    pub(super) fn still_waits(&self) -> Result<(), RpcError> {
        if self.leash.is_cut() { Err(RpcError::NobodyWaits) } else { Ok(()) }
    }
}

/// The answer of a method.
pub(crate) struct Reply {
    /// The result as it is sent, or why there is none.
    pub(crate) result: Result<Box<RawValue>, ErrorObjectOwned>,
    /// What moves on once the answer is on its way: dropped, the next poll answers the same again.
    pub(crate) poll: Option<Poll>,
}

type Method = dyn Fn(&RpcContext, &Params<'_>, &Asker<'_>) -> Reply + Send + Sync;

/// All methods and what they work on.
pub(crate) struct Table {
    context: Arc<RpcContext>,
    lanes: Lanes,
    methods: BTreeMap<&'static str, Arc<Method>>,
}

impl Table {
    pub(super) fn new(context: RpcContext, lanes: Lanes) -> Table {
        Table { context: Arc::new(context), lanes, methods: BTreeMap::new() }
    }

    /// A method without parameters.
    pub(super) fn plain<T: Serialize>(
        &mut self,
        name: &'static str,
        method: impl Fn(&RpcContext) -> RpcResult<T> + Send + Sync + 'static,
    ) {
        self.add(name, move |context, params| {
            let () = super::params::args(params)?;
            method(context)
        });
    }

    /// A method that takes a few reads. It reads its parameters by `args`, which refuses what it does not know.
    pub(super) fn add<T: Serialize>(
        &mut self,
        name: &'static str,
        method: impl Fn(&RpcContext, &Params<'_>) -> RpcResult<T> + Send + Sync + 'static,
    ) {
        self.add_long(name, move |context, params, _| method(context, params));
    }

    /// A method that may take long, and ends when nobody waits any more; or one that needs to know who asks.
    pub(super) fn add_long<T: Serialize>(
        &mut self,
        name: &'static str,
        method: impl Fn(&RpcContext, &Params<'_>, &Asker<'_>) -> RpcResult<T> + Send + Sync + 'static,
    ) {
        self.add_poll(name, move |context, params, asker| (method(context, params, asker), None));
    }

    /// A method whose answer moves something on.
    pub(super) fn add_poll<T: Serialize>(
        &mut self,
        name: &'static str,
        method: impl Fn(&RpcContext, &Params<'_>, &Asker<'_>) -> (RpcResult<T>, Option<Poll>)
        + Send
        + Sync
        + 'static,
    ) {
        let method = move |context: &RpcContext, params: &Params<'_>, asker: &Asker<'_>| {
            let (result, poll) = method(context, params, asker);
            let write = |result| {
                // What took long to find mostly takes long to write.
                asker.still_waits()?;
                to_raw_value(&result).map_err(|error| RpcError::internal(name, &error).into())
            };
            Reply { result: result.and_then(write), poll }
        };
        self.methods.insert(name, Arc::new(method));
    }

    /// The name as the table has it, if there is such a method.
    pub(crate) fn name(&self, method: &str) -> Option<&'static str> {
        self.methods.get_key_value(method).map(|(name, _)| *name)
    }

    /// The names of all methods, in order.
    #[cfg(test)]
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.methods.keys().copied()
    }

    /// Returns when the transactions that were taken before are on the disk: not before may those who sent them be told.
    ///
    /// # Errors
    /// If the disk refuses. Then none of them is acknowledged.
    pub(crate) async fn synced(&self) -> Result<(), JournalError> {
        self.context.forwarder.synced().await
    }

    /// Calls a method on a thread of its lane, which may block and writes the answer too; none if there is no such method. A call that
    /// is given up before it has a thread costs nothing; afterwards methods that take long are told, and end.
    pub(crate) async fn call(&self, origin: Origin, name: &str, params: Option<&RawValue>) -> Option<Reply> {
        let (name, method) = self.methods.get_key_value(name)?;
        let (context, method) = (self.context.clone(), method.clone());
        let lane = self.lanes.of(Lane::of_call(name, params));
        let params = params.map_or("[]", RawValue::get).to_owned();
        let call =
            move |leash: &Leash| method(&context, &Params::new(Some(&params)), &Asker { origin, leash });
        let reply = lane.run_while_awaited(origin, call).await;
        Some(reply.unwrap_or_else(|panic| Reply {
            result: Err(RpcError::internal(name, &panic).into()),
            poll: None,
        }))
    }
}
