//! [`NodeUrl`]: the URL at which a node's API is called.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use miette::Result;
use url::Url;

use crate::exit::{CommandFailure, Exit};

/// Shortest path segment that may be a key: many providers put keys into the path. Names of nodes are shorter.
const KEY_CHARS_MIN: usize = 20;
/// The replacement for such a segment.
const HIDDEN: &str = "***";

/// The URL of a node's API, or of a proxy in front of it. It has no user, password or query, and is displayed without
/// segments that may be keys.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct NodeUrl {
    pub(super) is_tls: bool,
    /// A name or an IP address, without brackets.
    pub(super) host: String,
    pub(super) port: u16,
    /// Host and port in URL form, without the default port.
    pub(super) authority: String,
    /// The path prefix under which a proxy serves the node, without a trailing slash.
    prefix: String,
}

impl NodeUrl {
    /// Parses a URL from the command line. Errors do not repeat the URL, because it may contain a secret.
    pub(crate) fn parse(text: &str) -> Result<NodeUrl> {
        let refused = |why: &str| CommandFailure::new(Exit::Usage, why);
        let unknown = || {
            refused(
                "the URL of a node's API is http://HOST:PORT, or https://HOST/PATH behind a proxy; the given URL is neither, and stays \
                 hidden because it may hold a secret",
            )
        };
        // A password may contain an unencoded slash; the rest of the URL then looks like a path.
        if text.contains(['@', '?', '#']) {
            let why = "the URL of a node's API has no user, password, query or fragment; the given URL stays hidden because it may hold a secret";
            return Err(refused(why).into());
        }
        let url = Url::parse(text).map_err(|_| unknown())?;
        let is_tls = match url.scheme() {
            "http" => false,
            "https" => true,
            _ => return Err(unknown().into()),
        };
        let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else {
            return Err(unknown().into());
        };
        let authority = match url.port() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let prefix = url.path().trim_end_matches('/').to_owned();
        Ok(NodeUrl { is_tls, host, port, authority, prefix })
    }

    /// The URL of a node that listens on an address. A node that listens on all addresses is called on loopback.
    pub(crate) fn of(mut listen: SocketAddr) -> NodeUrl {
        if listen.ip().is_unspecified() {
            listen.set_ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
        }
        let (host, port) = (listen.ip().to_string(), listen.port());
        NodeUrl { is_tls: false, host, port, authority: listen.to_string(), prefix: String::new() }
    }

    /// The path of a page, including the proxy's prefix.
    pub(super) fn path(&self, page: &str) -> String {
        format!("{}{page}", self.prefix)
    }

    /// Replaces possible keys of this URL in a text, because a server may repeat the path.
    pub(super) fn masked(&self, said: &str) -> String {
        let keys = self.prefix.split('/').filter(|part| may_be_key(part));
        keys.fold(said.to_owned(), |said, key| said.replace(key, HIDDEN))
    }
}

fn may_be_key(part: &str) -> bool {
    part.len() >= KEY_CHARS_MIN
}

impl fmt::Display for NodeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority)?;
        self.prefix
            .split('/')
            .skip(1)
            .try_for_each(|part| write!(f, "/{}", if may_be_key(part) { HIDDEN } else { part }))
    }
}

impl fmt::Debug for NodeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_as_others_read_them() {
        for (text, host, port, page, shown) in [
            ("http://127.0.0.1:8545", "127.0.0.1", 8545, "/health", "http://127.0.0.1:8545"),
            ("http://node.example/", "node.example", 80, "/health", "http://node.example"),
            ("https://node.example", "node.example", 443, "/health", "https://node.example"),
            ("https://a.example:8443/n/1/", "a.example", 8443, "/n/1/health", "https://a.example:8443/n/1"),
            ("http://[::1]:8545/n", "::1", 8545, "/n/health", "http://[::1]:8545/n"),
            ("HTTP://Node.example/a b", "node.example", 80, "/a%20b/health", "http://node.example/a%20b"),
        ] {
            let address = NodeUrl::parse(text).unwrap();
            assert_eq!((address.host.as_str(), address.port), (host, port), "{text}");
            assert_eq!(address.path("/health"), page, "{text}");
            assert_eq!((address.to_string().as_str(), address.is_tls), (shown, shown.starts_with("https")));
        }
        assert_eq!(NodeUrl::of("0.0.0.0:7".parse().unwrap()).to_string(), "http://127.0.0.1:7");
        assert_eq!(NodeUrl::of("192.0.2.1:7".parse().unwrap()).to_string(), "http://192.0.2.1:7");
        assert_eq!(NodeUrl::of("[::1]:7".parse().unwrap()), NodeUrl::parse("http://[::1]:7").unwrap());
    }

    /// Goal: a key in the path reaches only the server and never a log, even if other texts repeat it.
    #[test]
    fn a_key_in_the_path_is_not_shown() {
        let key = "canary0123456789abcd";
        let node = NodeUrl::parse(&format!("https://rpc.example/v2/{key}/eth/")).unwrap();
        assert_eq!(node.path("/health"), format!("/v2/{key}/eth/health"));
        assert_eq!(
            format!("{node} {node:?}"),
            "https://rpc.example/v2/***/eth https://rpc.example/v2/***/eth"
        );
        assert_eq!(node.masked(&format!("Cannot GET /v2/{key}/eth/health")), "Cannot GET /v2/***/eth/health");
        let short = NodeUrl::parse(&format!("https://rpc.example/{}", &key[1..])).unwrap();
        assert_eq!(short.to_string(), format!("https://rpc.example/{}", &key[1..]));
        assert_eq!(short.masked("/"), "/");
    }

    /// Goal: nothing that could be a secret is shown, however its owner wrote it.
    #[test]
    fn what_is_refused_is_not_repeated() {
        for text in [
            "https://user:canary@node.example",
            "https://canary@node.example/x",
            "http://user:12/canary@node.example",
            "https://node.example/?key=canary",
            "https://node.example/#canary",
            "user:canary@node.example:8545",
            "ftp://canary.example",
            "canary.example:8545",
            "http://user:canary",
            "http:canary canary",
            "http://",
            "",
        ] {
            let refused = NodeUrl::parse(text).unwrap_err();
            assert!(!format!("{refused} {refused:?}").contains("canary"), "{text}: {refused:?}");
            assert!(refused.to_string().starts_with("the URL of a node's API "), "{text}: {refused}");
        }
    }
}
