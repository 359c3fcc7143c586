//! JSON-RPC 2.0 over one HTTP body: single requests and arrays of them, bounded in number, size and concurrency.

use std::{borrow::Cow, collections::HashSet, sync::Arc, time::Instant};

use axum::body::Bytes;
use jsonrpsee::{
    RpcModule,
    types::error::{INVALID_REQUEST_CODE, PARSE_ERROR_CODE},
};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::Semaphore;

use super::{metrics::Metrics, outgoing::Outgoing};
use crate::rpc::{self, RpcContext};

/// Requests in one array; what ethers and viem send is below it.
const ARRAY_MAX: usize = 100;
/// Bytes of the answers to one array; what comes after is refused, so that an array of large blocks cannot fill memory.
const ARRAY_ANSWER_BYTES_MAX: usize = 8 << 20;
/// HTTP bodies worked on at a time, each with the answers that it has so far. More wait.
const CONCURRENCY_MAX: usize = 32;
/// Bytes of long answers that are being sent: a dozen of the largest blocks with their receipts.
const OUTGOING_BYTES_MAX: usize = 256 << 20;
/// "Response too large", as geth numbers it.
const TOO_LARGE_CODE: i32 = -32003;
/// "Limit exceeded" in EIP-1474.
const LIMIT_EXCEEDED_CODE: i32 = -32005;

/// The table of methods behind the door.
pub(super) struct JsonRpc {
    module: RpcModule<RpcContext>,
    methods: HashSet<&'static str>,
    metrics: Arc<Metrics>,
    room: Semaphore,
    outgoing: Outgoing,
}

/// As much of a request as is needed to count it and to answer one that is malformed.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Peek<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Cow<'a, str>,
}

impl JsonRpc {
    pub(super) fn new(context: RpcContext, metrics: Arc<Metrics>) -> anyhow::Result<JsonRpc> {
        let module = rpc::module(context)?;
        let methods = module.method_names().collect();
        let (room, outgoing) = (Semaphore::new(CONCURRENCY_MAX), Outgoing::new(OUTGOING_BYTES_MAX));
        Ok(JsonRpc { module, methods, metrics, room, outgoing })
    }

    /// The answer to an HTTP body.
    pub(super) async fn handle(&self, body: &[u8]) -> Bytes {
        let _room = self.room.acquire().await;
        let answer = self.answer(body).await;
        self.outgoing.hold(answer).unwrap_or_else(|| {
            let text =
                "limit exceeded: too many long answers are being read slowly; ask again, or for less at once";
            error(None, LIMIT_EXCEEDED_CODE, text).into()
        })
    }

    async fn answer(&self, body: &[u8]) -> String {
        let Ok(text) = std::str::from_utf8(body) else {
            return error(None, PARSE_ERROR_CODE, "parse error: the body is not UTF-8");
        };
        if !text.trim_start().starts_with('[') {
            return self.one(text).await;
        }
        let requests: Vec<&RawValue> = match serde_json::from_str(text) {
            Ok(requests) => requests,
            Err(parse) => return error(None, PARSE_ERROR_CODE, &format!("parse error: {parse}")),
        };
        match requests.len() {
            0 => error(None, INVALID_REQUEST_CODE, "invalid request: the array is empty"),
            1..=ARRAY_MAX => self.array(&requests).await,
            len => {
                let text =
                    format!("invalid request: {len} requests in one array, at most {ARRAY_MAX} are answered");
                error(None, INVALID_REQUEST_CODE, &text)
            }
        }
    }

    async fn array(&self, requests: &[&RawValue]) -> String {
        let mut answers = String::from("[");
        for request in requests {
            if answers.len() > 1 {
                answers.push(',');
            }
            if answers.len() > ARRAY_ANSWER_BYTES_MAX {
                let id = serde_json::from_str::<Peek<'_>>(request.get()).unwrap_or_default().id;
                answers.push_str(&error(id, TOO_LARGE_CODE, "response too large: ask in smaller arrays"));
            } else {
                answers.push_str(&self.one(request.get()).await);
            }
        }
        answers.push(']');
        answers
    }

    async fn one(&self, request: &str) -> String {
        let started = Instant::now();
        let peek: Peek<'_> = match serde_json::from_str(request) {
            Ok(peek) => peek,
            Err(parse) if parse.is_data() => {
                return error(
                    None,
                    INVALID_REQUEST_CODE,
                    "invalid request: expected an object with jsonrpc, id and method",
                );
            }
            Err(parse) => return error(None, PARSE_ERROR_CODE, &format!("parse error: {parse}")),
        };
        let (answer, ok) = match self.module.raw_json_request(request, 1).await {
            Ok((answer, _)) => {
                let answer = Box::<str>::from(answer).into_string();
                let ok = !is_error(&answer);
                (answer, ok)
            }
            Err(parse) => (error(peek.id, INVALID_REQUEST_CODE, &format!("invalid request: {parse}")), false),
        };
        let method = self.methods.get(&*peek.method).copied().unwrap_or("unknown");
        self.metrics.rpc_requests.with_label_values(&[method, if ok { "ok" } else { "error" }]).inc();
        self.metrics.rpc_seconds.with_label_values(&[method]).observe(started.elapsed().as_secs_f64());
        answer
    }
}

/// Whether an answer is an error object, without parsing a result that may be long.
fn is_error(answer: &str) -> bool {
    #[derive(Deserialize)]
    struct Outcome {
        error: Option<serde::de::IgnoredAny>,
    }
    serde_json::from_str::<Outcome>(answer).is_ok_and(|outcome| outcome.error.is_some())
}

fn error(id: Option<&RawValue>, code: i32, message: &str) -> String {
    let id = id.map_or("null", RawValue::get);
    let message = serde_json::Value::from(message);
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":{message}}}}}"#)
}
