//! The HTTP side: JSON-RPC at `POST /`, `GET /v1/status`, `GET /metrics`, `GET /health`, on one port.

mod envelope;
mod jsonrpc;
pub(crate) mod listener;
pub(crate) mod metrics;
mod outgoing;
pub mod status;

use std::{sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, State},
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use slipstream_config::ApiConfig;
use tokio::{net::TcpListener, sync::Mutex};
use tokio_util::sync::CancellationToken;
use tower_http::{cors::CorsLayer, timeout::TimeoutLayer};

use self::{jsonrpc::JsonRpc, listener::Limited, metrics::Metrics, status::StatusSource};
use crate::{blocking::Blocking, rpc::RpcContext, tasks::TaskError};

/// Longest time for one HTTP request: above the slowest call, below what a stuck client may hold a connection for.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Requests of operators that are worked on at a time, apart from callers' so that a busy node can still be looked at.
const OPERATORS_MAX: usize = 4;

/// What the handlers share.
pub(crate) struct Api {
    jsonrpc: JsonRpc,
    metrics: Arc<Metrics>,
    status: StatusSource,
    blocking: Blocking,
    /// Held from sampling to encoding, or what one scrape has reset another would show.
    scrape: Arc<Mutex<()>>,
}

impl Api {
    pub(crate) fn new(
        context: RpcContext,
        metrics: Arc<Metrics>,
        status: StatusSource,
    ) -> anyhow::Result<Api> {
        let jsonrpc = JsonRpc::new(context, metrics.clone())?;
        let blocking = Blocking::new(OPERATORS_MAX);
        Ok(Api { jsonrpc, metrics, status, blocking, scrape: Arc::default() })
    }
}

/// Answers until told to stop, then finishes the requests that are in flight.
pub(crate) async fn serve(
    listener: TcpListener,
    config: ApiConfig,
    api: Arc<Api>,
    shutdown: CancellationToken,
) -> Result<(), TaskError> {
    let listener = Limited::new(listener, config.max_connections);
    axum::serve(listener, router(&config, api)).with_graceful_shutdown(shutdown.cancelled_owned()).await?;
    Ok(())
}

fn router(config: &ApiConfig, api: Arc<Api>) -> Router {
    let router = Router::new()
        .route("/", post(jsonrpc))
        .route("/v1/status", get(status))
        .route("/metrics", get(metrics))
        .route("/health", get(health))
        .with_state(api)
        .layer(DefaultBodyLimit::max(config.max_body_bytes))
        .layer(TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, REQUEST_TIMEOUT));
    if config.cors { router.layer(CorsLayer::permissive()) } else { router }
}

async fn jsonrpc(State(api): State<Arc<Api>>, body: axum::body::Bytes) -> Response {
    match api.jsonrpc.handle(&body).await {
        Some(answer) => ([(CONTENT_TYPE, "application/json")], answer).into_response(),
        // Notifications have no answer.
        None => StatusCode::NO_CONTENT.into_response(),
    }
}

async fn status(State(api): State<Arc<Api>>) -> Response {
    let shared = api.clone();
    match api.blocking.run(move || shared.status.read()).await {
        Ok(Ok(status)) => Json(status).into_response(),
        Ok(Err(error)) => failed(&error),
        Err(error) => failed(&error),
    }
}

async fn metrics(State(api): State<Arc<Api>>) -> Response {
    // Waited for here: a thread that waits would be one of few.
    let turn = api.scrape.clone().lock_owned().await;
    let shared = api.clone();
    let encode = move || {
        let _turn = turn;
        shared.status.sample(&shared.metrics)?;
        anyhow::Ok(shared.metrics.encode()?)
    };
    match api.blocking.run(encode).await {
        Ok(Ok(text)) => ([(CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Ok(Err(error)) => failed(&*error),
        Err(error) => failed(&error),
    }
}

async fn health(State(api): State<Arc<Api>>) -> Response {
    let shared = api.clone();
    match api.blocking.run(move || shared.status.store.head()).await {
        Ok(Ok(_)) => "ok\n".into_response(),
        Ok(Err(error)) => failed(&error),
        Err(error) => failed(&error),
    }
}

fn failed(error: &dyn std::error::Error) -> Response {
    tracing::error!(%error, "a request for the node's state failed");
    (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response()
}
