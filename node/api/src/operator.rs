//! `/v1/operator/…`: an operator's orders to a running node. A caller needs the operator's token; all others are
//! refused before any of the request's body is read.
//!
//! ```text
//!   GET, PUT      /v1/operator/log/filter       the log's filter
//!   GET           /v1/operator/log/recent       the log's last lines
//!   PUT, DELETE   /v1/operator/peers/KEY        a peer that the node dials and keeps, like those of network.peers
//!   GET           /v1/operator/peers/KEY/ping   a request to a connected peer
//!   PUT, DELETE   /v1/operator/bans/KEY         a banned peer
//! ```
//!
//! Orders about peers are written to the data directory before they are answered, and survive a restart. So does the
//! end of a ban that the node itself imposed.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Json, Router,
    extract::{ConnectInfo, DefaultBodyLimit, Path, Request, State},
    http::{
        HeaderMap, StatusCode,
        header::{AUTHORIZATION, CONNECTION, WWW_AUTHENTICATE},
    },
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, put},
};
use serde::{Deserialize, Serialize};
use slipstream_base::{
    FilterError, Log, bans_file::BansFile, log_rate_limit::LogRateLimit, operator_token::OperatorToken,
    orders_file::OrdersFile,
};
use slipstream_network::{
    Network, NetworkError, OrderError, PeerId, PeerTarget, Protocol, RequestLimits, Transport as _,
};
use slipstream_status::peers::BanStatus;
use slipstream_sync::{Follower, protocol::Request as SyncRequest};
use slipstream_types::codec;

use super::{Api, listener::Seat};

/// Maximum bytes of a body: a filter of the greatest length with every character escaped.
const BODY_BYTES_MAX: usize = 32 << 10;
/// How long a peer may take to answer a ping.
const PING_DEADLINE: Duration = Duration::from_secs(3);
/// Maximum bytes of a pong: a peer's summary of itself is some KiB.
const PONG_BYTES_MAX: usize = 1 << 20;
/// The shortest and longest ban in seconds: up to a year.
pub const BAN_SECONDS: std::ops::RangeInclusive<u64> = 1..=365 * 24 * 3_600;
/// Maximum bytes of the reason of a ban.
pub const WHY_BYTES_MAX: usize = 256;

/// The parts of a node that an operator may change.
pub struct Operator {
    /// The token that operators show.
    pub token: OperatorToken,
    /// The network.
    pub network: Arc<Network>,
    /// Sync.
    pub follower: Arc<Follower>,
    /// The log.
    pub log: Log,
    /// The file of the operator's orders.
    pub orders: Arc<OrdersFile>,
    /// The file of bans.
    pub bans: Arc<BansFile>,
}

/// The log's filter.
#[derive(Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FilterBody {
    /// The filter, as in `log.filter`.
    pub filter: String,
}

/// The address at which an added peer is dialled.
#[derive(Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AddBody {
    /// HOST:PORT, as in `network.peers`.
    pub at: String,
}

/// A ban.
#[derive(Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BanBody {
    /// The duration. Without it a peer of `network.peers` is banned until it is unbanned, and any other peer for an
    /// hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<u64>,
    /// The operator's reason, which `status` shows.
    pub why: String,
}

/// A ban in force.
#[derive(Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Banned {
    #[serde(flatten)]
    /// The ban that is now in force.
    pub ban: BanStatus,
    /// How the bans in force affect this validator's quorum; `None` unless this node is a validator and bans one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

/// The result of a ping.
#[derive(Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Pong {
    /// From the request to its complete answer.
    pub answer_ms: f64,
    /// The connection's own round trip, smoothed.
    pub rtt_ms: f64,
    /// Bytes of the answer.
    pub bytes: usize,
    /// The peer's refusal instead of an answer, which is a round trip as well.
    pub refusal: Option<String>,
}

pub(super) fn router(api: Arc<Api>) -> Router {
    Router::new()
        .route("/v1/operator/log/filter", get(filter).put(set_filter))
        .route("/v1/operator/log/recent", get(recent))
        .route("/v1/operator/peers/{key}", put(add).delete(remove))
        .route("/v1/operator/peers/{key}/ping", get(ping))
        .route("/v1/operator/bans/{key}", put(ban).delete(unban))
        .route_layer(middleware::from_fn_with_state(api.clone(), only_operator))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(api)
}

/// Refuses callers without the token. Each refusal costs the sender one of its address's few connections, and the node
/// a comparison. The log gets at most one line a second; the metrics count all refusals.
async fn only_operator(
    State(api): State<Arc<Api>>,
    ConnectInfo(seat): ConnectInfo<Seat>,
    request: Request,
    next: Next,
) -> Response {
    static REFUSALS: LogRateLimit = LogRateLimit::per_second();
    let shown = bearer(request.headers());
    if shown.is_some_and(|shown| api.operator.token.is(shown)) {
        return next.run(request).await;
    }
    api.metrics.api_refused.with_label_values(&["operator token"]).inc();
    if let Some(more) = REFUSALS.pass(Instant::now()) {
        let (from, has_token) = (seat.origin(), shown.is_some());
        tracing::warn!(
            ?from,
            has_token,
            more,
            "a caller without the operator token tried to operate this node"
        );
    }
    let text = if shown.is_some() {
        "this is not the operator token of this node"
    } else {
        "this request needs the operator token of this node, in the header `Authorization: Bearer TOKEN`"
    };
    let place = "the token is in the file operator.token in the node's data directory, and `slipstream … --config FILE` finds it there";
    let headers = [(WWW_AUTHENTICATE, "Bearer realm=\"slipstream operator\""), (CONNECTION, "close")];
    (StatusCode::UNAUTHORIZED, headers, format!("{text}: {place}\n")).into_response()
}

/// The token that a request presents, if any.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let mut shown = headers.get_all(AUTHORIZATION).iter();
    let (scheme, token) = shown.next()?.to_str().ok()?.split_once(' ')?;
    // With two tokens it is unclear which one counts.
    (shown.next().is_none() && scheme.eq_ignore_ascii_case("bearer")).then(|| token.trim().as_bytes())
}

async fn filter(State(api): State<Arc<Api>>) -> Result<Json<FilterBody>, Refused> {
    let filter = api.operator.log.filter();
    let filter = filter.ok_or_else(|| Refused::new(StatusCode::CONFLICT, &FilterError::NotInstalled))?;
    Ok(Json(FilterBody { filter }))
}

async fn set_filter(
    State(api): State<Arc<Api>>,
    Json(body): Json<FilterBody>,
) -> Result<Json<FilterBody>, Refused> {
    let changed = api.operator.log.set_filter(&body.filter);
    let before = changed.map_err(|error| match error.column() {
        Some(column) => Refused(StatusCode::BAD_REQUEST, format!("at character {column}: {error}\n")),
        None => Refused::new(StatusCode::CONFLICT, &error),
    })?;
    tracing::info!(before, now = body.filter, "the operator changed the log's filter");
    Ok(Json(FilterBody { filter: before }))
}

/// Operators only: the lines name peers, addresses and callers.
async fn recent(State(api): State<Arc<Api>>) -> Response {
    api.operator.log.recent().into_response()
}

async fn add(
    State(api): State<Arc<Api>>,
    Path(key): Path<String>,
    Json(body): Json<AddBody>,
) -> Result<Response, Refused> {
    let peer = format!("{}@{}", peer_of(&key)?, body.at).parse::<PeerTarget>();
    let peer = peer.map_err(|error| Refused::new(StatusCode::BAD_REQUEST, &error))?;
    api.operator.network.add_peer(peer).map_err(disobeyed)?;
    keep(&api).await?;
    Ok(done())
}

async fn remove(State(api): State<Arc<Api>>, Path(key): Path<String>) -> Result<Response, Refused> {
    api.operator.network.remove_peer(peer_of(&key)?).map_err(disobeyed)?;
    keep(&api).await?;
    Ok(done())
}

async fn ban(
    State(api): State<Arc<Api>>,
    Path(key): Path<String>,
    Json(body): Json<BanBody>,
) -> Result<Response, Refused> {
    let peer = peer_of(&key)?;
    if body.seconds.is_some_and(|seconds| !BAN_SECONDS.contains(&seconds)) {
        let text = format!("a ban lasts from {} to {} seconds", BAN_SECONDS.start(), BAN_SECONDS.end());
        return Err(Refused::new(StatusCode::BAD_REQUEST, &text));
    }
    if body.why.len() > WHY_BYTES_MAX {
        let text = format!("the reason for a ban has at most {WHY_BYTES_MAX} bytes, not {}", body.why.len());
        return Err(Refused::new(StatusCode::BAD_REQUEST, &text));
    }
    let duration = body.seconds.map(Duration::from_secs);
    let ban = api.operator.network.ban_peer(peer, &body.why, duration).map_err(disobeyed)?;
    keep(&api).await?;
    let warning = api.status.tell_barred();
    Ok(Json(Banned { ban: BanStatus::of(&ban, tokio::time::Instant::now()), warning }).into_response())
}

async fn unban(State(api): State<Arc<Api>>, Path(key): Path<String>) -> Result<Response, Refused> {
    let peer = peer_of(&key)?;
    api.operator.network.unban_peer(peer).map_err(disobeyed)?;
    api.operator.follower.unban(&peer);
    let (file, network) = (api.operator.bans.clone(), api.operator.network.clone());
    let own = written(move || told(file.path(), file.write(|| network.own_bans()))).await;
    // The other file is written even if the first write failed.
    keep(&api).await.and(own)?;
    Ok(done())
}

/// Writes the orders in force.
async fn keep(api: &Api) -> Result<(), Refused> {
    let (file, network) = (api.operator.orders.clone(), api.operator.network.clone());
    written(move || told(file.path(), file.write(|| network.orders()))).await
}

/// Adds the file's name to the error of a write.
fn told(path: &std::path::Path, written: io::Result<()>) -> Result<(), String> {
    written.map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// Writes on a thread that may wait for the disk.
async fn written(write: impl FnOnce() -> Result<(), String> + Send + 'static) -> Result<(), Refused> {
    let problem = match tokio::task::spawn_blocking(write).await {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(problem)) => problem,
        Err(error) => error.to_string(),
    };
    tracing::warn!(problem, "a restart will lose an order of the operator");
    let text = format!("the order is in force, but a restart will lose it: {problem}");
    Err(Refused::new(StatusCode::INTERNAL_SERVER_ERROR, &text))
}

/// Requests a peer's summary, as sync does. This measures the round trip, and the peer's readiness to answer.
async fn ping(State(api): State<Arc<Api>>, Path(key): Path<String>) -> Result<Response, Refused> {
    let (peer, network) = (peer_of(&key)?, &api.operator.network);
    let question = codec::encode("sync request", &SyncRequest::Summary)
        .map_err(|error| Refused::new(StatusCode::INTERNAL_SERVER_ERROR, &error))?;
    let limits = RequestLimits { deadline: PING_DEADLINE, response_bytes_max: PONG_BYTES_MAX };
    let asked = Instant::now();
    let answer = network.request(peer, Protocol::SYNC, question, limits).await;
    let answer_ms = asked.elapsed().as_secs_f64() * 1e3;
    let (bytes, refusal) = match answer {
        Ok(answer) => (answer.len(), None),
        Err(NetworkError::Refused { refusal, .. }) => (0, Some(refusal.to_string())),
        Err(error @ (NetworkError::UnknownPeer { .. } | NetworkError::Banned { .. })) => {
            return Err(Refused::new(StatusCode::NOT_FOUND, &error));
        }
        Err(error) => return Err(Refused::new(StatusCode::BAD_GATEWAY, &error)),
    };
    let stats = network.peer_stats();
    let rtt_ms = stats.iter().find(|stats| stats.id == peer).map_or(0.0, |stats| stats.rtt_ms);
    Ok(Json(Pong { answer_ms, rtt_ms, bytes, refusal }).into_response())
}

/// A refused order, with a text for its sender.
struct Refused(StatusCode, String);

impl Refused {
    fn new(status: StatusCode, text: &dyn std::fmt::Display) -> Refused {
        Refused(status, format!("{text}\n"))
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.0, self.1).into_response()
    }
}

fn peer_of(key: &str) -> Result<PeerId, Refused> {
    key.parse::<PeerId>()
        .map_err(|error| Refused::new(StatusCode::BAD_REQUEST, &format_args!("not a peer's key: {error}")))
}

fn done() -> Response {
    Json(serde_json::json!({})).into_response()
}

fn disobeyed(error: OrderError) -> Refused {
    let status = match error {
        OrderError::NoAddress(_) => StatusCode::BAD_REQUEST,
        OrderError::NotAdded(_) | OrderError::NotBanned(_) => StatusCode::NOT_FOUND,
        OrderError::ShutDown => StatusCode::SERVICE_UNAVAILABLE,
        OrderError::Own(_)
        | OrderError::Configured(_)
        | OrderError::TooMany
        | OrderError::TooManyBans
        | OrderError::NoPlace => StatusCode::CONFLICT,
    };
    Refused::new(status, &error)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn one_bearer_is_taken_and_nothing_else() {
        let shown = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(AUTHORIZATION, HeaderValue::from_static(value));
            }
            bearer(&headers).map(<[u8]>::to_vec)
        };
        assert_eq!(shown(&["Bearer abc"]), Some(b"abc".to_vec()));
        assert_eq!(shown(&["bearer  abc "]), Some(b"abc".to_vec()));
        for none in [&[][..], &["abc"], &["Basic abc"], &["Bearer"], &["Bearer abc", "Bearer abc"]] {
            assert_eq!(shown(none), None, "{none:?}");
        }
    }
}
