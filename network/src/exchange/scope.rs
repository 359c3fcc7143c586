//! [`Scope`] and [`Reach`]: which addresses a node may dial. A stranger's word must not make a node probe its own
//! private network.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// From where an address can be reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Scope {
    /// Reachable from the machine itself: loopback.
    Machine,
    /// Reachable only within a private network, or a provider's.
    Private,
    /// Reachable from anywhere.
    Public,
}

impl Scope {
    /// Returns `None` for an address that cannot be dialled, or that only stands for another one.
    pub(crate) fn of(address: SocketAddr) -> Option<Scope> {
        if address.port() == 0 {
            return None;
        }
        match address.ip() {
            IpAddr::V4(ip) => Scope::of_v4(ip),
            IpAddr::V6(ip) => Scope::of_v6(ip),
        }
    }

    fn of_v4(ip: Ipv4Addr) -> Option<Scope> {
        let [a, b, c, _] = ip.octets();
        match (a, b, c) {
            (127, _, _) => Some(Scope::Machine),
            (10, _, _) | (172, 16..=31, _) | (192, 168, _) | (100, 64..=127, _) => Some(Scope::Private),
            // "This network", link-local, protocol assignments and documentation, 6to4 relays, benchmarks, multicast
            // and everything after it.
            (0 | 224.., _, _)
            | (169, 254, _)
            | (192, 0, 0 | 2)
            | (192, 88, 99)
            | (198, 18 | 19, _)
            | (198, 51, 100)
            | (203, 0, 113) => None,
            _ => Some(Scope::Public),
        }
    }

    fn of_v6(ip: Ipv6Addr) -> Option<Scope> {
        match ip.segments() {
            _ if ip == Ipv6Addr::LOCALHOST => Some(Scope::Machine),
            [0xfc00..=0xfdff, ..] => Some(Scope::Private),
            // Teredo and 6to4 carry IPv4 addresses of any kind; 2001:db8 is for documentation.
            [0x2001, 0 | 0xdb8, ..] | [0x2002, ..] => None,
            [0x2000..=0x3fff, ..] => Some(Scope::Public),
            _ => None,
        }
    }
}

/// The addresses that a node dials on a stranger's word: public ones, and those in ranges to which the node itself
/// belongs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Reach {
    machine: bool,
    private: bool,
    ipv6: bool,
}

impl Reach {
    /// The reach of a node that is reached at these addresses.
    pub(crate) fn of(own: &[SocketAddr]) -> Reach {
        let has = |scope| own.iter().any(|address| Scope::of(*address) == Some(scope));
        Reach { machine: has(Scope::Machine), private: has(Scope::Private), ipv6: true }
    }

    /// Restricts the reach to the address family of the node's socket: an IPv4 socket cannot reach IPv6, an IPv6 socket
    /// reaches both.
    pub(crate) fn from(self, listening: SocketAddr) -> Reach {
        Reach { ipv6: listening.is_ipv6(), ..self }
    }

    pub(crate) fn allows(self, address: SocketAddr) -> bool {
        if address.is_ipv6() && !self.ipv6 {
            return false;
        }
        match Scope::of(address) {
            Some(Scope::Machine) => self.machine,
            Some(Scope::Private) => self.private,
            Some(Scope::Public) => true,
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ip: &str) -> SocketAddr {
        SocketAddr::new(ip.parse().unwrap(), 7400)
    }

    #[test]
    fn scopes() {
        for (scope, ips) in [
            (Some(Scope::Machine), vec!["127.0.0.1", "127.9.8.7", "::1"]),
            (
                Some(Scope::Private),
                vec!["10.0.0.1", "172.16.0.1", "172.31.9.9", "192.168.1.1", "100.64.0.1", "fd00::1"],
            ),
            (Some(Scope::Public), vec!["8.8.8.8", "172.32.0.1", "100.128.0.1", "192.0.1.1", "2a00:1450::1"]),
            (
                None,
                vec![
                    "0.0.0.0",
                    "0.1.2.3",
                    "169.254.169.254",
                    "192.0.0.8",
                    "192.0.2.1",
                    "198.18.0.1",
                    "198.51.100.7",
                    "203.0.113.7",
                    "224.0.0.1",
                    "255.255.255.255",
                    "::",
                    "fe80::1",
                    "ff02::1",
                    "2001:db8::1",
                    "2001::1",
                    "2002:a00:1::1",
                    "64:ff9b::a00:1",
                    "::ffff:10.0.0.1",
                ],
            ),
        ] {
            for ip in ips {
                assert_eq!(Scope::of(at(ip)), scope, "{ip}");
            }
        }
        assert_eq!(Scope::of("8.8.8.8:0".parse().unwrap()), None);
    }

    #[test]
    fn a_node_reaches_what_it_is_itself() {
        let reaches = |own: &[&str]| {
            let own: Vec<_> = own.iter().map(|ip| at(ip)).collect();
            ["127.0.0.1", "10.0.0.9", "8.8.8.8", "169.254.1.1"].map(|ip| Reach::of(&own).allows(at(ip)))
        };
        assert_eq!(reaches(&[]), [false, false, true, false]);
        assert_eq!(reaches(&["8.8.4.4"]), [false, false, true, false]);
        assert_eq!(reaches(&["0.0.0.0"]), [false, false, true, false]);
        assert_eq!(reaches(&["192.168.0.1"]), [false, true, true, false]);
        assert_eq!(reaches(&["127.0.0.1", "8.8.4.4"]), [true, false, true, false]);
        let by_ipv6 = |listening| Reach::of(&[]).from(at(listening)).allows(at("2a00:1450::1"));
        assert!(by_ipv6("::") && !by_ipv6("0.0.0.0"));
    }
}
