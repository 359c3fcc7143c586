//! [`Table`]: the methods by name, each with its lane, and how a call reaches a thread of that lane.

use std::{collections::BTreeMap, error::Error, sync::Arc};

use jsonrpsee_types::{ErrorObjectOwned, Params};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use slipstream_consensus::JournalError;
use slipstream_fair::{Leash, Origin, Probation};

use super::{
    RpcContext,
    batches::Reader,
    caller::Caller,
    effect::Effect,
    errors::{RpcError, RpcResult},
    lanes::{Lane, Lanes},
    subscriptions::SubscriberSocket,
    transactions::{SEND_RAW, send_raw_all},
};

/// The caller that a method answers.
pub(super) struct CallContext<'a> {
    pub(super) origin: Origin,
    /// Cut when nobody waits for the answer any more.
    pub(super) leash: &'a Leash,
    /// The lane whose thread runs the call.
    pub(super) lane: Lane,
    /// The socket that can receive news; `None` over HTTP.
    pub(super) listening: Option<&'a SubscriberSocket>,
}

impl CallContext<'_> {
    /// How this caller reads batches.
    pub(super) fn reader(&self) -> Reader<'_> {
        Reader::on(self.lane, self.leash)
    }

    /// # Errors
    /// If nobody waits for the answer any more.
    pub(super) fn still_waits(&self) -> Result<(), RpcError> {
        if self.leash.is_cut() { Err(RpcError::NobodyWaits) } else { Ok(()) }
    }
}

/// The reply of a method.
pub struct Reply {
    /// The result in the form that is sent, or the error.
    pub result: Result<Box<RawValue>, ErrorObjectOwned>,
    /// The effect to apply once the answer is on its way. Dropping it changes nothing.
    pub effect: Option<Effect>,
}

impl Reply {
    /// The refusal of a call that takes long, when its caller may run no further long calls.
    pub fn too_many_long() -> Reply {
        Reply { result: Err(RpcError::TooManyLong.into()), effect: None }
    }

    /// Whether the call did nothing because it needs another lane: [`Table::call_large`].
    pub fn is_for_large(&self) -> bool {
        self.result.as_ref().is_err_and(RpcError::is_large_batch)
    }
}

type Method = dyn Fn(&RpcContext, &Params<'_>, &CallContext<'_>) -> Reply + Send + Sync;

/// The parameters of a call as text; an empty list if there are none.
fn written(params: Option<&RawValue>) -> String {
    params.map_or("[]", RawValue::get).to_owned()
}

/// All methods and their context.
pub struct Table {
    pub(super) context: Arc<RpcContext>,
    pub(super) lanes: Lanes,
    methods: BTreeMap<&'static str, Entry>,
}

/// A registered method.
pub(super) struct Entry {
    lane: Lane,
    /// Whether a call with these parameters goes to [`Lane::Calls`] instead.
    is_costly: fn(&str) -> bool,
    method: Arc<Method>,
}

impl Entry {
    /// Sends calls to [`Lane::Calls`] if their parameters are costly by this rule.
    pub(super) fn costly_if(&mut self, is_costly: fn(&str) -> bool) {
        self.is_costly = is_costly;
    }

    fn lane(&self, params: Option<&RawValue>) -> Lane {
        if (self.is_costly)(params.map_or("", RawValue::get)) { Lane::Calls } else { self.lane }
    }
}

impl Table {
    pub(super) fn new(context: RpcContext, lanes: Lanes) -> Table {
        Table { context: Arc::new(context), lanes, methods: BTreeMap::new() }
    }

    /// Adds a method without parameters.
    pub(super) fn plain<T: Serialize>(
        &mut self,
        lane: Lane,
        name: &'static str,
        method: impl Fn(&RpcContext) -> RpcResult<T> + Send + Sync + 'static,
    ) -> &mut Entry {
        self.add(lane, name, move |context, params| {
            let () = super::params::args(params)?;
            method(context)
        })
    }

    /// Adds a method that takes a few reads. It parses its parameters with `args`, which refuses unknown parameters.
    pub(super) fn add<T: Serialize>(
        &mut self,
        lane: Lane,
        name: &'static str,
        method: impl Fn(&RpcContext, &Params<'_>) -> RpcResult<T> + Send + Sync + 'static,
    ) -> &mut Entry {
        self.add_long(lane, name, move |context, params, _| method(context, params))
    }

    /// Adds a method that may take long and ends when nobody waits any more, or that needs to know its caller.
    pub(super) fn add_long<T: Serialize>(
        &mut self,
        lane: Lane,
        name: &'static str,
        method: impl Fn(&RpcContext, &Params<'_>, &CallContext<'_>) -> RpcResult<T> + Send + Sync + 'static,
    ) -> &mut Entry {
        self.add_effect(lane, name, move |context, params, asker| {
            (method(context, params, asker), None::<Effect>)
        })
    }

    /// Adds a method whose answer has an effect.
    pub(super) fn add_effect<T: Serialize, E: Into<Effect>>(
        &mut self,
        lane: Lane,
        name: &'static str,
        method: impl Fn(&RpcContext, &Params<'_>, &CallContext<'_>) -> (RpcResult<T>, Option<E>)
        + Send
        + Sync
        + 'static,
    ) -> &mut Entry {
        let method = move |context: &RpcContext, params: &Params<'_>, asker: &CallContext<'_>| {
            let (result, effect) = method(context, params, asker);
            let write = |result| {
                // An answer that took long to find usually takes long to format.
                asker.still_waits()?;
                to_raw_value(&result).map_err(|error| RpcError::internal(name, &error).into())
            };
            Reply { result: result.and_then(write), effect: effect.map(Into::into) }
        };
        let entry = Entry { lane, is_costly: |_| false, method: Arc::new(method) };
        self.methods.entry(name).insert_entry(entry).into_mut()
    }

    /// The lane of a call. Calls of unknown methods are cheap to refuse, so they go to [`Lane::Reads`].
    pub fn lane(&self, method: &str, params: Option<&RawValue>) -> Lane {
        self.methods.get(method).map_or(Lane::Reads, |entry| entry.lane(params))
    }

    /// The table's own copy of a name, if the method exists.
    pub fn name(&self, method: &str) -> Option<&'static str> {
        self.methods.get_key_value(method).map(|(name, _)| *name)
    }

    /// The names of all methods, in order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.methods.keys().copied()
    }

    /// Returns when the transactions accepted so far are on disk. Until then, their senders must not get an answer.
    ///
    /// # Errors
    /// If the disk fails. Then no transaction is acknowledged.
    pub async fn synced(&self) -> Result<(), JournalError> {
        self.context.forwarder.synced().await
    }

    /// Takes all free places of the lane of large batches until the result is dropped.
    #[cfg(any(test, feature = "testing"))]
    pub fn occupy_large(&self) -> Vec<slipstream_fair::Permit> {
        self.lanes.of(Lane::Batches).places().occupy()
    }

    /// Whether this caller's recent calls in a lane took long.
    pub fn is_known_long(&self, lane: Lane, origin: Origin) -> bool {
        self.lanes.of(lane).is_known_long(origin)
    }

    /// Calls a method on a thread of its lane, which may block and also formats the answer; `None` if the method is
    /// unknown. A call abandoned before it has a thread costs nothing; a long method that is abandoned later notices
    /// and ends. A call may turn out to need [other threads](Reply::is_for_large).
    pub async fn call(
        &self,
        caller: impl Into<Caller>,
        name: &str,
        params: Option<&RawValue>,
    ) -> Option<Reply> {
        self.call_in(self.lane(name, params), caller, name, params).await
    }

    /// Like [`Table::call`], for a call that turned out to open a large batch or to build a long answer.
    pub async fn call_large(
        &self,
        caller: impl Into<Caller>,
        name: &str,
        params: Option<&RawValue>,
    ) -> Option<Reply> {
        self.call_in(Lane::Batches, caller, name, params).await
    }

    /// Runs calls of `eth_sendRawTransaction` on one thread of their lane. Returns one reply per call, in order.
    pub async fn send_all(
        &self,
        caller: impl Into<Caller>,
        params: impl Iterator<Item = Option<&RawValue>>,
    ) -> Vec<Reply> {
        let origin = caller.into().origin;
        let params: Vec<String> = params.map(written).collect();
        let (context, count) = (self.context.clone(), params.len());
        let send = move |leash: &Leash| {
            let asker = CallContext { origin, leash, lane: Lane::Transactions, listening: None };
            let params: Vec<Params<'_>> = params.iter().map(|params| Params::new(Some(params))).collect();
            send_raw_all(&context, &params, &asker)
        };
        let failed = |error: &dyn Error| ErrorObjectOwned::from(RpcError::internal(SEND_RAW, error));
        let sent = self.lanes.of(Lane::Transactions).run_while_awaited(origin, None, send).await;
        let sent = sent.unwrap_or_else(|panic| vec![Err(failed(&panic)); count]);
        let write = |hash| to_raw_value(&hash).map_err(|error| failed(&error));
        sent.into_iter().map(|sent| Reply { result: sent.and_then(write), effect: None }).collect()
    }

    async fn call_in(
        &self,
        in_lane: Lane,
        caller: impl Into<Caller>,
        name: &str,
        params: Option<&RawValue>,
    ) -> Option<Reply> {
        let Caller { origin, listening, probation } = caller.into();
        let (name, Entry { method, .. }) = self.methods.get_key_value(name)?;
        let (context, method) = (self.context.clone(), method.clone());
        let lane = self.lanes.of(in_lane);
        let params = written(params);
        let call = Arc::new(move |leash: &Leash| {
            let asker = CallContext { origin, leash, lane: in_lane, listening: listening.as_ref() };
            method(&context, &Params::new(Some(&params)), &asker)
        });
        let run = |probation| {
            let call = call.clone();
            lane.run_while_awaited(origin, probation, move |leash| call(leash))
        };
        let mut reply = run(probation.clone()).await;
        if probation.as_ref().is_some_and(Probation::begins_again) {
            // Dropped before the next attempt starts: it may hold a poll, which only one caller may build at a time.
            drop(reply);
            reply = run(None).await;
        }
        if probation.as_ref().is_some_and(Probation::is_refused) {
            return Some(Reply::too_many_long());
        }
        Some(match reply {
            Ok(Reply { effect: Some(Effect::Receipt(awaited)), .. }) => {
                Reply { result: self.receipt(origin, awaited).await, effect: None }
            }
            Ok(reply) => reply,
            Err(panic) => Reply { result: Err(RpcError::internal(name, &panic).into()), effect: None },
        })
    }
}
