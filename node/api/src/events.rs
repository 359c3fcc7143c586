//! `GET /v1/events`: the changes at this node, as server-sent events, for as long as the listener stays.
//!
//! A listener occupies its connection. So the number of listeners is small and shared by address, and web pages of
//! other sites may not listen.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Extension,
    extract::{ConnectInfo, State},
    http::{
        HeaderMap, StatusCode,
        header::{CONNECTION, HOST, ORIGIN},
    },
    response::{
        IntoResponse, Response,
        sse::{Event as Sent, KeepAlive, Sse},
    },
};
use futures::stream;
use serde_json::json;
use slipstream_status::events::{Listener, NextEvent};

use slipstream_fair::QuotaShare;

use super::{Api, listener::Seat};

/// Maximum number of listeners at once; each holds one of the API's connections. The maximum is half of the connections
/// that are not reserved for calls.
pub(super) const LISTENERS_MAX: usize = 8;
/// The number of these listeners that is reserved for this machine and for `api.trusted_addresses`.
pub(super) const LISTENERS_RESERVED: usize = 2;
/// The pause after which an idle stream gets a comment. It reveals a client that no longer reads, and shows proxies
/// that the stream is alive. It is well below the longest allowed silence of a connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// The header in which a browser names the origin of the requesting page.
const FETCH_SITE: &str = "sec-fetch-site";
/// The pause after which a browser, or `slipstream events`, reconnects.
const RETRY: Duration = Duration::from_secs(2);
/// The header with the id of the last event that a listener received.
const LAST_EVENT_ID: &str = "last-event-id";

/// Marks a response that continues: its connection's seat stays taken while the client reads.
#[derive(Clone, Copy)]
pub(super) struct Streams;

pub(super) async fn events(
    State(api): State<Arc<Api>>,
    ConnectInfo(seat): ConnectInfo<Seat>,
    headers: HeaderMap,
) -> Response {
    if !is_same_site(&headers) {
        let text = "only pages from this node's own address may follow events: a page of another site could take every listener's place\n";
        return (StatusCode::FORBIDDEN, text).into_response();
    }
    let mut place = api.listeners.share(seat.origin());
    if !place.grow_to(1) {
        return api.busy("listener", "too many listeners follow events on this node or from this address");
    }
    let last = headers.get(LAST_EVENT_ID).and_then(|id| id.to_str().ok()).and_then(|id| id.parse().ok());
    let listener = api.events.listen(last);
    let stream = stream::unfold((listener, place), next);
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE).text("still here");
    let sse = Sse::new(stream).keep_alive(keep_alive);
    ([(CONNECTION, "close")], Extension(Streams), sse).into_response()
}

/// The next event, with its listener's place.
async fn next(
    (mut listener, place): (Listener, QuotaShare),
) -> Option<(Result<Sent, Infallible>, (Listener, QuotaShare))> {
    let sent = match listener.next().await? {
        NextEvent::Event(told) => Sent::default().id(told.id.to_string()).event(told.name).data(&*told.json),
        // Without an id: a client that reconnects resumes at its old position.
        NextEvent::Lost(lost) => {
            Sent::default().event("lost").data(json!({ "event": "lost", "lost": lost }).to_string())
        }
    };
    Some((Ok(sent.retry(RETRY)), (listener, place)))
}

/// Whether the request comes from no page, or from a page that this node served. A frame or an image in another site's
/// page sends no `Origin`. On loopback and over TLS, browsers name the embedding site in [`FETCH_SITE`].
fn is_same_site(headers: &HeaderMap) -> bool {
    let mut sites = headers.get_all(FETCH_SITE).iter();
    if !sites.all(|site| site == "same-origin" || site == "none") {
        return false;
    }
    let mut origins = headers.get_all(ORIGIN).iter();
    let Some(origin) = origins.next() else { return true };
    let site =
        origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, authority)| authority);
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    origins.next().is_none() && site.is_some() && site == host
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    /// Goal: only this node's own page can hold a listener's place.
    #[test]
    fn pages_of_other_sites_are_told_apart() {
        let allowed = |origins: &[&'static str], host: &'static str| {
            let mut headers = HeaderMap::from_iter([(HOST, HeaderValue::from_static(host))]);
            for origin in origins {
                headers.append(ORIGIN, HeaderValue::from_static(origin));
            }
            is_same_site(&headers)
        };
        assert!(allowed(&[], "127.0.0.1:8545"), "no browser");
        assert!(allowed(&["http://127.0.0.1:8545"], "127.0.0.1:8545"));
        for origins in [
            &["https://evil.example"][..],
            &["http://127.0.0.1:9000"],
            &["http://127.0.0.1"],
            &["null"],
            &[""],
            &["http://127.0.0.1:8545", "https://evil.example"],
        ] {
            assert!(!allowed(origins, "127.0.0.1:8545"), "{origins:?}");
        }
        for (site, is_allowed) in
            [("same-origin", true), ("none", true), ("same-site", false), ("cross-site", false)]
        {
            let site = HeaderValue::from_static(site);
            assert_eq!(
                is_same_site(&HeaderMap::from_iter([(HeaderName::from_static(FETCH_SITE), site)])),
                is_allowed
            );
        }
    }
}
