//! JSON-RPC 2.0 over one HTTP body or one message of a socket: single requests and arrays, bounded in number, size,
//! time and concurrency.

mod bodies;
mod envelope;
mod request_body;

use std::{sync::Arc, time::Duration};

use axum::body::Bytes;
use jsonrpsee_types::error::{INTERNAL_ERROR_CODE, INVALID_REQUEST_CODE, METHOD_NOT_FOUND_CODE};
use slipstream_fair::{Origin, Probation};
use slipstream_rpc::{Caller, Effect, Reply, RpcContext, Table};
use slipstream_status::metrics::Metrics;
use tokio::time::{Instant, sleep, timeout_at};

use self::{
    bodies::{Bodies, BodyPlace},
    envelope::{Call, NO_ID, Request, error, failure},
    request_body::{RequestBody, SENDING, SENDING_SYNC},
};
use super::{
    listener::{NoPlace, Weight},
    outgoing::{GrowingAnswer, Outgoing},
};

/// Maximum bytes of the answers to one array, as in geth; each request after that is refused individually.
const ARRAY_ANSWER_BYTES_MAX: usize = 25_000_000;
/// Time limit for the answers to one body. It is below the HTTP side's limit, so that the client learns which requests
/// were too many.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(25);
/// Maximum bytes of an id that an answer repeats when there is no room.
const ID_SHOWN_MAX: usize = 1 << 10;
/// Maximum bytes of long answers that are being built or sent: some of the largest blocks with their receipts.
const OUTGOING_BYTES_MAX: usize = 128 << 20;
/// How long a body's answer is delayed if one of its answers found no room. Building a long answer is costly, and that
/// answer was wasted. A client that retries at once would make the node build it again and again.
const NO_ROOM_PAUSE: Duration = Duration::from_secs(2);
/// "Request timed out", with geth's number.
const TIMED_OUT_CODE: i32 = -32002;
/// "Response too large", with geth's number.
const TOO_LARGE_CODE: i32 = -32003;
/// "Limit exceeded" in EIP-1474.
const LIMIT_EXCEEDED_CODE: i32 = -32005;
/// Maximum number of transactions of an array that one thread processes in a row. 64 transfers take two milliseconds,
/// and other callers can wait that long.
const RUN_MAX: usize = 64;
/// Maximum characters of a method's name that an answer repeats.
const METHOD_SHOWN_MAX: usize = 64;

/// The JSON-RPC server: the table of methods, and the bounds on callers.
pub(super) struct JsonRpc {
    table: Table,
    metrics: Arc<Metrics>,
    over_http: Bodies,
    over_sockets: Bodies,
    outgoing: Outgoing,
}

/// What a request needs: its caller, its deadline, and the place of its body.
#[derive(Clone, Copy)]
struct RequestContext<'a, 'b> {
    caller: &'a Caller,
    deadline: Instant,
    standing: &'a BodyPlace<'b>,
}

/// The answer to a body, under construction.
struct Answer {
    text: GrowingAnswer,
    /// The pending effects of a sending body, which wait until its transactions are on disk.
    effects: Option<Vec<Effect>>,
}

impl Answer {
    fn new(text: GrowingAnswer, is_sending: bool) -> Answer {
        Answer { text, effects: is_sending.then(Vec::new) }
    }

    /// Call when a reply is in the answer. Its effect happens at once, unless the answer can still be voided.
    fn replied(&mut self, effect: Effect) {
        match &mut self.effects {
            Some(effects) => effects.push(effect),
            None => effect.told(),
        }
    }

    /// Applies the effects. Call when the answer is final.
    fn counts(self) -> GrowingAnswer {
        self.effects.into_iter().flatten().for_each(Effect::told);
        self.text
    }
}

impl JsonRpc {
    pub(super) fn new(context: RpcContext, metrics: Arc<Metrics>) -> JsonRpc {
        JsonRpc {
            table: slipstream_rpc::table(context),
            metrics,
            over_http: Bodies::over_http(),
            over_sockets: Bodies::over_sockets(),
            outgoing: Outgoing::new(OUTGOING_BYTES_MAX),
        }
    }

    /// The table of all methods.
    pub(super) fn table(&self) -> &Table {
        &self.table
    }

    /// The answer to an HTTP body, or to a message of a socket; `None` for notifications alone. Calls `begins` when the
    /// body has its place and work starts: until then, nothing is lost if the connection is dismissed.
    pub(super) async fn handle(
        &self,
        caller: impl Into<Caller>,
        begins: impl FnOnce(),
        body: &[u8],
    ) -> Option<Bytes> {
        // The messages of sockets have their own places.
        self.handle_weighed(caller, |_| Ok(None), begins, body).await.unwrap_or_default()
    }

    /// Like [`JsonRpc::handle`], with a check of how long the body may take: `weigh` grants or denies that time,
    /// possibly on probation. `weigh` is called again if the body turns out to be long.
    pub(super) async fn handle_weighed(
        &self,
        caller: impl Into<Caller>,
        mut weigh: impl FnMut(Weight) -> Result<Option<Probation>, NoPlace> + Send,
        begins: impl FnOnce(),
        body: &[u8],
    ) -> Result<Option<Bytes>, NoPlace> {
        let mut caller: Caller = caller.into();
        let deadline = Instant::now() + ANSWER_TIME_MAX;
        let asked = match RequestBody::read(body) {
            Err(refusal) => return Ok(Some(Bytes::from(refusal))),
            Ok(asked) => asked,
        };
        let bodies = if caller.listening.is_some() { &self.over_sockets } else { &self.over_http };
        let (places, weight) = bodies.places_for(&asked, &self.table);
        caller.probation = weigh(self.weight_for(caller.origin, &asked, weight))?;
        let standing = BodyPlace::new(bodies, weight, Box::new(weigh));
        let asking = RequestContext { caller: &caller, deadline, standing: &standing };
        let only_waits = weight == Weight::Waits && asked.requests().len() == 1;
        let may_be_many = weight == Weight::Short || only_waits;
        if let Some(listening) = caller.listening.as_ref().filter(|_| !may_be_many) {
            // Over HTTP, a connection has only one body at a time.
            let _ = timeout_at(asking.deadline, listening.take_turn()).await;
        }
        // If the deadline passes before a place is free, each request is refused for that reason.
        if let Some(places) = places {
            standing.take(timeout_at(asking.deadline, places.take(caller.origin)).await.ok());
        }
        begins();
        let answer = self.work(asked, asking, self.synced(asking.deadline)).await;
        if caller.probation.as_ref().is_some_and(Probation::is_refused) {
            self.metrics.api_refused.with_label_values(&["call"]).inc();
        }
        if answer.lacked_room() {
            sleep(NO_ROOM_PAUSE).await;
        }
        Ok(answer.finish())
    }

    /// Returns how long a body may take: on probation if this caller's history does not show that. The operator's own
    /// hosts are exempt.
    fn weight_for(&self, origin: Origin, asked: &RequestBody<'_>, weight: Weight) -> Weight {
        let is_open = |lane| origin.is_stranger() && !self.table.is_known_long(lane, origin);
        if asked.open_lane(&self.table).is_some_and(is_open) { Weight::Probation } else { weight }
    }

    /// The answer to a body's requests. The body releases its place before it waits for the disk. Other bodies run
    /// meanwhile, and the next sync covers their transactions. If the transactions cannot be made durable, the whole
    /// answer is void, and polls keep their positions.
    async fn work(
        &self,
        asked: RequestBody<'_>,
        asking: RequestContext<'_, '_>,
        synced: impl Future<Output = Result<(), String>>,
    ) -> GrowingAnswer {
        let (sending, is_array) = (asked.ids_of_sending(), matches!(asked, RequestBody::Array(_)));
        let mut answer = Answer::new(self.outgoing.grow(asking.caller.origin), sending.is_some());
        self.answer(asked, asking, &mut answer).await;
        asking.standing.leave();
        if let Some(ids) = sending
            && let Err(reason) = synced.await
        {
            let mut refusal = self.outgoing.grow(asking.caller.origin);
            refusal.push_short(&unacknowledged(&ids, is_array, &reason));
            return refusal;
        }
        answer.counts()
    }

    /// Waits until the sent transactions are on disk: once for a whole body.
    async fn synced(&self, deadline: Instant) -> Result<(), String> {
        match timeout_at(deadline, self.table.synced()).await {
            Ok(synced) => synced.map_err(|error| error.to_string()),
            Err(_) => Err("the disk takes too long".into()),
        }
    }

    async fn answer(&self, asked: RequestBody<'_>, asking: RequestContext<'_, '_>, answer: &mut Answer) {
        let requests = match asked {
            RequestBody::One(request) => return self.request(&request, "", asking, answer).await,
            RequestBody::Array(requests) => requests,
        };
        let mut rest = &requests[..];
        while let Some(first) = rest.first() {
            let has_room = answer.text.len() <= ARRAY_ANSWER_BYTES_MAX;
            let run = if has_room { sending_run(rest) } else { Vec::new() };
            match run.len() {
                0 | 1 => self.request(first, separator(answer), asking, answer).await,
                _ => self.send_run(&run, asking, answer).await,
            }
            rest = &rest[run.len().max(1)..];
        }
        if answer.text.len() > 0 {
            answer.text.push_short("]");
        }
    }

    /// Adds the answer to one request, unless it is a notification.
    async fn request(
        &self,
        request: &Request<'_>,
        separator: &str,
        asking: RequestContext<'_, '_>,
        answer: &mut Answer,
    ) {
        let refused = match (request, answer.text.len() > ARRAY_ANSWER_BYTES_MAX) {
            (_, true) => error(
                request.id().unwrap_or(NO_ID),
                TOO_LARGE_CODE,
                "response too large: send smaller arrays",
            ),
            (Request::Invalid(id), _) => error(
                id,
                INVALID_REQUEST_CODE,
                "invalid request: expected an object with jsonrpc \"2.0\", a method, and an id that is a string, a number or null",
            ),
            (Request::Notification(call), _) => {
                // A notification has no answer, so a poll keeps its position.
                drop(self.call(call, asking).await);
                return;
            }
            (Request::Call(id, call), _) => match self.call(call, asking).await {
                Ok(reply) => return self.push(answer, separator, id, reply),
                Err(refusal) => refusal.to_json(id),
            },
        };
        if request.id().is_some() {
            answer.text.push_short(separator);
            answer.text.push_short(&refused);
        }
    }

    /// Adds the answers to a run of sends, which one thread processes together.
    async fn send_run(&self, run: &[(&str, &Call<'_>)], asking: RequestContext<'_, '_>, answer: &mut Answer) {
        let started = Instant::now();
        let params = run.iter().map(|(_, call)| call.params);
        let sent = in_time(asking, self.table.send_all(asking.caller.clone(), params)).await;
        let replies: Vec<Result<Reply, Refusal>> = match sent {
            Some(replies) => replies.into_iter().map(Ok).collect(),
            None => run.iter().map(|_| Err(Refusal::TimedOut)).collect(),
        };
        let took_s = started.elapsed().as_secs_f64() / run.len() as f64;
        for ((id, call), reply) in run.iter().zip(replies) {
            self.count(&call.method, &reply, took_s);
            match reply {
                Ok(reply) => self.push(answer, separator(answer), id, reply),
                Err(refusal) => {
                    answer.text.push_short(separator(answer));
                    answer.text.push_short(&refusal.to_json(id));
                }
            }
        }
    }

    async fn call(&self, call: &Call<'_>, asking: RequestContext<'_, '_>) -> Result<Reply, Refusal> {
        let started = Instant::now();
        let answered = in_time(asking, self.call_table(call, asking)).await;
        let found = answered.ok_or(Refusal::TimedOut);
        let reply = found.and_then(|found| found.ok_or_else(|| Refusal::unknown(&call.method)));
        self.count(&call.method, &reply, started.elapsed().as_secs_f64());
        reply
    }

    fn count(&self, method: &str, reply: &Result<Reply, Refusal>, took_s: f64) {
        let is_ok = reply.as_ref().is_ok_and(|reply| reply.result.is_ok());
        let method = self.table.name(method).unwrap_or("unknown");
        self.metrics.rpc_requests.with_label_values(&[method, if is_ok { "ok" } else { "error" }]).inc();
        self.metrics.rpc_seconds.with_label_values(&[method]).observe(took_s);
    }

    /// Calls the method. If it turns out to read a large batch or to have a long answer, it restarts on other threads
    /// and with another place.
    async fn call_table(&self, call: &Call<'_>, asking: RequestContext<'_, '_>) -> Option<Reply> {
        let caller = asking.caller;
        let reply = self.table.call(caller.clone(), &call.method, call.params).await?;
        if !reply.is_for_large() {
            return Some(reply);
        }
        match asking.standing.lengthen(caller).await {
            Ok(()) => self.table.call_large(caller.clone(), &call.method, call.params).await,
            Err(NoPlace) => {
                self.metrics.api_refused.with_label_values(&["call"]).inc();
                Some(Reply::too_many_long())
            }
        }
    }

    /// Adds a reply and applies its effect, or adds an error if there is no room.
    fn push(&self, answer: &mut Answer, separator: &str, id: &str, Reply { result, effect }: Reply) {
        let is_pushed = match &result {
            Ok(result) => answer.text.push(&[
                separator,
                r#"{"jsonrpc":"2.0","id":"#,
                id,
                r#","result":"#,
                result.get(),
                "}",
            ]),
            Err(error) => answer.text.push(&[separator, &failure(id, error)]),
        };
        if is_pushed {
            if let Some(effect) = effect {
                answer.replied(effect);
            }
            return;
        }
        self.metrics.api_refused.with_label_values(&["answer"]).inc();
        let text = "limit exceeded: slow clients are still reading too many long answers; ask again, or ask for less at once";
        let id = if id.len() <= ID_SHOWN_MAX { id } else { NO_ID };
        answer.text.push_short(separator);
        answer.text.push_short(&error(id, LIMIT_EXCEEDED_CODE, text));
    }
}

/// The separator before the next answer in an array.
fn separator(answer: &Answer) -> &'static str {
    if answer.text.len() == 0 { "[" } else { "," }
}

/// The calls at the start of an array that send a transaction and expect an answer, at most [`RUN_MAX`].
fn sending_run<'a, 'b>(requests: &'b [Request<'a>]) -> Vec<(&'a str, &'b Call<'a>)> {
    let sends = |request: &'b Request<'a>| match request {
        Request::Call(id, call) if call.method == SENDING => Some((*id, call)),
        _ => None,
    };
    requests.iter().take(RUN_MAX).map_while(sends).collect()
}

/// Runs work for a body until the body's deadline. Returns `None` if the deadline passes first.
async fn in_time<T>(asking: RequestContext<'_, '_>, work: impl Future<Output = T>) -> Option<T> {
    match Instant::now() < asking.deadline {
        true => timeout_at(asking.deadline, work).await.ok(),
        false => None,
    }
}

/// The answers to a body whose transactions may not be on disk: all of them are errors.
fn unacknowledged(ids: &[&str], is_array: bool, reason: &str) -> String {
    let text = format!(
        "the transactions are not acknowledged, because a power cut could lose them: {reason}; ask again"
    );
    let answers: Vec<_> = ids.iter().map(|id| error(id, INTERNAL_ERROR_CODE, &text)).collect();
    if is_array && !answers.is_empty() { format!("[{}]", answers.join(",")) } else { answers.concat() }
}

/// Why a method was skipped or abandoned.
enum Refusal {
    TimedOut,
    /// The method's name, cut to [`METHOD_SHOWN_MAX`].
    Unknown(String),
}

impl Refusal {
    fn unknown(method: &str) -> Refusal {
        Refusal::Unknown(method.chars().take(METHOD_SHOWN_MAX).collect())
    }

    fn to_json(&self, id: &str) -> String {
        match self {
            Refusal::TimedOut => error(id, TIMED_OUT_CODE, "request timed out: ask for less at once"),
            Refusal::Unknown(method) => {
                let text = format!("the method {method} does not exist/is not available");
                error(id, METHOD_NOT_FOUND_CODE, &text)
            }
        }
    }
}

#[cfg(test)]
mod tests;
