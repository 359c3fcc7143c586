//! Decides which web pages may open a socket.
//!
//! A browser lets every page open a WebSocket to any address, and identifies the page only in `Origin`. For sockets
//! this rule does what the rule on `Content-Type` does for HTTP. Programs other than browsers send no `Origin`.

use axum::http::{
    HeaderMap, HeaderValue, Uri,
    header::{HOST, ORIGIN},
};

/// Maximum characters of an origin that a refusal repeats.
const SHOWN_MAX: usize = 64;

/// A page of another site.
#[derive(Debug, thiserror::Error)]
#[error(
    "origin not allowed: {0} is not this node; set `api.cors` in its configuration if pages of other sites may use it"
)]
pub(super) struct OtherSite(String);

/// # Errors
/// If the request comes from a page of another site, unless `all` pages are allowed.
pub(super) fn check(headers: &HeaderMap, all: bool) -> Result<(), OtherSite> {
    let host = headers.get(HOST).map(HeaderValue::as_bytes).unwrap_or_default();
    let other = headers.get_all(ORIGIN).iter().find(|origin| !is_of(origin, host));
    match other.filter(|_| !all) {
        None => Ok(()),
        Some(other) => {
            Err(OtherSite(String::from_utf8_lossy(other.as_bytes()).chars().take(SHOWN_MAX).collect()))
        }
    }
}

/// Whether a page was served by the host that it calls.
fn is_of(origin: &HeaderValue, host: &[u8]) -> bool {
    let Some(uri) = origin.to_str().ok().and_then(|origin| origin.parse::<Uri>().ok()) else { return false };
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    is_http
        && uri.authority().is_some_and(|authority| authority.as_str().as_bytes().eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admits(host: &str, origins: &[&str], all: bool) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_str(host).unwrap());
        for origin in origins {
            headers.append(ORIGIN, HeaderValue::from_str(origin).unwrap());
        }
        check(&headers, all).is_ok()
    }

    #[test]
    fn only_the_nodes_own_pages() {
        assert!(admits("localhost:8545", &[], false), "no browser");
        for (host, origin) in [
            ("localhost:8545", "http://localhost:8545"),
            ("Node1.example", "https://node1.EXAMPLE"),
            ("[::1]:8545", "http://[::1]:8545"),
        ] {
            assert!(admits(host, &[origin], false), "{origin}");
        }
        for origin in [
            "https://evil.example",
            "http://localhost",
            "http://localhost:3000",
            "http://localhost:8545.evil.example",
            "http://evil.example@localhost:8545",
            "chrome-extension://localhost:8545",
            "null",
            "",
            "file://",
        ] {
            assert!(!admits("localhost:8545", &[origin], false), "{origin}");
            assert!(admits("localhost:8545", &[origin], true), "{origin}");
        }
        assert!(
            !admits("localhost:8545", &["http://localhost:8545", "https://evil.example"], false),
            "each counts"
        );
    }
}
