//! The HTTP side, on one port: JSON-RPC at `POST /` and over WebSocket at `/` and `/ws`, and a page for people at
//! `GET /`. These paths are for reading: `GET /v1/status`, `GET /v1/consensus/evidence`, `GET /v1/consensus/settled`,
//! `GET /v1/events`, `GET /v1/db`, `GET /v1/snapshots`, `GET /v1/openapi.json`, `GET /metrics` and `GET /health`.
//! `/v1/operator/…` is for callers with the operator's token.
//!
//! `/health`, also as `/health/ready`, is readiness: whether to send callers here. `/health/live` is liveness: whether
//! the process works. A halted chain is no reason to restart a node.

mod events;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod fuzzed;
mod hosts;
mod incoming;
pub mod inspect;
mod jsonrpc;
pub mod listener;
mod openapi;
pub mod operator;
mod outgoing;
mod page;
pub mod settled;
pub mod starting;
mod ws;

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Json, Router,
    body::{Body, Bytes, HttpBody},
    extract::{ConnectInfo, Request, State},
    http::{
        HeaderMap, Method, StatusCode, Version,
        header::{CONNECTION, CONTENT_TYPE, RETRY_AFTER, UPGRADE},
    },
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use slipstream_base::{log_rate_limit::LogRateLimit, tasks::TaskError};
use slipstream_config::ApiConfig;
use slipstream_fair::{Blocking, Origin, Quota, Rank, Vouched};
use slipstream_rpc::RpcContext;
use slipstream_status::{StatusSource, events::Ring, metrics::Metrics};
use tokio::{net::TcpListener, sync::Mutex};
use tokio_util::sync::CancellationToken;
use tower_http::{cors::CorsLayer, timeout::TimeoutLayer};

use self::{
    hosts::Hosts,
    incoming::{BodyError, Incoming},
    jsonrpc::JsonRpc,
    listener::{Limits, NoPlace, Seat, SeatedListener},
    operator::Operator,
    ws::Sockets,
};

/// Time limit for one HTTP request: above the slowest call, below the time that a stuck client may hold a connection.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The content types accepted for JSON-RPC, as in geth. A browser sends these types for a page only after a preflight
/// request.
const JSON_TYPES: [&str; 3] = ["application/json", "application/json-rpc", "application/jsonrequest"];

/// Time for the last answers when the API ends. It is shorter than the API task's own limit. It is also shorter than
/// the next start in the same process waits for the store.
const LAST_ANSWERS_MAX: Duration = Duration::from_secs(3);

/// Maximum number of operators' requests that run at once. They are separate from callers' requests, so that a busy
/// node can still be inspected.
const OPERATORS_MAX: usize = 4;

/// Connections besides those with calls: for operators, and for callers that are refused because all call places are
/// taken.
pub const SPARE_CONNECTIONS: usize = 16;
/// The connections that are reserved for this machine and for `api.trusted_addresses`.
const RESERVED_CONNECTIONS: usize = 8;

/// How long a sample of the metrics is reused, however many clients scrape: no monitor waits for the scrapes of others.
const SCRAPE_AGE_MAX: Duration = Duration::from_millis(100);

/// The state that all handlers share.
pub struct Api {
    jsonrpc: JsonRpc,
    incoming: Incoming,
    metrics: Arc<Metrics>,
    status: Arc<StatusSource>,
    operator: Operator,
    events: Arc<Ring>,
    listeners: Quota,
    blocking: Blocking,
    /// The last scrape, and its time. Locked from sampling to encoding: otherwise one scrape would show values that
    /// another has reset.
    scrape: Arc<Mutex<Option<(Instant, Bytes)>>>,
    stats: inspect::CachedStats,
    sockets: Arc<Sockets>,
}

impl Api {
    /// The API over a node with these parts.
    pub fn new(
        context: RpcContext,
        metrics: Arc<Metrics>,
        status: Arc<StatusSource>,
        operator: Operator,
        events: Arc<Ring>,
        config: &ApiConfig,
    ) -> Api {
        Api {
            sockets: Sockets::new(config, metrics.clone(), &context.feed),
            jsonrpc: JsonRpc::new(context, metrics.clone()),
            incoming: Incoming::new(config.max_body_bytes),
            metrics,
            status,
            operator,
            events,
            listeners: Quota::new(events::LISTENERS_MAX, events::LISTENERS_RESERVED),
            blocking: Blocking::new("api", OPERATORS_MAX, Rank::Own),
            scrape: Arc::default(),
            stats: Mutex::default(),
        }
    }
}

/// Answers until `shutdown`, then finishes the requests in flight and announces the end to all sockets. Answers still
/// unread after three seconds are dropped, because each connection holds the store.
pub async fn serve(
    listener: TcpListener,
    config: ApiConfig,
    api: Arc<Api>,
    shutdown: CancellationToken,
) -> Result<(), TaskError> {
    let refused = api.metrics.api_refused.with_label_values(&["connection"]);
    let end = CancellationToken::new();
    // This works even if the task is aborted: connections are separate tasks.
    let _end = end.clone().drop_guard();
    let vouched = vouched(&config.trusted_addresses);
    let listener = SeatedListener::new(listener, limits(&config), vouched, Some(refused), end.clone());
    let (following, sockets) = (api.jsonrpc.table().follow(shutdown.clone()), api.sockets.clone());
    let events = api.events.clone();
    let router = router(&config, api, end.clone()).into_make_service_with_connect_info::<Seat>();
    let serving = axum::serve(listener, router).with_graceful_shutdown(shutdown.clone().cancelled_owned());
    let closing = async {
        shutdown.cancelled().await;
        // The requests of event listeners would never end.
        events.close();
        sockets.close().await;
    };
    let cutting = async {
        shutdown.cancelled().await;
        tokio::time::sleep(LAST_ANSWERS_MAX).await;
        end.cancel();
    };
    let serving = async {
        let mut serving = serving.into_future();
        tokio::select! {
            served = &mut serving => return served,
            () = cutting => {}
        }
        serving.await
    };
    let (served, (), ()) = tokio::join!(serving, following, closing);
    Ok(served?)
}

fn limits(config: &ApiConfig) -> Limits {
    Limits {
        calls: config.max_connections.get(),
        spare: SPARE_CONNECTIONS,
        reserved: RESERVED_CONNECTIONS,
        per_address: config.max_connections_per_address.get(),
    }
}

/// The callers that take precedence over others.
pub fn vouched(addresses: &[IpAddr]) -> Vouched {
    Vouched::new(addresses)
}

fn router(config: &ApiConfig, api: Arc<Api>, end: CancellationToken) -> Router {
    let timeout = TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, REQUEST_TIMEOUT);
    let router = Router::new()
        .route("/", post(jsonrpc).route_layer(middleware::from_fn(only_json)).get(root))
        .route("/ws", get(ws::upgrade))
        .merge(page::files())
        .route("/v1/status", get(status))
        .route("/v1/consensus/evidence", get(evidence))
        .route("/v1/consensus/settled", get(settled::settled))
        .route("/v1/events", get(events::events))
        .route("/v1/db", get(inspect::db))
        .route("/v1/snapshots", get(inspect::snapshots))
        .route("/v1/openapi.json", get(openapi::openapi))
        .route("/metrics", get(metrics))
        .route("/health", get(ready))
        .route("/health/ready", get(ready))
        .route("/health/live", get(live))
        .with_state(api.clone())
        .layer(timeout);
    let router = if config.cors { router.layer(CorsLayer::permissive()) } else { router };
    // No page of another origin may operate a node, whatever `api.cors` lets it read.
    let router = router.merge(operator::router(api).layer(timeout));
    let hosts = Arc::new(Hosts::new(&config.allowed_hosts));
    router
        .layer(middleware::from_fn_with_state(hosts, only_known_hosts))
        .layer(middleware::from_fn_with_state(end, until_the_end))
        .layer(middleware::from_fn(seated))
}

/// Abandons a request that is still running when the API ends, so that the request releases the store.
async fn until_the_end(State(end): State<CancellationToken>, request: Request, next: Next) -> Response {
    tokio::select! {
        response = next.run(request) => response,
        () = end.cancelled() => (StatusCode::SERVICE_UNAVAILABLE, [(CONNECTION, "close")], "this node stops\n").into_response(),
    }
}

/// `GET /`: a WebSocket for a client that requests one, the page for all others.
async fn root(state: State<Arc<Api>>, seat: ConnectInfo<Seat>, request: Request) -> Response {
    match request.headers().contains_key(UPGRADE) {
        true => ws::upgrade(state, seat, request).await,
        false => page::index().await,
    }
}

/// Keeps the connection's seat up to date. A request with a body runs only once the body is read.
async fn seated(ConnectInfo(seat): ConnectInfo<Seat>, request: Request, next: Next) -> Response {
    // A seat serves one request at a time. The server would also accept HTTP/2, because another crate enables it in
    // hyper. Such a connection counts as awaiting a head, and times out accordingly.
    if request.version() > Version::HTTP_11 {
        return (StatusCode::HTTP_VERSION_NOT_SUPPORTED, "this node speaks only HTTP/1.1\n").into_response();
    }
    if request.method() == Method::POST {
        seat.head_read()
    } else {
        seat.working()
    }
    let response = next.run(request).await;
    if response.extensions().get::<events::Streams>().is_some() {
        seat.follows();
        return response;
    }
    let len = response.body().size_hint().exact().unwrap_or_default();
    seat.answered(usize::try_from(len).unwrap_or(usize::MAX));
    response
}

/// Refuses requests that a browser sends for a page whose own name resolves to this node.
async fn only_known_hosts(State(hosts): State<Arc<Hosts>>, request: Request, next: Next) -> Response {
    match hosts.check(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(stranger) => (StatusCode::FORBIDDEN, format!("{stranger}\n")).into_response(),
    }
}

/// Refuses requests that a browser sends for any page without a preflight: forms and plain text.
async fn only_json(headers: HeaderMap, request: Request, next: Next) -> Response {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    if JSON_TYPES.iter().any(|json| essence.eq_ignore_ascii_case(json)) {
        return next.run(request).await;
    }
    let text = "invalid content type: set the header Content-Type to application/json\n";
    (StatusCode::UNSUPPORTED_MEDIA_TYPE, text).into_response()
}

async fn jsonrpc(State(api): State<Arc<Api>>, ConnectInfo(seat): ConnectInfo<Seat>, body: Body) -> Response {
    let body = match api.incoming.read(seat.origin(), body).await {
        Ok(body) => body,
        Err(BodyError::NoRoom) => return api.busy("request", "too many long requests are being read"),
        Err(unread) => return (unread.status(), format!("{unread}\n")).into_response(),
    };
    if seat.call_read().is_err() {
        return api.busy("call", "too many calls at a time (`api.max_connections`)");
    }
    let weigh = |weight| seat.weighed(weight);
    let handled = api.jsonrpc.handle_weighed(seat.origin(), weigh, || seat.working(), body.bytes());
    tokio::select! {
        answer = handled => match answer {
            Ok(Some(answer)) => ([(CONTENT_TYPE, "application/json")], answer).into_response(),
            // Notifications have no answer.
            Ok(None) => StatusCode::NO_CONTENT.into_response(),
            Err(NoPlace) => api.busy(
                "call",
                "too many calls take long or wait for receipts (they share a part of `api.max_connections`)",
            ),
        },
        () = seat.sent_away() => api.busy("call", "other clients need the place of this call, which has not begun"),
    }
}

async fn status(State(api): State<Arc<Api>>, ConnectInfo(seat): ConnectInfo<Seat>) -> Response {
    match api.read(seat.origin(), |api| api.status.read()).await {
        Ok(status) => Json(status).into_response(),
        Err(failure) => failure,
    }
}

async fn evidence(State(api): State<Arc<Api>>) -> Response {
    Json(api.status.evidence()).into_response()
}

async fn metrics(State(api): State<Arc<Api>>, ConnectInfo(seat): ConnectInfo<Seat>) -> Response {
    // A request waits here rather than on one of the few threads. Concurrent scrapes get the same result.
    let mut scrape = api.scrape.clone().lock_owned().await;
    let fresh =
        scrape.as_ref().filter(|(made, _)| made.elapsed() < SCRAPE_AGE_MAX).map(|(_, text)| text.clone());
    let text = match fresh {
        Some(text) => Ok(text),
        None => {
            let encode = move |api: &Api| {
                api.status.sample(&api.metrics)?;
                let text = Bytes::from(api.metrics.encode()?);
                *scrape = Some((Instant::now(), text.clone()));
                anyhow::Ok(text)
            };
            api.read(seat.origin(), encode).await
        }
    };
    match text {
        Ok(text) => ([(CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Err(failure) => failure,
    }
}

async fn ready(State(api): State<Arc<Api>>, ConnectInfo(seat): ConnectInfo<Seat>) -> Response {
    match api.read(seat.origin(), |api| api.status.health.read()).await {
        Ok(health) if health.ready => Json(health).into_response(),
        Ok(health) => (StatusCode::SERVICE_UNAVAILABLE, Json(health)).into_response(),
        Err(failure) => failure,
    }
}

async fn live(State(api): State<Arc<Api>>, ConnectInfo(seat): ConnectInfo<Seat>) -> Response {
    match api.read(seat.origin(), |api| api.status.store.head()).await {
        Ok(_) => "ok\n".into_response(),
        Err(failure) => failure,
    }
}

impl Api {
    /// Answers 503 with a time to retry, and counts what was missing.
    fn busy(&self, missing: &str, reason: &str) -> Response {
        self.metrics.api_refused.with_label_values(&[missing]).inc();
        let headers = [(RETRY_AFTER, "1"), (CONNECTION, "close")];
        (StatusCode::SERVICE_UNAVAILABLE, headers, format!("{reason}: try again soon\n")).into_response()
    }

    /// Reads from the node on one of the operators' threads. A failure is returned as a complete response.
    async fn read<T: Send + 'static, E: std::fmt::Display + Send + 'static>(
        self: &Arc<Self>,
        origin: Origin,
        read: impl FnOnce(&Api) -> Result<T, E> + Send + 'static,
    ) -> Result<T, Response> {
        let api = self.clone();
        match self.blocking.run(origin, move || read(&api)).await {
            Ok(Ok(found)) => Ok(found),
            Ok(Err(error)) => Err(failed(&error)),
            Err(panic) => Err(failed(&panic)),
        }
    }
}

fn failed(error: &dyn std::fmt::Display) -> Response {
    static FAILURES: LogRateLimit = LogRateLimit::per_second();
    if let Some(more) = FAILURES.pass(Instant::now()) {
        tracing::error!(%error, more, "a request for the node's state failed");
    }
    (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response()
}
