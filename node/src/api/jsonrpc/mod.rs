//! JSON-RPC 2.0 over one HTTP body: single requests and arrays of them, bounded in number, size, time and concurrency.

use std::{collections::HashSet, sync::Arc, time::Duration};

use axum::body::Bytes;
use jsonrpsee::{
    RpcModule,
    types::error::{INTERNAL_ERROR_CODE, INVALID_REQUEST_CODE, METHOD_NOT_FOUND_CODE, PARSE_ERROR_CODE},
};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout_at},
};

use super::{
    envelope::{Call, NO_ID, Outcome, Request, error},
    metrics::Metrics,
    outgoing::{Growing, Outgoing},
};
use crate::{
    json_list,
    rpc::{self, Lane, RpcContext},
};

/// Requests in one array: what viem's batch transport sends, and what geth takes.
const ARRAY_MAX: usize = 1_000;
/// Bytes of the answers to one array, as in geth; each request after that is refused by itself.
const ARRAY_ANSWER_BYTES_MAX: usize = 25_000_000;
/// Time for the answers to one body. Less than what the HTTP side gives it, so that who asked learns which requests were too many.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(25);
/// HTTP bodies worked on at a time, each with the answers that it has so far: of those with costly calls, and of those without. More
/// wait, cheap calls never behind costly ones.
const COSTLY_BODIES_MAX: usize = 24;
const CHEAP_BODIES_MAX: usize = 16;
/// Requests in an array that still counts as cheap: many cheap calls take as long as a costly one.
const CHEAP_REQUESTS_MAX: usize = 32;
/// Bytes of an id that an answer without room repeats.
const ID_SHOWN_MAX: usize = 1 << 10;
/// Bytes of long answers that are being made or sent: a dozen of the largest blocks with their receipts.
const OUTGOING_BYTES_MAX: usize = 256 << 20;
/// "Request timed out", as geth numbers it.
const TIMED_OUT_CODE: i32 = -32002;
/// "Response too large", as geth numbers it.
const TOO_LARGE_CODE: i32 = -32003;
/// "Limit exceeded" in EIP-1474.
const LIMIT_EXCEEDED_CODE: i32 = -32005;
/// Bytes of a method's name that an answer repeats.
const METHOD_SHOWN_MAX: usize = 64;

/// What stands in an HTTP body.
enum Asked<'a> {
    One(Request<'a>),
    Array(Vec<Request<'a>>),
}

impl<'a> Asked<'a> {
    /// Reads a body.
    ///
    /// # Errors
    /// The answer to a body that is no request and no array of 1 to [`ARRAY_MAX`] of them.
    fn read(body: &'a [u8]) -> Result<Asked<'a>, String> {
        let Ok(text) = std::str::from_utf8(body) else {
            return Err(error(NO_ID, PARSE_ERROR_CODE, "parse error: the body is not UTF-8"));
        };
        let parse_error = |parse| error(NO_ID, PARSE_ERROR_CODE, &format!("parse error: {parse}"));
        if !text.trim_start().starts_with('[') {
            return serde_json::from_str(text)
                .map(|value| Asked::One(Request::read(value)))
                .map_err(parse_error);
        }
        let list = json_list::read(text, ARRAY_MAX).map_err(parse_error)?;
        match list.len {
            0 => Err(error(NO_ID, INVALID_REQUEST_CODE, "empty batch")),
            1..=ARRAY_MAX => Ok(Asked::Array(list.first.into_iter().map(Request::read).collect())),
            len => {
                let text =
                    format!("batch too large: {len} requests in one array, at most {ARRAY_MAX} are answered");
                Err(error(NO_ID, INVALID_REQUEST_CODE, &text))
            }
        }
    }

    /// Whether no call in it takes long; what is no request is refused at once.
    fn is_cheap(&self) -> bool {
        let is_cheap =
            |request: &Request<'_>| request.method().is_none_or(|method| Lane::of(method) == Lane::Reads);
        match self {
            Asked::One(request) => is_cheap(request),
            Asked::Array(requests) => requests.len() <= CHEAP_REQUESTS_MAX && requests.iter().all(is_cheap),
        }
    }
}

/// The table of methods behind the door.
pub(super) struct JsonRpc {
    module: RpcModule<RpcContext>,
    methods: HashSet<&'static str>,
    metrics: Arc<Metrics>,
    costly: Semaphore,
    cheap: Semaphore,
    outgoing: Outgoing,
}

impl JsonRpc {
    pub(super) fn new(context: RpcContext, metrics: Arc<Metrics>) -> anyhow::Result<JsonRpc> {
        let module = rpc::module(context)?;
        let methods = module.method_names().collect();
        let (costly, cheap) = (Semaphore::new(COSTLY_BODIES_MAX), Semaphore::new(CHEAP_BODIES_MAX));
        Ok(JsonRpc { module, methods, metrics, costly, cheap, outgoing: Outgoing::new(OUTGOING_BYTES_MAX) })
    }

    /// The answer to an HTTP body; none if it holds notifications alone.
    pub(super) async fn handle(&self, body: &[u8]) -> Option<Bytes> {
        let deadline = Instant::now() + ANSWER_TIME_MAX;
        let mut answer = self.outgoing.grow();
        match Asked::read(body) {
            Err(refusal) => answer.push_short(&refusal),
            Ok(asked) => {
                let room = if asked.is_cheap() { &self.cheap } else { &self.costly };
                // Without room the deadline is over: each request is told so, and none is begun.
                let _room = timeout_at(deadline, room.acquire()).await;
                self.answer(asked, deadline, &mut answer).await;
            }
        }
        answer.finish()
    }

    async fn answer(&self, asked: Asked<'_>, deadline: Instant, answer: &mut Growing<'_>) {
        let requests = match asked {
            Asked::One(request) => return self.request(request, "", deadline, answer).await,
            Asked::Array(requests) => requests,
        };
        for request in requests {
            let separator = if answer.len() == 0 { "[" } else { "," };
            self.request(request, separator, deadline, answer).await;
        }
        if answer.len() > 0 {
            answer.push_short("]");
        }
    }

    /// Adds the answer to one request, if anybody waits for it.
    async fn request(
        &self,
        request: Request<'_>,
        separator: &str,
        deadline: Instant,
        answer: &mut Growing<'_>,
    ) {
        let id = request.id();
        let text = if answer.len() > ARRAY_ANSWER_BYTES_MAX {
            error(id.unwrap_or(NO_ID), TOO_LARGE_CODE, "response too large: ask in smaller arrays")
        } else {
            match request {
                Request::Call(id, call) => self.call(id, &call, deadline).await,
                Request::Notification(call) => self.call(NO_ID, &call, deadline).await,
                Request::Invalid(id) => {
                    let text = "invalid request: expected an object with jsonrpc \"2.0\", a method, and an id that is a string, a \
                                number or null";
                    error(id, INVALID_REQUEST_CODE, text)
                }
            }
        };
        let Some(id) = id else { return };
        answer.push_short(separator);
        if !answer.push(&text) {
            let text =
                "limit exceeded: too many long answers are being read slowly; ask again, or for less at once";
            let id = if id.len() <= ID_SHOWN_MAX { id } else { NO_ID };
            answer.push_short(&error(id, LIMIT_EXCEEDED_CODE, text));
        }
    }

    async fn call(&self, id: &str, call: &Call<'_>, deadline: Instant) -> String {
        let started = Instant::now();
        let (answer, ok) = match self.methods.contains(&*call.method) {
            true if started >= deadline => (timed_out(id), false),
            true => match timeout_at(deadline, self.run(id, call)).await {
                Ok(done) => done,
                Err(_) => (timed_out(id), false),
            },
            false => {
                let shown: String = call.method.chars().take(METHOD_SHOWN_MAX).collect();
                let text = format!("the method {shown} does not exist/is not available");
                (error(id, METHOD_NOT_FOUND_CODE, &text), false)
            }
        };
        let method = self.methods.get(&*call.method).copied().unwrap_or("unknown");
        self.metrics.rpc_requests.with_label_values(&[method, if ok { "ok" } else { "error" }]).inc();
        self.metrics.rpc_seconds.with_label_values(&[method]).observe(started.elapsed().as_secs_f64());
        answer
    }

    /// The answer of a method that exists, and whether it is a result. The table knows ids of few kinds, so it gets one of its own.
    async fn run(&self, id: &str, call: &Call<'_>) -> (String, bool) {
        let answered = self.module.raw_json_request(&call.to_json(), 1).await.map(|(answer, _)| answer);
        let outcome = answered.as_ref().map(|answer| serde_json::from_str::<Outcome<'_>>(answer.get()));
        match outcome {
            Ok(Ok(outcome)) => (outcome.to_json(id), !outcome.is_error()),
            Ok(Err(parse)) => (error(id, INTERNAL_ERROR_CODE, &parse.to_string()), false),
            Err(parse) => (error(id, INTERNAL_ERROR_CODE, &parse.to_string()), false),
        }
    }
}

fn timed_out(id: &str) -> String {
    error(id, TIMED_OUT_CODE, "request timed out: ask for less at once")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::rpc::tests::{ZEROS, context};

    fn server() -> JsonRpc {
        JsonRpc::new(context(), Arc::new(Metrics::new().unwrap())).unwrap()
    }

    async fn answer(server: &JsonRpc, body: &str) -> Value {
        let answer = server.handle(body.as_bytes()).await;
        answer.map_or(Value::Null, |bytes| serde_json::from_slice(&bytes).unwrap())
    }

    fn call(id: Value, method: &str, params: Value) -> Value {
        json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
    }

    #[tokio::test]
    async fn arrays_up_to_a_thousand() {
        let server = server();
        let many = |count: u64| {
            Value::from_iter((0..count).map(|id| call(id.into(), "eth_chainId", json!([])))).to_string()
        };
        let answers = answer(&server, &many(1_000)).await;
        let answers = answers.as_array().unwrap();
        assert!(answers.iter().map(|answer| answer["id"].as_u64().unwrap()).eq(0..1_000));
        assert!(answers.iter().all(|answer| answer["result"] == "0x1cbd"));
        let refused = answer(&server, &many(1_001)).await;
        assert_eq!((&refused["id"], &refused["error"]["code"]), (&Value::Null, &json!(-32600)));
        assert!(refused["error"]["message"].as_str().unwrap().starts_with("batch too large: 1001 requests"));
        let empty = answer(&server, "[]").await;
        assert_eq!(empty["error"], json!({ "code": -32600, "message": "empty batch" }));
    }

    /// Goal: an array that asks for more than fits gets what fits, and an error for each of the others.
    #[tokio::test]
    async fn answers_of_an_array_are_bounded_in_bytes() {
        let server = server();
        // Each returns a mebibyte of zeros, twice as long in hexadecimal.
        let data = json!({ "to": ZEROS, "data": format!("0x{:064x}", 1 << 20) });
        let calls = Value::from_iter((0..100).map(|id| call(id.into(), "eth_call", json!([data]))));
        let answers = answer(&server, &calls.to_string()).await;
        let answers = answers.as_array().unwrap();
        assert!(answers.iter().map(|answer| answer["id"].as_u64().unwrap()).eq(0..100));
        let fit = answers.iter().take_while(|answer| answer.get("result").is_some()).count();
        assert_eq!(fit, ARRAY_ANSWER_BYTES_MAX.div_ceil(2 << 20));
        assert!(answers[fit..].iter().all(|answer| answer["error"]["code"] == TOO_LARGE_CODE));
        assert_eq!(server.outgoing.grow().len(), 0);
    }

    #[tokio::test]
    async fn notifications_have_no_answer() {
        let server = server();
        let mut silent = call(Value::Null, "eth_chainId", json!([]));
        silent.as_object_mut().unwrap().remove("id");
        assert!(server.handle(silent.to_string().as_bytes()).await.is_none());
        assert!(server.handle(json!([silent, silent]).to_string().as_bytes()).await.is_none());
        assert_eq!(
            server.metrics.rpc_requests.with_label_values(&["eth_chainId", "ok"]).get(),
            3,
            "they are done"
        );
        let mixed = json!([
            silent,
            call(json!(-7), "eth_chainId", json!([])),
            silent,
            1,
            call(Value::Null, "eth_none", json!([]))
        ]);
        let answers = answer(&server, &mixed.to_string()).await;
        assert_eq!(answers.as_array().unwrap().len(), 3);
        assert_eq!(answers[0], json!({ "jsonrpc": "2.0", "id": -7, "result": "0x1cbd" }));
        assert_eq!((&answers[1]["id"], &answers[1]["error"]["code"]), (&Value::Null, &json!(-32600)));
        let text = "the method eth_none does not exist/is not available";
        assert_eq!(answers[2]["error"], json!({ "code": -32601, "message": text }));
    }

    #[tokio::test]
    async fn single_requests_and_what_is_none() {
        let server = server();
        for id in [json!(-1), json!(1.5), json!("x"), Value::Null, json!(u64::MAX)] {
            let answer = answer(&server, &call(id.clone(), "eth_chainId", json!([])).to_string()).await;
            assert_eq!(answer, json!({ "jsonrpc": "2.0", "id": id, "result": "0x1cbd" }));
        }
        for (body, code) in
            [("{", -32700), ("", -32700), ("[1,", -32700), ("1", -32600), ("{}", -32600), ("{} {}", -32700)]
        {
            let answer = answer(&server, body).await;
            assert_eq!((&answer["id"], &answer["error"]["code"]), (&Value::Null, &json!(code)), "{body}");
        }
        let parse = server.handle(b"\xff").await.unwrap();
        assert!(std::str::from_utf8(&parse).unwrap().contains("-32700"));
        let wrong = answer(&server, &call(json!(1), "eth_chainId", json!("bar")).to_string()).await;
        assert_eq!(wrong["error"], json!({ "code": -32602, "message": "non-array args" }));
    }

    /// Goal: who asks for more than there is time for learns it of each request, and nothing more is begun.
    #[tokio::test]
    async fn time_is_bounded() {
        let server = server();
        let text = call(json!(1), "eth_chainId", json!([])).to_string();
        let Request::Call(id, call) = Request::read(serde_json::from_str(&text).unwrap()) else {
            panic!("{text}")
        };
        let answer: Value = serde_json::from_str(&server.call(id, &call, Instant::now()).await).unwrap();
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(1), &json!(-32002)));
    }
}
