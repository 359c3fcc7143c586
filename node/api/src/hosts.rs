//! The host names under which a node may be called.
//!
//! A web page may make its own name resolve to this node's address, even loopback. It can then call the node as if it
//! were the page's own server. The browser's rules then admit the page, and only the `Host` header reveals it.

use std::{collections::HashSet, net::IpAddr};

use axum::http::{HeaderMap, HeaderValue, header::HOST, uri::Authority};

/// Matches every name.
const ANY: &str = "*";
/// Maximum characters of a name that a refusal repeats.
const SHOWN_MAX: usize = 64;

/// The accepted names, besides addresses and `localhost`, which no page can have.
pub(super) struct Hosts {
    names: HashSet<String>,
    any: bool,
}

/// A host name that is not this node's.
#[derive(Debug, thiserror::Error)]
#[error(
    "invalid host specified: {0} is not a name of this node; call it by its IP address, or add the name to `api.allowed_hosts` in its \
     configuration"
)]
pub(super) struct UnknownHost(String);

impl Hosts {
    pub(super) fn new(allowed: &[String]) -> Hosts {
        let names = allowed.iter().map(|name| name.to_ascii_lowercase()).collect();
        Hosts { names, any: allowed.iter().any(|name| name == ANY) }
    }

    /// # Errors
    /// If the request names a host that is not this node. A request without a host does not come from a browser.
    pub(super) fn check(&self, headers: &HeaderMap) -> Result<(), UnknownHost> {
        match headers.get_all(HOST).iter().find(|host| !self.admits(host)) {
            None => Ok(()),
            Some(host) => {
                let shown = String::from_utf8_lossy(host.as_bytes()).chars().take(SHOWN_MAX).collect();
                Err(UnknownHost(shown))
            }
        }
    }

    fn admits(&self, host: &HeaderValue) -> bool {
        if self.any || host.is_empty() {
            return true;
        }
        let Some(authority) = host.to_str().ok().and_then(|host| host.parse::<Authority>().ok()) else {
            return false;
        };
        let name = authority.host().to_ascii_lowercase();
        let bare = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(&name);
        bare == "localhost" || bare.parse::<IpAddr>().is_ok() || self.names.contains(bare)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admits(allowed: &[&str], hosts: &[&str]) -> bool {
        let allowed: Vec<_> = allowed.iter().map(|name| (*name).to_owned()).collect();
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(HOST, HeaderValue::from_str(host).unwrap());
        }
        Hosts::new(&allowed).check(&headers).is_ok()
    }

    #[test]
    fn addresses_and_names_that_were_allowed() {
        for host in
            ["127.0.0.1:8545", "192.0.2.1", "[::1]:8545", "[2001:db8::1]", "localhost", "LocalHost:80", ""]
        {
            assert!(admits(&[], &[host]), "{host}");
        }
        assert!(admits(&[], &[]));
        for host in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example:8545",
            "evil.example:8545",
            "x y",
        ] {
            assert!(!admits(&[], &[host]), "{host}");
        }
        assert!(admits(&["Node1.example"], &["node1.example:8545"]));
        assert!(!admits(&["node1.example"], &["x.node1.example"]));
        assert!(!admits(&[], &["localhost", "evil.example"]), "each of them counts");
        assert!(admits(&["*"], &["evil.example"]));
        let error =
            Hosts::new(&[]).check(&HeaderMap::from_iter([(HOST, HeaderValue::from_static("evil.example"))]));
        assert!(error.unwrap_err().to_string().contains("evil.example is not a name of this node"));
    }
}
